"""`--uuid-file`: the UUID of a pod from the file that `--uuid-file-save` wrote, in the place of the first operand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import click

from minit.base.errors import EXIT_FAILURE, PodError, describe

F = TypeVar("F", bound=Callable[..., Any])

_EITHER = "give either a UUID or --uuid-file"


class UuidFileError(PodError):
    """The file with the UUID cannot be read."""


class UuidFileOption(click.Option):
    """
    An option whose file has the first operand; the command does not see the option.

    If it `stands_alone`, there is no operand beside it. `exit_code` is for a file that cannot be read.
    """

    def __init__(
        self, *arguments: Any, stands_alone: bool = False, exit_code: int = EXIT_FAILURE, **settings: Any
    ) -> None:
        super().__init__(*arguments, **settings)
        self.stands_alone = stands_alone
        self.exit_code = exit_code


def _option(**settings: Any) -> Callable[[F], F]:
    return click.option(
        "--uuid-file",
        cls=UuidFileOption,
        expose_value=False,
        metavar="FILE",
        type=click.Path(),
        help="Read the UUID from a file.",
        **settings,
    )


uuid_file_first_option = _option()


def one_pod(*, exit_code: int = EXIT_FAILURE) -> Callable[[F], F]:
    """Return the decorator for the operand `uuid`, or --uuid-file instead."""
    argument = click.argument("uuid", metavar="UUID", required=False, callback=_require)
    option = _option(stands_alone=True, exit_code=exit_code)
    return lambda command: option(argument(command))


def some_pods(command: F) -> F:
    """Give a command the operands `uuids`, one or more, or --uuid-file instead."""
    argument = click.argument("uuids", metavar="UUID...", nargs=-1, callback=_require)
    return _option(stands_alone=True)(argument(command))


def some_or_all_pods(which: str) -> Callable[[F], F]:
    """Return the decorator for the operands of `some_pods`, or `every` for --all, which means `which`."""
    every = click.option("-a", "--all", "every", is_flag=True, is_eager=True, help=f"All {which}, without operands.")
    return lambda command: every(some_pods(command))


def with_uuids_of_files(ctx: click.Context, found: Iterable[tuple[str, str]], operands: list[str]) -> list[str]:
    """Return the operands of a command line, after the UUIDs of the files named by flags."""
    options = {
        name: option for option in ctx.command.params if isinstance(option, UuidFileOption) for name in option.opts
    }
    named = [(options[name], Path(value)) for name, value in found if name in options]
    if operands and any(option.stands_alone for option, _ in named):
        raise click.UsageError(_EITHER, ctx)
    return [*(_read_uuid(path, option.exit_code) for option, path in named), *operands]


def _read_uuid(path: Path, exit_code: int) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        failure = UuidFileError(f"cannot read the UUID from {describe(error)}")
        failure.exit_code = exit_code
        raise failure from error


def _require(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    option = "--all" if ctx.params.get("every") else "--filter" if ctx.params.get("filters") else None
    if value and option:
        raise click.UsageError(f"{option} is for all pods: it has no operands beside it", ctx)
    if not value and not option and not ctx.resilient_parsing:
        raise click.UsageError(_EITHER, ctx)
    return value
