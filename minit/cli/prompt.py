"""A prompt on the terminal: each line that is typed is a command line, run in a process of its own."""

from __future__ import annotations

import os
import shlex
import signal
import termios
from collections.abc import Sequence
from typing import NoReturn

import click

from minit.cli.main import run
from minit.forks import PROMPT_COMMAND, fork
from minit.loop import wait_readable
from minit.stdio import write_all

_INTERRUPTS = (signal.SIGINT, signal.SIGQUIT)


def run_lines(root: click.Group) -> None:
    """Run command lines of `root` until the end of input, which Ctrl-D at the prompt makes."""
    settings = termios.tcgetattr(0) if os.isatty(0) else None
    # Unbuffered, as what follows a line is for the command in it.
    lines = open(0, "rb", buffering=0, closefd=False)
    while True:
        for number in _INTERRUPTS:
            signal.signal(number, _forget_line)
        try:
            if settings is not None:
                # A killed command may have left it raw.
                termios.tcsetattr(0, termios.TCSADRAIN, settings)
                if not _is_typed():
                    write_all(1, f"{os.uname().nodename}> ".encode())
            line = lines.readline()
            if not line:
                return
            # A break on a serial line comes as NUL.
            words = shlex.split(line.replace(b"\0", b"").decode(errors="replace"), comments=True)
            # Meant for the command from now on, to which the terminal sends them as well.
            for number in _INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
        except _ForgottenLine:
            write_all(1, b"\n")
        except ValueError as error:
            os.write(2, f"minit: {str(error).lower()}\n".encode())
        else:
            # Users of a shell type it.
            if words[:1] == [root.name]:
                words = words[1:]
            if words:
                _run(words, root)


def _is_typed() -> bool:
    """Return whether there is a line already, under which no prompt belongs."""
    return bool(wait_readable([0], 0))


class _ForgottenLine(Exception):
    """Somebody has typed Ctrl-C."""


def _forget_line(*_: object) -> NoReturn:
    raise _ForgottenLine


def _run(words: Sequence[str], root: click.Group) -> None:
    os.waitpid(fork(PROMPT_COMMAND, lambda: _run_interruptibly(words, root)), 0)


def _run_interruptibly(words: Sequence[str], root: click.Group) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    return run(words, root)
