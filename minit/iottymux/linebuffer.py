"""
What a sidecar has taken from an app's pipe and not passed on yet, such as the beginning of a line.

It is in a file in memory, which PID 1 makes and keeps (memfd_create(2)): it outlives the sidecar. It is no pipe, since
pipes are counted for each user (pipe(7), pipe-user-pages-soft), and any app of the host that is root can use those up.
"""

from __future__ import annotations

import fcntl
import os

_FIONREAD = 0x541B
_SPLICE_NONBLOCK = 2


class LineBuffer:
    """
    The file `fd`, of `most_bytes` at most and as many that are passed on already.

    Its size is how much was taken, its position how far that was passed on: so whenever a sidecar is killed, the next
    one knows both. `is_ended` says that the pipe was at its end, `is_full` that no more can be kept.
    """

    def __init__(self, fd: int, most_bytes: int) -> None:
        self.is_ended = self.is_full = False
        self._fd = fd
        self._most_bytes = most_bytes
        self._end = os.fstat(fd).st_size
        self._start = os.lseek(fd, 0, os.SEEK_CUR)
        if self._start > self._end:
            self._start = os.lseek(fd, 0, os.SEEK_SET)

    def take(self, pipe: int) -> bytes:
        """Take what a pipe has, without waiting, and return all that is to be passed on."""
        room = self._most_bytes - (self._end - self._start)
        self.is_full = not room
        if room:
            try:
                taken = os.splice(pipe, self._fd, room, offset_dst=self._end, flags=_SPLICE_NONBLOCK)
                self.is_ended = not taken
                self._end += taken
                self.is_full = taken == room
            except BlockingIOError:
                pass
            except OSError:
                self.is_full = True  # RLIMIT_FSIZE, or no memory
        data = os.pread(self._fd, self._end - self._start, self._start)
        return os.read(pipe, self._most_bytes) if self.is_full and not data else data

    def pass_on(self, size_bytes: int) -> None:
        """Note that so much of what was taken is passed on."""
        self._start = min(self._start + size_bytes, self._end)
        rest = self._end - self._start
        os.lseek(self._fd, self._start, os.SEEK_SET)
        if self._start > rest:
            # Moved to the beginning. Killed in between, the position is behind the end.
            os.pwrite(self._fd, os.pread(self._fd, rest, self._start), 0)
            os.ftruncate(self._fd, rest)
            self._start, self._end = os.lseek(self._fd, 0, os.SEEK_SET), rest


def make_buffer() -> int:
    """Return the descriptor of a new file, empty."""
    return os.memfd_create("output", os.MFD_CLOEXEC)


def buffered_bytes(fd: int) -> int:
    """Return how much was taken and not passed on."""
    size_bytes, position = os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_CUR)
    return size_bytes - position if position <= size_bytes else size_bytes


def unread_bytes(fd: int) -> int:
    """Return how much a pipe or stream socket holds."""
    size = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, size)
    return int.from_bytes(size, "little")
