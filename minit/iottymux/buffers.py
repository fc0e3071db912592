"""
Waiting output: what a sidecar has taken from an app's pipe and not passed on, and the queue of a client.

The former is in a file in memory, which PID 1 makes and keeps (memfd_create(2)), so that it outlives the sidecar. A
pipe would not do: pipes are counted for each user (pipe(7), pipe-user-pages-soft), and any app of the host that is root
can exhaust the limit.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections import deque
from collections.abc import Callable

_FIONREAD = 0x541B
_SPLICE_NONBLOCK = 2
# So many passed-on bytes stay in the file, since the removal takes time.
_WASTED_BYTES = 64 * 1024
# At the beginning of the file: where the pending bytes begin, how much was passed on so far, how much of the pending
# bytes is logged already, and the time of the logging in progress.
_HEAD = struct.Struct("<QQQQ")

Piece = bytes | memoryview

# The rough cost of a piece beyond its bytes. Pieces are not joined, since all queues share them: with a thousand
# clients copies for each would cost more.
_PIECE_COST_BYTES = 64
_PIECES_PER_WRITE = 64


class LineBuffer:
    """
    The file `fd`, with at most `most_bytes` pending, and for a while some passed-on bytes.

    The file's size says how much was taken, its head how much was passed on, and each changes in a single step: the
    next sidecar knows both, whenever this sidecar is killed. `is_ended` says that the pipe was at its end, `is_full`
    that there is no more room. `logged_bytes` of the pending bytes are logged, and `logging_ns` is the time of logging
    in progress, since 1970, or 0.
    """

    def __init__(self, fd: int, most_bytes: int) -> None:
        self.is_ended = self.is_full = False
        self._fd = fd
        self._most_bytes = most_bytes
        self._start, self._end, self._passed, self.logged_bytes, self.logging_ns = _read_head(fd)

    @property
    def is_interrupted(self) -> bool:
        """Tell whether pending bytes may have gone in part to where they are passed on to."""
        return bool(self.logged_bytes or self.logging_ns)

    def take(self, pipe: int) -> bytes:
        """Take the bytes in a pipe, without waiting, and return all pending bytes."""
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
        """Note that more is being logged, as of `now_ns`."""
        self.logging_ns = now_ns
        self._write_head()

    def note_logged(self, size_bytes: int) -> None:
        """Note that so many pending bytes are logged and not shown yet."""
        self.logged_bytes, self.logging_ns = min(size_bytes, self._end - self._start), 0
        self._write_head()

    def find_logged(self, written_bytes: Callable[[int], int]) -> None:
        """Note what a killed sidecar has logged; `written_bytes` returns how much the log has of a time since 1970."""
        if self.logging_ns:
            self.note_logged(self.logged_bytes + written_bytes(self.logging_ns))

    def pass_on(self, size_bytes: int) -> None:
        """Note that so many pending bytes are passed on."""
        self._start = min(self._start + size_bytes, self._end)
        self._passed += size_bytes
        self.logged_bytes = self.logging_ns = 0
        self._write_head()
        if self._start == self._end or self._start > _WASTED_BYTES:
            self._move_rest()

    def _move_rest(self) -> bool:
        """
        Move the pending bytes to the beginning, unless fewer bytes are passed on than pending; return whether moved.
        """
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
    """Return where the pending bytes begin and end, how much was passed on, and the progress of logging."""
    head = os.pread(fd, _HEAD.size, 0)
    start, passed, logged, logging_ns = _HEAD.unpack(head) if len(head) == _HEAD.size else (0, 0, 0, 0)
    end = max(os.fstat(fd).st_size, _HEAD.size)
    return (start if _HEAD.size <= start <= end else _HEAD.size), end, passed, logged, logging_ns


def unread_bytes(fd: int) -> int:
    """Return how much a pipe or stream socket holds."""
    size = bytearray(4)
    fcntl.ioctl(fd, _FIONREAD, size)
    return int.from_bytes(size, "little")


class Queue:
    """
    The waiting output of a client; `size` is the number of bytes.

    `line_end` ends a line for the client; None for a client without markers in its output. `marker` is the unwritten
    rest of a marker.

    The size should be at most `limit_bytes`, and somewhat less for small pieces.
    """

    def __init__(self, limit_bytes: int, line_end: bytes | None = b"\n", marker: bytes = b"") -> None:
        self.limit_bytes = limit_bytes
        self.size = 0
        self._line_end = line_end
        self._pieces: deque[Piece] = deque()
        self._dropped = 0
        self.marker = marker

    def __bool__(self) -> bool:
        return bool(self._pieces or self._dropped or self.marker)

    @property
    def is_over_limit(self) -> bool:
        """Tell whether there is more than there should be."""
        return self._excess > 0

    @property
    def missing_bytes(self) -> int:
        """The number of bytes dropped before the waiting output, and not reported yet."""
        return self._dropped

    @property
    def _excess(self) -> int:
        return self.size + _PIECE_COST_BYTES * len(self._pieces) - self.limit_bytes

    def put(self, data: Piece) -> None:
        """Append output."""
        self.size += len(data)
        self._pieces.append(data)

    def drop_to_fit(self) -> int:
        """Drop the oldest output until the queue fits into its limit; return the number of dropped bytes."""
        before = self.size
        while (excess := self._excess) > 0:
            self._forget(min(excess, len(self._pieces[0])))
        self._dropped += before - self.size
        return before - self.size

    def give_up(self) -> tuple[int, int]:
        """Forget all waiting output; return its size, and how much was missing before."""
        waiting, missing = self.size, self._dropped
        self._pieces.clear()
        self.size = self._dropped = 0
        return waiting, missing

    def note_gap(self, size_bytes: int) -> None:
        """Note that so many bytes are missing before the next output; nothing waits before."""
        self._dropped += size_bytes

    def next_pieces(self) -> tuple[list[Piece], int]:
        """
        Return the next pieces to write, and how many bytes are missing before them and not reported yet.

        A marker at the beginning stands for the missing bytes, if the client wants markers.
        """
        noted = 0
        if self._dropped and not self.marker:
            noted, self._dropped = self._dropped, 0
            self.marker = b"" if self._line_end is None else _dropped_marker(noted, self._line_end)
        pieces: list[Piece] = [self.marker] if self.marker else []
        if not self._dropped:
            pieces += [piece for piece, _ in zip(self._pieces, range(_PIECES_PER_WRITE))]
        return pieces, noted

    def taken(self, size_bytes: int) -> None:
        """Forget so many written bytes of `next_pieces`."""
        of_marker = min(size_bytes, len(self.marker))
        self.marker = self.marker[of_marker:]
        self._forget(size_bytes - of_marker)

    def _forget(self, size_bytes: int) -> None:
        self.size -= size_bytes
        while size_bytes:
            first = self._pieces[0]
            if len(first) <= size_bytes:
                self._pieces.popleft()
                size_bytes -= len(first)
            else:
                self._pieces[0] = memoryview(first)[size_bytes:]
                size_bytes = 0


def _dropped_marker(size_bytes: int, line_end: bytes) -> bytes:
    """Return the line that stands for lost output."""
    return b"%s[minit: %d bytes dropped]%s" % (line_end, size_bytes, line_end)


def interrupted_marker(line_end: bytes) -> bytes:
    """Return the line for the place where the sidecar was killed and another took over."""
    return b"%s[minit: output was interrupted]%s" % (line_end, line_end)
