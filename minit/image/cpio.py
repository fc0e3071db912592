"""
Writes an initial file system for a kernel: the cpio format "newc", the same bytes for the same tree.

The kernel's Documentation/driver-api/early-userspace/buffer-format.rst is the authority.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from minit.base.errors import ImageError
from minit.base.progress import Progress, silent

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"
_ALIGNMENT = 4
_MAXIMUM_FILE_BYTES = 0xFFFFFFFF
_CONSOLE = "dev/console"
_CONSOLE_DEVICE = (5, 1)


def write_cpio(root: Path, file: IO[bytes], progress: Progress = silent) -> None:
    """
    Write all below `root`, with owners, modes, times and hard links, and a node for the first console.

    ImageError for a file that is too large for the format. The format has no extended attributes.
    """
    paths = list(_below(root))
    writer = _Writer(file, paths)
    for done, path in enumerate(paths):
        progress("packing files", done, len(paths))
        writer.add(path, str(path.relative_to(root)))
        if path == root / "dev":
            # The kernel opens the console as the standard streams of the first program.
            writer.add_node(_CONSOLE, stat.S_IFCHR | 0o600, _CONSOLE_DEVICE)
    writer.end()
    progress("packing files", len(paths), len(paths))


class _Writer:
    def __init__(self, file: IO[bytes], paths: list[Path]) -> None:
        self._file = file
        self._number = 0
        self._numbers: dict[tuple[int, int], int] = {}
        self._names: dict[tuple[int, int], int] = {}
        for path in paths:
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                inode = (status.st_dev, status.st_ino)
                self._names[inode] = self._names.get(inode, 0) + 1
        self._links = dict(self._names)

    def add(self, path: Path, name: str) -> None:
        status = path.lstat()
        mtime = max(0, min(int(status.st_mtime), 0xFFFFFFFF))
        kind = stat.S_IFMT(status.st_mode)
        owner = (status.st_uid, status.st_gid)
        if kind == stat.S_IFREG:
            self._add_file(path, name, status, mtime)
        elif kind == stat.S_IFLNK:
            target = os.fsencode(os.readlink(path))
            self._add_header(name, status.st_mode, owner, mtime, self._next(), 1, len(target))
            self._write(target)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            device = os.major(status.st_rdev), os.minor(status.st_rdev)
            self._add_header(name, status.st_mode, owner, mtime, self._next(), 1, 0, device)
        elif kind in (stat.S_IFDIR, stat.S_IFIFO):
            self._add_header(name, status.st_mode, owner, mtime, self._next(), 1, 0)
        # A socket means nothing without its process.

    def add_node(self, name: str, mode: int, device: tuple[int, int]) -> None:
        self._add_header(name, mode, (0, 0), 0, self._next(), 1, 0, device)

    def end(self) -> None:
        self._add_header(_TRAILER, 0, (0, 0), 0, 0, 1, 0)

    def _add_file(self, path: Path, name: str, status: os.stat_result, mtime: int) -> None:
        if status.st_size > _MAXIMUM_FILE_BYTES:
            raise ImageError(f"{name} is larger than the 4 GiB that an initial file system can hold in one file")
        inode = (status.st_dev, status.st_ino)
        number = self._numbers.get(inode)
        if number is None:
            number = self._numbers[inode] = self._next()
        # The content goes with the last of several names, as in archives of other programs.
        self._names[inode] -= 1
        size = 0 if self._names[inode] else status.st_size
        owner = (status.st_uid, status.st_gid)
        self._add_header(name, status.st_mode, owner, mtime, number, self._links[inode], size)
        if size:
            with path.open("rb") as source:
                shutil.copyfileobj(source, self._file, 1 << 20)
            self._file.write(bytes(-size % _ALIGNMENT))

    def _next(self) -> int:
        self._number += 1
        return self._number

    def _add_header(
        self,
        name: str,
        mode: int,
        owner: tuple[int, int],
        mtime: int,
        number: int,
        links: int,
        size: int,
        device: tuple[int, int] = (0, 0),
    ) -> None:
        encoded = os.fsencode(name) + b"\0"
        fields = (number, mode, *owner, links, mtime, size, 0, 0, *device, len(encoded), 0)
        self._write(_MAGIC + b"".join(b"%08x" % field for field in fields) + encoded)

    def _write(self, data: bytes) -> None:
        self._file.write(data + bytes(-len(data) % _ALIGNMENT))


def _below(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        yield path
        if path.is_dir() and not path.is_symlink():
            yield from _below(path)
