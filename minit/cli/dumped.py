"""
The first and the last steps of the command where it is a program that was dumped with everything imported.

How it is made: minit/image/dump/command.py. What it does not have is run by Python itself, as is all of it where the
dump is not current.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from entrypoints._dumped import run, take_over
from minit.image.dump.command import COMMANDS_LEFT_OUT


class _LeftOut:
    """A finder that gives the whole command line to Python when it needs one of the modules that are not here."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Return if it is another module."""
        if name in COMMANDS_LEFT_OUT:
            run_plain()


def start(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> NoReturn:
    """
    Run the command line of this process.

    The second of the arguments is the path of the command that Python runs. `ignored` are the signals that the caller
    ignores.
    """
    try:
        take_over(arguments, variables, ignored)
        sys.argv[:] = arguments[1:]
        sys.meta_path.insert(0, _LeftOut)
        gc.enable()
        if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(write_through=True)
        if signal.SIGINT not in ignored:
            signal.signal(signal.SIGINT, signal.default_int_handler)
    except Exception:
        os.execv(arguments[1], list(arguments[1:]))
    run(_main)


def run_plain() -> NoReturn:
    """Let Python run the command line in the place of this process."""
    os.execv(sys.argv[0], sys.argv)


def _main() -> None:
    try:
        sys.modules["minit.__main__"].main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
