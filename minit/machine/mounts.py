"""The file systems that every machine has, mounted by its first program, and leaving them in order at its end."""

from __future__ import annotations

import os

from minit import syscalls
from minit.errors import describe
from minit.mountinfo import Mount, read_mountinfo
from minit.plan.root.mountoperations import TTY_GID, MakeDirectory, MountFilesystem, MountOp
from minit.stdio import complain_at_once
from minit.supervisor.root.applymounts import apply_mounts

CGROUPS = "/sys/fs/cgroup"
# Mounted in this order, unless whoever started minit has done so: a kernel that has its root on a disk mounts /dev.
_FILESYSTEMS = (
    MountFilesystem(fstype="proc", target="/proc"),
    MountFilesystem(fstype="sysfs", target="/sys"),
    MountFilesystem(fstype="devtmpfs", target="/dev", options=(("mode", "0755"),), nodev=False),
    MountFilesystem(
        fstype="devpts",
        target="/dev/pts",
        options=(("ptmxmode", "0666"), ("mode", "0620"), ("gid", str(TTY_GID))),
        nodev=False,
    ),
    MountFilesystem(fstype="tmpfs", target="/dev/shm", options=(("mode", "1777"),)),
    MountFilesystem(fstype="tmpfs", target="/run", options=(("mode", "0755"),)),
    MountFilesystem(fstype="cgroup2", target=CGROUPS),
)
# They end with the machine, and have nothing to write.
_VOLATILE = ("/proc", "/sys", "/dev", "/run")


def enter_mountable_root() -> None:
    """
    Make the root of this process a mount out of which pivot_root(2) leads.

    Nothing leads out of the kernel's initial file system, where a machine without a disk starts; a second mount of it
    on top has a parent.
    """
    root = next((mount for mount in read_mountinfo() if mount.mount_point == "/"), None)
    if root is None or root.mount_id != root.parent_id:
        return
    tree = syscalls.open_tree(syscalls.AT_FDCWD, "/", syscalls.OPEN_TREE_CLONE)
    syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path="/")
    os.fchdir(tree)
    os.chroot(".")
    os.close(tree)
    # Through it the interpreter finds its own files.
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def mount_early() -> list[str]:
    """Mount what every machine has, and return what could not be."""
    problems = []
    root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        mounted = {mount.mount_point for mount in read_mountinfo()}
        for filesystem in _FILESYSTEMS:
            operations: list[MountOp] = [] if filesystem.target in mounted else [filesystem]
            if not os.path.isdir(filesystem.target):
                operations.insert(0, MakeDirectory(target=filesystem.target))
            try:
                apply_mounts(operations, root)
            except OSError as error:
                problems.append(f"mount {filesystem.fstype} on {describe(error)}")
    finally:
        os.close(root)
    return problems


def unmount_all() -> None:
    """Make every file system of a device read-only and unmount it, like all others, the last mounted first."""
    for mount in reversed(read_mountinfo()):
        if f"{mount.mount_point}/".startswith(tuple(f"{place}/" for place in _VOLATILE)):
            continue
        if _has_device(mount):
            # First: what PID 1 has mapped of an overlay on it keeps it in use, though it is unmounted.
            _try_read_only(mount)
        if mount.mount_point != "/":
            # Linux 6.1 calls an overlay busy at this point, 6.18 does not; what it writes to is safe by now.
            detach = syscalls.MNT_DETACH if mount.fstype == "overlay" else 0
            try:
                syscalls.umount2(mount.mount_point, syscalls.UMOUNT_NOFOLLOW | detach)
            except OSError as error:
                complain_at_once(f"minit: unmount {describe(error)}")


def _has_device(mount: Mount) -> bool:
    return mount.source.startswith("/dev/")


def _try_read_only(mount: Mount) -> None:
    try:
        syscalls.mount(None, mount.mount_point, None, syscalls.MS_REMOUNT | syscalls.MS_RDONLY)
    except OSError as error:
        complain_at_once(f"minit: make read-only {describe(error)}")
