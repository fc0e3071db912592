"""
The way of an update from its source to the slot that does not run, and to the firmware, which boots that slot once.

All possible refusals come before the first write: an unsigned manifest, another model, processor or disk, an older
version. Then the other slot is empty until the whole update is inside and has been read again. So after an error or a
loss of power at any time, the other slot boots not at all or as a whole.

The first block of a boot partition makes the partition a file system. That block is erased first, and written last,
when everything else is on the disk and has been read again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from minit.base.errors import UpdateError, describe
from minit.base.processors import this_processor
from minit.base.progress import Progress
from minit.base.value import Value
from minit.machine.slots import (
    HASH_TREE_SIGNATURE,
    boot_once,
    other_slot,
    require_kept,
    root_hash_prefix,
    running_slot,
    slot_devices,
)
from minit.machine.updatesource import Read, open_source, read_fully
from minit.manifest.machineconfig import parse_machine
from minit.manifest.machineupdate import (
    BLOCK_BYTES,
    HEADER,
    UpdateManifest,
    UpdatePart,
    parse_header,
    parse_update,
    read_public_key,
)
from minit.manifest.names import version_numbers
from minit.podfiles import paths

_ROOT_HASH = "minit.root_hash="
_CHUNK_BYTES = 1 << 17
# The bytes between two syncs: memory is short, and progress counts bytes on the disk.
_SYNC_BYTES = 4 << 20
_EMPTY = bytes(BLOCK_BYTES)


class NothingNewer(UpdateError):
    """A useless update: its version runs, or is in the other slot, or is older than the running version."""


class Running(Value):
    """The running version, and the requirements for updates: a signature with one of the public `keys`."""

    model: str
    version: str
    architecture: str
    root_hash: str
    keys: tuple[bytes, ...]


class Installed(Value):
    """The written version and its slot, which the firmware boots next."""

    version: str
    slot: str


def install_update(source: str, progress: Progress, *, allow_downgrade: bool) -> Installed:
    """
    Write an update from a path, a URL, or standard input (`-`), and have it booted once.

    An unattended update should not `allow_downgrade`: the owner of an old update could bring back its errors.
    MinitError if the update is refused or cannot be written.
    """
    with open_source(source) as read:
        return install_from(read, source, progress, allow_downgrade=allow_downgrade, by_hand=True)


def install_from(read: Read, source: str, progress: Progress, *, allow_downgrade: bool, by_hand: bool) -> Installed:
    """
    Install an update whose bytes `read` returns.

    An update in the other slot is written again only `by_hand`: it waits for its boot, or was not kept.
    """
    running = _read_running()
    manifest = read_manifest(read, source, running)
    check_version(manifest, running, allow_downgrade=allow_downgrade)
    require_kept()
    slot = other_slot(running_slot())
    devices = slot_devices(slot)
    with SlotWriter(devices.boot, devices.root) as writer:
        if not by_hand and writer.holds(manifest):
            raise NothingNewer(f"{source}: version {manifest.version} is in slot {slot} already")
        writer.write(manifest, read, source, progress)
    boot_once(slot, manifest.version)
    return Installed(version=manifest.version, slot=slot)


def _read_running() -> Running:
    """Return the running version; UpdateError for a machine that takes no updates."""
    with open(paths.MACHINE_CONFIG, "rb") as file:
        update = parse_machine(file.read(), paths.MACHINE_CONFIG).update
    if update is None:
        raise UpdateError(f"this machine takes no updates: {paths.MACHINE_CONFIG} has no table [update]")
    with open(paths.KERNEL_COMMAND_LINE, encoding="utf-8", errors="replace") as file:
        words = file.read().split()
    return Running(
        model=update.model,
        version=update.version,
        architecture=this_processor().appc,
        root_hash=next((word.removeprefix(_ROOT_HASH) for word in words if word.startswith(_ROOT_HASH)), ""),
        keys=tuple(_read_key(name) for name in update.keys),
    )


def read_manifest(read: Read, source: str, running: Running) -> UpdateManifest:
    """Return the manifest of an update for this machine; ManifestError or UpdateError for any other."""
    header = parse_header(read_fully(read, HEADER.size), source)
    manifest = parse_update(header, read_fully(read, header.manifest_bytes), running.keys, source)
    for name, own, theirs in (
        ("model", running.model, manifest.model),
        ("processor", running.architecture, manifest.architecture),
    ):
        if own != theirs:
            raise UpdateError(f'{source}: an update for the {name} "{theirs}", and this machine is "{own}"')
    return manifest


def check_version(manifest: UpdateManifest, running: Running, *, allow_downgrade: bool) -> None:
    """Raise NothingNewer unless the update differs, and is newer than the running version or may be older."""
    place = f"version {manifest.version}"
    # Both slots must never have the same root: a kernel takes the first root that matches.
    if manifest.root_hash == running.root_hash:
        raise NothingNewer(f"{place} is the one that runs")
    if not allow_downgrade and version_numbers(manifest.version) <= version_numbers(running.version):
        raise NothingNewer(f"{place} is not newer than {running.version}, which runs (try --allow-downgrade)")


def _read_key(name: str) -> bytes:
    path = f"{paths.MACHINE_KEYS}/{name}"
    try:
        with open(path, "rb") as file:
            return read_public_key(file.read(), path)
    except OSError as error:
        raise UpdateError(f"update.keys: {describe(error)}") from error


def tell_tenths(say: Callable[[str], object]) -> Progress:
    """Return a progress that reports each step and, during a long step, each tenth."""
    said = ("", 0)

    def progress(step: str, done: int, total: int | None) -> None:
        nonlocal said
        tenth = 10 * done // total if total else 0
        if (step, tenth) != said:
            said = (step, tenth)
            say(f"{step}: {tenth * 10} %" if total else step)

    return progress


class SlotWriter:
    """
    The partitions of a slot, opened exclusively; use it in a with block.

    UpdateError if a partition is in use, or cannot be read or written.
    """

    def __init__(self, boot: str, root: str) -> None:
        self._paths = {"boot": boot, "root": root}
        self._fds: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SlotWriter:
        try:
            for name, path in self._paths.items():
                # Exclusive: the open fails for a block device that is mounted, or a part of another device.
                fd = os.open(path, os.O_RDWR | os.O_EXCL | os.O_CLOEXEC)
                self._stack.callback(os.close, fd)
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._fds[name] = fd
        except OSError as error:
            self._stack.close()
            reason = "another update is being written" if isinstance(error, BlockingIOError) else describe(error)
            raise UpdateError(f"the partition {name}, {path}, is not free: {reason}") from error
        return self

    def __exit__(self, *_: Any) -> None:
        self._stack.close()

    def holds(self, manifest: UpdateManifest) -> bool:
        """Tell whether the slot has this whole update."""
        prefix = root_hash_prefix(self._get("root", BLOCK_BYTES, manifest.root_blocks * BLOCK_BYTES))
        is_bootable = self._get("boot", BLOCK_BYTES, 0) != _EMPTY
        return is_bootable and prefix is not None and manifest.root_hash.startswith(prefix)

    def write(self, manifest: UpdateManifest, read: Read, source: str, progress: Progress) -> None:
        """Write the parts of an update, which `read` returns; UpdateError leaves the slot empty, or unchanged."""
        for name, part in (("root", manifest.root), ("boot", manifest.boot)):
            size_bytes = os.lseek(self._fds[name], 0, os.SEEK_END)
            if size_bytes < part.partition_bytes:
                needs = f"the update needs {part.partition_bytes} bytes of {self._paths[name]}, which has {size_bytes}"
                raise UpdateError(f"{source}: {needs} (disk.{name}_mib)")
        self._erase(progress)
        self._write_part("root", manifest.root, 0, read, source, progress)
        first = self._write_part("boot", manifest.boot, BLOCK_BYTES, read, source, progress)
        self._put("boot", first, 0)
        self._sync("boot")
        if self._get("boot", BLOCK_BYTES, 0) != first:
            raise self._misread("boot")

    def _erase(self, progress: Progress) -> None:
        """
        Make the slot unbootable, without a block that a kernel takes for the beginning of a hash tree.

        The tree of an earlier version would outlive a smaller version, behind its end. If that earlier version came to
        the other slot some day, its kernel would find the wrong tree of both.
        """
        progress("erasing the other slot", 0, None)
        self._put("boot", _EMPTY, 0)
        self._sync("boot")
        size_bytes = os.lseek(self._fds["root"], 0, os.SEEK_END)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            chunk = self._get("root", _CHUNK_BYTES, start)
            for place in range(0, len(chunk), BLOCK_BYTES):
                if chunk.startswith(HASH_TREE_SIGNATURE, place):
                    self._put("root", _EMPTY[: len(chunk) - place], start + place)
        self._sync("root")

    def _write_part(
        self, name: str, part: UpdatePart, kept_bytes: int, read: Read, source: str, progress: Progress
    ) -> bytes:
        """Write a part but for its first `kept_bytes`, which are returned, and read the part again."""
        first = b""
        step = f"writing the {name} partition"
        digest = hashlib.sha512()
        for start in range(0, part.size_bytes, _CHUNK_BYTES):
            progress(step, start, part.size_bytes)
            wanted = min(_CHUNK_BYTES, part.size_bytes - start)
            data = read_fully(read, wanted)
            if len(data) != wanted:
                got = start + len(data)
                raise UpdateError(f"{source}: cut short: {got} bytes of {part.size_bytes} for the {name} partition")
            digest.update(data)
            if not start:
                first = data[:kept_bytes]
            self._put(name, data[len(first) if not start else 0 :], start or len(first))
            if (start + wanted) % _SYNC_BYTES == 0:
                self._sync(name)
        if digest.hexdigest() != part.sha512:
            raise UpdateError(f"{source}: damaged: the {name} partition is not the one that was signed")
        self._sync(name)
        self._verify(name, part, first, progress)
        return first

    def _verify(self, name: str, part: UpdatePart, first: bytes, progress: Progress) -> None:
        progress(f"reading the {name} partition again", 0, None)
        # Data in memory prove nothing about the disk.
        os.posix_fadvise(self._fds[name], 0, 0, os.POSIX_FADV_DONTNEED)
        digest = hashlib.sha512(first)
        place = len(first)
        while place < part.size_bytes:
            data = self._get(name, min(_CHUNK_BYTES, part.size_bytes - place), place)
            if not data:
                break
            digest.update(data)
            place += len(data)
        if digest.hexdigest() != part.sha512:
            raise self._misread(name)

    def _put(self, name: str, data: bytes, place: int) -> None:
        view = memoryview(data)
        try:
            while view:
                written = os.pwrite(self._fds[name], view, place)
                view, place = view[written:], place + written
        except OSError as error:
            raise UpdateError(f"cannot write {self._paths[name]}: {describe(error)}") from error

    def _get(self, name: str, size_bytes: int, place: int) -> bytes:
        try:
            return os.pread(self._fds[name], size_bytes, place)
        except OSError as error:
            raise UpdateError(f"cannot read {self._paths[name]}: {describe(error)}") from error

    def _sync(self, name: str) -> None:
        try:
            os.fsync(self._fds[name])
        except OSError as error:
            raise UpdateError(f"cannot write {self._paths[name]}: {describe(error)}") from error

    def _misread(self, name: str) -> UpdateError:
        return UpdateError(f"{self._paths[name]} has not what was written there: the disk is broken")
