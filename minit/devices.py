"""
The devices of the host, from the nodes below a path and from the kernel's own list; the only importer of pyudev.

No udevd is needed: nodes are made by the kernel (devtmpfs).
"""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Iterator

import pyudev

from minit.plan.root.devicevolumes import BLOCK, CHARACTER, Device

_PYUDEV_KINDS = {BLOCK: "block", CHARACTER: "char"}

_NETLINK_KOBJECT_UEVENT = 15
_FROM_KERNEL = 1
# More than that is lost, which does not matter to who looks afterwards.
_BUFFER_BYTES = 64 * 1024


class ListedDevice:
    """A device as the kernel lists it: its subsystem, its name in sysfs, and its node, None without one."""

    def __init__(self, device: pyudev.Device) -> None:
        self.subsystem: str | None = device.subsystem
        self.name: str | None = device.sys_name
        self.node: str | None = device.device_node
        self._device = device

    def values(self, name: str) -> list[str]:
        """Return what the kernel says of a property (`PRODUCT`), of the device and of those that it is a part of."""
        found = []
        for device in (self._device, *self._device.ancestors):
            try:
                value = device.properties.get(name)
            except (OSError, UnicodeDecodeError):
                continue  # gone meanwhile, or no text
            if value is not None:
                found.append(value)
        return found


class DeviceLookup:
    """A view of the kernel's devices (sysfs)."""

    def __init__(self) -> None:
        self._context = pyudev.Context()

    def find(self, source: str) -> list[Device]:
        """
        Return the device that the node `source` stands for, or all below a directory, on the same file system.

        None at all for what is not there, and none by a symlink.
        """
        try:
            status = os.lstat(source)
        except FileNotFoundError:
            return []
        if not stat.S_ISDIR(status.st_mode):
            return self._look_up(source, status)
        nodes = sorted(_walk(source, status.st_dev))
        return [device for path, found in nodes for device in self._look_up(path, found)]

    def modaliases(self) -> list[str]:
        """Return what the devices there are call for in modules, each as the kernel's drivers match it."""
        found = []
        for device in self._context.list_devices().match_property("MODALIAS", "*"):
            try:
                alias = device.properties.get("MODALIAS")
            except (OSError, UnicodeDecodeError):
                continue  # gone meanwhile, or no text
            if alias:
                found.append(alias)
        return found

    def devices(self) -> list[ListedDevice]:
        """Return every device there is that belongs to a subsystem."""
        found = []
        for device in self._context.list_devices():
            try:
                listed = ListedDevice(device)
            except (OSError, UnicodeDecodeError):
                continue
            if listed.subsystem and listed.name:
                found.append(listed)
        return found

    def _look_up(self, path: str, status: os.stat_result) -> list[Device]:
        if not (stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            return []
        kind = CHARACTER if stat.S_ISCHR(status.st_mode) else BLOCK
        try:
            device = pyudev.Devices.from_device_number(self._context, _PYUDEV_KINDS[kind], status.st_rdev)
            subsystem = device.subsystem
        except pyudev.DeviceNotFoundError:
            subsystem = None
        return [
            Device(
                path=path,
                kind=kind,
                major=os.major(status.st_rdev),
                minor=os.minor(status.st_rdev),
                mode=stat.S_IMODE(status.st_mode),
                subsystem=subsystem,
            )
        ]


def _walk(directory: str, filesystem: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield everything below a directory; what vanishes meanwhile, or is mounted there, is left out."""
    try:
        entries = list(os.scandir(directory))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        try:
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        if status.st_dev != filesystem:
            continue
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(entry.path, filesystem)
        else:
            yield entry.path, status


class DeviceEvents:
    """Events from now on, which tell that something has changed; what there is now is found by looking."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _FROM_KERNEL))

    def fileno(self) -> int:
        """Return a descriptor that can be read while there are events."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take all events that have come."""
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
