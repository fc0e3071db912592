"""Layers as one ACI, without a store of layers, and the progress of unpacking layers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from minit.archives.aci import convert_manifest, image_id
from minit.archives.layered import LayeredImage
from minit.archives.recipe import open_layers, pieces, read_recipe, write_recipe
from minit.archives.streams import DEFAULT_LIMITS, Limits
from minit.archives.unpackedlayer import Tell, unpack_layer
from minit.base.progress import Progress, silent
from minit.base.value import replace


def write_aci(
    image: LayeredImage,
    write: Callable[[memoryview], object],
    directory: Path,
    progress: Progress = silent,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[str, bytes]:
    """
    Hand an image as one uncompressed ACI to `write`, and return image ID and manifest.

    The empty `directory` takes all layers uncompressed. The same image gives the same bytes. Fails with an ImageError,
    before anything is written, if a layer is damaged, has another digest, or cannot be applied. Reports bytes of layers
    read.
    """
    layers = []
    meter = Meter(image, progress)
    for number, layer in enumerate(image.layers):
        (directory / str(number)).mkdir()
        layers.append(unpack_layer(layer, directory / str(number), limits, tell=meter.of(number)))
        meter.complete(number)
        limits = replace(limits, size_bytes=limits.size_bytes - layers[-1].size_bytes)
    manifest = convert_manifest(image)
    with open(directory / "recipe", "w+b") as file:
        write_recipe(manifest, layers, [layer.name for layer in image.layers], file)
    digest = hashlib.sha512()
    with open_layers(layers) as opened:
        for piece in pieces(read_recipe(directory / "recipe"), opened):
            digest.update(piece)
            write(piece)
    return image_id(digest), manifest


class Meter:
    """Reports the bytes of layers read, of all together; layers are called by number."""

    def __init__(self, image: LayeredImage, progress: Progress) -> None:
        self._progress = progress
        self._step = f"importing {image.name.whole}"
        self._sizes = [layer.size_bytes for layer in image.layers]
        self._total = sum(self._sizes)
        self._read = [0] * len(image.layers)
        self._told = 0

    def of(self, number: int) -> Tell:
        """Return the function that takes the progress of a layer."""
        return lambda read_bytes, _: self.tell(number, read_bytes)

    def tell(self, number: int, read_bytes: int) -> None:
        """Take the bytes read of a layer."""
        if read_bytes != self._read[number]:
            self._told += read_bytes - self._read[number]
            self._read[number] = read_bytes
            self._progress(self._step, self._told, self._total)

    def complete(self, number: int) -> None:
        """Note a layer as read, or as not needed."""
        self.tell(number, self._sizes[number])
