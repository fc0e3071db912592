"""
A layer as a directory: the entries as headers of an ACI, and each regular file by itself, by the number of the entry.

`headers` has the headers without data, `names` path, kind and link target of each entry, `table` a row for each entry.
`files` has the contents, with the owner, mode, attributes and times of files in a tree, which links the files.
`record` describes the layer. No name of a layer's entry is a name in the directory.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from minit.archives.filecontent import write_content
from minit.archives.layered import Layer, digest_text, hasher
from minit.archives.streams import Limits, ReadAhead, Tee, Uncompressed
from minit.archives.tar import TarReader
from minit.archives.tarentry import Entry, Kind, LayerEntry, encode_header
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError
from minit.base.value import Value
from minit.manifest.reader import read_json

ROOTFS = "rootfs"
FILES = "files"

_HEADERS, _NAMES, _TABLE, _RECORD = "headers", "names", "table", "record"
# The end of the entry's header, and for a regular file the size and the SHA-256 of the content.
_ROW = struct.Struct("<Q?Q32s")
_KINDS = tuple(Kind)
_NUL = "\0"  # in no name
_CHUNK = 1 << 20
_RECORD_LIMIT_BYTES = 1 << 16

Own = Callable[[int, Entry, TarReader], None]
"""Gives an open file the owner, mode, attributes and times of an entry."""
Tell = Callable[[int, int], None]
"""Takes the bytes that were read of a layer's file, and the uncompressed bytes of these, with all holes."""


class Row(NamedTuple):
    """An entry of a layer: the end of the header, and size and SHA-256 of a regular file."""

    end: int
    is_file: bool
    size_bytes: int
    sha256: bytes


class UnpackedLayer(Value):
    """
    A layer in the directory `path`.

    `digest`, if known, and `packed_bytes` describe the layer's original file; `tar_bytes` is the size of the
    uncompressed tar, and `size_bytes` the same with all holes.
    """

    path: Path
    diff_id: str
    size_bytes: int
    tar_bytes: int
    digest: str | None
    packed_bytes: int

    def entries(self) -> Iterator[LayerEntry]:
        """Yield kind, path and link target of all entries, which decide about the entries of an image."""
        fields = os.fsdecode((self.path / _NAMES).read_bytes()).split(_NUL)
        for start in range(0, len(fields) - 1, 3):
            kind, path, target = fields[start : start + 3]
            yield LayerEntry(path, _KINDS[int(kind)], target)

    def rows(self) -> list[Row]:
        """Return the rows of the table."""
        return [Row(*fields) for fields in _ROW.iter_unpack((self.path / _TABLE).read_bytes())]

    def headers(self) -> bytes:
        """Return all headers."""
        return (self.path / _HEADERS).read_bytes()


def unpack_layer(
    layer: Layer, directory: Path, limits: Limits, own: Own | None = None, tell: Tell | None = None
) -> UnpackedLayer:
    """
    Unpack a layer into an empty directory, and `tell` the progress, now and then.

    ImageError if the layer is damaged, or has another digest. Without `own` the files belong to the caller.
    """
    (directory / FILES).mkdir(mode=0o700)
    files = os.open(directory / FILES, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with (
            open(directory / _HEADERS, "xb", buffering=_CHUNK) as headers,
            open(directory / _NAMES, "xb", buffering=_CHUNK) as names,
            open(directory / _TABLE, "xb", buffering=_CHUNK) as table,
            _open_layer(layer, limits, tell) as content,
        ):
            end = 0
            for number, entry in enumerate(content.tar):
                content.count_holes(entry.hole_bytes)
                header = _header(entry)
                headers.write(header)
                kind = _KINDS.index(entry.kind)
                names.write(os.fsencode(f"{kind}{_NUL}{entry.path}{_NUL}{entry.link_target}{_NUL}"))
                end += len(header)
                is_file = entry.kind is Kind.FILE
                sha256 = _write_file(files, number, entry, content.tar, own) if is_file else b""
                table.write(_ROW.pack(end, is_file, entry.size_bytes, sha256))
    finally:
        os.close(files)
    unpacked = UnpackedLayer(
        path=directory,
        diff_id=layer.diff_id,
        size_bytes=content.tar_bytes + content.hole_bytes,
        tar_bytes=content.tar_bytes,
        digest=layer.digest,
        packed_bytes=layer.size_bytes,
    )
    facts = {name: getattr(unpacked, name) for name in ("diff_id", "size_bytes", "tar_bytes", "digest", "packed_bytes")}
    (directory / _RECORD).write_bytes(jsontext.dump(facts))
    return unpacked


def read_unpacked(directory: Path) -> UnpackedLayer:
    """Return the layer in a directory that `unpack_layer` has filled; ImageError if the record is damaged."""
    source = str(directory / _RECORD)
    try:
        record = read_json((directory / _RECORD).read_bytes()[:_RECORD_LIMIT_BYTES], source)
        return UnpackedLayer(
            path=directory,
            diff_id=record["diff_id"].string(),
            size_bytes=record["size_bytes"].integer(0, 1 << 63),
            tar_bytes=record["tar_bytes"].integer(0, 1 << 63),
            digest=record["digest"].optional(lambda node: node.string()),
            packed_bytes=record["packed_bytes"].integer(0, 1 << 63),
        )
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _header(entry: Entry) -> bytes:
    name = f"{ROOTFS}/{entry.path}" if entry.path else ROOTFS
    target = f"{ROOTFS}/{entry.link_target}" if entry.kind is Kind.HARD_LINK else None
    return encode_header(entry, name, target)


def _write_file(files: int, number: int, entry: Entry, tar: TarReader, own: Own | None) -> bytes:
    fd = os.open(str(number), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=files)
    try:
        digest = hashlib.sha256()
        write_content(fd, entry, tar, digest)
        if own is not None:
            own(fd, entry, tar)
        return digest.digest()
    finally:
        os.close(fd)


class _Content:
    """A layer, uncompressed by a thread, with the digests of file and tar."""

    def __init__(self, layer: Layer, file: io.RawIOBase, limits: Limits, tell: Tell | None) -> None:
        self._layer = layer
        self._tell = tell
        self._read_bytes = 0
        self.tar_bytes = 0
        self.hole_bytes = 0
        self._digest = None if layer.digest is None else hasher(layer.digest)
        self._diff_id = hasher(layer.diff_id)
        sinks = [self._digest.update] if self._digest is not None else []
        self._file = Tee(file, self._count_read, *sinks)
        self._uncompressed = Uncompressed(self._file, layer.name, limits)
        self._ahead = ReadAhead(self._chunks())
        self._stream = io.BufferedReader(Tee(self._ahead, self._count), _CHUNK)
        self.tar = TarReader(self._stream, layer.name, rooted=True)

    def count_holes(self, size_bytes: int) -> None:
        """Count the holes of a sparse file, which are zeros in the ACI; ImageError for a layer that is too large."""
        if size_bytes:
            self._uncompressed.count_holes(size_bytes)
            self.hole_bytes += size_bytes
            self._report()

    def check(self) -> None:
        """Read to the end and compare the digests; ImageError for a wrong digest."""
        while self._stream.read(_CHUNK):
            pass
        self.check_file()
        self._check("diff_id", self._layer.diff_id, self._diff_id)

    def check_file(self) -> None:
        """Read the file to the end, whatever the content, and compare the digest."""
        self.close()
        if self._digest is not None and self._layer.digest is not None:
            while self._file.read(_CHUNK):
                pass
            self._check("digest", self._layer.digest, self._digest)

    def close(self) -> None:
        """End the thread."""
        self._ahead.close()

    def _chunks(self) -> Iterator[bytes]:
        while data := self._uncompressed.read(_CHUNK):
            self._diff_id.update(data)
            yield data

    def _check(self, what: str, expected: str, computed: hashlib._Hash) -> None:
        found = digest_text(expected, computed)
        if found != expected:
            raise ImageError(
                f"{self._layer.name} has the {what} {found}, expected {expected}: damaged, copy the image again"
            )

    def _count(self, data: memoryview) -> None:
        self.tar_bytes += len(data)
        self._report()

    def _count_read(self, data: memoryview) -> None:
        self._read_bytes += len(data)

    def _report(self) -> None:
        if self._tell is not None:
            self._tell(self._read_bytes, self.tar_bytes + self.hole_bytes)


@contextmanager
def _open_layer(layer: Layer, limits: Limits, tell: Tell | None) -> Iterator[_Content]:
    """Yield the content of a layer, and check the digests after the with block."""
    with layer.open() as file:
        content = _Content(layer, file, limits, tell)
        try:
            yield content
            content.check()
        except ImageError:
            content.check_file()  # a damaged file is the reason to report, whatever the damage has caused
            raise
        finally:
            content.close()
