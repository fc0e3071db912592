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
# Events beyond this size are lost, which does not matter: the caller looks at the devices afterwards.
_BUFFER_BYTES = 64 * 1024


class ListedDevice:
    """A device in the kernel's list: subsystem, name in sysfs, and node, None without a node."""

    def __init__(self, device: pyudev.Device) -> None:
        self.subsystem: str | None = device.subsystem
        self.name: str | None = device.sys_name
        self.node: str | None = device.device_node
        self._device = device

    def values(self, name: str) -> list[str]:
        """Return the values of a property (`PRODUCT`) of the device and of its parents."""
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
        Return the device of the node `source`, or all devices below a directory, on the same file system.

        No device for a missing path, and none behind a symlink.
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
        """Return the aliases by which the kernel's drivers match the present devices, for loading modules."""
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
        """Return every present device with a subsystem."""
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
    """Yield everything below a directory, but for vanished entries and other mounts."""
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
    """Events from now on, which only tell of some change; the caller then looks at the devices."""

    def __init__(self) -> None:
        kind = socket.SOCK_RAW | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        self._socket = socket.socket(socket.AF_NETLINK, kind, _NETLINK_KOBJECT_UEVENT)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _FROM_KERNEL))

    def fileno(self) -> int:
        """Return a descriptor that is readable while events wait."""
        return self._socket.fileno()

    def drain(self) -> None:
        """Take all waiting events."""
        while True:
            try:
                self._socket.recv(1)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
