"""
What devices there are, from the nodes below a path and from the kernel's own list; the only importer of pyudev.

No udevd is needed: nodes are made by the kernel (devtmpfs).
"""

from __future__ import annotations

import os
import stat

import pyudev

from minit.plan.devices import BLOCK, CHARACTER, Device

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

_PYUDEV_KINDS = {BLOCK: "block", CHARACTER: "char"}


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

    def nodes(self) -> list[tuple[str, str, str | None]]:
        """Return the subsystem, the name and the node, if it has one, of every device there is."""
        found = []
        for device in self._context.list_devices():
            try:
                subsystem, name, node = device.subsystem, device.sys_name, device.device_node
            except (OSError, UnicodeDecodeError):
                continue
            if subsystem and name:
                found.append((subsystem, name, node))
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
