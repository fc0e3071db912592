"""Layers as one ACI without a store of images."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from minit.archives.aci import convert_manifest, image_id
from minit.archives.layered import LayeredImage
from minit.archives.recipe import open_layers, pieces, read_recipe, write_recipe
from minit.archives.streams import DEFAULT_LIMITS
from minit.archives.unpackedlayer import unpack_layer


def write_aci(image: LayeredImage, write: Callable[[memoryview], object], directory: Path) -> tuple[str, bytes]:
    """Hand an image as one ACI to `write`, and return image ID and manifest; the layers are unpacked to `directory`."""
    layers = []
    for number, layer in enumerate(image.layers):
        (directory / str(number)).mkdir()
        layers.append(unpack_layer(layer, directory / str(number), DEFAULT_LIMITS))
    manifest = convert_manifest(image)
    with open(directory / "recipe", "w+b") as file:
        write_recipe(manifest, layers, [layer.name for layer in image.layers], file)
    digest = hashlib.sha512()
    with open_layers(layers) as opened:
        for piece in pieces(read_recipe(directory / "recipe"), opened):
            digest.update(piece)
            write(piece)
    return image_id(digest), manifest
