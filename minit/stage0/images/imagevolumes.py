"""
Volumes that are images: in a manifest each is a directory of the host, the tree that its image is unpacked to.

Pods have such a tree read-only, and it stays as long as a pod refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from minit.base.errors import StoreError
from minit.base.progress import Progress
from minit.base.value import replace
from minit.manifest.pod import Mount, PodManifest, Volume
from minit.podfiles.paths import tree_of_source
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore

IMAGE = "image"
"""The kind of a volume whose source is an image, until it is in a manifest."""


class ImageVolumes:
    """Makes volumes of images; `find` returns the image that a source means."""

    def __init__(self, store: Store, trees: TreeStore, find: Callable[[str], StoredImage], progress: Progress) -> None:
        self._store = store
        self._trees = trees
        self._find = find
        self._progress = progress

    def provide(self, volumes: Sequence[Volume]) -> tuple[Volume, ...]:
        """Return volumes as a manifest has them, with the trees of images rendered; StoreError if one cannot be."""
        return tuple(self._provide(volume) for volume in volumes)

    def provide_mounts(self, mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        """Return mounts whose own volumes are as a manifest has them."""
        return tuple(
            mount if mount.app_volume is None else replace(mount, app_volume=self._provide(mount.app_volume))
            for mount in mounts
        )

    def _provide(self, volume: Volume) -> Volume:
        if volume.kind != IMAGE:
            return volume
        assert volume.source is not None
        image = self._find(volume.source)
        self._store.mark_used(image.id)
        tree = self._trees.path(self._trees.render(image.id, self._progress))
        return replace(volume, kind="host", source=str(tree / "rootfs"), read_only=True)


def trees_in(manifest: PodManifest) -> frozenset[str]:
    """Return the IDs of the trees that a pod has as volumes, mounted or not."""
    declared = [*manifest.volumes]
    declared += [mount.app_volume for app in manifest.apps for mount in app.mounts if mount.app_volume]
    found = (tree_of_source(volume.source or "") for volume in declared)
    return frozenset(tree for tree in found if tree is not None)


def images_in(manifest: PodManifest, data: Path) -> frozenset[str]:
    """Return the IDs of the images that a pod has as volumes."""
    images = set()
    for tree in trees_in(manifest):
        with suppress(FileNotFoundError):
            images.add((data / "cas/tree" / tree / "image").read_text())
    return frozenset(images)


def require_trees(manifest: PodManifest, trees: TreeStore) -> None:
    """Raise StoreError if an image that a pod has as a volume was removed; to be called where none can be."""
    for tree in trees_in(manifest):
        if not trees.is_rendered(tree):
            raise StoreError(f"an image that is a volume of the pod was removed meanwhile: its tree {tree} is gone")
