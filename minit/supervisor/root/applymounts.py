"""Applying mount operations inside a root, every target by a descriptor that was resolved within that root."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping

from minit.linux import syscalls
from minit.plan.root.mountoperations import (
    BindTree,
    MadeFilesystem,
    MakeDirectory,
    MakeFile,
    MakeNode,
    MakeSymlink,
    MountFilesystem,
    MountOp,
)

# The image decides what symlinks lie on the way; none of them may lead out of its root.
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


def apply_mounts(operations: Iterable[MountOp], root: int, trees: Mapping[str, int] | None = None) -> None:
    """
    Apply the operations in order inside the directory `root`; OSError names the target that failed.

    `trees` are the detached mounts that the launcher has made, by target; they are closed here.
    """
    directory = _Directory(root)
    try:
        for operation in operations:
            try:
                if isinstance(operation, (MountFilesystem, BindTree, MadeFilesystem)):
                    # It may be mounted where the directory is, or above it.
                    directory.close()
                    _attach(_tree_of(operation, trees or {}), root, operation.target)
                else:
                    _make(operation, directory)
            except OSError as error:
                raise OSError(error.errno, error.strerror, operation.target) from error
    finally:
        directory.close()


class _Directory:
    """The directory inside `root` in which something was made last: what follows is mostly made there too."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._path = ""
        self._fd: int | None = None

    def open(self, path: str) -> int:
        """Return a descriptor of the directory at `path`, until another one is opened."""
        if self._fd is None or path != self._path:
            self.close()
            self._fd = syscalls.openat2(self._root, path, os.O_PATH | os.O_DIRECTORY, resolve=_RESOLVE)
            self._path = path
        return self._fd

    def close(self) -> None:
        """Let go of it."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _tree_of(operation: MountFilesystem | BindTree | MadeFilesystem, trees: Mapping[str, int]) -> int:
    if isinstance(operation, MadeFilesystem):
        return trees[operation.target]
    if isinstance(operation, MountFilesystem):
        return new_filesystem(operation)
    depth = syscalls.AT_RECURSIVE if operation.recursive else 0
    tree = syscalls.open_tree(syscalls.AT_FDCWD, operation.source, syscalls.OPEN_TREE_CLONE | depth)
    if operation.writable:
        syscalls.mount_setattr(tree, flags=depth, clear=syscalls.MOUNT_ATTR_RDONLY)
    if operation.read_only:
        syscalls.mount_setattr(tree, flags=depth, set=syscalls.MOUNT_ATTR_RDONLY)
    return tree


def _make(operation: MakeDirectory | MakeFile | MakeNode | MakeSymlink, within: _Directory) -> None:
    parent, name = os.path.split(operation.target)
    directory = within.open(parent)
    if isinstance(operation, MakeDirectory):
        _make_directory(directory, name, operation.mode)
    elif isinstance(operation, MakeFile):
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, operation.mode, dir_fd=directory))
    elif isinstance(operation, MakeNode):
        device = os.makedev(operation.major, operation.minor)
        kind = stat.S_IFBLK if operation.is_block else stat.S_IFCHR
        os.mknod(name, kind | operation.mode, device, dir_fd=directory)
        if operation.uid or operation.gid:
            os.chown(name, operation.uid, operation.gid, dir_fd=directory, follow_symlinks=False)
    else:
        os.symlink(operation.text, name, dir_fd=directory)


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
