"""
Writes an update to the two partitions of a slot, in an order that leaves it empty until it is whole.

The first block of a boot partition is what makes it a file system. It is the first to be erased, and the last to be
written, when everything else is on the disk and has been read again.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from contextlib import ExitStack
from typing import Any

from minit.errors import UpdateError, describe
from minit.machine.disk.hashtree import SIGNATURE, root_hash_prefix
from minit.machine.update.source import Read, read_fully
from minit.manifest.machineupdate import BLOCK_BYTES, UpdateManifest, UpdatePart
from minit.progress import Progress

_CHUNK_BYTES = 1 << 17
# So much is written before the disk has to have it: memory is short, and progress is what is on the disk.
_SYNC_BYTES = 4 << 20
_EMPTY = bytes(BLOCK_BYTES)


class SlotWriter:
    """
    The partitions of a slot, which nobody else writes meanwhile; use it in a with block.

    UpdateError if somebody uses one of them, or it cannot be read or written.
    """

    def __init__(self, boot: str, root: str) -> None:
        self._paths = {"boot": boot, "root": root}
        self._fds: dict[str, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> SlotWriter:
        try:
            for name, path in self._paths.items():
                # Exclusive: a block device that is mounted, or is a part of another one, is not opened.
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
        """Tell whether this update is in the slot as a whole."""
        prefix = root_hash_prefix(self._get("root", BLOCK_BYTES, manifest.root_blocks * BLOCK_BYTES))
        is_bootable = self._get("boot", BLOCK_BYTES, 0) != _EMPTY
        return is_bootable and prefix is not None and manifest.root_hash.startswith(prefix)

    def write(self, manifest: UpdateManifest, read: Read, source: str, progress: Progress) -> None:
        """Write the parts of an update, which `read` returns; UpdateError leaves the slot empty, or as it was."""
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
        Have the slot boot no more, and have no block there that a kernel takes for the beginning of a hash tree.

        The tree of an earlier version would outlive a smaller one behind it. Should that earlier version be written to
        the other slot some day, its kernel would find the wrong one of both.
        """
        progress("erasing the other slot", 0, None)
        self._put("boot", _EMPTY, 0)
        self._sync("boot")
        size_bytes = os.lseek(self._fds["root"], 0, os.SEEK_END)
        for start in range(0, size_bytes, _CHUNK_BYTES):
            chunk = self._get("root", _CHUNK_BYTES, start)
            for place in range(0, len(chunk), BLOCK_BYTES):
                if chunk.startswith(SIGNATURE, place):
                    self._put("root", _EMPTY[: len(chunk) - place], start + place)
        self._sync("root")

    def _write_part(
        self, name: str, part: UpdatePart, kept_bytes: int, read: Read, source: str, progress: Progress
    ) -> bytes:
        """Write a part but for its first `kept_bytes`, which are returned, and read it again."""
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
        # What is in memory says nothing about the disk.
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
