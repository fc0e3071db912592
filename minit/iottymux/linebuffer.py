"""
Output that a sidecar has taken from an app's pipe and not passed on yet, such as the beginning of a line.

It is in a file in memory, which PID 1 makes and keeps (memfd_create(2)): it outlives the sidecar. It is no pipe, since
pipes are counted for each user (pipe(7), pipe-user-pages-soft), and any app of the host that is root can use those up.
"""

from __future__ import annotations

import fcntl
import os
import struct

_FIONREAD = 0x541B
_SPLICE_NONBLOCK = 2
# Passed-on bytes stay in the file until they are that many, since it costs time to let go of them.
_WASTED_BYTES = 64 * 1024
# At the beginning of the file: where in it what is not passed on begins, how much was passed on so far, how much of
# what is not is logged already, and the time of what is being logged.
_HEAD = struct.Struct("<QQQQ")


class LineBuffer:
    """
    The file `fd`, with at most `most_bytes` that are not passed on, and for a while some that are.

    Its size says how much was taken, its head how far that was passed on, and each changes in one step: so the next
    sidecar knows both, whenever this one is killed. `is_ended` says that the pipe was at its end, `is_full` that no
    more can be kept. `logged_bytes` of what is not passed on are logged, and `logging_ns` is the time of what may be,
    since 1970, or 0.
    """

    def __init__(self, fd: int, most_bytes: int) -> None:
        self.is_ended = self.is_full = False
        self._fd = fd
        self._most_bytes = most_bytes
        self._start, self._end, self._passed, self.logged_bytes, self.logging_ns = _read_head(fd)

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
                # RLIMIT_FSIZE, or no memory.
                if self._move_rest():
                    return self.take(pipe)
                self.is_full = True
        data = os.pread(self._fd, self._end - self._start, self._start)
        return os.read(pipe, self._most_bytes) if self.is_full and not data else data

    def note_logging(self, now_ns: int) -> None:
        """Note that more is logged, as of `now_ns`."""
        self.logging_ns = now_ns
        self._write_head()

    def note_logged(self, size_bytes: int) -> None:
        """Note that so much is logged and has to be shown yet."""
        self.logged_bytes, self.logging_ns = min(size_bytes, self._end - self._start), 0
        self._write_head()

    def pass_on(self, size_bytes: int) -> None:
        """Note that so much of what was taken is passed on."""
        self._start = min(self._start + size_bytes, self._end)
        self._passed += size_bytes
        self.logged_bytes = self.logging_ns = 0
        self._write_head()
        if self._start == self._end or self._start > _WASTED_BYTES:
            self._move_rest()

    def _move_rest(self) -> bool:
        """Move what is not passed on to the beginning, unless what is passed on is less; return whether it is there."""
        rest = self._end - self._start
        if self._start - _HEAD.size <= rest:
            return False
        # Killed in between, the start is behind the end.
        if rest:
            os.pwrite(self._fd, os.pread(self._fd, rest, self._start), _HEAD.size)
        os.ftruncate(self._fd, _HEAD.size + rest)
        self._start, self._end = _HEAD.size, _HEAD.size + rest
        self._write_head()
        return True

    def _write_head(self) -> None:
        os.pwrite(self._fd, _HEAD.pack(self._start, self._passed, self.logged_bytes, self.logging_ns), 0)


def make_buffer() -> int:
    """Return the descriptor of a new file, empty."""
    return os.memfd_create("output", os.MFD_CLOEXEC)


def buffered_bytes(fd: int) -> int:
    """Return how much was taken and not passed on."""
    start, end, _, _, _ = _read_head(fd)
    return end - start


def unlogged_bytes(fd: int) -> int:
    """Return how much was taken and is not even logged."""
    start, end, _, logged, _ = _read_head(fd)
    return max(0, end - start - logged)


def passed_bytes(fd: int) -> int:
    """Return how much was passed on so far."""
    return _read_head(fd)[2]


def _read_head(fd: int) -> tuple[int, int, int, int, int]:
    """Return where what is not passed on begins and ends, how much was passed on, and what of the rest is logged."""
    head = os.pread(fd, _HEAD.size, 0)
    start, passed, logged, logging_ns = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0, 0)
    end = max(os.fstat(fd).st_size, _HEAD.size)
    return (start if _HEAD.size <= start <= end else _HEAD.size), end, passed, logged, logging_ns


def unread_bytes(fd: int) -> int:
    """Return how much a pipe or stream socket holds."""
    size = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, size)
    return int.from_bytes(size, "little")
