"""
Writes an ACI: a gzip-compressed tar with `manifest` and `rootfs/`, the same bytes for the same content.

The file appears under its name only when it is complete.
"""

from __future__ import annotations

import gzip
import os
import stat
import tarfile
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO

from minit.errors import ImageError, describe, reason_of

GZIP_LEVEL = 6


class AciWriter:
    """
    A context manager around one ACI; the caller adds entries in the order they shall have.

    When the context is left by an exception there is no output; an OSError becomes an ImageError.
    """

    def __init__(self, output: Path, manifest: bytes) -> None:
        self._output = Path(os.path.realpath(output))
        self._temporary = self._output.parent / f".{self._output.name}.{os.getpid()}.tmp"
        self._manifest = manifest
        self._links: dict[tuple[int, int], str] = {}

    def __enter__(self) -> AciWriter:
        # Renaming would replace a device.
        if self._output.exists() and not self._output.is_file():
            raise ImageError(f"cannot write {self._output}: not a regular file")
        try:
            self._file = self._temporary.open("xb")
        except OSError as error:
            raise self._failure(error) from error
        self._gzip = gzip.GzipFile("", "wb", GZIP_LEVEL, self._file, mtime=0)
        self._tar = tarfile.open(fileobj=self._gzip, mode="w", format=tarfile.PAX_FORMAT)
        self._add(new_entry("manifest", tarfile.REGTYPE, 0o644, size=len(self._manifest)), BytesIO(self._manifest))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._finish()
            elif isinstance(error, OSError):
                raise error
        except OSError as failure:
            raise self._failure(failure) from failure
        finally:
            with suppress(OSError):  # nothing more is expected of an unfinished file
                self._gzip.close()
            with suppress(OSError):
                self._file.close()
            self._temporary.unlink(missing_ok=True)

    def _finish(self) -> None:
        self._tar.close()
        self._gzip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.rename(self._output)

    def _failure(self, error: OSError) -> ImageError:
        # The temporary name means nothing to anyone.
        about_output = error.filename in (None, str(self._temporary), self._temporary)
        reason = reason_of(error.errno) if about_output and error.errno else describe(error)
        return ImageError(f"cannot write {self._output}: {reason}")

    def add_directory(self, name: str, mode: int = 0o755) -> None:
        """Add a directory owned by root; `name` is its path in the image, `/` the rootfs itself."""
        self._add(new_entry(_entry_name(name), tarfile.DIRTYPE, mode))

    def add_symlink(self, name: str, target: str) -> None:
        """Add a symlink owned by root."""
        self._add(new_entry(_entry_name(name), tarfile.SYMTYPE, 0o777, target=target))

    def add_bytes(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a regular file owned by root."""
        self._add(new_entry(_entry_name(name), tarfile.REGTYPE, mode, size=len(data)), BytesIO(data))

    def add_file(self, name: str, source: Path, mode: int) -> None:
        """Add a copy of a file, owned by root, with the time of its source forgotten."""
        with source.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            self._add(new_entry(_entry_name(name), tarfile.REGTYPE, mode, size=size), file)

    def add_as_is(self, name: str, source: Path) -> None:
        """
        Add whatever `source` is with its owner, mode, time, link target, device number and capabilities.

        A file added under two names becomes a hard link. A socket is left out: it means nothing without its
        process.
        """
        status = source.lstat()
        entry = new_entry(_entry_name(name), tarfile.REGTYPE, stat.S_IMODE(status.st_mode))
        entry.uid, entry.gid, entry.mtime = status.st_uid, status.st_gid, int(status.st_mtime)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFREG:
            self._add_regular_as_is(entry, source, status)
        elif kind in _TYPES:
            entry.type = _TYPES[kind]
            if kind == stat.S_IFLNK:
                entry.linkname = os.readlink(source)
            elif kind in (stat.S_IFCHR, stat.S_IFBLK):
                entry.devmajor, entry.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
            self._add(entry)

    def _add_regular_as_is(self, entry: tarfile.TarInfo, source: Path, status: os.stat_result) -> None:
        inode = (status.st_dev, status.st_ino)
        if inode in self._links:
            entry.type, entry.linkname = tarfile.LNKTYPE, self._links[inode]
            self._add(entry)
            return
        if status.st_nlink > 1:
            self._links[inode] = entry.name
        with source.open("rb") as file:
            entry.size = os.fstat(file.fileno()).st_size
            entry.pax_headers = _extended_attributes(file)
            self._add(entry, file)

    def _add(self, entry: tarfile.TarInfo, content: IO[bytes] | None = None) -> None:
        self._tar.addfile(entry, content)


_TYPES = {
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def new_entry(name: str, kind: bytes, mode: int, size: int = 0, target: str = "") -> tarfile.TarInfo:
    """Return a tar header that depends on nothing but these: owner root by number, time 0."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.size, entry.linkname = kind, mode, size, target
    return entry


def _entry_name(name: str) -> str:
    return "rootfs/" + name.strip("/") if name.strip("/") else "rootfs"


def _extended_attributes(file: IO[bytes]) -> dict[str, str]:
    # The two kinds rkt's extraction keeps; the keys are those of GNU tar and Go's archive/tar.
    try:
        names = os.listxattr(file.fileno())
    except OSError:
        return {}  # the filesystem has none
    return {
        f"SCHILY.xattr.{name}": os.getxattr(file.fileno(), name).decode("utf-8", "surrogateescape")
        for name in sorted(names)
        if name == "security.capability" or name.startswith("user.")
    }
