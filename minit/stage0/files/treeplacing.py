"""
The entries of a tar put into a directory, whatever the directory has and whatever happens there meanwhile.

Each entry's parent is looked up from the directory on, and no link is followed, so that nothing is written elsewhere:
neither links in the archive nor links that are made meanwhile lead out.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Protocol

from minit.archives.filecontent import shift_capabilities, with_held_owner
from minit.archives.tar import shown
from minit.archives.tarentry import CAPABILITIES, Entry, Kind, is_kept_attribute
from minit.base.errors import StoreError, reason_of
from minit.base.idrange import HeldIds, IdRange
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK_BYTES = 1 << 20
_PERMISSIONS = 0o1777
_REASONS = {
    errno.ELOOP: "a symbolic link is on the way",
    errno.EISDIR: "a directory is there",
    errno.ENOTDIR: "something is there, and is no directory",
}


class Entries(Protocol):
    """Entries one after the other, as a tar has them."""

    def __iter__(self) -> Iterator[Entry]:
        """Yield the entries."""

    def pieces(self, size_bytes: int) -> Iterator[tuple[int, bytes]]:
        """Yield offset and data of the present entry, in pieces of at most `size_bytes`."""


def require_held(owner: tuple[int, int], what: str, held: HeldIds | None) -> tuple[int, int]:
    """Return an owner; StoreError names `what` if the user namespace with the ids `held` has no such owner."""
    lack = None if held is None else held.find_lack(*owner)
    if lack is not None:
        raise StoreError(f"{what}: {lack}")
    return owner


class TreePlacer:
    """
    Puts entries below the directory `root`; present directories stay, other files are replaced.

    With `renews_directories` a present directory gets owner and mode of the entry, as builders of images do.
    All files belong to `owner`, a user and a group, and have no set-id bits. With None, owners, set-id bits and
    attributes are kept, and `ids` maps them to the host; in a user namespace with one id all owners are root. `note` is
    told of entries that are left out: devices.
    """

    def __init__(
        self,
        root: int,
        owner: tuple[int, int] | None,
        ids: IdRange | None,
        note: Callable[[str], None],
        *,
        renews_directories: bool = False,
    ) -> None:
        self._root = root
        self._owner = owner
        self._ids = ids
        self._held = None if ids is not None else read_held_ids()
        self._note = note
        self._renews_directories = renews_directories
        self._times: list[tuple[str, tuple[int, int]]] = []

    def place_all(self, tar: Entries) -> None:
        """Put all entries; StoreError, with the entry, at the first entry that cannot be put."""
        for entry in tar:
            if not entry.path:
                continue
            try:
                self._place(entry, tar)
            except OSError as error:
                reason = _REASONS.get(error.errno or 0) or reason_of(error.errno or 0)
                raise StoreError(f"cannot write {shown(entry.path)}: {reason}") from error
        # New entries change the times of a directory.
        for path, times in reversed(self._times):
            with suppress(OSError):  # gone, or no directory any more
                fd = syscalls.openat2(self._root, path, _DIRECTORY, resolve=_BENEATH)
                try:
                    os.utime(fd, ns=times)
                finally:
                    os.close(fd)

    def _place(self, entry: Entry, tar: Entries) -> None:
        directory, _, name = entry.path.rpartition("/")
        parent = self._open_parent(directory)
        try:
            if entry.kind is Kind.DIRECTORY:
                self._directory(entry, parent, name)
                return
            if entry.kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE):
                self._note(f"left out {shown(entry.path)}: a device")
                return
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=parent)  # EISDIR for a directory
            if entry.kind is Kind.FILE:
                self._file(entry, parent, name, tar)
            elif entry.kind is Kind.HARD_LINK:
                self._hard_link(entry, parent, name)
            else:
                self._special(entry, parent, name)
        finally:
            os.close(parent)

    def _open_parent(self, path: str) -> int:
        try:
            return syscalls.openat2(self._root, path or ".", os.O_PATH | os.O_DIRECTORY, resolve=_BENEATH)
        except FileNotFoundError:
            above, _, name = path.rpartition("/")
            parent = self._open_parent(above)
            try:
                with suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=parent)
                    os.chown(name, *self._root_owner(), dir_fd=parent, follow_symlinks=False)
            finally:
                os.close(parent)
            return syscalls.openat2(self._root, path, os.O_PATH | os.O_DIRECTORY, resolve=_BENEATH)

    def _directory(self, entry: Entry, parent: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, "no directory") from None
            if not self._renews_directories:
                return
        fd = os.open(name, _DIRECTORY, dir_fd=parent)
        try:
            os.fchown(fd, *self._owner_of(entry))
            os.fchmod(fd, self._mode_of(entry))
        finally:
            os.close(fd)
        self._times.append((entry.path, (entry.atime_ns, entry.mtime_ns)))

    def _file(self, entry: Entry, parent: int, name: str, tar: Entries) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            os.ftruncate(fd, entry.size_bytes)
            for offset, data in tar.pieces(_CHUNK_BYTES):
                left = memoryview(data)
                while left:
                    written = os.pwrite(fd, left, offset)
                    left = left[written:]
                    offset += written
            os.fchown(fd, *self._owner_of(entry))
            os.fchmod(fd, self._mode_of(entry))
            self._set_attributes(fd, entry)
            os.utime(fd, ns=(entry.atime_ns, entry.mtime_ns))
        except BaseException:
            # Half a file is worse than no file.
            with suppress(OSError):
                os.unlink(name, dir_fd=parent)
            raise
        finally:
            os.close(fd)

    def _hard_link(self, entry: Entry, parent: int, name: str) -> None:
        directory, _, target = entry.link_target.rpartition("/")
        other = syscalls.openat2(self._root, directory or ".", os.O_PATH | os.O_DIRECTORY, resolve=_BENEATH)
        try:
            os.link(target, name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(other)

    def _special(self, entry: Entry, parent: int, name: str) -> None:
        if entry.kind is Kind.SYMLINK:
            os.symlink(entry.link_target, name, dir_fd=parent)
        else:
            os.mkfifo(name, self._mode_of(entry), dir_fd=parent)
        os.chown(name, *self._owner_of(entry), dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(entry.atime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _owner_of(self, entry: Entry) -> tuple[int, int]:
        if self._owner is not None:
            return self._owner
        if self._ids is None:
            held = with_held_owner(entry, self._held, _fault)
            return held.uid, held.gid
        uid, gid = self._ids.to_host(entry.uid), self._ids.to_host(entry.gid)
        if uid is None or gid is None:
            raise _fault(entry.path, f"unmapped owner {entry.uid}:{entry.gid}: {self._ids.describe()}")
        return uid, gid

    def _root_owner(self) -> tuple[int, int]:
        shift = 0 if self._ids is None else self._ids.shift
        return self._owner or (shift, shift)

    def _mode_of(self, entry: Entry) -> int:
        return entry.mode if self._owner is None else entry.mode & _PERMISSIONS

    def _set_attributes(self, fd: int, entry: Entry) -> None:
        for key, stored in entry.xattrs if self._owner is None else ():
            value: bytes | None = stored
            if key == CAPABILITIES and self._ids is not None:
                value = shift_capabilities(stored, self._ids)
            if value is not None and is_kept_attribute(key):
                os.setxattr(fd, key, value)


def _fault(path: str, what: str) -> StoreError:
    return StoreError(f"{shown(path)}: {what}")
