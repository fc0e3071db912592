"""
A strict, streaming reader of tar archives: ustar, GNU and pax headers, tar(5).

Ambiguous archives are refused: links with data, maps of sparse files in disorder, NULs in names, global pax headers
with more than a comment. Memory stays bounded for any archive, and every fault is an ImageError with archive and entry.
"""

from __future__ import annotations

import os
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import BinaryIO, NoReturn

from minit.archives import sparse
from minit.archives.sparse import BadMapError, SparseFile
from minit.archives.tarentry import Entry, Kind
from minit.base.errors import ImageError
from minit.base.harmless import harmless

ENTRIES_LIMIT = 2_000_000
NAME_LIMIT_BYTES = 4096
DEPTH_LIMIT = 128
# A pax or GNU header about the next entry; in practice a few KiB.
EXTENSION_LIMIT_BYTES = 1 << 20
_EXTENSIONS_LIMIT = 4  # headers about one entry

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_CHUNK = 1 << 20
_ID_LIMIT = 0xFFFFFFFE  # chown(2) reads the highest id as "leave unchanged"
_MAJOR_LIMIT, _MINOR_LIMIT = 0xFFF, 0xFFFFF
_SECONDS_LIMIT = 1 << 53
_SHOWN_LIMIT = 120
_XATTR_PREFIX = "SCHILY.xattr."

# name mode uid gid size mtime checksum typeflag linkname magic uname gname major minor prefix padding
_HEADER = struct.Struct("100s8s8s8s12s12s8sc100s8s32s32s8s8s155s12x")
_CHECKSUM = slice(148, 156)
_MIDDLE = 334  # of the rest after the checksum
_POSIX_MAGIC = b"ustar\x0000"
_GNU_MAGIC = b"ustar  \0"

_DECIMAL = re.compile(rb"[0-9]{1,19}\Z")
_SECONDS = re.compile(rb"(-?)([0-9]{1,16})(?:\.([0-9]{0,32}))?\Z")
_RECORD_LENGTH = re.compile(rb"([1-9][0-9]{0,7}) ")


_KINDS = {
    b"0": Kind.FILE,
    b"\0": Kind.FILE,
    b"7": Kind.FILE,
    b"S": Kind.FILE,  # GNU's old sparse files
    b"1": Kind.HARD_LINK,
    b"2": Kind.SYMLINK,
    b"3": Kind.CHARACTER_DEVICE,
    b"4": Kind.BLOCK_DEVICE,
    b"5": Kind.DIRECTORY,
    b"6": Kind.FIFO,
}
_REFUSED = {b"M": "part of a multi-volume archive"}


class TarReader:
    """
    Iterates over the entries of an uncompressed tar; `read` gives the data of the current entry.

    `file` must return short reads only at the end, is read strictly forward and not closed. Errors call the archive
    `source`. With `rooted`, absolute names and link targets begin at the archive's top, as in layers; else absolute
    names are refused. `skip` moves `file` forward by a number of bytes, and skips unread data. With `has_data`, only
    entries with a path for which `has_data` is true have data in `file`.
    """

    def __init__(
        self,
        file: BinaryIO,
        source: str,
        *,
        rooted: bool = False,
        skip: Callable[[int], object] | None = None,
        has_data: Callable[[str], bool] | None = None,
    ) -> None:
        self._file = file
        self._source = source
        self._rooted = rooted
        self._skip = skip
        self._has_data = has_data
        self._data_left = 0
        self._padding = 0
        self._sparse: SparseFile | None = None

    def __iter__(self) -> Iterator[Entry]:
        count = 0
        while (entry := self._next()) is not None:
            count += 1
            if count > ENTRIES_LIMIT:
                self._refuse(f"more than {ENTRIES_LIMIT} entries")
            yield entry

    def read(self, size_bytes: int) -> bytes:
        """Return up to `size_bytes` of the current entry's content, holes as zeros; empty at the end."""
        return self._stored(size_bytes) if self._sparse is None else self._sparse.read(size_bytes)

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of the current entry's content without holes, in pieces of at most `size_bytes`."""
        if self._sparse is not None:
            yield from self._sparse.pieces(size_bytes)
            return
        offset = 0
        while data := self._stored(size_bytes):
            yield offset, data
            offset += len(data)

    def fault(self, path: str, what: str) -> ImageError:
        """Return the error about an entry."""
        return ImageError(f"{self._source}: entry {shown(path)}: {what}")

    def _stored(self, size_bytes: int) -> bytes:
        wanted = min(size_bytes, self._data_left)
        data = self._file.read(wanted)
        if len(data) < wanted:
            self._refuse(f"ends in the middle of an entry's data, {self._data_left - len(data)} bytes early")
        self._data_left -= wanted
        return data

    def _skip_data(self) -> None:
        if self._skip is not None and self._data_left:
            self._skip(self._data_left)
            self._data_left = 0
        while self._data_left:
            self._stored(_CHUNK)
        self._file.read(self._padding)
        self._padding = 0
        self._sparse = None

    def _next(self) -> Entry | None:
        extensions: dict[str, bytes] = {}
        for _ in range(1 + _EXTENSIONS_LIMIT):
            self._skip_data()
            block = self._file.read(_BLOCK)
            if block in (b"", _ZEROS):
                if extensions:
                    self._refuse("ends after a header that describes the next entry")
                # The end is two blocks of zeros; archives without, or with one block, are common.
                if self._file.read(_BLOCK).strip(b"\0"):
                    self._refuse("goes on after its end")
                return None
            if len(block) < _BLOCK:
                self._refuse("ends in the middle of a header")
            fields = self._checked_fields(block)
            typeflag = fields[7]
            if typeflag == b"x":
                self._extend(extensions, self._pax_records(fields))
            elif typeflag == b"g":
                self._check_global(self._pax_records(fields))
            elif typeflag == b"L":
                self._extend(extensions, {"path": self._extension(fields).rstrip(b"\0")})
            elif typeflag == b"K":
                self._extend(extensions, {"linkpath": self._extension(fields).rstrip(b"\0")})
            else:
                entry = self._entry(fields, extensions)
                if self._has_data is not None and not self._has_data(entry.path):
                    self._set_data(0)
                return entry
        raise ImageError(f"{self._source}: more than {_EXTENSIONS_LIMIT} headers describe one entry")

    def _checked_fields(self, block: bytes) -> tuple[bytes, ...]:
        stored = self._number(block[_CHECKSUM], "checksum")
        total = _sum(block)
        if stored != total:
            # Some old tars summed signed characters, POSIX unsigned ones.
            without = block[: _CHECKSUM.start] + block[_CHECKSUM.stop :]
            if stored != total - 256 * sum(byte > 127 for byte in without):
                self._refuse("a header's checksum is wrong: not a tar archive, or a damaged one")
        return _HEADER.unpack(block)

    def _extension(self, fields: tuple[bytes, ...]) -> bytes:
        size = self._number(fields[4], "size")
        if size > EXTENSION_LIMIT_BYTES:
            self._refuse(f"a header of {size} bytes (at most {EXTENSION_LIMIT_BYTES})")
        self._set_data(size)
        return self._stored(size)

    def _pax_records(self, fields: tuple[bytes, ...]) -> dict[str, bytes]:
        """Parse `LENGTH KEY=VALUE\\n` records; the length counts itself."""
        data = self._extension(fields)
        records: dict[str, bytes] = {}
        pairs: list[tuple[str, bytes]] = []
        start = 0
        while start < len(data):
            length = _RECORD_LENGTH.match(data, start)
            end = start + int(length[1]) if length else 0
            if length is None or not length.end() < end <= len(data) or data[end - 1] != 0x0A:
                self._refuse("a pax header that is no list of `LENGTH KEY=VALUE` lines")
            key, equals, value = data[length.end() : end - 1].partition(b"=")
            if not key or not equals:
                self._refuse("a pax header with a record without key or value")
            name = os.fsdecode(key)
            if name in (sparse.OFFSET, sparse.LENGTH):
                pairs.append((name, value))
            else:
                self._extend(records, {name: value})
            start = end
        if pairs:
            try:
                self._extend(records, {sparse.MAP: sparse.collect_pairs(pairs)})
            except BadMapError as error:
                self._refuse(f"a pax header of a sparse file {error}")
        return records

    def _extend(self, extensions: dict[str, bytes], records: dict[str, bytes]) -> None:
        for key, value in records.items():
            if key in extensions:
                self._refuse(f"two headers that give one entry's {shown(key)}")
            extensions[key] = value

    def _check_global(self, records: dict[str, bytes]) -> None:
        # git-archive puts the commit into `comment`. Any other key would change all entries that follow; Go's reader,
        # and so rkt, ignores such keys.
        for key in records:
            if key != "comment":
                self._refuse(f"a global pax header that sets {shown(key)} (only a comment is understood)")

    def _entry(self, fields: tuple[bytes, ...], extensions: dict[str, bytes]) -> Entry:
        name, mode, uid, gid, size, mtime, _, typeflag, link, magic, _, _, major, minor, prefix = fields
        # For programs without support of sparse files the header has another name than the real file.
        raw_path = extensions.get(sparse.PREFIX + "name", extensions.get("path"))
        if raw_path is None:
            raw_path = _until_nul(name)
            if magic == _POSIX_MAGIC and prefix[0]:
                raw_path = _until_nul(prefix) + b"/" + raw_path
        path = self._clean(raw_path, "name")
        kind = _KINDS.get(typeflag)
        if kind is None:
            self._refuse_entry(path, _REFUSED.get(typeflag, f"has the unknown type {shown(os.fsdecode(typeflag))}"))
        if kind is Kind.FILE and raw_path.endswith(b"/"):
            kind = Kind.DIRECTORY  # tar(5): the form of archives older than POSIX

        size_bytes = self._pax_number(extensions, "size", path)
        if size_bytes is None:
            size_bytes = self._number(size, "size", path)
        if kind is not Kind.FILE and size_bytes:
            self._refuse_entry(path, f"a {kind.value} with {size_bytes} bytes of data")
        self._set_data(size_bytes)
        is_pax_sparse = any(key.startswith(sparse.PREFIX) for key in extensions)
        if is_pax_sparse or typeflag == b"S":
            if kind is not Kind.FILE or (typeflag == b"S" and (magic != _GNU_MAGIC or extensions.keys() - {"path"})):
                self._refuse_entry(path, "a sparse file of mixed formats (pack it without --sparse)")
            self._sparse = self._sparse_file(None if is_pax_sparse else prefix, extensions, path)
            size_bytes = self._sparse.size_bytes

        mtime_ns = self._pax_time(extensions, "mtime", path)
        if mtime_ns is None:
            mtime_ns = self._number(mtime, "mtime", path, signed=True) * 1_000_000_000
        atime_ns = self._pax_time(extensions, "atime", path)
        return Entry(
            path=path,
            kind=kind,
            mode=self._number(mode, "mode", path) & 0o7777,
            uid=self._id(uid, extensions, "uid", path),
            gid=self._id(gid, extensions, "gid", path),
            size_bytes=size_bytes,
            mtime_ns=mtime_ns,
            atime_ns=mtime_ns if atime_ns is None else atime_ns,
            link_target=self._link_target(kind, extensions.get("linkpath", _until_nul(link)), path),
            device=self._device(kind, major, minor, path),
            xattrs=tuple(
                (key.removeprefix(_XATTR_PREFIX), value)
                for key, value in extensions.items()
                if key.startswith(_XATTR_PREFIX)
            ),
            hole_bytes=0 if self._sparse is None else self._sparse.hole_bytes,
        )

    def _sparse_file(self, old_header: bytes | None, extensions: dict[str, bytes], path: str) -> SparseFile:
        """Read the map of a sparse file: in pax records and the data, or from `old_header` on."""
        try:
            if old_header is None:
                segments, size_bytes = sparse.read_pax_map(extensions, self._stored)
            else:
                number = partial(self._number, what="number in its map", path=path)
                segments, size_bytes = sparse.read_old_map(old_header, number, self._map_block)
            return SparseFile(segments, size_bytes, self._data_left, self._stored)
        except BadMapError as error:
            raise self.fault(path, f"a sparse file {error}") from error

    def _map_block(self) -> bytes:
        block = self._file.read(_BLOCK)
        if len(block) < _BLOCK:
            self._refuse("ends in the middle of a header")
        return block

    def _clean(self, raw: bytes, what: str) -> str:
        """Clean a path as Go's path.Clean does, but refuse an absolute path, or a path out of the archive."""
        text = os.fsdecode(raw)
        if len(raw) > NAME_LIMIT_BYTES:
            self._refuse_entry(text, f"has a {what} longer than {NAME_LIMIT_BYTES} bytes")
        if not raw:
            self._refuse(f"an entry with an empty {what}")
        if "\0" in text:
            self._refuse_entry(text, f"has a NUL in its {what}")
        if text.startswith("/") and not self._rooted:
            self._refuse_entry(text, f"has an absolute {what}")
        parts: list[str] = []
        for part in text.split("/"):
            if part == "..":
                if not parts:
                    self._refuse_entry(text, f"has a {what} that leaves the archive")
                parts.pop()
            elif part not in ("", "."):
                parts.append(part)
        if len(parts) > DEPTH_LIMIT:
            self._refuse_entry(text, f"is more than {DEPTH_LIMIT} directories deep")
        return "/".join(parts)

    def _link_target(self, kind: Kind, raw: bytes, path: str) -> str:
        if kind is Kind.HARD_LINK:
            return self._clean(raw, "link target")
        if kind is not Kind.SYMLINK:
            return ""
        if not raw or b"\0" in raw or len(raw) >= NAME_LIMIT_BYTES:
            self._refuse_entry(path, "a symbolic link whose target is empty, too long, or has a NUL")
        return os.fsdecode(raw)

    def _device(self, kind: Kind, raw_major: bytes, raw_minor: bytes, path: str) -> int:
        if kind not in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE):
            return 0
        major, minor = self._number(raw_major, "major", path), self._number(raw_minor, "minor", path)
        if major > _MAJOR_LIMIT or minor > _MINOR_LIMIT:
            self._refuse_entry(path, f"a device with the impossible number {major}:{minor}")
        return os.makedev(major, minor)

    def _id(self, raw: bytes, extensions: dict[str, bytes], key: str, path: str) -> int:
        number = self._pax_number(extensions, key, path)
        if number is None:
            number = self._number(raw, key, path)
        if number > _ID_LIMIT:
            self._refuse_entry(path, f"has the {key} {number} (at most {_ID_LIMIT})")
        return number

    def _number(self, raw: bytes, what: str, path: str | None = None, *, signed: bool = False) -> int:
        """Read an octal field, or GNU's base-256 form for larger numbers."""
        if raw[0] in (0x80, 0xFF):
            number = int.from_bytes(raw[1:], "big", signed=raw[0] == 0xFF)
            limit = _SECONDS_LIMIT if signed else 1 << 63
            if not (-limit if signed else 0) <= number < limit:
                self._refuse_field(path, f"{what} {number}")
            return number
        digits = raw.strip(b"\0 ")
        if digits.strip(b"01234567"):
            self._refuse_field(path, f"{what} {shown(os.fsdecode(digits))}")
        return int(digits, 8) if digits else 0

    def _pax_number(self, extensions: dict[str, bytes], key: str, path: str) -> int | None:
        raw = extensions.get(key)
        if raw is None:
            return None
        if not _DECIMAL.match(raw) or int(raw) >= 1 << 63:
            self._refuse_field(path, f"{key} {shown(os.fsdecode(raw))}")
        return int(raw)

    def _pax_time(self, extensions: dict[str, bytes], key: str, path: str) -> int | None:
        raw = extensions.get(key)
        if raw is None:
            return None
        match = _SECONDS.match(raw)
        if match is None or int(match[2]) >= _SECONDS_LIMIT:
            self._refuse_field(path, f"{key} {shown(os.fsdecode(raw))}")
        nanoseconds = int(match[2]) * 1_000_000_000 + int((match[3] or b"")[:9].ljust(9, b"0"))
        return -nanoseconds if match[1] else nanoseconds

    def _set_data(self, size_bytes: int) -> None:
        self._data_left = size_bytes
        self._padding = -size_bytes % _BLOCK

    def _refuse(self, what: str) -> NoReturn:
        raise ImageError(f"{self._source}: {what}")

    def _refuse_entry(self, path: str, what: str) -> NoReturn:
        raise self.fault(path, what)

    def _refuse_field(self, path: str | None, field: str) -> NoReturn:
        if path is None:
            self._refuse(f"a header with the bad {field}: not a tar archive, or a damaged one")
        self._refuse_entry(path, f"has the bad {field}")


def shown(name: str) -> str:
    """Return a printable form of a name from an archive: quoted, escaped, cut."""
    printable = harmless(name[:_SHOWN_LIMIT]).replace("\t", "\\x09").replace('"', "\\x22")
    return f'"{printable}{"…" if len(name) > _SHOWN_LIMIT else ""}"'


def _sum(block: bytes) -> int:
    """Return the sum of a header's bytes, with spaces in the place of the checksum."""
    # The lower half of Adler-32 is 1 more than the sum of the bytes, and less than the modulus for so few.
    parts = block[: _CHECKSUM.start], block[_CHECKSUM.stop : _MIDDLE], block[_MIDDLE:]
    first, second, third = map(zlib.adler32, parts)
    return (first & 0xFFFF) + (second & 0xFFFF) + (third & 0xFFFF) - 3 + 8 * 0x20


def _until_nul(field: bytes) -> bytes:
    return field.split(b"\0", 1)[0]
