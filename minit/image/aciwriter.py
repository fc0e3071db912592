"""
Writes an ACI: a gzip-compressed tar with `manifest` and `rootfs/`, the same bytes for the same content.

The file appears under its name only when it is complete.
"""

from __future__ import annotations

import gzip
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from minit.archives.tarentry import KINDS, Kind, TarWriter, entry_of, kept_attributes, new_entry
from minit.base.errors import ImageError, describe, reason_of

GZIP_LEVEL = 6
_SECOND_NS = 1_000_000_000


class AciWriter:
    """
    A context manager around one ACI; the caller adds entries in the final order.

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
        self._tar = TarWriter(self._gzip.write)
        self._tar.add(new_entry("manifest", Kind.FILE, 0o644), data=self._manifest)
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
        self._tar.finish()
        self._gzip.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._temporary.rename(self._output)

    def _failure(self, error: OSError) -> ImageError:
        # The temporary name means nothing to users.
        about_output = error.filename in (None, str(self._temporary), self._temporary)
        reason = reason_of(error.errno) if about_output and error.errno else describe(error)
        return ImageError(f"cannot write {self._output}: {reason}")

    def add_directory(self, name: str, mode: int = 0o755) -> None:
        """Add a directory owned by root; `name` is the path in the image, `/` the rootfs itself."""
        self._tar.add(new_entry(_entry_name(name), Kind.DIRECTORY, mode))

    def add_symlink(self, name: str, target: str) -> None:
        """Add a symlink owned by root."""
        self._tar.add(new_entry(_entry_name(name), Kind.SYMLINK, 0o777, link_target=target))

    def add_bytes(self, name: str, data: bytes) -> None:
        """Add a regular file owned by root."""
        self._tar.add(new_entry(_entry_name(name), Kind.FILE, 0o644), data=data)

    def add_file(self, name: str, source: Path, mode: int, *, keeps_time: bool = False) -> None:
        """Add a copy of a file, owned by root, with the time of the source or else from the beginning of time."""
        with source.open("rb") as file:
            status = os.fstat(file.fileno())
            mtime_ns = int(status.st_mtime) * _SECOND_NS if keeps_time else 0
            self._tar.add(new_entry(_entry_name(name), Kind.FILE, mode, size_bytes=status.st_size, mtime_ns=mtime_ns))
            self._copy(file, status.st_size)

    def add_as_is(self, name: str, source: Path) -> None:
        """
        Add a file of any kind with owner, mode, time, link target, device number and capabilities.

        A file added under two names becomes a hard link. A socket is left out: without the process a socket means
        nothing.
        """
        status = source.lstat()
        kind = KINDS.get(stat.S_IFMT(status.st_mode))
        name = _entry_name(name)
        mtime_ns = int(status.st_mtime) * _SECOND_NS
        if kind is Kind.FILE:
            first = self._links.setdefault((status.st_dev, status.st_ino), name) if status.st_nlink > 1 else name
            if first != name:
                self._tar.add(entry_of(name, status, mtime_ns=mtime_ns), hard_link_to=first)
                return
            with source.open("rb") as file:
                status = os.fstat(file.fileno())
                xattrs = kept_attributes(file.fileno())
                entry = entry_of(name, status, mtime_ns=mtime_ns, size_bytes=status.st_size, xattrs=xattrs)
                self._tar.add(entry)
                self._copy(file, status.st_size)
        elif kind is not None:
            target = os.readlink(source) if kind is Kind.SYMLINK else ""
            self._tar.add(entry_of(name, status, mtime_ns=mtime_ns, link_target=target))

    def _copy(self, file: BinaryIO, size_bytes: int) -> None:
        if not self._tar.copy(size_bytes, file.read):
            raise ImageError(f"{file.name} has become shorter while it was read")


def _entry_name(name: str) -> str:
    return "rootfs/" + name.strip("/") if name.strip("/") else "rootfs"
