"""
Exchanging a mount in the root of an app that runs, for a device that went or came back.

Everything in that root belongs to the app: paths are walked by descriptors, as for its first mounts, and only what is
known to be minit's is taken off.
"""

from __future__ import annotations

import os
import stat

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import MOUNT_EXCHANGE, fork
from minit.supervisor.root.targets import open_existing, open_target, resolve_target

_ERROR_BYTES = 4096
_LOOK = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class Identity(Value):
    """The top of a mount: a file system, a file in it, and the number of the device that it stands for."""

    filesystem: int
    inode: int
    device: int


def identify(status: os.stat_result) -> Identity:
    """Return the identity of what stat(2) told about."""
    return Identity(filesystem=status.st_dev, inode=status.st_ino, device=status.st_rdev)


def exchange_mount(namespace: int, target: str, old: Identity | None, tree: int | None) -> None:
    """
    Take off the mount `old` at `target` in the app with the mount `namespace`, and attach `tree` there.

    Without a `tree` the file that was made for the mount goes too. LaunchError says what failed.
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = fork(
        MOUNT_EXCHANGE,
        lambda: _exchange_in_app(namespace, target, old, tree),
        tell=lambda error: _tell(writer, error),
    )
    os.close(writer)
    with open(reader, "rb") as lines:
        reason = lines.read(_ERROR_BYTES).decode(errors="surrogateescape")
    os.waitpid(pid, 0)
    if reason:
        raise LaunchError(reason)


def _exchange_in_app(namespace: int, target: str, old: Identity | None, tree: int | None) -> None:
    # The host's, where this process has a pid: umount2(2) takes no descriptor.
    descriptors = os.open("/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    if old is not None:
        _take_off(root, target, old, descriptors)
    if tree is not None:
        os.umask(0)
        where = open_target(root, target, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
        syscalls.move_mount(tree, where)
    elif old is not None:
        _remove_place(root, target)


def _tell(writer: int, error: BaseException) -> None:
    os.write(writer, describe(error).encode(errors="surrogateescape")[:_ERROR_BYTES])


def _take_off(root: int, target: str, old: Identity, descriptors: int) -> None:
    found = open_existing(root, target)
    if found is not None and identify(os.fstat(found)) == old:
        os.fchdir(descriptors)
        syscalls.umount2(str(found), syscalls.MNT_DETACH)
        os.chdir("/")


def _remove_place(root: int, target: str) -> None:
    """Remove the empty file that a node was mounted on, where that is possible."""
    names = resolve_target(root, target)
    parent = open_existing(root, "/".join(names[:-1]))
    if parent is None:
        return
    try:
        status = os.stat(names[-1], dir_fd=parent, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode) and status.st_size == 0:
            os.unlink(names[-1], dir_fd=parent)
    except OSError:
        pass  # a root that is read-only keeps it
