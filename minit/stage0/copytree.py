"""Copies a rendered stage1 into a pod without overlay as rkt does: metadata yes, hard links and xattrs no."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from minit.stage0.diskerrors import disk_errors

_COPY_BYTES = 1 << 30  # at most this many per system call


def copy_tree(source: Path, destination: Path) -> None:
    """
    Copy the directory `source`, which nobody may change meanwhile, to the new directory `destination`.

    Owners, modes, times, links, devices and fifos are kept. After a failure `destination` is gone.
    """
    with disk_errors(f"copy {source} to {destination}", destination):
        os.mkdir(destination, 0o700)
        try:
            _copy_directory(source, destination)
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)
            raise


def _copy_directory(source: Path, destination: Path) -> None:
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
                    _copy_metadata(target, status)
    # Children change their parent's times, so directories come last, deepest first.
    for _, to_directory, status in reversed(directories):
        _copy_metadata(to_directory, status)


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


def _copy_metadata(target: str, status: os.stat_result) -> None:
    os.chown(target, status.st_uid, status.st_gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))  # after chown(2), which clears the set-id bits
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
