"""The standard streams, which a caller may have closed, left without a reader, or made a terminal."""

from __future__ import annotations

import os
import select
import stat
import sys
from collections.abc import Callable

from minit.base.harmless import harmless
from minit.linux.loop import wait_events

# A ready descriptor takes so much at once: PIPE_BUF for a pipe, and more for all else.
_READY_BYTES = 4096

_raw_terminal = False
_is_console_shared = False
_record: Callable[[str], None] | None = None


def record_complaints(record: Callable[[str], None]) -> None:
    """Give every later line also to `record`, which must not raise an error."""
    global _record
    _record = record


def complain(line: str, *, ends_another: bool = False) -> None:
    """
    Write a line to standard error; an error of the write is ignored, as it must not hide the failure in the line.

    With `ends_another` the line first ends an unfinished line there.
    """
    line = harmless(line)
    if _record is not None:
        _record(line)
    try:
        end = line_end(2)
        os.write(2, (end if ends_another else b"") + line.encode() + end)
    except OSError:
        pass  # nobody is left to tell


def complain_at_once(line: str) -> None:
    """Write a line to standard error, but lose the line, or its end, rather than wait for a reader."""
    line = harmless(line)
    if _record is not None:
        _record(line)
    try:
        fd = reopen_without_blocking(2, os.O_WRONLY)
        text = line.encode() + line_end(fd)
        try:
            if fd != 2:
                os.write(fd, text)
            elif wait_events({fd: select.POLLOUT}, 0):
                os.write(fd, text[:_READY_BYTES])
        finally:
            if fd != 2:
                os.close(fd)
    except OSError:
        pass  # it is full, or nobody is left to tell


def write_all(fd: int, data: bytes) -> None:
    """Write all of the data, also with O_NONBLOCK: others share the open file, and may set the flag at any time."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            await_room(fd)


def await_room(fd: int) -> None:
    """Wait until a non-blocking descriptor accepts data, or never will."""
    wait_events({fd: select.POLLOUT})


def line_end(fd: int) -> bytes:
    """Return the end of a line for a standard stream."""
    return b"\r\n" if _raw_terminal and os.isatty(fd) else b"\n"


def expect_raw_terminal(is_raw: bool = True) -> None:
    """From now on the caller's terminal is raw: a line feed alone does not return to the first column there."""
    global _raw_terminal
    _raw_terminal = is_raw


def share_console() -> None:
    """Treat standard output and error as a console from now on: output of apps must not act on the console."""
    global _is_console_shared
    _is_console_shared = True


def is_console_shared() -> bool:
    """Tell whether output of apps must not act on the readers of standard output and error."""
    return _is_console_shared


def open_standard_streams() -> None:
    """Fill gaps among 0, 1 and 2, or a file opened next, even the lock of a pod, would be taken for such a stream."""
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)


def reopen_without_blocking(fd: int, access: int) -> int:
    """
    Return a non-blocking descriptor of a terminal or FIFO, or `fd` itself for other files and after a failure.

    O_NONBLOCK belongs to the open file, which is the caller's; hence another open file.
    """
    if not (os.isatty(fd) or stat.S_ISFIFO(os.fstat(fd).st_mode)):
        return fd
    try:
        return os.open(f"/proc/self/fd/{fd}", access | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return fd  # a FIFO that nobody reads, or not ours to open


def flush_output() -> None:
    """Write out what is buffered, before another program takes this process over."""
    sys.stdout.flush()
    sys.stderr.flush()
