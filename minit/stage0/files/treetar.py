"""
A directory as entries of a tar: the root of an app, whatever the app has left there.

Each directory is opened by name in the parent directory, and no link is followed, so that only the archive limits the
length of a path and the depth of a tree.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from minit.archives.filecontent import unshift_capabilities
from minit.archives.sparse import PREFIX, SEGMENTS_LIMIT
from minit.archives.tar import DEPTH_LIMIT, NAME_LIMIT_BYTES, shown
from minit.archives.tarentry import CAPABILITIES, KINDS, Kind, TarWriter, entry_of, kept_attributes, new_entry
from minit.base.errors import PodError, reason_of
from minit.base.idrange import IdRange
from minit.linux import syscalls

T = TypeVar("T")

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_ACROSS_MOUNTS = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# Each entry repeats the path: without a limit a chain of a million directories would be a terabyte.
_PATH_LIMIT = 1 << 16
_SURE_LENGTH = NAME_LIMIT_BYTES // 4  # of a path whose characters have four bytes each

_BLOCK = 512
# Smaller holes are zeros, for readers that know no sparse files.
_LEAST_BYTES = 1 << 20

_Segments = list[tuple[int, int]]
"""Offset and length of data between holes, in bytes."""


class TreeWriter:
    """
    Adds a directory to a tar, depth first and sorted by names; a file's second name is a hard link.

    `write` takes the archive in pieces, `count` the bytes of files so far, `note` the files that are left out. `ids`
    maps the host's owners to the pod's. With `forgiving`, files that cannot be opened, since other processes have
    removed or replaced them, are left out too. With `is_live` file systems that are mounted in the directory are added,
    but for the kernel's own; else nothing may be mounted there.
    """

    def __init__(
        self,
        write: Callable[[memoryview], object],
        ids: IdRange | None,
        note: Callable[[str], None],
        count: Callable[[int], None],
        *,
        forgiving: bool = False,
        is_live: bool = False,
    ) -> None:
        self._tar = TarWriter(self._write)
        self._archive = write
        self._ids = ids
        self._note = note
        self._count = count
        self._bytes = 0
        self._names: dict[tuple[int, int], str] = {}
        self._forgiving = forgiving
        self._resolve = _ACROSS_MOUNTS if is_live else _INSIDE
        self._is_importable = not forgiving
        self._left_out: set[tuple[int, int]] = set()

    def add_tree(self, root: int, name: str, left_out: Iterable[os.stat_result] = ()) -> None:
        """Add the directory `root` as `name`, with all below but the files `left_out`."""
        self.leave_out(left_out)
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
                            raise PodError(f"{shown(path)} was moved while it was read")
                    continue
                entry = pending.pop()
                below = f"{path}/{entry}"
                if len(below) > _PATH_LIMIT:
                    self._note(f"left out {shown(below)}: its path has more than {_PATH_LIMIT} characters")
                elif self._add(fd, entry, below, len(above)):
                    inner = self._look(below, syscalls.openat2, fd, entry, _DIRECTORY, resolve=self._resolve)
                    if inner is None:
                        continue
                    if os.fstat(inner).st_dev != status.st_dev and syscalls.is_kernel_filesystem(inner):
                        os.close(inner)
                        continue
                    fd = _replace(fd, inner)
                    path = below
                    above.append((_entries(fd), os.fstat(fd)))
        finally:
            os.close(fd)

    def leave_out(self, files: Iterable[os.stat_result]) -> None:
        """Leave out `files` from here on."""
        self._left_out = {(status.st_dev, status.st_ino) for status in files}

    def add_alone(self, root: int, path: str) -> None:
        """Add the file `path` below the directory `root` under this name, the directory itself for an empty path."""
        parent, _, entry = path.rpartition("/")
        if not path:
            self._add_entry("", os.fstat(root))
            return
        directory = self._look(path, syscalls.openat2, root, parent or ".", _DIRECTORY, resolve=self._resolve)
        if directory is not None:
            try:
                self._add(directory, entry, path, path.count("/") + 1)
            finally:
                os.close(directory)

    def add_marker(self, path: str) -> None:
        """Add an empty file of root's without a mode, whose name has a meaning in a layer."""
        self._tar.add(new_entry(path, Kind.FILE, 0))

    def add_entry(self, directory: int, entry: str, name: str) -> None:
        """Add an entry of the directory `directory` as `name`; a directory with all below."""
        if not stat.S_ISDIR(os.stat(entry, dir_fd=directory, follow_symlinks=False).st_mode):
            self._add(directory, entry, name, 0)
            return
        fd = syscalls.openat2(directory, entry, _DIRECTORY, resolve=self._resolve)
        try:
            self.add_tree(fd, name)
        finally:
            os.close(fd)

    def add_file(self, name: str, data: bytes) -> None:
        """Add a file of root's with mode 0644 and no time."""
        self._tar.add(new_entry(name, Kind.FILE, 0o644), data=data)

    def finish(self) -> None:
        """Write the end of the archive."""
        self._tar.finish()

    def _add(self, directory: int, entry: str, name: str, depth: int) -> bool:
        """Add one entry of a directory; return whether the entry is a directory to descend into."""
        status = self._look(name, os.stat, entry, dir_fd=directory, follow_symlinks=False)
        if status is None or (status.st_dev, status.st_ino) in self._left_out:
            return False
        kind = stat.S_IFMT(status.st_mode)
        if self._is_importable and (depth >= DEPTH_LIMIT or len(name) >= _SURE_LENGTH):
            self._check_importable(name, depth)
        if kind == stat.S_IFDIR:
            return self._add_entry(name, status)
        if kind == stat.S_IFREG:
            fd = self._look(name, os.open, entry, _FILE, dir_fd=directory)
            if fd is None:
                return False
            try:
                self._add_entry(name, os.fstat(fd), fd=fd)
            finally:
                os.close(fd)
        elif kind in KINDS:
            target = self._look(name, os.readlink, entry, dir_fd=directory) if kind == stat.S_IFLNK else ""
            if target is not None:
                self._add_entry(name, status, target)
        return False  # a socket is left out: without the process a socket means nothing

    def _look(self, name: str, call: Callable[..., T], *arguments: Any, **settings: Any) -> T | None:
        """Return the result of a call about the tree; note a forgiven failure and return None."""
        try:
            return call(*arguments, **settings)
        except OSError as error:
            if not self._forgiving:
                raise
            self._note(f"left out {shown(name)}: {reason_of(error.errno or 0)}")
            return None

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
        # No hard link to a symbolic link: rkt cannot extract such links.
        if kind not in (Kind.DIRECTORY, Kind.SYMLINK) and status.st_nlink > 1:
            first = self._names.setdefault((status.st_dev, status.st_ino), name)
        has_content = fd is not None and first == name
        size_bytes = status.st_size if has_content else 0
        xattrs: tuple[tuple[str, bytes], ...] = ()
        content: _SparseContent | None = None
        if fd is not None and has_content:
            xattrs = self._attributes(fd)
            segments = _find_segments(fd, size_bytes) if size_bytes >= _LEAST_BYTES else None
            if segments is not None:
                content = _SparseContent(fd, name, size_bytes, segments)
                size_bytes = content.size_bytes
        entry = entry_of(
            name,
            status,
            owner=owner,
            mtime_ns=status.st_mtime_ns,
            size_bytes=size_bytes,
            link_target=target,
            xattrs=xattrs,
        )
        self._tar.add(
            entry, hard_link_to=None if first == name else first, records=() if content is None else content.records
        )
        if fd is not None and has_content:
            if not self._tar.copy(size_bytes, (lambda size: os.read(fd, size)) if content is None else content.read):
                raise PodError(f"{shown(name)} has become shorter while it was read")
            self._bytes += size_bytes
        return True

    def _write(self, data: memoryview) -> None:
        self._archive(data)
        self._count(self._bytes)

    def _owner(self, name: str, status: os.stat_result) -> tuple[int, int] | None:
        """Return the owner in the image; None, and a note, for an owner that the pod does not know."""
        if self._ids is None or (status.st_uid, status.st_gid) == (0, 0):
            return status.st_uid, status.st_gid  # stage0's files, like etc/mtab, belong to root in any pod
        uid, gid = self._ids.from_host(status.st_uid), self._ids.from_host(status.st_gid)
        if uid is None or gid is None:
            self._note(f"left out {name}: its owner {status.st_uid}:{status.st_gid} is none of the pod's ({self._ids})")
            return None
        return uid, gid

    def _attributes(self, fd: int) -> tuple[tuple[str, bytes], ...]:
        """Return the attributes that images keep."""
        attributes = []
        for name, stored in kept_attributes(fd):
            value: bytes | None = stored
            if name == CAPABILITIES and self._ids is not None:
                value = unshift_capabilities(stored, self._ids)
            if value:
                attributes.append((name, value))
        return tuple(attributes)


def _entries(fd: int) -> list[str]:
    """Return the entries of a directory, last name first."""
    return sorted(os.listdir(fd), key=os.fsencode, reverse=True)


def _replace(old: int, new: int) -> int:
    os.close(old)
    return new


class _SparseContent:
    """
    The stored part of the open file `fd` of `realsize_bytes`: a map, and the data of `segments`.

    The form is GNU tar's format 1.0 in pax headers (GNU tar manual, "Storing Sparse Files"). An app can make a file of
    terabytes that takes nothing on the disk, and the image must take nothing either.

    `size_bytes` is the number of bytes that `read` returns in all, `records` the pax records for the file `name`.
    """

    def __init__(self, fd: int, name: str, realsize_bytes: int, segments: _Segments) -> None:
        self._fd = fd
        # An empty segment ends the map, and tells GNU tar the size of a file with a hole at the end.
        whole = [*segments, (realsize_bytes, 0)]
        numbers = "".join(f"{offset}\n{length}\n" for offset, length in whole)
        data = f"{len(whole)}\n{numbers}".encode()
        self._map = data + bytes(-len(data) % _BLOCK)
        self._segments = segments[::-1]
        self.size_bytes = len(self._map) + sum(length for _, length in segments)
        values = {"major": b"1", "minor": b"0", "name": os.fsencode(name), "realsize": b"%d" % realsize_bytes}
        self.records = [(f"{PREFIX}{key}".encode(), value) for key, value in values.items()]

    def read(self, size_bytes: int = _BLOCK) -> bytes:
        """Return the next `size_bytes`, fewer at the end, or if the file has become shorter."""
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


def _find_segments(fd: int, size_bytes: int) -> _Segments | None:
    """Return the data segments of a file; None if the holes are too small, or the segments too many."""
    if os.fstat(fd).st_blocks * _BLOCK > size_bytes - _LEAST_BYTES:
        return None
    segments: _Segments = []
    end = data_bytes = 0
    while end < size_bytes:
        try:
            start = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                break  # only a hole follows
            raise
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size_bytes)
        segments.append((start, end - start))
        data_bytes += end - start
        if len(segments) == SEGMENTS_LIMIT:
            return None
    return segments if size_bytes - data_bytes >= _LEAST_BYTES else None
