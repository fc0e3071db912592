"""Applying mount operations inside a root, every target by a descriptor that was resolved within that root."""

from __future__ import annotations

import os
import stat

from minit import syscalls
from minit.plan.mounts import BindTree, MadeFilesystem, MakeDirectory, MakeFile, MakeNode, MakeSymlink, MountFilesystem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from minit.plan.mounts import MountOp

# The image decides what symlinks lie on the way; none of them may lead out of its root.
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


def apply_mounts(operations: Iterable[MountOp], root: int, trees: Mapping[str, int] | None = None) -> None:
    """
    Apply the operations in order inside the directory `root`; OSError names the target that failed.

    `trees` are the detached mounts that the launcher has made, by target; they are closed here.
    """
    for operation in operations:
        try:
            if isinstance(operation, MadeFilesystem):
                assert trees is not None
                _attach(trees[operation.target], root, operation.target)
            else:
                _apply(operation, root)
        except OSError as error:
            raise OSError(error.errno, error.strerror, operation.target) from error


def _apply(operation: MountOp, root: int) -> None:
    if isinstance(operation, MountFilesystem):
        tree = new_filesystem(operation)
        _attach(tree, root, operation.target)
    elif isinstance(operation, BindTree):
        depth = syscalls.AT_RECURSIVE if operation.recursive else 0
        tree = syscalls.open_tree(syscalls.AT_FDCWD, operation.source, syscalls.OPEN_TREE_CLONE | depth)
        _attach(tree, root, operation.target)
    else:
        parent, name = os.path.split(operation.target)
        directory = syscalls.openat2(root, parent, os.O_PATH | os.O_DIRECTORY, resolve=_RESOLVE)
        try:
            if isinstance(operation, MakeDirectory):
                _make_directory(directory, name, operation.mode)
            elif isinstance(operation, MakeFile):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(name, flags, operation.mode, dir_fd=directory))
            elif isinstance(operation, MakeNode):
                device = os.makedev(operation.major, operation.minor)
                os.mknod(name, stat.S_IFCHR | operation.mode, device, dir_fd=directory)
            elif isinstance(operation, MakeSymlink):
                os.symlink(operation.text, name, dir_fd=directory)
        finally:
            os.close(directory)


def _make_directory(parent: int, name: str, mode: int) -> None:
    try:
        os.mkdir(name, mode, dir_fd=parent)
    except FileExistsError:
        pass  # what is there is used, or refused by the mount that needs a directory


def new_filesystem(operation: MountFilesystem) -> int:
    """Return a detached mount of a new filesystem."""
    context = syscalls.fsopen(operation.fstype)
    try:
        for key, value in operation.options:
            if value is None:
                syscalls.fsconfig_set_flag(context, key)
            else:
                syscalls.fsconfig_set_string(context, key, value)
        syscalls.fsconfig_create(context)
        attributes = 0
        for wanted, attribute in (
            (operation.nosuid, syscalls.MOUNT_ATTR_NOSUID),
            (operation.nodev, syscalls.MOUNT_ATTR_NODEV),
            (operation.noexec, syscalls.MOUNT_ATTR_NOEXEC),
            (operation.read_only, syscalls.MOUNT_ATTR_RDONLY),
        ):
            attributes |= attribute if wanted else 0
        return syscalls.fsmount(context, attributes)
    finally:
        os.close(context)


def _attach(tree: int, root: int, target: str) -> None:
    try:
        where = syscalls.openat2(root, target, os.O_PATH, resolve=_RESOLVE)
        try:
            syscalls.move_mount(tree, where)
        finally:
            os.close(where)
    finally:
        os.close(tree)


def enter_root(root: int) -> None:
    """
    Make the mount `root` the root of this mount namespace and detach the old one.

    With "." for both arguments the old root ends up stacked on the new one, so no directory is needed for it
    (pivot_root(2), NOTES).
    """
    os.fchdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
