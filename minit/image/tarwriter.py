"""
Writes an ACI: a gzip-compressed tar with `manifest` and `rootfs/`, the same bytes for the same content.

The file appears under its name only when it is complete.
"""

from __future__ import annotations

import gzip
import os
import stat
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from types import TracebackType
from typing import IO

from minit.archives.tar import Entry, Kind
from minit.archives.tarheader import END, KINDS, encode_header, new_entry, padding
from minit.errors import ImageError, describe, reason_of

GZIP_LEVEL = 6
_COPIED_BYTES = 1 << 20


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
        self._add(new_entry("manifest", Kind.FILE, 0o644, size_bytes=len(self._manifest)), BytesIO(self._manifest))
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
        self._write(END)
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
        self._add(new_entry(_entry_name(name), Kind.DIRECTORY, mode))

    def add_symlink(self, name: str, target: str) -> None:
        """Add a symlink owned by root."""
        self._add(new_entry(_entry_name(name), Kind.SYMLINK, 0o777, link_target=target))

    def add_bytes(self, name: str, data: bytes, mode: int = 0o644) -> None:
        """Add a regular file owned by root."""
        self._add(new_entry(_entry_name(name), Kind.FILE, mode, size_bytes=len(data)), BytesIO(data))

    def add_file(self, name: str, source: Path, mode: int) -> None:
        """Add a copy of a file, owned by root, with the time of its source forgotten."""
        with source.open("rb") as file:
            size_bytes = os.fstat(file.fileno()).st_size
            self._add(new_entry(_entry_name(name), Kind.FILE, mode, size_bytes=size_bytes), file)

    def add_as_is(self, name: str, source: Path) -> None:
        """
        Add whatever `source` is with its owner, mode, time, link target, device number and capabilities.

        A file added under two names becomes a hard link. A socket is left out: it means nothing without its
        process.
        """
        status = source.lstat()
        kind = KINDS.get(stat.S_IFMT(status.st_mode))
        name = _entry_name(name)
        if kind is Kind.FILE:
            first = self._links.setdefault((status.st_dev, status.st_ino), name) if status.st_nlink > 1 else name
            if first != name:
                self._write(encode_header(_entry_of(name, kind, status), name, first))
                return
            with source.open("rb") as file:
                status = os.fstat(file.fileno())
                entry = _entry_of(name, kind, status, size_bytes=status.st_size, xattrs=_extended_attributes(file))
                self._add(entry, file)
        elif kind is not None:
            target = os.readlink(source) if kind is Kind.SYMLINK else ""
            self._add(_entry_of(name, kind, status, link_target=target))

    def _add(self, entry: Entry, content: IO[bytes] | None = None) -> None:
        self._write(encode_header(entry, f"{entry.path}/" if entry.kind is Kind.DIRECTORY else entry.path))
        if content is not None:
            self._copy(content, entry.size_bytes)

    def _copy(self, file: IO[bytes], size_bytes: int) -> None:
        left = size_bytes
        while left:
            data = file.read(min(left, _COPIED_BYTES))
            if not data:
                raise ImageError(f"{file.name} has become shorter while it was read")
            self._write(data)
            left -= len(data)
        self._write(padding(size_bytes))

    def _write(self, data: bytes) -> None:
        self._gzip.write(data)


def _entry_of(
    name: str,
    kind: Kind,
    status: os.stat_result,
    size_bytes: int = 0,
    link_target: str = "",
    xattrs: tuple[tuple[str, bytes], ...] = (),
) -> Entry:
    mtime_ns = int(status.st_mtime) * 1_000_000_000
    return Entry(
        path=name,
        kind=kind,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        size_bytes=size_bytes,
        mtime_ns=mtime_ns,
        atime_ns=mtime_ns,
        link_target=link_target,
        device=status.st_rdev if kind in (Kind.CHARACTER_DEVICE, Kind.BLOCK_DEVICE) else 0,
        xattrs=xattrs,
    )


def _entry_name(name: str) -> str:
    return "rootfs/" + name.strip("/") if name.strip("/") else "rootfs"


def _extended_attributes(file: IO[bytes]) -> tuple[tuple[str, bytes], ...]:
    # The two kinds rkt's extraction keeps.
    try:
        names = os.listxattr(file.fileno())
    except OSError:
        return ()  # the filesystem has none
    return tuple(
        (name, os.getxattr(file.fileno(), name))
        for name in sorted(names)
        if name == "security.capability" or name.startswith("user.")
    )
