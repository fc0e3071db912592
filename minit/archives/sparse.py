"""
Sparse files in tar archives: the stored parts of a file, and the whole file.

GNU tar's old format with an own type of entry, and the formats 0.0, 0.1 and 1.0 in pax headers. GNU tar manual,
"Storing Sparse Files"
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator, Mapping

SEGMENTS_LIMIT = 1 << 20  # of one file; a map has 16 bytes of memory for each
PREFIX = "GNU.sparse."
MAP = PREFIX + "map"
# The map of format 0.0: two records a segment.
OFFSET, LENGTH = PREFIX + "offset", PREFIX + "numbytes"

_BLOCK = 512
_SIZE_LIMIT = 1 << 63
_VERSIONS_0 = ((None, None), (b"0", b"0"), (b"0", b"1"))
_KEYS_0 = frozenset(PREFIX + key for key in ("major", "minor", "name", "size", "numblocks", "map"))
_KEYS_1 = frozenset(PREFIX + key for key in ("major", "minor", "name", "realsize"))
_DECIMAL = re.compile(rb"[0-9]{1,19}\Z")
_DIGITS_LIMIT = 19

# In the old format: offset and length, 12 bytes each, in the header and in blocks that may follow.
_FIELD = 12
_BLOCK_SEGMENTS = 21
_HEADER_MAP = 41  # all positions in the header from where POSIX has the prefix on
_HEADER_EXTENDED = 137
_HEADER_SIZE = slice(138, 150)
_BLOCK_EXTENDED = 504


class BadMapError(Exception):
    """An error in the map of a sparse file, as the rest of a sentence about the file."""


class SparseFile:
    """
    The content of a sparse file, read strictly forward: holes, and the stored data of `segments`.

    `segments` has offset and length of each segment, in bytes. `read` returns exactly the wanted number of bytes.
    BadMapError for a map with contradictions, or with another sum than the stored bytes.
    """

    def __init__(self, segments: array[int], size_bytes: int, stored_bytes: int, read: Callable[[int], bytes]) -> None:
        self.size_bytes = size_bytes
        self.hole_bytes = size_bytes - stored_bytes
        self._segments = _checked(segments, size_bytes, stored_bytes)
        self._index = 0
        self._position = 0
        self._read = read

    def read(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes` of the content, zeros where holes are; empty at the end."""
        start = self._position
        end = min(start + size_bytes, self.size_bytes)
        content = bytearray(end - start)
        while piece := self._take(size_bytes, end):
            offset, data = piece
            content[offset - start : offset - start + len(data)] = data
        self._position = end
        return bytes(content)

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of all but the holes, in pieces of at most `size_bytes`."""
        while piece := self._take(size_bytes, self.size_bytes):
            yield piece
        self._position = self.size_bytes

    def _take(self, size_bytes: int, end: int) -> tuple[int, bytes] | None:
        """Return the next data with the offset, or None if the data begins at `end` or later."""
        if self._index == len(self._segments):
            return None
        offset, length = self._segments[self._index : self._index + 2]
        start = max(offset, self._position)
        stop = min(offset + length, start + size_bytes, end)
        if start >= stop:
            return None
        data = self._read(stop - start)
        self._position = stop
        if stop == offset + length:
            self._index += 2
        return start, data


def _checked(segments: array[int], size_bytes: int, stored_bytes: int) -> array[int]:
    """Return the segments without the empty segment that GNU tar puts after a hole at the end."""
    kept = array("Q")
    end = stored = 0
    was_empty = False
    for offset, length in zip(segments[::2], segments[1::2], strict=True):
        if offset < end:
            raise BadMapError("whose segments overlap or are out of order")
        end = offset + length
        if end > size_bytes:
            raise BadMapError(f"with a segment that ends at {end}, beyond its {size_bytes} bytes")
        if was_empty:
            # Or a map that costs much to read would need no data, again and again.
            raise BadMapError("with an empty segment before the last one")
        if not length:
            was_empty = True
            continue
        # GNU tar would begin the next segment with a new block, others right here.
        if stored % _BLOCK:
            raise BadMapError("with a segment of no whole blocks before the last one")
        stored += length
        kept.extend((offset, length))
    if stored != stored_bytes:
        raise BadMapError(f"whose segments have {stored} bytes, but its data {stored_bytes}")
    return kept


def collect_pairs(pairs: list[tuple[str, bytes]]) -> bytes:
    """Return the records of format 0.0, in order, as a map of format 0.1; else BadMapError."""
    if [key for key, _ in pairs] != [OFFSET, LENGTH] * (len(pairs) // 2):
        raise BadMapError("whose offsets and lengths do not alternate")
    for _, value in pairs:
        _number(value)
    return b",".join([value for _, value in pairs])


def read_pax_map(records: Mapping[str, bytes], read: Callable[[int], bytes]) -> tuple[array[int], int]:
    """
    Return the segments and the real size in pax records; `read` gives the map in the data, as of format 1.0.

    `read` returns less than asked for at the end of the data. BadMapError for no map, or a broken map.
    """
    version = (records.get(PREFIX + "major"), records.get(PREFIX + "minor"))
    if version == (b"1", b"0"):
        _check_keys(records, _KEYS_1)
        return _read_map(read), _number(_required(records, PREFIX + "realsize"))
    if version not in _VERSIONS_0:
        raise BadMapError("of a format that is none of 0.0, 0.1 and 1.0")
    _check_keys(records, _KEYS_0)
    text = records.get(MAP, b"")
    segments = array("Q", map(_number, text.split(b",") if text else ()))
    if len(segments) != 2 * _number(_required(records, PREFIX + "numblocks")):
        raise BadMapError(f"whose map does not have as many segments as {PREFIX}numblocks says")
    return segments, _number(_required(records, PREFIX + "size"))


def read_old_map(
    rest: bytes, number: Callable[[bytes], int], read_block: Callable[[], bytes]
) -> tuple[array[int], int]:
    """
    Return the segments and the real size in a header of GNU's old format.

    `rest` is the header from the prefix of other formats on; `number` reads a numeric field, `read_block` the next
    block of 512 bytes. BadMapError for a broken map.
    """
    segments = array("Q")
    complete = _add_fields(segments, rest[_HEADER_MAP:_HEADER_EXTENDED], number)
    extended = rest[_HEADER_EXTENDED]
    while extended:
        if complete:
            raise BadMapError("whose map goes on after its end")
        if len(segments) > 2 * (SEGMENTS_LIMIT - _BLOCK_SEGMENTS):
            raise BadMapError(f"with more than {SEGMENTS_LIMIT} segments")
        block = read_block()
        complete = _add_fields(segments, block[:_BLOCK_EXTENDED], number)
        extended = block[_BLOCK_EXTENDED]
    return segments, number(rest[_HEADER_SIZE])


def _add_fields(segments: array[int], fields: bytes, number: Callable[[bytes], int]) -> bool:
    """Add the segments of a header; return whether an unused place ends the map."""
    for start in range(0, len(fields), 2 * _FIELD):
        if not fields[start]:
            if fields[start:].strip(b"\0"):
                raise BadMapError("whose map goes on after its end")
            return True
        segments.append(number(fields[start : start + _FIELD]))
        segments.append(number(fields[start + _FIELD : start + 2 * _FIELD]))
    return False


def _read_map(read: Callable[[int], bytes]) -> array[int]:
    """Read the map in front of the data: how many segments, then offset and length of each, a line per number."""
    count, rest = _read_lines(1, b"", read)
    if count[0] > SEGMENTS_LIMIT:
        raise BadMapError(f"with {count[0]} segments (at most {SEGMENTS_LIMIT})")
    return _read_lines(2 * count[0], rest, read)[0]


def _read_lines(count: int, text: bytes, read: Callable[[int], bytes]) -> tuple[array[int], bytes]:
    """Return `count` numbers, which begin in `text`, and the rest of the block with the last number."""
    numbers = array("Q")
    while True:
        *lines, text = text.split(b"\n", count - len(numbers))
        numbers.extend(map(_number, lines))
        if len(numbers) == count:
            return numbers, text
        block = read(_BLOCK)
        if len(block) < _BLOCK or len(text) > _DIGITS_LIMIT:
            raise BadMapError("whose data does not begin with a whole map")
        text += block


def _check_keys(records: Mapping[str, bytes], known: frozenset[str]) -> None:
    for key in records:
        if key.startswith(PREFIX) and key not in known:
            raise BadMapError("with records that its format does not have")


def _required(records: Mapping[str, bytes], key: str) -> bytes:
    if key not in records:
        raise BadMapError(f"without {key}")
    return records[key]


def _number(raw: bytes) -> int:
    if not _DECIMAL.match(raw) or int(raw) >= _SIZE_LIMIT:
        raise BadMapError("with a bad number in its map")
    return int(raw)
