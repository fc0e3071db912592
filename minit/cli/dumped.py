"""
The first and the last steps of the command where it is a program that was dumped with everything imported.

How it is made: minit/image/dump/command.py. Where the dump is not current, Python itself runs the command.
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


def start(arguments: Sequence[str], variables: Sequence[bytes], ignored: Sequence[int]) -> NoReturn:
    """
    Run the command line of this process.

    The second of the arguments is the path of the command that Python runs. `ignored` are the signals that the caller
    ignores.
    """
    try:
        take_over(arguments, variables, ignored)
        sys.argv[:] = arguments[1:]
        gc.enable()
        if os.environ.get("PYTHONUNBUFFERED") and isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(write_through=True)
    except Exception:
        os.execv(arguments[1], list(arguments[1:]))
    run(lambda: _main(is_interruptible=signal.SIGINT not in ignored))


def _main(*, is_interruptible: bool) -> None:
    try:
        if is_interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.modules["minit.__main__"].main()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
