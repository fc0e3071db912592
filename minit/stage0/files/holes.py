"""
Files with holes as entries of a tar without them: GNU tar's format 1.0 in pax headers.

An app can make a file of terabytes that takes nothing on the disk, and so must its image. GNU tar manual, "Storing
Sparse Files"
"""

from __future__ import annotations

import errno
import os

from minit.archives.sparse import PREFIX, SEGMENTS_LIMIT

_BLOCK = 512
# Smaller holes are zeros, for whoever reads archives and knows no sparse files.
LEAST_BYTES = 1 << 20

Segments = list[tuple[int, int]]
"""Offset and length of what is no hole, in bytes."""


class SparseContent:
    """
    The part of the open file `fd` of `realsize_bytes` that an archive has: a map, and its `segments`.

    `size_bytes` is how much `read` returns in all, `records` are those of pax for the file `name`.
    """

    def __init__(self, fd: int, name: str, realsize_bytes: int, segments: Segments) -> None:
        self._fd = fd
        # Ended by an empty one, which tells GNU tar the size of a file that ends with a hole.
        whole = [*segments, (realsize_bytes, 0)]
        numbers = "".join(f"{offset}\n{length}\n" for offset, length in whole)
        data = f"{len(whole)}\n{numbers}".encode()
        self._map = data + bytes(-len(data) % _BLOCK)
        self._segments = segments[::-1]
        self.size_bytes = len(self._map) + sum(length for _, length in segments)
        values = {"major": b"1", "minor": b"0", "name": os.fsencode(name), "realsize": b"%d" % realsize_bytes}
        self.records = [(f"{PREFIX}{key}".encode(), value) for key, value in values.items()]

    def read(self, size_bytes: int = _BLOCK) -> bytes:
        """Return so many of the bytes that follow, fewer at the end, or if the file has become shorter."""
        data, self._map = self._map[:size_bytes], self._map[size_bytes:]
        while len(data) < size_bytes and self._segments:
            offset, length = self._segments.pop()
            piece = os.pread(self._fd, min(length, size_bytes - len(data)), offset)
            if not piece:
                break
            data += piece
            if len(piece) < length:
                self._segments.append((offset + len(piece), length - len(piece)))
        return data


def find_segments(fd: int, size_bytes: int) -> Segments | None:
    """Return what is no hole in a file; None if its holes are not worth it, or its pieces too many."""
    if os.fstat(fd).st_blocks * _BLOCK > size_bytes - LEAST_BYTES:
        return None
    segments: Segments = []
    end = data_bytes = 0
    while end < size_bytes:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # nothing but a hole follows
            raise
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size_bytes)
        segments.append((start, end - start))
        data_bytes += end - start
        if len(segments) == SEGMENTS_LIMIT:
            return None
    return segments if size_bytes - data_bytes >= LEAST_BYTES else None
