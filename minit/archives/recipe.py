"""
An ACI in pieces: the headers in a recipe, the contents of files in unpacked layers.

A recipe puts the ACI together, byte for byte. The file has the headers, compressed; a row for each regular file with
the bytes of headers before the content, the size, the layer and the number there; a trailer in JSON; the trailer's
length. An assembled file is compared with the digest of its import.
"""

from __future__ import annotations

import hashlib
import io
import os
import struct
import zlib
from array import array
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from minit.archives.aci import image_id
from minit.archives.layertree import LayerTree, Plan
from minit.archives.streams import Pieces, ReadAhead, joined
from minit.archives.tar import TarReader
from minit.archives.tarentry import Entry, Kind, encode_header, new_entry, padding
from minit.archives.unpackedlayer import FILES, ROOTFS, Row, UnpackedLayer
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError, StoreError
from minit.base.idrange import SUBORDINATE_REMEDY
from minit.base.value import Value
from minit.manifest.reader import Node, read_json

if TYPE_CHECKING:
    from typing_extensions import Buffer

MANIFEST = "manifest"

_END = bytes(1024)  # of a tar
_LENGTH = struct.Struct("<Q")
_TRAILER_LIMIT_BYTES = 1 << 20
_CHUNK = 1 << 20
_LAYER_SHIFT = 32
_NUMBER = (1 << _LAYER_SHIFT) - 1
_COLUMNS = 3
_COMPRESSION = 1  # most of a header is zeros
# Links that programs in Docker's images expect to find, with docker2aci's targets.
_STDIO_LINKS = (
    ("dev/fd", "/proc/self/fd"),
    ("dev/stderr", "/dev/console"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/dev/console"),
)


class Recipe(Value):
    """The recipe in the file `path`: the layers' diff_ids, the size of the ACI, the sizes of the file's parts."""

    path: Path
    layers: tuple[str, ...]
    size_bytes: int
    header_bytes: int
    file_count: int

    def headers(self) -> bytes:
        """Return all headers, with the manifest and the manifest's data."""
        try:
            return zlib.decompress(_read(self.path, 0, self.header_bytes))
        except zlib.error as error:
            raise ImageError(f"{self.path}: damaged recipe: {error}") from error

    def files(self) -> Iterator[tuple[int, int, int, int]]:
        """Read, and then yield, for each regular file: bytes of headers before the content, size, layer, number."""
        table = array("Q", _read(self.path, self.header_bytes, self.file_count * _COLUMNS * 8))
        return (
            (table[start], table[start + 1], table[start + 2] >> _LAYER_SHIFT, table[start + 2] & _NUMBER)
            for start in range(0, len(table), _COLUMNS)
        )


def write_recipe(manifest: bytes, layers: Sequence[UnpackedLayer], names: Sequence[str], file: BinaryIO) -> None:
    """
    Write the recipe of the ACI of layers, the lowest first; errors call the layers by `names`.

    ImageError if layers cannot be applied.
    """
    tree = LayerTree()
    for layer, name in zip(layers, names, strict=True):
        tree.begin_layer()
        fault = TarReader(io.BytesIO(), name).fault
        for entry in layer.entries():
            tree.add(entry, fault)
        tree.end_layer()
    plan = tree.plan(_STDIO_LINKS)
    output = _Writer(file)
    output.add(encode_header(new_entry(MANIFEST, Kind.FILE, 0o644, size_bytes=len(manifest)), MANIFEST))
    output.add(manifest + padding(len(manifest)))
    # An entry of a layer for the same directory follows, and counts.
    output.add(encode_header(new_entry(ROOTFS, Kind.DIRECTORY, 0o755), ROOTFS))
    for number, layer in enumerate(layers):
        _write_kept(number, layer, plan, output)
    for path in plan.bare_directories:
        output.add(encode_header(new_entry(path, Kind.DIRECTORY, 0o755), f"{ROOTFS}/{path}"))
    for path, target in plan.additions:
        output.add(encode_header(new_entry(path, Kind.SYMLINK, 0o777, link_target=target), f"{ROOTFS}/{path}"))
    output.add(_END)
    output.finish([layer.diff_id for layer in layers])


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file; ImageError for another file."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size < _LENGTH.size:
            raise ImageError(f"{path}: damaged recipe")
        length = _LENGTH.unpack(os.pread(file.fileno(), _LENGTH.size, size - _LENGTH.size))[0]
        start = max(size - _LENGTH.size - min(length, _TRAILER_LIMIT_BYTES), 0)
        data = os.pread(file.fileno(), size - _LENGTH.size - start, start)
    source = str(path)
    try:
        trailer = read_json(data, source)
        recipe = Recipe(
            path=path,
            layers=trailer["layers"].each(Node.string),
            size_bytes=trailer["size_bytes"].integer(0, 1 << 62),
            header_bytes=trailer["header_bytes"].integer(0, size),
            file_count=trailer["file_count"].integer(0, size),
        )
    except ManifestError as error:
        raise ImageError(f"damaged recipe: {error}") from error
    if recipe.header_bytes + recipe.file_count * _COLUMNS * 8 + length + _LENGTH.size != size:
        raise ImageError(f"{source}: damaged recipe")
    return recipe


class _Writer:
    """Writes the parts of a recipe to a file, the table last."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zlib = zlib.compressobj(_COMPRESSION)
        self._table = array("Q")
        self._since_file = self._packed_bytes = self._size_bytes = 0

    def add(self, header: bytes | memoryview) -> None:
        self._write(self._zlib.compress(header))
        self._since_file += len(header)
        self._size_bytes += len(header)

    def add_file(self, layer: int, number: int, size_bytes: int) -> None:
        """Note the content of a file here."""
        self._table.extend((self._since_file, size_bytes, layer << _LAYER_SHIFT | number))
        self._since_file = 0
        self._size_bytes += size_bytes + len(padding(size_bytes))

    def finish(self, diff_ids: Sequence[str]) -> None:
        self._write(self._zlib.flush())
        self._file.write(self._table.tobytes())
        trailer = jsontext.dump(
            {
                "layers": list(diff_ids),
                "size_bytes": self._size_bytes,
                "header_bytes": self._packed_bytes,
                "file_count": len(self._table) // _COLUMNS,
            }
        )
        self._file.write(trailer + _LENGTH.pack(len(trailer)))
        self._file.flush()

    def _write(self, packed: bytes) -> None:
        self._packed_bytes += len(packed)
        self._file.write(packed)


def _write_kept(number: int, layer: UnpackedLayer, plan: Plan, output: _Writer) -> None:
    """Write the headers of kept entries, with the name or target of the plan."""
    first_key = number << _LAYER_SHIFT
    # Most entries are neither moved nor links.
    changed = {key - first_key for key in (*plan.paths, *plan.hard_links) if key >> _LAYER_SHIFT == number}
    headers = memoryview(layer.headers())
    start = 0
    for index, (row, kept) in enumerate(zip(layer.rows(), plan.kept[number], strict=True)):
        header = headers[start : row.end]
        start = row.end
        if not kept:
            continue
        if index in changed:
            entry = _entry(header)
            name = plan.paths.get(first_key | index)
            target = plan.hard_links.get(first_key | index)
            link = None if target is None else f"{ROOTFS}/{target}"
            output.add(encode_header(entry, entry.path if name is None else f"{ROOTFS}/{name}", link))
        else:
            output.add(header)
        if row.is_file:
            output.add_file(number, index, row.size_bytes)


def _entry(header: memoryview) -> Entry:
    for entry in TarReader(io.BytesIO(header), "an unpacked layer", has_data=lambda path: False):
        return entry
    raise ImageError("an unpacked layer has lost an entry: import the image again")


def _read(path: Path, start: int, size_bytes: int) -> bytes:
    with open(path, "rb", buffering=0) as file:
        data = os.pread(file.fileno(), size_bytes, start) if size_bytes else b""
    if len(data) != size_bytes:
        raise ImageError(f"{path}: damaged recipe")
    return data


class DamagedLayerError(ImageError):
    """A file of an unpacked layer has changed since the import."""

    def __init__(self, layer: UnpackedLayer, what: str) -> None:
        super().__init__(f"layer {layer.diff_id} is damaged: {what}")
        self.layer = layer


class OpenLayers:
    """
    The layers of a recipe, whose files stay readable in any root: `fds` are the directories.

    Contents are compared with the digests of the import, but for layers with the diff_ids `unpacked`. The descriptor
    `lock` is closed with the layers.
    """

    def __init__(self, layers: Sequence[UnpackedLayer], lock: int | None, unpacked: Container[str]) -> None:
        self._layers = layers
        self._is_compared = [layer.diff_id not in unpacked for layer in layers]
        self._lock = lock
        self._rows: list[list[Row]] = [layer.rows() for layer in layers]
        self.fds: list[int] = []
        try:
            for layer in layers:
                self.fds.append(os.open(layer.path / FILES, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        except BaseException:
            self._lock = None
            self.close()
            raise

    def __enter__(self) -> OpenLayers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directories."""
        while self.fds:
            os.close(self.fds.pop())
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def content(self, layer: int, number: int, size_bytes: int) -> Iterator[bytes]:
        """
        Yield the content of a file; DamagedLayerError, at the end, if the file has changed. StoreError for a file of a
        subordinate id that the user had at the import and has no more.
        """
        digest, left = hashlib.sha256() if self._is_compared[layer] else None, size_bytes
        try:
            fd = os.open(str(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fds[layer])
        except PermissionError as error:
            problem = f"layer {self._layers[layer].diff_id} has a file of a user that you no longer have"
            raise StoreError(f"{problem}: {SUBORDINATE_REMEDY}, or remove the image with: minit image rm") from error
        except OSError as error:
            raise DamagedLayerError(self._layers[layer], f"file {number} of it is gone") from error
        try:
            while left and (data := os.read(fd, min(left, _CHUNK))):
                if digest is not None:
                    digest.update(data)
                left -= len(data)
                yield data
        finally:
            os.close(fd)
        if left or (digest is not None and digest.digest() != self._rows[layer][number].sha256):
            raise DamagedLayerError(self._layers[layer], f"file {number} of it is another one")


def open_layers(layers: Sequence[UnpackedLayer], lock: int | None = None, unpacked: Container[str] = ()) -> OpenLayers:
    """
    Open the layers of a recipe, in the recipe's order; a context manager. `lock` is closed with the layers, or stays
    the caller's after an error.

    The contents of layers with the diff_ids `unpacked` are not compared with the digests of the import.
    """
    try:
        return OpenLayers(layers, lock, unpacked)
    except OSError as error:
        raise ImageError(f"a layer is damaged: {error.strerror}: {error.filename}") from error


def pieces(recipe: Recipe, layers: OpenLayers) -> Iterator[memoryview]:
    """Read the recipe, and then yield the bytes of the ACI."""
    return _pieces(memoryview(recipe.headers()), recipe.files(), layers)


def _pieces(
    headers: memoryview, files: Iterator[tuple[int, int, int, int]], layers: OpenLayers
) -> Iterator[memoryview]:
    position = 0
    for before, size_bytes, layer, number in files:
        yield headers[position : position + before]
        position += before
        for data in layers.content(layer, number, size_bytes):
            yield memoryview(data)
        yield memoryview(padding(size_bytes))
    yield headers[position:]


def assembled_id(recipe: Recipe, layers: Sequence[UnpackedLayer], unpacked: Container[str] = ()) -> str:
    """
    Return the ID of the image that a recipe makes of layers; DamagedLayerError if a layer has changed.

    The files of layers with the diff_ids `unpacked` have just been written, and are not compared.
    """
    digest = hashlib.sha512()
    with open_layers(layers, unpacked=unpacked) as opened, ReadAhead(joined(pieces(recipe, opened))) as ahead:
        for chunk in ahead.chunks():
            digest.update(chunk)
    return image_id(digest)


class OpenBlob(io.RawIOBase):
    """The uncompressed tar of an image, to be read once; reading needs the descriptors `fds`."""

    size_bytes: int
    fds: Sequence[int]

    def readable(self) -> bool:
        """Say that there is a way to read, as io.RawIOBase asks."""
        return True


class BlobFile(OpenBlob):
    """A tar in one piece."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "rb", buffering=0)
        self.fds = (self._file.fileno(),)
        self.size_bytes = os.fstat(self._file.fileno()).st_size

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` and return how many bytes it got; 0 at the end."""
        return self._file.readinto(buffer) or 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class AssembledAci(OpenBlob):
    """The ACI of a recipe; the end closes `layers`, too."""

    def __init__(self, recipe: Recipe, layers: OpenLayers) -> None:
        self.recipe = recipe
        self.fds = layers.fds
        self.size_bytes = recipe.size_bytes
        self._file = Pieces(pieces(recipe, layers))
        self._layers = layers

    def readinto(self, buffer: Buffer) -> int:
        """Fill `buffer` and return how many bytes it got; 0 at the end."""
        return self._file.readinto(buffer)

    def close(self) -> None:
        """Close the layers."""
        self._layers.close()
        super().close()
