"""The ACI of a recipe, read from the layers that have its files; each file is compared with what it was."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from minit.archives.aci import image_id
from minit.archives.readahead import Pieces, ReadAhead, joined
from minit.archives.recipe import Recipe
from minit.archives.tarwriter import padding
from minit.archives.unpackedlayer import FILES, Row, UnpackedLayer
from minit.base.errors import ImageError

if TYPE_CHECKING:
    from typing_extensions import Buffer

_CHUNK = 1 << 20


class DamagedLayerError(ImageError):
    """A file of an unpacked layer is not what it was."""

    def __init__(self, layer: UnpackedLayer, what: str) -> None:
        super().__init__(f"layer {layer.diff_id} is damaged: {what}")
        self.layer = layer


class OpenLayers:
    """
    The layers of a recipe, whose files stay readable wherever the process goes: `fds` are their directories.

    The contents are compared with what they were, but for layers with the diff_ids `unpacked`. `lock` is a descriptor
    to be closed with them.
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
        """Yield the content of a file; DamagedLayerError, at its end, if it is another one than it was."""
        digest, left = hashlib.sha256() if self._is_compared[layer] else None, size_bytes
        try:
            fd = os.open(str(number), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self.fds[layer])
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
    Open the layers of a recipe, in its order; a context manager. `lock` is closed with them, if that succeeds.

    The contents of layers with the diff_ids `unpacked` are not compared with what they were.
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
    Return the ID of the image that a recipe makes of its layers; DamagedLayerError if one is not what it was.

    The files of those with the diff_ids `unpacked` have just been written, and are not compared with what they were.
    """
    digest = hashlib.sha512()
    with open_layers(layers, unpacked=unpacked) as opened, ReadAhead(joined(pieces(recipe, opened))) as ahead:
        for chunk in ahead.chunks():
            digest.update(chunk)
    return image_id(digest)


class OpenBlob(io.RawIOBase):
    """The uncompressed tar of an image, to be read once; `fds` are the descriptors that it needs for that."""

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
    """The ACI of a recipe; closes `layers` with it."""

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
