"""
Entries of tar archives: as values, and written as ustar with pax records; the same bytes for the same entries.

Images that are built, exported or converted are written here.
"""

from __future__ import annotations

import os
import stat
import zlib
from collections.abc import Callable, Iterable
from enum import Enum
from typing import NamedTuple

CAPABILITIES = "security.capability"


class Kind(Enum):
    """The kind of an entry's file."""

    FILE = "regular file"
    HARD_LINK = "hard link"
    SYMLINK = "symbolic link"
    CHARACTER_DEVICE = "character device"
    BLOCK_DEVICE = "block device"
    DIRECTORY = "directory"
    FIFO = "fifo"


DEVICES = frozenset({Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE})


class Entry(NamedTuple):
    """One entry, with checked numbers and a cleaned, relative path (empty for the top directory)."""

    path: str
    kind: Kind
    mode: int  # permission, set-id and sticky bits
    uid: int
    gid: int
    size_bytes: int  # of the file, holes included
    mtime_ns: int
    atime_ns: int  # mtime_ns if the archive records none
    link_target: str = ""  # as written for a symbolic link, cleaned and relative for a hard link
    device: int = 0  # as mknod(2) takes it
    xattrs: tuple[tuple[str, bytes], ...] = ()
    hole_bytes: int = 0  # of size_bytes, not in the archive: the holes of a sparse file


class LayerEntry(NamedTuple):
    """The parts of a layer's entry that decide about the entries of an image."""

    path: str
    kind: Kind
    link_target: str


def is_kept_attribute(name: str) -> bool:
    """Return whether images keep the extended attribute `name`; the same two kinds as in rkt."""
    return name == CAPABILITIES or name.startswith("user.")


def kept_attributes(fd: int) -> tuple[tuple[str, bytes], ...]:
    """Return the extended attributes of an open file that images keep, in the order of names."""
    try:
        names = os.listxattr(fd)
    except OSError:
        return ()  # the filesystem has none
    return tuple((name, os.getxattr(fd, name)) for name in sorted(filter(is_kept_attribute, names)))


_BLOCK_BYTES = 512
_END = bytes(2 * _BLOCK_BYTES)
# A call to compress little takes as long as a call to compress much.
_PIECE_BYTES = 1 << 18

KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
    stat.S_IFIFO: Kind.FIFO,
}
"""The kinds of files in archives, by the types of inode(7)."""

_TYPEFLAGS = {
    Kind.FILE: b"0",
    Kind.HARD_LINK: b"1",
    Kind.SYMLINK: b"2",
    Kind.CHARACTER_DEVICE: b"3",
    Kind.BLOCK_DEVICE: b"4",
    Kind.DIRECTORY: b"5",
    Kind.FIFO: b"6",
}
_NAME_BYTES = 100
_ID_LIMIT = 0o7777777
_SIZE_LIMIT = _SECONDS_LIMIT = 0o77777777777
_SECOND_NS = 1_000_000_000


def new_entry(
    path: str, kind: Kind, mode: int, *, size_bytes: int = 0, link_target: str = "", mtime_ns: int = 0
) -> Entry:
    """Return an entry that depends only on the arguments: root's, without a time from the beginning of time."""
    return Entry(
        path=path,
        kind=kind,
        mode=mode,
        uid=0,
        gid=0,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        atime_ns=0,
        link_target=link_target,
    )


def entry_of(
    path: str,
    status: os.stat_result,
    *,
    mtime_ns: int,
    owner: tuple[int, int] | None = None,
    size_bytes: int = 0,
    link_target: str = "",
    xattrs: tuple[tuple[str, bytes], ...] = (),
) -> Entry:
    """Return an entry for a file of KINDS with a status; `owner` replaces uid and gid."""
    kind = KINDS[stat.S_IFMT(status.st_mode)]
    uid, gid = (status.st_uid, status.st_gid) if owner is None else owner
    return Entry(
        path=path,
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=uid,
        gid=gid,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        atime_ns=mtime_ns,
        link_target=link_target,
        device=status.st_rdev if kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE) else 0,
        xattrs=xattrs,
    )


class TarWriter:
    """
    Hands an archive to `write` in pieces of some size; a piece is invalid when `write` returns.

    `position` is the number of bytes of the archive so far, kept back bytes included.
    """

    def __init__(self, write: Callable[[memoryview], object]) -> None:
        self.position = 0
        self._write = write
        self._buffer = bytearray()

    def add(
        self,
        entry: Entry,
        name: str | None = None,
        data: bytes | None = None,
        *,
        hard_link_to: str | None = None,
        records: Iterable[tuple[bytes, bytes]] = (),
    ) -> None:
        """
        Add an entry with `data`; without `data`, `copy` must follow for an entry with a size.

        `name` replaces the path, and `hard_link_to` makes the entry a hard link without data. `records` are more pax
        records.
        """
        if data is not None:
            entry = entry._replace(size_bytes=len(data))
        if name is None:
            name = f"{entry.path}/" if entry.kind is Kind.DIRECTORY else entry.path
        self.put(encode_header(entry, name, hard_link_to, records))
        if data is not None:
            self.put(data + padding(len(data)))

    def copy(self, size_bytes: int, read: Callable[[int], bytes]) -> bool:
        """Add the data of the last entry; False if `read`, which is called with a size, ends too early."""
        left = size_bytes
        while left:
            data = read(min(left, _PIECE_BYTES))
            if not data:
                return False
            self.put(data)
            left -= len(data)
        self.put(padding(size_bytes))
        return True

    def put(self, data: bytes) -> None:
        """Add the bytes of entries that were encoded before."""
        self._buffer += data
        self.position += len(data)
        if len(self._buffer) >= _PIECE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand over the bytes that were kept back."""
        with memoryview(self._buffer) as view:
            self._write(view)
        self._buffer = bytearray()

    def finish(self) -> None:
        """Add the end of the archive, and hand over the last piece."""
        self.put(_END)
        self.flush()


def padding(size_bytes: int) -> bytes:
    """Return the zeros that fill the last block of data."""
    return bytes(-size_bytes % _BLOCK_BYTES)


def encode_header(
    entry: Entry, path_text: str, hard_link_to: str | None = None, others: Iterable[tuple[bytes, bytes]] = ()
) -> bytes:
    """Return the blocks that announce `entry` under the name `path_text`; data follows, padded to whole blocks."""
    kind, link_target, size = entry.kind, entry.link_target, entry.size_bytes
    if hard_link_to is not None:
        kind, link_target, size = Kind.HARD_LINK, hard_link_to, 0
    path, target = os.fsencode(path_text), os.fsencode(link_target)
    seconds, nanoseconds = divmod(entry.mtime_ns, _SECOND_NS)
    records: list[tuple[bytes, bytes]] = []
    if len(path) > _NAME_BYTES:
        records.append((b"path", path))
    if len(target) > _NAME_BYTES:
        records.append((b"linkpath", target))
    uid, gid = entry.uid, entry.gid
    if uid > _ID_LIMIT:
        records.append((b"uid", b"%d" % uid))
        uid = 0
    if gid > _ID_LIMIT:
        records.append((b"gid", b"%d" % gid))
        gid = 0
    if size > _SIZE_LIMIT:
        records.append((b"size", b"%d" % size))
        size = 0
    if nanoseconds or not 0 <= seconds <= _SECONDS_LIMIT:
        records.append((b"mtime", _time(entry.mtime_ns)))
        seconds = 0
    if entry.atime_ns != entry.mtime_ns:
        records.append((b"atime", _time(entry.atime_ns)))
    records.extend((b"SCHILY.xattr." + os.fsencode(name), value) for name, value in entry.xattrs)
    records.extend(others)
    header = _block(
        path[:_NAME_BYTES],
        entry.mode,
        uid,
        gid,
        size,
        seconds,
        _TYPEFLAGS[kind],
        target[:_NAME_BYTES],
        entry.device,
    )
    if not records:
        return header
    data = b"".join([_record(key, value) for key, value in records])
    return _block(b"pax", 0o644, 0, 0, len(data), 0, b"x", b"", 0) + data + padding(len(data)) + header


def _block(
    name: bytes, mode: int, uid: int, gid: int, size: int, seconds: int, typeflag: bytes, target: bytes, device: int
) -> bytes:
    before = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (name.ljust(_NAME_BYTES, b"\0"), mode, uid, gid, size, seconds)
    after = b"%b%bustar\00000%b%07o\0%07o\0" % (
        typeflag,
        target.ljust(_NAME_BYTES, b"\0"),
        bytes(64),
        os.major(device),
        os.minor(device),
    )
    # The lower half of Adler-32 is 1 more than the sum of the bytes, and less than the modulus for so few.
    checksum = (zlib.adler32(before) & 0xFFFF) + (zlib.adler32(after) & 0xFFFF) - 2 + 8 * 0x20
    return b"%b%06o\0 %b%b" % (before, checksum, after, bytes(_BLOCK_BYTES - len(before) - 8 - len(after)))


def _time(nanoseconds: int) -> bytes:
    sign = b"-" if nanoseconds < 0 else b""
    seconds, rest = divmod(abs(nanoseconds), _SECOND_NS)
    return b"%b%d.%09d" % (sign, seconds, rest) if rest else b"%b%d" % (sign, seconds)


def _record(key: bytes, value: bytes) -> bytes:
    """Return `LENGTH KEY=VALUE\\n`; the length counts the own digits, too."""
    body = b" %b=%b\n" % (key, value)
    length = len(body) + 1
    while len(str(length)) + len(body) != length:
        length = len(str(length)) + len(body)
    return b"%d%b" % (length, body)
