"""`--uuid-file`: the UUID of a pod from the file that `--uuid-file-save` wrote, in the place of the first operand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from minit.errors import PodError, describe


class UuidFileError(PodError):
    """The file with the UUID cannot be read."""


class UuidFileOption(click.Option):
    """An option whose file has the first operand; its command does not see it."""


uuid_file_first_option = click.option(
    "--uuid-file", cls=UuidFileOption, expose_value=False, metavar="FILE", help="Read the UUID from a file."
)


def read_uuid(path: Path) -> str:
    """Return the UUID in a file; UuidFileError if there is none to be read."""
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UuidFileError(f"cannot read the UUID from {describe(error)}") from error


def with_uuids_of_files(
    parameters: Iterable[click.Parameter], found: Iterable[tuple[str, str]], operands: list[str]
) -> list[str]:
    """Return the operands of a command line, before them the UUIDs of the files that its flags name."""
    names = {name for option in parameters if isinstance(option, UuidFileOption) for name in option.opts}
    return [*(read_uuid(Path(value)) for name, value in found if name in names), *operands]
