"""
A hand of the daemon of `minit cri`: a process that carries out one command line after the other.

Each saves the start of a program. What a process might have of one command is nothing to the next one: a hand ends, and
says so, when it has another descriptor than before or a child, or when the command wanted it to end.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, FailureKind
from minit.cli.main import run_telling, settle
from minit.cli.standardstreams import open_streams
from minit.cri.hands.protocol import CODE, IS_LAST, KIND
from minit.linux.messages import Socket, receive_message, send_message

_STREAMS = 3

CarryOut = Callable[[Sequence[str]], tuple[int, FailureKind | None]]
"""Carries out a command line, and returns its exit code and what kind of failure that is."""


def main() -> NoReturn:
    """Be a hand, until its end."""
    settle()
    serve(run_telling)
    sys.exit(0)


def serve(carry_out: CarryOut) -> None:
    """Carry out what is asked for at the standard input, until its end."""
    link = socket.socket(fileno=os.dup(0))
    os.set_inheritable(link.fileno(), False)
    usual = _usual_streams()
    try:
        while _serve_one(link, carry_out, usual):
            pass
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass  # the daemon is gone, and what it had asked for is done


def _serve_one(link: Socket, carry_out: CarryOut, usual: Sequence[int]) -> bool:
    """Carry out one command, and return whether another one may follow."""
    message, descriptors = receive_message(link)
    if message is None:
        return False
    command, *streams = descriptors[: 1 + _STREAMS]
    words = os.fsdecode(os.pread(command, os.fstat(command).st_size, 0)).split("\0")[:-1]
    before = _descriptors()
    _put(streams)
    # For the name of a stream that cannot be written to, and as the last command may have given them up.
    open_streams()
    try:
        (code, kind), is_last = carry_out(words), False
    except SystemExit as end:
        code, kind, is_last = end.code if isinstance(end.code, int) else EXIT_FAILURE, None, True
    _put(usual)
    is_last = is_last or _descriptors() != before or _has_children()
    for fd in descriptors:
        os.close(fd)
    send_message(link, {CODE: code, KIND: kind, IS_LAST: is_last})
    return not is_last


def _usual_streams() -> list[int]:
    """Return descriptors of what a hand has as its streams between two commands."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    return [null, null, os.dup(2)]


def _put(streams: Sequence[int]) -> None:
    for number, fd in enumerate(streams):
        os.dup2(fd, number)


def _descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def _has_children() -> bool:
    """Tell whether a process is left, which somebody else has to wait for, or one that nobody has waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
