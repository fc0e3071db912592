"""
The disk usage of a data directory, and the unneeded part: `system df`, and the effect of `system prune`.

Ended pods are not needed, nor are images, trees and volumes that only ended pods refer to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from minit.base.value import Value
from minit.stage0.files.untrusted import used_bytes
from minit.stage0.garbage.storegc import needs_of
from minit.stage0.images.imagefiles import OF_IMAGES
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage, named_images
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import ENDED_STATES, PLACES, Note, Pod, PodState, walk_pods
from minit.stage0.volumes import list_volumes

_NEVER_RUN_STATES = frozenset({PodState.ABORTED_PREPARE, PodState.GARBAGE, PodState.DELETING})
_UNNEEDED_STATES = ENDED_STATES | _NEVER_RUN_STATES
# Other directories beside these only save time, or are left over.
_NO_CACHES = OF_IMAGES | {"layer"}


class Item(Value):
    """A directory or file that takes room: the name, the size, whether a pod needs the file, and names of an image."""

    name: str
    size_bytes: int
    is_needed: bool
    labels: tuple[str, ...] = ()


class Survey(Value):
    """
    All disk usage by kind: `trees` are unpacked images, removed `caches` come back.

    A file that layers and trees share counts for the layer.
    """

    images: tuple[Item, ...]
    layers: tuple[Item, ...]
    trees: tuple[Item, ...]
    pods: tuple[Item, ...]
    volumes: tuple[Item, ...]
    caches: tuple[Item, ...]


def survey(
    data: Path,
    store: Store,
    trees: TreeStore,
    kept: StoredImage | None,
    caches: Sequence[Path],
    note: Note,
    *,
    keeps_named: bool = False,
    leaves_pod: Callable[[Pod], bool] | None = None,
    leaves_image: Callable[[StoredImage], bool] | None = None,
) -> Survey:
    """
    Return the disk usage of a data directory, and of the directories `caches` elsewhere.

    The image `kept` and the tree of `kept` are needed, with `keeps_named` images that have a name, and what is left. If
    images can be left, so are the trees of all images that stay. StoreError for unreadable files of a pod that has not
    ended.
    """
    images, needed_trees, volumes = set[str](), set[str](), set[str]()
    pods = []
    for pod in walk_pods(data, PLACES, note):
        is_needed = pod.state not in _UNNEEDED_STATES or (leaves_pod is not None and leaves_pod(pod))
        if is_needed and pod.state not in _NEVER_RUN_STATES:
            needs = needs_of(pod)
            images |= needs.images
            needed_trees |= needs.trees
            volumes |= needs.volumes
        pods.append(Item(name=pod.uuid, size_bytes=used_bytes(pod.path), is_needed=is_needed))
    if kept is not None:
        images.add(kept.id)
        needed_trees.add(trees.tree_id_of(kept.id))
    beside = data / "minit/cas"
    listed = {image.id: image for image in store.list()}
    if keeps_named:
        images |= named_images([*listed.values()])
    if leaves_image is not None:
        images |= {image.id for image in listed.values() if leaves_image(image)}
        needed_trees |= {trees.tree_id_of(image_id) for image_id in images if image_id in listed}
    stored = {image_id: image_id in images or not store.is_own(image_id) for image_id in listed}
    recipes = {image: recipe for image in stored if (recipe := store.recipe(image)) is not None}
    files = {image: recipes[image].path if image in recipes else store.blob_path(image) for image in stored}
    needed_layers = {layer for image, recipe in recipes.items() if stored[image] for layer in recipe.layers}
    shared: set[int] = set()
    layers = _directories({layer.diff_id: layer.path for layer in store.layers.layers()}, needed_layers, shared)
    return Survey(
        images=tuple(
            Item(
                name=image,
                size_bytes=files[image].stat().st_blocks * 512,
                is_needed=is_needed,
                labels=listed[image].all_names,
            )
            for image, is_needed in stored.items()
        ),
        layers=layers,
        trees=_directories({tree_id: trees.path(tree_id) for tree_id in trees.ids()}, needed_trees, shared),
        pods=tuple(pods),
        volumes=_directories({volume.name: Path(volume.path).parent for volume in list_volumes(data)}, volumes),
        caches=tuple(
            Item(name=str(path), size_bytes=used_bytes(path), is_needed=True)
            for path in (*(path for path in sorted(beside.iterdir()) if path.name not in _NO_CACHES), *caches)
            if path.is_dir()
        ),
    )


def _directories(paths: dict[str, Path], needed: Collection[str], seen: set[int] | None = None) -> tuple[Item, ...]:
    return tuple(
        Item(name=name, size_bytes=used_bytes(path, seen), is_needed=name in needed) for name, path in paths.items()
    )
