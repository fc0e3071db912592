"""
The images that make up a rendered image, and the source of each file; pure.

rkt renders an image with dependencies as one tree: files of upper images hide files of lower images, and a path
whitelist narrows the contribution of an image and of all images below.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from posixpath import normpath

from minit.archives.tarentry import Entry, Kind
from minit.base.errors import ImageError
from minit.base.idrange import HeldIds
from minit.base.processors import Processor, processor_of_appc
from minit.base.value import Value
from minit.manifest.image import Dependency
from minit.stage0.images.storedimage import StoredImage

ROOTFS = "rootfs"
LAYERS_LIMIT = 256  # a diamond of dependencies repeats all images below, so the list can grow exponentially


class Layer(Value):
    """One image of a rendered image; None as a whitelist lets everything pass."""

    image_id: str
    name: str
    own_whitelist: frozenset[str] | None = None
    upper_whitelist: frozenset[str] | None = None


def flatten(image: StoredImage, resolve: Callable[[Dependency, Processor], StoredImage | None]) -> tuple[Layer, ...]:
    """
    Return `image` and all dependencies, uppermost first: each image right before its dependencies, later ones first.

    `resolve` returns the image of a dependency for the processor of `image`. ImageError if `resolve` returns None, or
    the dependencies have a cycle or are too many.
    """
    processor = processor_of_appc(image.manifest.label("arch") or "")
    layers = [_Node(image, None)]
    position = 0
    while position < len(layers):
        node = layers[position]
        for dependency in node.image.manifest.dependencies:
            lower = resolve(dependency, processor)
            if lower is None:
                raise ImageError(
                    f"image {image.name}: {_needed(node.image, dependency)}, which is not in the store:"
                    " import it with: minit fetch FILE"
                )
            if any(lower.id == upper.image.id for upper in node.branch()):
                raise ImageError(f"image {image.name}: {_needed(node.image, dependency)}, which depends on it again")
            if len(layers) == LAYERS_LIMIT:
                raise ImageError(f"image {image.name}: more than {LAYERS_LIMIT} images in its dependencies")
            layers.insert(position + 1, _Node(lower, node))
        position += 1
    return tuple(node.layer() for node in layers)


def tree_id(layers: Sequence[Layer], held: HeldIds | None = None) -> str:
    """Return the tree store ID of a rendered image; a tree whose files are all root's has an ID of its own."""
    keys = ",".join(layer.image_id for layer in layers)
    if held is not None and held.is_single:
        keys += ",root"
    return "deps-sha512-" + hashlib.sha512(keys.encode("ascii")).hexdigest()[:64]


class Selection:
    """Decides for each tar entry of each layer whether the entry becomes part of the rendered image."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers_left = len(layers)
        # The files of upper layers: True for the path of a directory. Parents without an entry are apart, since a lower
        # layer may still have an entry for such a directory.
        self._taken: dict[str, bool] = {}
        self._unlisted: set[str] = set()
        self._current: dict[str, bool] = {}

    def next_layer(self) -> None:
        """End a layer."""
        self._layers_left -= 1
        for path in self._current:
            self._unlisted.update(_parents(path))
        self._taken.update(self._current)
        self._current = {}

    def takes(self, layer: Layer, entry: Entry) -> bool:
        """Return whether `entry` of the current layer is taken; within a layer the last entry of a path wins."""
        path, is_directory = entry.path, entry.kind is Kind.DIRECTORY
        if path != ROOTFS:
            if not path.startswith(ROOTFS + "/"):
                return False
            if not is_directory and layer.own_whitelist is not None and path not in layer.own_whitelist:
                return False
            if layer.upper_whitelist is not None and path not in layer.upper_whitelist:
                return False
        if path in self._taken or (not is_directory and path in self._unlisted):
            return False
        if any(self._taken.get(parent) is False for parent in _parents(path)):
            return False
        if self._layers_left > 1:  # no layer follows the last layer
            self._current[path] = is_directory
        return True


class _Node:
    """An image in the flattened list, with the depending image."""

    def __init__(self, image: StoredImage, upper: _Node | None) -> None:
        self.image = image
        self.upper = upper

    def branch(self) -> Iterable[_Node]:
        """Return this node and all nodes above, nearest first."""
        node: _Node | None = self
        while node is not None:
            yield node
            node = node.upper

    def layer(self) -> Layer:
        whitelists = [_whitelist(node.image) for node in self.branch()]
        above = [whitelist for whitelist in whitelists[1:] if whitelist is not None]
        return Layer(
            image_id=self.image.id,
            name=self.image.name,
            own_whitelist=whitelists[0],
            upper_whitelist=above[-1] if above else None,  # the nearest to the top
        )


def _whitelist(image: StoredImage) -> frozenset[str] | None:
    paths = image.manifest.path_whitelist
    return frozenset(normpath(f"{ROOTFS}/{path}") for path in paths) if paths else None


def _needed(image: StoredImage, dependency: Dependency) -> str:
    labels = "".join(f",{name}={value}" for name, value in dependency.labels)
    wanted = dependency.image_id or dependency.image_name + labels
    return f"{image.name} depends on {wanted}"


def _parents(path: str) -> Iterable[str]:
    while (cut := path.rfind("/")) > 0:
        path = path[:cut]
        yield path
