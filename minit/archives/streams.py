"""Streams of image files: uncompressed within bounds, copied to sinks, read ahead by a thread."""

from __future__ import annotations

import bz2
import io
import lzma
import re
import sys
import threading
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from queue import Empty, Full, Queue
from typing import TYPE_CHECKING, Protocol

from minit.base.errors import ImageError
from minit.base.value import Value

if sys.version_info >= (3, 14):
    from compression import zstd as zstd
else:
    from backports import zstd as zstd

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 256 << 10
# The first piece of a stream, then twice as much each time: an unused rest of a piece is copied, and read again.
_PIECE_BYTES = 512
# Beginning a stream costs as much as some ten thousand bytes. Formats with a stream for each file have larger streams.
_FREE_STREAMS = 1000
_STREAM_BYTES, _PACKED_BYTES = 512, 64
_NO_PADDING = re.compile(rb"[^\0]")
_XZ_MEMORY_LIMIT_BYTES = 128 << 20  # xz -9 needs 65 MiB to decompress
_ZSTD_WINDOW_LOG = 27  # 128 MiB, which zstd(1) accepts by default

_AHEAD_BYTES = 1 << 20
_CHUNKS_AHEAD = 8
_POLL_SECONDS = 0.1  # between checks for a reader that has gone


class Limits(Value):
    """The largest decompressed image that is no decompression bomb."""

    size_bytes: int = 20 << 30
    ratio: int = 1000
    # Below this size no ratio is suspicious: a small image may be full of zeros.
    ratio_from_bytes: int = 64 << 20


DEFAULT_LIMITS = Limits()


class Readable(Protocol):
    """A file, read from beginning to end."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to `size` bytes; nothing at the end."""


class _Decompressor(Protocol):
    """The common part of bz2's and lzma's decompressors."""

    @property
    def eof(self) -> bool: ...
    @property
    def needs_input(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gunzip:
    """zlib's decompressor with the interface of bz2's and lzma's."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)

    @property
    def eof(self) -> bool:
        return self._zlib.eof

    @property
    def needs_input(self) -> bool:
        return not self._zlib.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._zlib.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return self._zlib.decompress(self._zlib.unconsumed_tail + data, max_length)


def _unxz() -> _Decompressor:
    return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_LIMIT_BYTES)


class _Unzstd:
    """zstd's decompressor; damaged data is a ValueError here."""

    def __init__(self) -> None:
        self._zstd = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: _ZSTD_WINDOW_LOG})

    @property
    def eof(self) -> bool:
        return self._zstd.eof

    @property
    def needs_input(self) -> bool:
        return self._zstd.needs_input

    @property
    def unused_data(self) -> bytes:
        return self._zstd.unused_data

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        try:
            return self._zstd.decompress(data, max_length)
        except zstd.ZstdError as error:
            raise ValueError(str(error)) from error


_FORMATS: tuple[tuple[bytes, str, Callable[[], _Decompressor]], ...] = (
    (b"\x1f\x8b", "gzip", _Gunzip),
    (b"BZh", "bzip2", bz2.BZ2Decompressor),
    (b"\xfd7zXZ\x00", "xz", _unxz),
    (b"\x28\xb5\x2f\xfd", "zstd", _Unzstd),
    # A skippable frame of zstd, with which some programs begin; other skippable frames have another first byte.
    (b"\x50\x2a\x4d\x18", "zstd", _Unzstd),
)


_MAGIC_BYTES = max(len(magic) for magic, _, _ in _FORMATS)


def compression_of(beginning: bytes | memoryview) -> str | None:
    """Return the name of the compression of a file with this beginning, None for a plain file."""
    first = bytes(beginning[:_MAGIC_BYTES])
    return next((name for magic, name, _ in _FORMATS if first.startswith(magic)), None)


class Uncompressed(io.RawIOBase):
    """
    The uncompressed tar inside an image file, whatever its compression; reading enforces `limits`.

    `file` is not closed. `consumed_bytes` is the position in `file`. ImageError if the image is damaged or too large.
    """

    def __init__(self, file: Readable, source: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self._file = file
        self._source = source
        self._limits = limits
        self._produced_bytes = 0
        self._hole_bytes = 0  # apart, since another thread may count holes
        self._input, self._place = file.read(_CHUNK) or b"", 0
        self._piece_bytes, self._streams = _PIECE_BYTES, 1
        self.consumed_bytes = len(self._input)
        self._format = "tar"
        self._new: Callable[[], _Decompressor] | None = None
        for magic, name, new in _FORMATS:
            if self._input.startswith(magic):
                self._format, self._new = name, new
        self._decompressor = self._new() if self._new else None

    @property
    def compressed(self) -> bool:
        """Tell whether the file is compressed."""
        return self._new is not None

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` with uncompressed bytes and return how many; 0 at the end."""
        view = memoryview(buffer).cast("B")
        data = self.read(len(view))
        view[: len(data)] = data
        return len(data)

    def read(self, size: int = -1, /) -> bytes:
        """Return up to `size` uncompressed bytes, all for a negative size; nothing at the end."""
        if size < 0:
            return self.readall()
        data = self._copy(size) if self._decompressor is None else self._decompress(size)
        self._produced_bytes += len(data)
        self._check_limits()
        return data

    def count_holes(self, size_bytes: int) -> None:
        """Count the zeros of a sparse file, which will be written, like bytes of the tar."""
        self._hole_bytes += size_bytes
        self._check_limits()

    def _has_input(self) -> bool:
        """Read more input if none is left; tell whether there is any."""
        if self._place == len(self._input):
            self._input, self._place = self._file.read(_CHUNK) or b"", 0
            self.consumed_bytes += len(self._input)
        return bool(self._input)

    def _take(self, size: int) -> bytes:
        data = self._input[self._place : self._place + size]
        self._place += len(data)
        return data

    def _copy(self, size: int) -> bytes:
        return self._take(size) if self._has_input() else b""

    def _decompress(self, size: int) -> bytes:
        try:
            while True:
                assert self._decompressor is not None
                if self._decompressor.eof and not self._start_next_stream():
                    return b""
                piece = b""
                if self._decompressor.needs_input:
                    if not self._has_input():
                        raise ImageError(f"{self._source}: the {self._format} data ends too early: truncated file")
                    piece = self._take(self._piece_bytes)
                    self._piece_bytes = min(2 * self._piece_bytes, _CHUNK)
                data = self._decompressor.decompress(piece, size)
                if data:
                    return data
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise ImageError(f"{self._source}: damaged {self._format} data: {error}") from error

    def _start_next_stream(self) -> bool:
        """Go on after a finished stream: concatenated streams are one file, zeros are padding."""
        assert self._decompressor is not None and self._new is not None
        self._place -= len(self._decompressor.unused_data)  # of the last piece
        while (found := _NO_PADDING.search(self._input, self._place)) is None:
            self._place = len(self._input)
            if not self._has_input():
                return False
        self._place = found.start()
        self._decompressor, self._piece_bytes = self._new(), _PIECE_BYTES
        self._streams += 1
        taken_bytes = self.consumed_bytes - len(self._input) + self._place
        if self._streams > _FREE_STREAMS + min(self._produced_bytes // _STREAM_BYTES, taken_bytes // _PACKED_BYTES):
            raise ImageError(
                f"{self._source}: {self._streams} {self._format} streams of less than {_PACKED_BYTES} bytes,"
                f" or with less than {_STREAM_BYTES} in each: refused as a decompression bomb"
            )
        return True

    def _check_limits(self) -> None:
        limits, produced = self._limits, self._produced_bytes + self._hole_bytes
        if produced > limits.size_bytes:
            raise ImageError(f"{self._source}: more than {limits.size_bytes} bytes when uncompressed")
        if produced > limits.ratio_from_bytes and produced > limits.ratio * self.consumed_bytes:
            raise ImageError(
                f"{self._source}: {self.consumed_bytes} bytes that expand to more than {produced}:"
                f" more than {limits.ratio}:1, refused as a decompression bomb"
            )


class Tee(io.RawIOBase):
    """Reads from `source`, and gives every sink the same bytes first."""

    def __init__(self, source: io.RawIOBase, *sinks: Callable[[memoryview], object]) -> None:
        self._source = source
        self._sinks = sinks

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` from the source, copy the bytes to the sinks, and return the number of bytes."""
        view = memoryview(buffer).cast("B")
        count = self._source.readinto(view) or 0
        for sink in self._sinks:
            sink(view[:count])
        return count


class Pieces(io.RawIOBase):
    """Reads from an iterator of pieces of any size."""

    def __init__(self, pieces: Iterator[memoryview | bytes]) -> None:
        self._pieces = pieces
        self._piece = memoryview(b"")

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` and return the number of bytes; 0 at the end."""
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
        if size_bytes >= _AHEAD_BYTES:
            yield b"".join(together)
            together, size_bytes = [], 0
    yield b"".join(together)


class ReadAhead(io.RawIOBase):
    """
    Reads from `source` in a thread, and raises the error that ended the source.

    `close` ends the thread; until then only the thread may use `source`.
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
        """Fill `buffer` from the thread and return the number of bytes; 0 at the end."""
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
        """Yield the chunks of the thread, in place of `readinto`."""
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
