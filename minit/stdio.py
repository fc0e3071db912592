"""The standard streams, which a caller may have closed or left without a reader."""

from __future__ import annotations

import os


def complain(line: str) -> None:
    """Write a line to standard error; that it cannot be written must not turn one failure into another."""
    try:
        os.write(2, f"{line}\n".encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody is left to tell


def open_standard_streams() -> None:
    """Fill gaps among 0, 1 and 2, or a file opened next, even the lock of a pod, would be taken for such a stream."""
    while (fd := os.open("/dev/null", os.O_RDWR)) <= 2:
        os.set_inheritable(fd, True)
    os.close(fd)
