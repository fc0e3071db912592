"""
The files of an image, by path inside a directory or an archive.

Nothing is extracted: a file of an archive is read at its offset. No path leads out: openat2(2) resolves paths in a
directory, and follows no link.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from minit.archives.streams import Uncompressed
from minit.archives.tar import TarReader, shown
from minit.archives.tarentry import Kind
from minit.base.errors import ImageError, describe
from minit.linux import syscalls

if TYPE_CHECKING:
    from typing_extensions import Buffer

DOCUMENT_LIMIT_BYTES = 4 << 20
FILES_LIMIT = 100_000  # in one archive; an image has at most a few hundred
_LINKS_LIMIT = 8
_CHUNK = 1 << 20
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS


class Section(io.RawIOBase):
    """`size_bytes` of the open file `fd` from `start` on, read without the shared file position."""

    def __init__(self, fd: int, start: int, size_bytes: int, *, close_fd: bool) -> None:
        self._fd = fd
        self._position = start
        self._end = start + size_bytes
        self._close_fd = close_fd
        self.size_bytes = size_bytes

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` and return the number of bytes; 0 at the end."""
        view = memoryview(buffer).cast("B")[: max(self._end - self._position, 0)]
        count = os.preadv(self._fd, [view], self._position) if view else 0
        self._position += count
        return count

    def close(self) -> None:
        """Close the file if the section owns the descriptor."""
        if not self.closed and self._close_fd:
            os.close(self._fd)
        super().close()


class Blobs(Protocol):
    """The place of the files of an image, called `source` in errors."""

    source: str

    def open(self, path: str) -> Section | None:
        """Open the regular file `path`, None if there is none; ImageError for any other kind of file."""

    def close(self) -> None:
        """Give up the directory or the archive; sections of an archive cannot be read any more."""


def read_document(section: Section | None, what: str) -> bytes:
    """Return a whole small file and close the section; ImageError, about `what`, if there is none."""
    if section is None:
        raise ImageError(f"{what} is missing: not a whole image, copy it again")
    with section:
        if section.size_bytes > DOCUMENT_LIMIT_BYTES:
            raise ImageError(f"{what} has {section.size_bytes} bytes (at most {DOCUMENT_LIMIT_BYTES})")
        data = bytearray()
        while chunk := section.read(section.size_bytes):
            data += chunk
    if len(data) != section.size_bytes:
        raise ImageError(f"{what} ends too early: truncated file")
    return bytes(data)


def open_again(blobs: Blobs, path: str, what: str) -> Section:
    """Open a known file again; ImageError, about `what`, if the file is gone."""
    section = blobs.open(path)
    if section is None:
        raise ImageError(f"{what} has been removed meanwhile")
    return section


class DirectoryBlobs:
    """The files below a directory."""

    def __init__(self, path: Path) -> None:
        self.source = str(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise ImageError(f"open image {describe(error)}") from error

    def open(self, path: str) -> Section | None:
        """Open the regular file `path`, None if there is none; ImageError for any other kind of file."""
        try:
            # Opening a fifo would wait; for regular files O_NONBLOCK means nothing.
            fd = syscalls.openat2(self._fd, path, os.O_RDONLY | os.O_NONBLOCK, resolve=_BENEATH)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.EXDEV):
                raise ImageError(
                    f"{self.source}: {shown(path)} is reached by a symbolic link: copy the directory with: cp -rL"
                ) from error
            raise ImageError(f"{self.source}: open {describe(error)}") from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(fd)
            raise ImageError(f"{self.source}: {shown(path)} is no regular file")
        return Section(fd, 0, status.st_size, close_fd=True)

    def close(self) -> None:
        """Close the directory; sections stay readable."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ArchiveBlobs:
    """
    The files of a tar, compressed or not; links inside it are followed, since `docker save` made some.

    `make_spool` gives an empty file, open for reading and writing, for the uncompressed content of an archive.
    """

    def __init__(self, path: Path, make_spool: Callable[[], BinaryIO]) -> None:
        self.source = str(path)
        try:
            self._file: BinaryIO = open(path, "rb", buffering=0, opener=_open_at_once)
        except OSError as error:
            raise ImageError(f"open image {describe(error)}") from error
        try:
            if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
                raise ImageError(f"open image {path}: not a regular file")
            content = Uncompressed(self._file, self.source)
            if content.compressed:
                self._spool(content, make_spool())
            self._files, self._links = _contents(self._file, self.source)
        except BaseException:
            self._file.close()
            raise

    def open(self, path: str) -> Section | None:
        """Open the regular file `path`, None if there is none; ImageError for any other kind of file."""
        for _ in range(_LINKS_LIMIT):
            if path in self._files:
                start, size_bytes = self._files[path]
                return Section(self._file.fileno(), start, size_bytes, close_fd=False)
            if path not in self._links:
                return None
            path = self._links[path]
        raise ImageError(f"{self.source}: {shown(path)} is a link to a link, more than {_LINKS_LIMIT} times")

    def close(self) -> None:
        """Close the archive."""
        self._file.close()

    def _spool(self, content: Uncompressed, spool: BinaryIO) -> None:
        # Layers lie anywhere in the archive and are read twice, which no compressed file allows.
        buffer = memoryview(bytearray(_CHUNK))
        try:
            while count := content.readinto(buffer):
                spool.write(buffer[:count])
            spool.flush()
        except BaseException:
            spool.close()
            raise
        self._file.close()
        self._file = spool


def _contents(file: BinaryIO, source: str) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return offset and size of each regular file in the tar, and the target of each link."""
    files: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    file.seek(0)
    end = os.fstat(file.fileno()).st_size
    tar = TarReader(file, source, skip=lambda count: file.seek(count, os.SEEK_CUR))
    for entry in tar:
        if entry.kind is Kind.DIRECTORY:
            continue
        if entry.path in files or entry.path in links:
            raise tar.fault(entry.path, "is in the archive twice")
        if entry.hole_bytes:
            raise tar.fault(entry.path, "a sparse file: pack the archive without --sparse")
        if entry.kind is Kind.FILE:
            start = file.tell()
            if start + entry.size_bytes > end:
                raise ImageError(f"{source}: ends in the middle of an entry's data: truncated file")
            files[entry.path] = (start, entry.size_bytes)
        elif entry.kind is Kind.HARD_LINK:
            links[entry.path] = entry.link_target
        elif entry.kind is Kind.SYMLINK:
            links[entry.path] = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.link_target))
        if len(files) + len(links) > FILES_LIMIT:
            raise ImageError(f"{source}: more than {FILES_LIMIT} files: no archive of an image")
    return files, links


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # opening a fifo would wait
