"""The file systems that machine.toml names: waited for, checked if a program for that is in the image, mounted."""

from __future__ import annotations

import os
from collections.abc import Callable

from minit import syscalls
from minit.errors import LaunchError, describe
from minit.machine.devices import MachineDevices, find_block_device
from minit.machine.disk.partitions import grow_ext4, grow_partition
from minit.manifest.machineconfig import Filesystem
from minit.plan.root.mountoperations import MountFilesystem
from minit.stdio import complain_at_once
from minit.supervisor.root.applymounts import new_filesystem

# Those without a device, and those whose source is no node.
_WITHOUT_DEVICE = ("tmpfs", "ramfs", "overlay", "9p", "virtiofs", "nfs", "proc", "sysfs", "debugfs", "tracefs")
_CHECKERS = ("/sbin/fsck.", "/usr/sbin/fsck.", "/bin/fsck.", "/usr/bin/fsck.")
_ATTRIBUTES = {"nosuid": True, "nodev": True, "noexec": True, "suid": False, "dev": False, "exec": False}
# fsck(8): corrected errors, and no errors at all, are fine.
_CORRECTED = 1


def mount_filesystem(filesystem: Filesystem, devices: MachineDevices) -> None:
    """Mount a file system as soon as its device is there; LaunchError names what fails."""
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
        # As large as it was, it is of use.
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
        # Of the file system itself, which then does not even write to replay its journal's end.
        options.append(("ro", None))
    return MountFilesystem(
        fstype=filesystem.fstype,
        target=filesystem.target,
        options=tuple(options),
        read_only=filesystem.read_only,
        **attributes,
    )


def _check(place: str, source: str, fstype: str) -> None:
    """Have the device checked and what can be repaired without asking repaired, if there is a program that does."""
    program = next((path + fstype for path in _CHECKERS if os.access(path + fstype, os.X_OK)), None)
    if program is None:
        return
    try:
        pid = os.posix_spawn(program, [program, "-p", source], {"PATH": "/sbin:/bin:/usr/sbin:/usr/bin"})
    except OSError as error:
        raise LaunchError(f"{place}: {describe(error)}: not mounted") from error
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code not in (0, _CORRECTED):
        raise LaunchError(f"{place}: {program} {source} ended with {code}: not mounted")
