"""
A layer as a directory: the entries as headers of an ACI, and each regular file by itself, by the number of the entry.

`headers` has the headers without data, `names` path, kind and link target of each entry, `table` a row for each entry.
`files` has the contents, with the owner, mode, attributes and times of files in a tree, which links the files.
`record` describes the layer. No name of a layer's entry is a name in the directory.

`packed` has the bytes of the layer for those who want the layer back: each compressed file as the layer came, named by
the digest, or a plain tar, compressed here. A layer may come compressed in several ways, or have been unpacked before
bytes were kept.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from minit.archives.filecontent import with_held_owner, write_content
from minit.archives.layered import Layer, digest_text, hasher
from minit.archives.streams import Limits, ReadAhead, Tee, Uncompressed, compression_of, zstd
from minit.archives.tar import TarReader
from minit.archives.tarentry import Entry, Kind, LayerEntry, encode_header
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError
from minit.base.idrange import HeldIds
from minit.base.value import Value
from minit.manifest.reader import read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

ROOTFS = "rootfs"
FILES = "files"
PACKED = "packed"

OWNERS_OF_IMAGE = "image"
OWNERS_ROOT = "root"
OWNERS_ANY = "any"

_FACTS = ("diff_id", "size_bytes", "tar_bytes", "digest", "packed_bytes", "owners")
_HEADERS, _NAMES, _TABLE, _RECORD = "headers", "names", "table", "record"
# The end of the entry's header, and for a regular file the size and the SHA-256 of the content.
_ROW = struct.Struct("<Q?Q32s")
_KINDS = tuple(Kind)
_PLAIN = "tar.zst"
_LEVEL = 1  # four times as fast as 3, for a tenth more
_NUL = "\0"  # in no name
_CHUNK = 1 << 20
_RECORD_LIMIT_BYTES = 1 << 16
_ANY_BYTES = 1 << 63

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
    uncompressed tar, and `size_bytes` the same with all holes. `owners` tells whose the files are: OWNERS_OF_IMAGE,
    OWNERS_ROOT, or OWNERS_ANY where both are the same.
    """

    path: Path
    diff_id: str
    size_bytes: int
    tar_bytes: int
    digest: str | None
    packed_bytes: int
    owners: str

    def packed(self) -> dict[str, Path]:
        """Return the compressed files of the layer that are kept as the layer came, by digest."""
        try:
            names = sorted(os.listdir(self.path / PACKED))
        except FileNotFoundError:
            return {}
        return {name.replace("-", ":", 1): self.path / PACKED / name for name in names if name != _PLAIN}

    def fits(self, held: HeldIds | None) -> bool:
        """Tell whether the files have the owners that they would get now."""
        return self.owners in (OWNERS_ANY, owners_with(held))

    @property
    def has_bytes(self) -> bool:
        """Tell whether the layer's tar can be read again."""
        return self._kept() is not None

    def brings(self, digest: str) -> bool:
        """Tell whether the layer's file of a digest, compressed or not, can be read again."""
        return digest in self.packed() or (digest == self.diff_id and self.has_bytes)

    def open_tar(self) -> io.RawIOBase:
        """Open the layer's tar, uncompressed; ImageError if the bytes were not kept."""
        kept = self._kept()
        if kept is None:
            raise ImageError(f"layer {self.diff_id} was imported before layers were kept: fetch its image again")
        return _OpenTar(open(kept, "rb", buffering=0), f"layer {self.diff_id}")

    def _kept(self) -> Path | None:
        plain = self.path / PACKED / _PLAIN
        return next(iter(self.packed().values()), None) or (plain if plain.exists() else None)

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
    layer: Layer,
    directory: Path,
    limits: Limits,
    own: Own | None = None,
    tell: Tell | None = None,
    *,
    keep: bool = False,
    held: HeldIds | None = None,
) -> UnpackedLayer:
    """
    Unpack a layer into an empty directory, `keep` the bytes too, and `tell` the progress, now and then.

    ImageError if the layer is damaged, or has another digest, or an owner that is not `held`. Without `own` the files
    belong to the caller.
    """
    (directory / FILES).mkdir(mode=0o700)
    keeper = _Keeper(directory) if keep else None
    files = os.open(directory / FILES, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with (
            open(directory / _HEADERS, "xb", buffering=_CHUNK) as headers,
            open(directory / _NAMES, "xb", buffering=_CHUNK) as names,
            open(directory / _TABLE, "xb", buffering=_CHUNK) as table,
            _open_layer(layer, limits, tell, keeper) as content,
        ):
            end = 0
            owners = OWNERS_ANY
            for number, entry in enumerate(content.tar):
                content.count_holes(entry.hole_bytes)
                header = _header(entry)
                headers.write(header)
                kind = _KINDS.index(entry.kind)
                names.write(os.fsencode(f"{kind}{_NUL}{entry.path}{_NUL}{entry.link_target}{_NUL}"))
                end += len(header)
                is_file = entry.kind is Kind.FILE
                if is_file and (entry.uid, entry.gid) != (0, 0):
                    owners = owners_with(held)
                entry = with_held_owner(entry, held, content.tar.fault)
                sha256 = _write_file(files, number, entry, content.tar, own) if is_file else b""
                table.write(_ROW.pack(end, is_file, entry.size_bytes, sha256))
        if keeper is not None:
            keeper.finish(content.digest)
    finally:
        os.close(files)
        if keeper is not None:
            keeper.close()
    unpacked = UnpackedLayer(
        path=directory,
        diff_id=layer.diff_id,
        size_bytes=content.tar_bytes + content.hole_bytes,
        tar_bytes=content.tar_bytes,
        digest=content.digest,
        packed_bytes=layer.size_bytes,
        owners=owners,
    )
    facts = {name: getattr(unpacked, name) for name in _FACTS}
    (directory / _RECORD).write_bytes(jsontext.dump(facts))
    return unpacked


def owners_with(held: HeldIds | None) -> str:
    """Return whose the files of images are in a user namespace with these ids."""
    return OWNERS_ROOT if held is not None and held.is_single else OWNERS_OF_IMAGE


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
            # Which records of older versions do not have.
            owners=record["owners"].optional(lambda node: node.string()) or OWNERS_OF_IMAGE,
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

    def __init__(
        self, layer: Layer, file: io.RawIOBase, limits: Limits, tell: Tell | None, keeper: _Keeper | None
    ) -> None:
        self._layer = layer
        self._tell = tell
        self._read_bytes = 0
        self.tar_bytes = 0
        self.hole_bytes = 0
        self._digest = hasher(layer.digest or layer.diff_id)
        self._diff_id = hasher(layer.diff_id)
        sinks = [] if keeper is None else [keeper.write]
        self._file = Tee(file, self._count_read, self._digest.update, *sinks)
        self._uncompressed = Uncompressed(self._file, layer.name, limits)
        self._ahead = ReadAhead(self._chunks())
        self._stream = io.BufferedReader(Tee(self._ahead, self._count), _CHUNK)
        self.tar = TarReader(self._stream, layer.name, rooted=True)

    @property
    def digest(self) -> str:
        """The digest of the file, read to the end, of the kind of the recorded digest, or else of the diff_id."""
        return digest_text(self._layer.digest or self._layer.diff_id, self._digest)

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
        while self._file.read(_CHUNK):
            pass
        if self._layer.digest is not None:
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


class _Keeper:
    """Writes the bytes of a layer's file below `directory` as they come; a plain tar is compressed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory / PACKED
        self._directory.mkdir(mode=0o700)
        self._file = open(self._directory / _PLAIN, "xb")
        self._zstd: zstd.ZstdCompressor | None = None
        self._is_begun = False

    def write(self, data: memoryview) -> None:
        if not self._is_begun and data:
            self._is_begun = True
            self._zstd = zstd.ZstdCompressor(_LEVEL) if compression_of(data) is None else None
        self._file.write(data if self._zstd is None else self._zstd.compress(data))

    def finish(self, digest: str) -> None:
        """Complete the file, which the digest names unless it is plain."""
        if self._zstd is not None:
            self._file.write(self._zstd.flush())
        self._file.close()
        if self._zstd is None:
            os.rename(self._directory / _PLAIN, self._directory / digest.replace(":", "-"))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _OpenTar(io.RawIOBase):
    """The uncompressed content of a file of the store, which was within all bounds when it was unpacked."""

    def __init__(self, file: io.RawIOBase, source: str) -> None:
        self._file = file
        self._content = Uncompressed(file, source, Limits(size_bytes=_ANY_BYTES, ratio=_ANY_BYTES))

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Buffer) -> int:
        return self._content.readinto(buffer)

    def close(self) -> None:
        self._file.close()
        super().close()


@contextmanager
def _open_layer(layer: Layer, limits: Limits, tell: Tell | None, keeper: _Keeper | None) -> Iterator[_Content]:
    """Yield the content of a layer, and check the digests after the with block."""
    with layer.open() as file:
        content = _Content(layer, file, limits, tell, keeper)
        try:
            yield content
            content.check()
        except ImageError:
            content.check_file()  # a damaged file is the reason to report, whatever the damage has caused
            raise
        finally:
            content.close()
