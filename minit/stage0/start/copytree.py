"""
Copies a rendered stage1 into a pod without overlay as rkt does: metadata yes, hard links and xattrs no.

The owners are shifted on the way if the pod has a user namespace.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from minit.errors import StoreError
from minit.idrange import IdRange
from minit.stage0.files.diskerrors import disk_errors

_COPY_BYTES = 1 << 30  # at most this many per system call


def copy_tree(source: Path, destination: Path, ids: IdRange | None = None) -> None:
    """
    Copy the directory `source`, which nobody may change meanwhile, to the new directory `destination`.

    Owners, modes, times, links, devices and fifos are kept; with `ids` the owners are those of the pod, and become
    those of the host. StoreError if one is not mapped. After a failure `destination` is gone.
    """
    with disk_errors(f"copy {source} to {destination}", destination):
        os.mkdir(destination, 0o700)
        try:
            _copy_directory(source, destination, ids)
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)
            raise


def _copy_directory(source: Path, destination: Path, ids: IdRange | None) -> None:
    directories = [(os.fspath(source), os.fspath(destination), source.lstat())]
    # Grows while it is walked.
    for from_directory, to_directory, _ in directories:
        with os.scandir(from_directory) as entries:
            for entry in entries:
                target = f"{to_directory}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(target, 0o700)
                    directories.append((entry.path, target, status))
                else:
                    _copy_leaf(entry.path, target, status)
                    _copy_metadata(entry.path, target, status, ids)
    # Children change their parent's times, so directories come last, deepest first.
    for from_directory, to_directory, status in reversed(directories):
        _copy_metadata(from_directory, to_directory, status, ids)


def _copy_leaf(source: str, target: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        _copy_data(source, target)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        os.mknod(target, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(target, 0o600)
    else:
        raise OSError(f"{source} is a socket, which no image can contain")


def _copy_data(source: str, target: str) -> None:
    from_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while os.sendfile(to_fd, from_fd, None, _COPY_BYTES):
                pass
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def _copy_metadata(source: str, target: str, status: os.stat_result, ids: IdRange | None) -> None:
    uid, gid = status.st_uid, status.st_gid
    if ids is not None:
        uid, gid = _shift(source, "uid", uid, ids), _shift(source, "gid", gid, ids)
    os.chown(target, uid, gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))  # after chown(2), which clears the set-id bits
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _shift(source: str, kind: str, number: int, ids: IdRange) -> int:
    shifted = ids.to_host(number)
    if shifted is None:
        raise StoreError(f"copy {source}: unmapped {kind} {number}: {ids.describe()}")
    return shifted
