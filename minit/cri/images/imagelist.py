"""The images of the store in memory, read again only when something in the store has changed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from minit.base.processors import this_processor
from minit.base.value import replace
from minit.cri.images.imageinfo import image_user
from minit.cri.images.nodeimages import NodeImage, node_images
from minit.stage0.images.store import Store

_STORES = ("cas", "minit/cas")
# Manifests, of which the time is that of the last import, and the directories of what else images are described by.
_TELLING = ("imageManifest/sha512/*/*", "digests/sha512/*", "treeSize/sha512/*", "untagged/sha512/*")
_SETTLED_NS = 1_000_000_000
"""Beyond the steps of a file system's clock: a change within one of them would not be seen."""


class ImageList:
    """The images of a data directory."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._state: object = None
        self._images: Sequence[NodeImage] = ()

    def read(self) -> Sequence[NodeImage]:
        """Return the images that there are now."""
        state = self._read_state()
        if state != self._state:
            with Store(self._data) as store:
                images = node_images(store.list(), this_processor())
                documents = [store.configuration(image.stored[-1].id) for image in images]
            self._images = [
                replace(image, user=image_user(image, document))
                for image, document in zip(images, documents, strict=True)
            ]
            newest_ns = max((time_ns for _, time_ns in state), default=0)
            self._state = state if newest_ns < time.time_ns() - _SETTLED_NS else None
        return self._images

    def configuration(self, image: NodeImage) -> bytes | None:
        """Return the configuration of an image as it came, None if it is not known."""
        with Store(self._data) as store:
            return store.configuration(image.stored[-1].id)

    def _read_state(self) -> list[tuple[str, int]]:
        places = (self._data / store for store in _STORES)
        paths = [path for place in places for pattern in _TELLING for path in place.glob(pattern)]
        found = []
        for path in paths:
            try:
                found.append((str(path), path.stat().st_mtime_ns))
            except FileNotFoundError:
                continue  # removed just now
        return sorted(found)
