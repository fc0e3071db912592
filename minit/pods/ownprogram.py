"""
The program from which this command starts, made on its first use: where it lies, and when it is made anew.

`bin/minit`, which is installed as `minit`, executes it, or this command as `minit-plain` where it is not there.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from minit.base.errors import MinitError
from minit.base.progress import Progress
from minit.image.dump.command import build_command, is_current
from minit.image.dump.program import obstacle
from minit.stage0.files.durable import create_file, make_directory, move_into_place, sync_file

PROGRAMS = Path("/var/cache/minit")
"""Below it every command has the program of its own path."""

_PLAIN = "-plain"


def renew_program(fingerprint: str, progress: Progress) -> None:
    """
    Make the program of the command that is running, where it was not started from one that is current.

    That it cannot be made is no failure, and not tried again before there is another `fingerprint`.
    """
    command = sys.argv[0]
    # The interpreter of a dump has this module built in.
    if "_syscalls" in sys.builtin_module_names or os.geteuid() != 0 or not command.endswith(_PLAIN):
        return
    program = Path(f"{PROGRAMS}{os.path.abspath(command).removesuffix(_PLAIN)}")
    if obstacle() is not None or _has_failed(program, fingerprint) or is_current(program):
        return
    with suppress(MinitError, OSError):
        make_directory(program.parent, 0o755)
        if _is_roots_alone(program.parent):
            progress("making the command quicker (first use)", 0, None)
            _make(program, fingerprint)


def _make(program: Path, fingerprint: str) -> None:
    with TemporaryDirectory(dir=program.parent) as scratch:
        new, failure = Path(scratch, "program"), Path(scratch, "failure")
        try:
            build_command(new)
            new.chmod(0o755)
            sync_file(new)
        except (MinitError, OSError):
            create_file(failure, fingerprint.encode(), 0o644)
            move_into_place(failure, program)
        else:
            move_into_place(new, program)


def _has_failed(program: Path, fingerprint: str) -> bool:
    try:
        with open(program, "rb") as file:
            return file.read(len(fingerprint) + 1) == fingerprint.encode()
    except OSError:
        return False


def _is_roots_alone(directory: Path) -> bool:
    """Tell whether nobody else can put anything there, or there in place of it."""
    states = [path.stat() for path in (directory, *directory.parents)]
    return all(state.st_uid == 0 and not state.st_mode & 0o022 for state in states)
