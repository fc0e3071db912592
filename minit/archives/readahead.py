"""Bytes that a thread reads ahead, so that one processor reads or decompresses while another one uses them."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 1 << 20
_CHUNKS_AHEAD = 8
_POLL_SECONDS = 0.1  # between looks at whether anybody still wants what is read


class Pieces(io.RawIOBase):
    """Reads from what an iterator yields, of any size."""

    def __init__(self, pieces: Iterator[memoryview | bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` and return how many bytes it got; 0 at the end."""
        view = memoryview(buffer).cast("B")
        filled = 0
        while filled < len(view):
            if not self._piece:
                try:
                    self._piece = memoryview(next(self._pieces))
                except StopIteration:
                    break
            count = min(len(view) - filled, len(self._piece))
            view[filled : filled + count] = self._piece[:count]
            self._piece = self._piece[count:]
            filled += count
        return filled


def joined(pieces: Iterator[memoryview | bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of a megabyte or more, but for the last one."""
    together: list[memoryview | bytes] = []
    size_bytes = 0
    for piece in pieces:
        together.append(piece)
        size_bytes += len(piece)
        if size_bytes >= _CHUNK:
            yield b"".join(together)
            together, size_bytes = [], 0
    yield b"".join(together)


class ReadAhead(io.RawIOBase):
    """
    Hands on what a thread gets of `source`, and the error that ended it.

    `close` ends the thread; nobody else may use `source` before.
    """

    def __init__(self, source: Iterator[bytes]) -> None:
        self._source = source
        self._chunks: Queue[memoryview | BaseException] = Queue(_CHUNKS_AHEAD)
        self._left = memoryview(b"")
        self._ended = False
        self._unwanted = threading.Event()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` with what has been read and return how many bytes; 0 at the end."""
        view = memoryview(buffer).cast("B")
        if not self._left and not self._ended:
            chunk = self._chunks.get()
            if isinstance(chunk, BaseException):
                self._ended = True
                raise chunk
            self._left, self._ended = chunk, not chunk
        count = min(len(view), len(self._left))
        view[:count] = self._left[:count]
        self._left = self._left[count:]
        return count

    def chunks(self) -> Iterator[memoryview]:
        """Yield, in place of `readinto`, what has been read."""
        while not self._ended:
            chunk = self._chunks.get()
            if isinstance(chunk, BaseException):
                self._ended = True
                raise chunk
            self._ended = not chunk
            yield chunk

    def close(self) -> None:
        """End the thread."""
        if not self.closed:
            self._unwanted.set()
            with suppress(Empty):
                while True:
                    self._chunks.get_nowait()
            self._thread.join()
        super().close()

    def _read(self) -> None:
        try:
            for chunk in self._source:
                if chunk:
                    self._put(memoryview(chunk))
                if self._unwanted.is_set():
                    return
            self._put(memoryview(b""))
        except BaseException as error:
            self._put(error)

    def _put(self, chunk: memoryview | BaseException) -> None:
        while not self._unwanted.is_set():
            with suppress(Full):
                self._chunks.put(chunk, timeout=_POLL_SECONDS)
                return
