"""The root of a session, which is that of its mount namespace, even if the session is started in a chroot."""

from __future__ import annotations

import os

from minit.linux import syscalls
from minit.linux.mountinfo import read_mountinfo
from minit.linux.process import enter_own_mounts


def make_root_a_mount() -> None:
    """Keep the mounts of this process, which has a namespace of its own, to it, and make its root one of them."""
    if any(mount.mount_point == "/" for mount in read_mountinfo()):
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        return
    directory = os.getcwd()
    root = syscalls.open_tree(syscalls.AT_FDCWD, "/", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    enter_own_mounts(syscalls.MS_PRIVATE)
    syscalls.mount_setattr(root, flags=syscalls.AT_RECURSIVE, propagation=syscalls.MS_PRIVATE)
    syscalls.move_mount(root, syscalls.AT_FDCWD, to_path=".")
    os.fchdir(root)
    os.close(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir(directory)
