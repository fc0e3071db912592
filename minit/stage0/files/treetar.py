"""
A directory as entries of a tar: what an app has left in its root, whatever that is.

Each directory is opened by its name in the one above, and no link is followed, so that neither the length of a path nor
the depth of a tree has a limit but the archive's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable

from minit import syscalls
from minit.archives.tar import DEPTH_LIMIT, NAME_LIMIT_BYTES, Entry, Kind, shown
from minit.archives.tarheader import END, KINDS, encode_header, padding
from minit.errors import PodError
from minit.idrange import IdRange
from minit.stage0.files.attributes import CAPABILITIES, is_kept_attribute
from minit.stage0.files.filecapabilities import unshift_capabilities
from minit.stage0.files.holes import LEAST_BYTES, SparseContent, find_segments

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Each entry repeats its path: without a limit a chain of a million directories would be a terabyte.
_PATH_LIMIT = 1 << 16
_SURE_LENGTH = NAME_LIMIT_BYTES // 4  # of a path whose characters have four bytes each
_WRITTEN_BYTES = 1 << 18

_DEVICES = (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE)


class TreeWriter:
    """
    Adds a directory to a tar, depth first and sorted by names; a file's second name is a hard link.

    `write` takes the archive in pieces, `count` the bytes of files so far, `note` what was left out. With `ids` the
    owners are those that the pod with these ids has.
    """

    def __init__(
        self,
        write: Callable[[bytes], object],
        ids: IdRange | None,
        note: Callable[[str], None],
        count: Callable[[int], None],
    ) -> None:
        self._write = write
        self._ids = ids
        self._note = note
        self._count = count
        self._bytes = 0
        self._names: dict[tuple[int, int], str] = {}
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._is_importable = True

    def add_tree(self, root: int, name: str) -> None:
        """Add the directory `root` as `name`, and all below it."""
        fd = os.dup(root)
        try:
            path = name
            status = os.fstat(fd)
            self._add_entry(path, status)
            above = [(_entries(fd), status)]
            while above:
                pending, status = above[-1]
                if not pending:
                    above.pop()
                    if above:
                        path = path.rpartition("/")[0]
                        fd = _replace(fd, os.open("..", _DIRECTORY | os.O_CLOEXEC, dir_fd=fd))
                        if not os.path.samestat(os.fstat(fd), above[-1][1]):
                            raise PodError(f"{shown(path)} was moved while it was exported")
                    continue
                entry = pending.pop()
                below = f"{path}/{entry}"
                if len(below) > _PATH_LIMIT:
                    self._note(f"left out {shown(below)}: its path has more than {_PATH_LIMIT} characters")
                elif self._add(fd, entry, below, len(above)):
                    fd = _replace(fd, syscalls.openat2(fd, entry, _DIRECTORY, resolve=_INSIDE))
                    path = below
                    above.append((_entries(fd), os.fstat(fd)))
        finally:
            os.close(fd)

    def add_file(self, name: str, data: bytes) -> None:
        """Add a file of root's with mode 0644 and no time."""
        size = len(data)
        entry = Entry(path=name, kind=Kind.FILE, mode=0o644, uid=0, gid=0, size_bytes=size, mtime_ns=0, atime_ns=0)
        self._put(encode_header(entry, name) + data + padding(size))

    def finish(self) -> None:
        """Write the end of the archive."""
        self._put(END)
        self._flush()

    def _add(self, directory: int, entry: str, name: str, depth: int) -> bool:
        """Add one entry of a directory; return whether it is a directory to look into."""
        status = os.stat(entry, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if self._is_importable and (depth >= DEPTH_LIMIT or len(name) >= _SURE_LENGTH):
            self._check_importable(name, depth)
        if kind == stat.S_IFDIR:
            return self._add_entry(name, status)
        if kind == stat.S_IFREG:
            fd = os.open(entry, _FILE, dir_fd=directory)
            try:
                self._add_entry(name, os.fstat(fd), fd=fd)
            finally:
                os.close(fd)
        elif kind in KINDS:
            self._add_entry(name, status, os.readlink(entry, dir_fd=directory) if kind == stat.S_IFLNK else "")
        return False  # as a socket, too, which means nothing without its process

    def _check_importable(self, name: str, depth: int) -> None:
        if depth >= DEPTH_LIMIT or len(os.fsencode(name)) >= NAME_LIMIT_BYTES:
            self._is_importable = False
            limits = f"{NAME_LIMIT_BYTES} bytes long or {DEPTH_LIMIT} directories deep"
            self._note(f"minit fetch will refuse the image: more than {limits} is {shown(name)}")

    def _add_entry(self, name: str, status: os.stat_result, target: str = "", fd: int | None = None) -> bool:
        owner = self._owner(name, status)
        if owner is None:
            return False
        kind = KINDS[stat.S_IFMT(status.st_mode)]
        first = name
        # Not of a link to a link: rkt cannot extract that.
        if kind not in (Kind.DIRECTORY, Kind.SYMLINK) and status.st_nlink > 1:
            first = self._names.setdefault((status.st_dev, status.st_ino), name)
        has_content = fd is not None and first == name
        size_bytes = status.st_size if has_content else 0
        xattrs: tuple[tuple[str, bytes], ...] = ()
        content: SparseContent | None = None
        if fd is not None and has_content:
            xattrs = self._attributes(fd)
            segments = find_segments(fd, size_bytes) if size_bytes >= LEAST_BYTES else None
            if segments is not None:
                content = SparseContent(fd, name, size_bytes, segments)
                size_bytes = content.size_bytes
        entry = Entry(
            path=name,
            kind=kind,
            mode=stat.S_IMODE(status.st_mode),
            uid=owner[0],
            gid=owner[1],
            size_bytes=size_bytes,
            mtime_ns=status.st_mtime_ns,
            atime_ns=status.st_mtime_ns,
            link_target=target,
            device=status.st_rdev if kind in _DEVICES else 0,
            xattrs=xattrs,
        )
        written = f"{name}/" if kind is Kind.DIRECTORY else name
        self._put(
            encode_header(entry, written, None if first == name else first, () if content is None else content.records)
        )
        if fd is not None and has_content:
            self._copy(name, size_bytes, (lambda size: os.read(fd, size)) if content is None else content.read)
        return True

    def _copy(self, name: str, size_bytes: int, read: Callable[[int], bytes]) -> None:
        left = size_bytes
        while left:
            data = read(min(left, _WRITTEN_BYTES))
            if not data:
                raise PodError(f"{shown(name)} has become shorter while it was exported")
            self._put(data)
            left -= len(data)
        self._put(padding(size_bytes))
        self._bytes += size_bytes

    def _put(self, data: bytes) -> None:
        """Write something, together with much else: to compress little takes as long as to compress much."""
        self._pieces.append(data)
        self._pieces_bytes += len(data)
        if self._pieces_bytes >= _WRITTEN_BYTES:
            self._flush()

    def _flush(self) -> None:
        self._write(b"".join(self._pieces))
        self._pieces.clear()
        self._pieces_bytes = 0
        self._count(self._bytes)

    def _owner(self, name: str, status: os.stat_result) -> tuple[int, int] | None:
        """Return the owner in the image; None, and a note, for one that the pod does not know."""
        if self._ids is None or (status.st_uid, status.st_gid) == (0, 0):
            return status.st_uid, status.st_gid  # stage0's own files, like etc/mtab, are root's in any pod
        uid, gid = self._ids.from_host(status.st_uid), self._ids.from_host(status.st_gid)
        if uid is None or gid is None:
            self._note(f"left out {name}: its owner {status.st_uid}:{status.st_gid} is none of the pod's ({self._ids})")
            return None
        return uid, gid

    def _attributes(self, fd: int) -> tuple[tuple[str, bytes], ...]:
        """Return the attributes that images keep."""
        try:
            names = os.listxattr(fd)
        except OSError:
            return ()  # the filesystem has none
        attributes = []
        for name in sorted(filter(is_kept_attribute, names)):
            value: bytes | None = os.getxattr(fd, name)
            if name == CAPABILITIES and self._ids is not None and value is not None:
                value = unshift_capabilities(value, self._ids)
            if value:
                attributes.append((name, value))
        return tuple(attributes)


def _entries(fd: int) -> list[str]:
    """Return the entries of a directory, last name first."""
    return sorted(os.listdir(fd), key=os.fsencode, reverse=True)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new
