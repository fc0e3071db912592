"""
The file systems of a machine: the standard ones, those of machine.toml, and the unmounting at the end; and swap.

The first program mounts the first kind. The helper waits for the devices of the second kind, and checks a file system
before the mount if the image has a program for that.
"""

from __future__ import annotations

import errno
import os
import struct
import time
from collections.abc import Callable
from typing import NoReturn

from minit.base.errors import LaunchError, describe
from minit.launcher.cgroups import write_group_file
from minit.linux import syscalls
from minit.linux.forks import FILESYSTEM_CHECK, fork
from minit.linux.mountinfo import Mount, read_mountinfo
from minit.linux.stdio import complain_at_once
from minit.machine.devices import MachineDevices, find_block_device
from minit.machine.modules import Modules
from minit.machine.partitions import grow_ext4, grow_partition
from minit.manifest.machineconfig import Filesystem, Swap
from minit.plan.root.mountoperations import TTY_GID, MakeDirectory, MountFilesystem, MountOp
from minit.supervisor.root.applymounts import apply_mounts, new_filesystem

CGROUPS = "/sys/fs/cgroup"
# Mounted in this order, unless the starter of minit has done so: a kernel with its root on a disk mounts /dev.
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
# File systems without a device, or with a source other than a node.
_WITHOUT_DEVICE = ("tmpfs", "ramfs", "overlay", "9p", "virtiofs", "nfs", "proc", "sysfs", "debugfs", "tracefs")
_CHECKERS = ("/sbin/fsck.", "/usr/sbin/fsck.", "/bin/fsck.", "/usr/bin/fsck.")
_ATTRIBUTES = {"nosuid": True, "nodev": True, "noexec": True, "suid": False, "dev": False, "exec": False}
# fsck(8): corrected errors, and no errors at all, are fine.
_CORRECTED = 1

_DEVICE = "/dev/zram0"
_SETTINGS = "/sys/block/zram0"
# A third of zstd's work for a quarter more memory. Kernels built without it use LZ4 by default.
_ALGORITHM = "lzo-rle"
# As in linux/swap.h, behind 1 KiB for other uses: version, last page; the magic ends the first page.
_HEADER = struct.Struct("1024x2I")
_VERSION = 1
_MAGIC = b"SWAPSPACE2"
# When the apps have started, and a machine has come to rest.
_REST_SECONDS = 3.0
_TMPFS = 0x01021994  # linux/magic.h
# At once: PID 1 asks meanwhile whether the helper hangs.
_STEP_BYTES = 4 << 20


def enter_mountable_root() -> None:
    """
    Make the root of this process a mount that pivot_root(2) can leave.

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
    # There the interpreter finds its own files.
    syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)


def mount_early() -> list[str]:
    """Mount the standard file systems; return the failures."""
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
            # First: PID 1's mappings of an overlay on the file system keep it in use, even unmounted.
            _try_read_only(mount)
        if mount.mount_point != "/":
            # Linux 6.1 calls an overlay busy at this point, 6.18 does not; its upper file system is safe by now.
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


def mount_filesystem(filesystem: Filesystem, devices: MachineDevices) -> None:
    """Mount a file system as soon as its device exists; LaunchError names the failure."""
    place = f"filesystem {filesystem.target}"
    source = filesystem.source
    if filesystem.fstype not in _WITHOUT_DEVICE:
        found = devices.wait_for(lambda: find_block_device(source), filesystem.wait_seconds)
        if found is None:
            raise LaunchError(f"{place}: no block device {source} within {filesystem.wait_seconds} s")
        source = found
        if filesystem.grow:
            _grow(place, lambda: grow_partition(found))
        if not filesystem.read_only:
            _check(place, source, filesystem.fstype)
    try:
        os.makedirs(filesystem.target, exist_ok=True)
        tree = new_filesystem(_operation(filesystem, source))
        try:
            syscalls.move_mount(tree, syscalls.AT_FDCWD, to_path=filesystem.target)
        finally:
            os.close(tree)
    except OSError as error:
        raise LaunchError(f"{place}: mount {source} as {filesystem.fstype}: {describe(error)}") from error
    if filesystem.grow:
        _grow(place, lambda: grow_ext4(filesystem.target, source))


def _grow(place: str, grow: Callable[[], None]) -> None:
    try:
        grow()
    except (OSError, ValueError) as error:
        # The file system is useful in its old size.
        complain_at_once(f"minit: {place}: cannot grow: {describe(error)}")


def _operation(filesystem: Filesystem, source: str) -> MountFilesystem:
    attributes = {"nosuid": True, "nodev": True, "noexec": False}
    options: list[tuple[str, str | None]] = [("source", source)]
    for word in filter(None, filesystem.options.split(",")):
        name, equals, value = word.partition("=")
        if name in _ATTRIBUTES:
            attributes[name if _ATTRIBUTES[name] else f"no{name}"] = _ATTRIBUTES[name]
        else:
            options.append((name, value if equals else None))
    if filesystem.read_only:
        # An option of the file system itself, which then does not even write to replay its journal's end.
        options.append(("ro", None))
    return MountFilesystem(
        fstype=filesystem.fstype,
        target=filesystem.target,
        options=tuple(options),
        read_only=filesystem.read_only,
        **attributes,
    )


def _check(place: str, source: str, fstype: str) -> None:
    """Have the device checked, and repaired where no question is needed, if there is a program for that."""
    program = next((path + fstype for path in _CHECKERS if os.access(path + fstype, os.X_OK)), None)
    if program is None:
        return
    code, failure = _run_checker(program, source)
    if failure:
        raise LaunchError(f"{place}: {failure}: not mounted")
    if code not in (0, _CORRECTED):
        raise LaunchError(f"{place}: {program} {source} ended with {code}: not mounted")


def _run_checker(program: str, source: str) -> tuple[int, str]:
    """Return the exit code of a program that checks a device, and why the program could not be executed if so."""
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def execute() -> NoReturn:
        os.execve(program, [program, "-p", source], {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin"})

    def tell(error: BaseException) -> None:
        os.write(writer, describe(error).encode())

    pid = fork(FILESYSTEM_CHECK, execute, {"report": writer}, tell=tell)
    os.close(writer)
    with open(reader, "rb") as report:
        failure = report.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), failure


class CompressedSwap:
    """
    Turns on swap in compressed memory (zram) at `deadline` (monotonic), then has the kernel write out as many bytes as
    the root takes.

    Most of a root in memory is never read again once the apps run, as is much of a process's setup; the kernel's
    Documentation/admin-guide/blockdev/zram.rst and cgroup-v2.rst (memory.reclaim) have the files. A root outside a
    tmpfs cannot be written out: then the kernel alone decides what is, and when.
    """

    def __init__(self, swap: Swap, modules: Modules) -> None:
        self._swap = swap
        self._modules = modules
        self._left_bytes: int | None = None
        self.deadline: float | None = time.monotonic() + _REST_SECONDS

    def filenos(self) -> list[int]:
        """Return no descriptors to wait for."""
        return []

    def turn(self) -> None:
        """Do the next step if due; a failure is reported once, and left."""
        if self.deadline is None or time.monotonic() < self.deadline:
            return
        self.deadline = None
        try:
            if self._left_bytes is None:
                _turn_on(self._swap.size_mib << 20, self._modules)
                self._left_bytes = _root_bytes()
            else:
                write_group_file(f"{CGROUPS}/memory.reclaim", str(min(_STEP_BYTES, self._left_bytes)))
                self._left_bytes -= _STEP_BYTES
        except OSError as error:
            # Nothing is left, or a kernel before 5.19, which chooses itself what to write out when memory is short.
            if self._left_bytes is None or error.errno not in (errno.EAGAIN, errno.ENOENT):
                complain_at_once(f"minit: swap: {describe(error)}")
        else:
            self.deadline = time.monotonic() if self._left_bytes > 0 else None


def _turn_on(size_bytes: int, modules: Modules) -> None:
    # For the algorithm the kernel would call modprobe.
    modules.load_for([f"crypto-{_ALGORITHM}"])
    modules.load("zram")
    try:
        write_group_file(f"{_SETTINGS}/comp_algorithm", _ALGORITHM)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    write_group_file(f"{_SETTINGS}/disksize", str(size_bytes))
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    header = _HEADER.pack(_VERSION, size_bytes // page_bytes - 1)
    device = os.open(_DEVICE, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(device, header.ljust(page_bytes - len(_MAGIC), b"\0") + _MAGIC)
        os.fsync(device)
    finally:
        os.close(device)
    syscalls.swapon(_DEVICE)


def _root_bytes() -> int:
    """Return how much the root takes of a tmpfs, 0 for a root elsewhere."""
    if syscalls.filesystem_type("/") != _TMPFS:
        return 0
    status = os.statvfs("/")
    return (status.f_blocks - status.f_bfree) * status.f_frsize
