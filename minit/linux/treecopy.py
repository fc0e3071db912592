"""
Copies of directories by descriptors: no link is followed, and nothing is opened that could block.

Owners, modes, times, devices and holes are kept; hard links become separate files. A module of its own, since launcher
and stage0 both fill volumes with the files of an image.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from minit.base.idrange import IdRange

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_CHUNK_BYTES = 1 << 30


def copy_directory(source: int, target: int, path: str, ids: IdRange | None = None) -> None:
    """
    Copy the content and attributes of a directory, and close both descriptors.

    With `ids` the owners of the copies are mapped to ids of a pod. OSError names the failed file, below `path`.
    """
    # By a stack, since an image may nest deeper than Python's calls.
    pending = [(source, target, path, _entries(source))]
    while pending:
        source, target, path, entries = pending[-1]
        name = next(entries, None)
        if name is None:
            _copy_attributes(source, target, ids)
            os.close(source)
            os.close(target)
            pending.pop()
            continue
        here = f"{path}/{name}"
        try:
            status = os.stat(name, dir_fd=source, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                os.mkdir(name, 0o700, dir_fd=target)
                below = os.open(name, _DIRECTORY, dir_fd=source)
                pending.append((below, os.open(name, _DIRECTORY, dir_fd=target), here, _entries(below)))
            elif stat.S_ISREG(status.st_mode):
                _copy_file(source, target, name, ids)
            else:
                _copy_other(source, target, name, status, ids)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"copy {here}") from error


def _entries(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _copy_file(source: int, target: int, name: str, ids: IdRange | None) -> None:
    # Non-blocking: the open must not wait, even if the name is now a FIFO, say.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    old = os.open(name, os.O_RDONLY | flags, dir_fd=source)
    try:
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=target)
        try:
            _copy_data(old, new)
            _copy_attributes(old, new, ids)
        finally:
            os.close(new)
    finally:
        os.close(old)


def _copy_data(old: int, new: int) -> None:
    """Copy the data of a file and keep holes, for a file of any apparent size."""
    size = os.fstat(old).st_size
    os.ftruncate(new, size)
    end = 0
    while end < size:
        try:
            start = os.lseek(old, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole is left
                return
            raise
        end = os.lseek(old, start, os.SEEK_HOLE)
        os.lseek(new, start, os.SEEK_SET)
        while start < end:
            start += os.sendfile(new, old, start, min(end - start, _MAX_CHUNK_BYTES))


def _copy_other(source: int, target: int, name: str, status: os.stat_result, ids: IdRange | None) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    else:
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
    os.chown(name, *_owner(status, ids), dir_fd=target, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
    times = status.st_atime_ns, status.st_mtime_ns
    os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)


def _copy_attributes(old: int, new: int, ids: IdRange | None) -> None:
    status = os.fstat(old)
    os.fchown(new, *_owner(status, ids))
    # After the owner, whose change takes the setuid bit away.
    os.fchmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))


def _owner(status: os.stat_result, ids: IdRange | None) -> tuple[int, int]:
    uid, gid = status.st_uid, status.st_gid
    if ids is None or (uid, gid) == (0, 0):
        return uid, gid  # stage0's own files, like etc/mtab, are root's in any pod
    own_uid, own_gid = ids.from_host(uid), ids.from_host(gid)
    if own_uid is None or own_gid is None:
        raise OSError(errno.EOVERFLOW, f"its owner {uid}:{gid} is none of the pod's ({ids})")
    return own_uid, own_gid
