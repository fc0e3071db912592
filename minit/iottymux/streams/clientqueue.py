"""The output that waits for one client, and the marker that stands for what it did not get."""

from __future__ import annotations

from collections import deque

Piece = bytes | memoryview

# What a piece costs beyond its bytes, about. Pieces stay as they are, since all queues share them: with a thousand
# clients that would cost more if each had its own.
_PIECE_COST_BYTES = 64
_PIECES_PER_WRITE = 64


class Queue:
    """
    Waiting output, of which `size` says how much it is.

    `line_end` is what ends a line for the client; None for one that wants no markers in its output.

    It should be no more than `limit_bytes`, and somewhat less if it came in small pieces.
    """

    def __init__(self, limit_bytes: int, line_end: bytes | None = b"\n") -> None:
        self.limit_bytes = limit_bytes
        self.size = 0
        self._line_end = line_end
        self._pieces: deque[Piece] = deque()
        self._dropped = 0
        self._marker = b""

    def __bool__(self) -> bool:
        return bool(self._pieces or self._dropped or self._marker)

    @property
    def is_over_limit(self) -> bool:
        """Tell whether there is more than there should be."""
        return self._excess > 0

    @property
    def missing_bytes(self) -> int:
        """The number of bytes that were dropped before what waits, and not told yet."""
        return self._dropped

    @property
    def _excess(self) -> int:
        return self.size + _PIECE_COST_BYTES * len(self._pieces) - self.limit_bytes

    def put(self, data: Piece) -> None:
        """Append output."""
        self.size += len(data)
        self._pieces.append(data)

    def drop_to_fit(self) -> int:
        """Drop the oldest output until it is no more than it should be, and return how much that was."""
        before = self.size
        while (excess := self._excess) > 0:
            self._forget(min(excess, len(self._pieces[0])))
        self._dropped += before - self.size
        return before - self.size

    def give_up(self) -> tuple[int, int]:
        """Forget all that waits, and return how much output that is, and how much was missing before it."""
        waiting, missing = self.size, self._dropped
        self._pieces.clear()
        self.size = self._dropped = 0
        return waiting, missing

    def note_gap(self, size_bytes: int) -> None:
        """Say at the place where the next output goes, with nothing before it, that so much is missing."""
        self._dropped += size_bytes

    def next_pieces(self) -> tuple[list[Piece], int]:
        """
        Return what to write next, and how many bytes are missing before it that were not told yet.

        A marker at its beginning stands for them, if the client wants any.
        """
        noted = 0
        if self._dropped and not self._marker:
            noted, self._dropped = self._dropped, 0
            self._marker = b"" if self._line_end is None else _dropped_marker(noted, self._line_end)
        pieces: list[Piece] = [self._marker] if self._marker else []
        if not self._dropped:
            pieces += [piece for piece, _ in zip(self._pieces, range(_PIECES_PER_WRITE))]
        return pieces, noted

    @property
    def marker_bytes(self) -> int:
        """The size of the marker that is written next, as far as it is not written yet."""
        return len(self._marker)

    def taken(self, size_bytes: int) -> None:
        """Forget so much of what `next_pieces` returned."""
        of_marker = min(size_bytes, len(self._marker))
        self._marker = self._marker[of_marker:]
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
    """Return the line that stands for output which a client did not get."""
    return b"%s[minit: %d bytes dropped]%s" % (line_end, size_bytes, line_end)


def interrupted_marker(line_end: bytes) -> bytes:
    """Return the line that is shown where the sidecar was killed and another one took over."""
    return b"%s[minit: output was interrupted]%s" % (line_end, line_end)
