"""
Filling the implicit volumes of images converted from Docker's format with what the image has at their place.

Docker's VOLUME keeps what the image has there; appc's mount points hide it. The image is read from the host before
anything of the pod runs: every path is resolved inside its root, and no symlink below is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator

from minit import paths
from minit.plan.root.volumes import VolumeMount
from minit.supervisor.root.targets import open_existing

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_CHUNK_BYTES = 1 << 30


def copy_up(app: str, volume: VolumeMount) -> bool:
    """
    Copy what the image of `app` has at the volume's target into its new directory, owners, modes and times too.

    Returns whether the image has a directory there. Hard links become files of their own. OSError names what could
    not be copied.
    """
    image = os.open(f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app)}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        place = open_existing(image, volume.target)
    finally:
        os.close(image)
    if place is None:
        return False
    try:
        source = os.open(".", _DIRECTORY, dir_fd=place)
    except NotADirectoryError:
        return False
    finally:
        os.close(place)
    _copy_tree(source, os.open(volume.source, _DIRECTORY), volume.target)
    return True


def _copy_tree(source: int, target: int, path: str) -> None:
    """Copy the content and attributes of a directory, and close both descriptors."""
    # By a stack, since an image may nest deeper than Python's calls.
    pending = [(source, target, path, _entries(source))]
    while pending:
        source, target, path, entries = pending[-1]
        name = next(entries, None)
        if name is None:
            _copy_attributes(source, target)
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
                _copy_file(source, target, name)
            else:
                _copy_other(source, target, name, status)
        except OSError as error:
            raise OSError(error.errno, error.strerror, f"copy {here}") from error


def _entries(directory: int) -> Iterator[str]:
    with os.scandir(directory) as entries:
        for entry in entries:
            yield entry.name


def _copy_file(source: int, target: int, name: str) -> None:
    # Non-blocking: whatever the name has become, opening it must not wait.
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    old = os.open(name, os.O_RDONLY | flags, dir_fd=source)
    try:
        new = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | flags, 0o600, dir_fd=target)
        try:
            _copy_data(old, new)
            _copy_attributes(old, new)
        finally:
            os.close(new)
    finally:
        os.close(old)


def _copy_data(old: int, new: int) -> None:
    """Copy the data of a file and keep its holes, however large it claims to be."""
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


def _copy_other(source: int, target: int, name: str, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    else:
        os.mknod(name, status.st_mode, status.st_rdev, dir_fd=target)
    os.chown(name, status.st_uid, status.st_gid, dir_fd=target, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
    times = status.st_atime_ns, status.st_mtime_ns
    os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)


def _copy_attributes(old: int, new: int) -> None:
    status = os.fstat(old)
    os.fchown(new, status.st_uid, status.st_gid)
    # After the owner, whose change takes the setuid bit away.
    os.fchmod(new, stat.S_IMODE(status.st_mode))
    os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
