"""
The devices of a machine without udevd: found by looking, followed by the kernel's own events.

A file system's label and UUID are read from its superblock, for ext2 to ext4 and xfs.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import TypeVar

from minit.base.errors import describe
from minit.devices import DeviceEvents, DeviceLookup, ListedDevice
from minit.linux.loop import wait_readable
from minit.linux.stdio import complain_at_once
from minit.machine.modules import Modules
from minit.machine.partitions import find_partition
from minit.manifest.machineconfig import DeviceRule

T = TypeVar("T")

# An event about this device, which always exists, only says to look again.
_ANY_DEVICE = "/sys/class/mem/null/uevent"
_BLOCK_DEVICES = "/sys/class/block"
_BY_CONTENT = ("LABEL=", "UUID=")
_BY_PARTITION = "PARTLABEL="
_READ_BYTES = 2048
# Of the superblock, at byte 1024 (the kernel's Documentation/filesystems/ext4/super.rst).
_EXT_SUPERBLOCK = 1024
_EXT_MAGIC, _EXT_UUID, _EXT_LABEL = (0x38, 2), (0x68, 16), (0x78, 16)
_EXT_MAGIC_BYTES = b"\x53\xef"
# At byte 0 (xfs_format.h, struct xfs_dsb).
_XFS_MAGIC_BYTES = b"XFSB"
_XFS_UUID, _XFS_LABEL = (32, 16), (108, 12)


class MachineDevices:
    """
    All devices, with their loaded modules.

    Events come from before the first look, so none is missed: each only says to look again.
    """

    def __init__(self, modules: Modules, rules: Sequence[DeviceRule] = ()) -> None:
        self._modules = modules
        self._rules = rules
        self._matched: set[DeviceRule] = set()
        self._events = DeviceEvents()
        self._lookup: DeviceLookup | None = None

    def fileno(self) -> int:
        """Return a descriptor that is readable when devices have come or gone."""
        return self._events.fileno()

    def look(self) -> None:
        """Load the modules for all devices, and for devices that appear then, and apply the rules."""
        self._events.drain()
        if self._modules.are_for_devices:
            lookup = self._open_lookup()
            while self._modules.load_for(lookup.modaliases()):
                pass
        if self._rules:
            self._apply_rules(self._open_lookup())

    def _open_lookup(self) -> DeviceLookup:
        if self._lookup is None:
            self._lookup = DeviceLookup()
        return self._lookup

    def _apply_rules(self, lookup: DeviceLookup) -> None:
        found = lookup.devices()
        links: dict[str, str | None] = {}
        for rule in self._rules:
            matching = [device for device in found if _is_for(rule, device)]
            if matching:
                self._matched.add(rule)
            nodes = [device.node for device in matching if device.node is not None]
            for node in nodes:
                _apply_rule(rule, node)
            if rule.link is not None:
                links[rule.link] = nodes[-1] if nodes else links.get(rule.link)
        own = {device.node for device in found}
        changes = [_set_link(f"/dev/{link}", node, own) for link, node in links.items()]
        if any(changes):
            _announce()

    def has(self, rule: DeviceRule) -> bool:
        """Return whether there has been a device for a rule."""
        return rule in self._matched

    def wait_for(self, find: Callable[[], T | None], seconds: float) -> T | None:
        """
        Return the result of `find`, as soon as there is a result or the time is over; devices are followed meanwhile.
        """
        until = time.monotonic() + seconds
        while (found := find()) is None and (left := until - time.monotonic()) > 0:
            wait_readable([self.fileno()], left)
            self.look()
        return found


def _apply_rule(rule: DeviceRule, node: str) -> None:
    """Give a device's node the owner and mode of a rule; a vanished node is ignored."""
    try:
        if rule.uid is not None or rule.gid is not None:
            os.chown(node, -1 if rule.uid is None else rule.uid, -1 if rule.gid is None else rule.gid)
        if rule.mode is not None:
            os.chmod(node, rule.mode)
    except FileNotFoundError:
        pass
    except OSError as error:
        complain_at_once(f"minit: device {node}: {describe(error)}")


def _is_for(rule: DeviceRule, device: ListedDevice) -> bool:
    if device.subsystem != rule.subsystem or not fnmatchcase(device.name or "", rule.name):
        return False
    return all(any(fnmatchcase(value, pattern) for value in device.values(name)) for name, pattern in rule.properties)


def _set_link(path: str, node: str | None, own: set[str | None]) -> bool:
    """
    Make `path` another name of a device's node, or remove the name; return whether anything changed.

    A second name of the same file, not a symlink: volumes are devices, not links to devices.
    """
    try:
        if path in own:
            raise FileExistsError(errno.EEXIST, "it is the name of a device", path)
        if node is not None and os.path.lexists(path) and os.path.samestat(os.lstat(path), os.lstat(node)):
            return False
        if os.path.lexists(path):
            os.unlink(path)
        elif node is None:
            return False
        if node is not None:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.link(node, path)
        return True
    except FileNotFoundError:
        return False  # the node has vanished meanwhile, of which there is another event
    except OSError as error:
        complain_at_once(f"minit: device link {path}: {describe(error)}")
        return False


def _announce() -> None:
    """Have the kernel tell followers of devices to look again: they looked when the device came, before its link."""
    try:
        with open(_ANY_DEVICE, "wb", buffering=0) as file:
            file.write(b"change")
    except OSError as error:
        complain_at_once(f"minit: {describe(error)}")


def find_block_device(source: str) -> str | None:
    """
    Return the node of a block device, named by its path, by LABEL= or UUID= of its file system, or by PARTLABEL= of a
    partition.
    """
    if source.startswith(_BY_PARTITION):
        return find_partition(source.removeprefix(_BY_PARTITION))
    if not source.startswith(_BY_CONTENT):
        try:
            return source if stat.S_ISBLK(os.stat(source).st_mode) else None
        except OSError:
            return None
    kind, _, value = source.partition("=")
    try:
        names = sorted(os.listdir(_BLOCK_DEVICES))
    except OSError:
        return None  # a kernel without block devices
    for name in names:
        node = f"/dev/{name.replace('!', '/')}"
        if _read_volume_ids(node).get(kind) == value:
            return node
    return None


def _read_volume_ids(node: str) -> dict[str, str]:
    """Return LABEL and UUID of a block device, empty for an unknown content or an unreadable device."""
    try:
        fd = os.open(node, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = os.pread(fd, _READ_BYTES, 0)
        finally:
            os.close(fd)
    except OSError:
        return {}
    return parse_volume_ids(data)


def parse_volume_ids(data: bytes) -> dict[str, str]:
    """Return LABEL and UUID in the first 2048 bytes of a device."""
    if _field(data, _EXT_MAGIC, _EXT_SUPERBLOCK) == _EXT_MAGIC_BYTES:
        return _name(_field(data, _EXT_UUID, _EXT_SUPERBLOCK), _field(data, _EXT_LABEL, _EXT_SUPERBLOCK))
    if data.startswith(_XFS_MAGIC_BYTES):
        return _name(_field(data, _XFS_UUID), _field(data, _XFS_LABEL))
    return {}


def _field(data: bytes, place: tuple[int, int], start: int = 0) -> bytes:
    offset, size = place
    return data[start + offset : start + offset + size]


def _name(uuid: bytes, label: bytes) -> dict[str, str]:
    digits = uuid.hex()
    names = {"UUID": "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))}
    text = label.partition(b"\0")[0].decode("utf-8", "surrogateescape")
    return {**names, "LABEL": text} if text else names
