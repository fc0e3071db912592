"""
Images, trees and named volumes: which ones pods refer to, and the removal of the others.

`gc`, `image gc`, `image verify` and the commands about volumes call the removal. Nothing is removed that a pod needs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import MinitError, StoreError, describe
from minit.base.progress import Progress
from minit.base.value import Value
from minit.podfiles.paths import CRI_RECORDS, POD_MANIFEST
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage, named_images
from minit.stage0.images.treestore import TreeStore, images_in, trees_in
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, PREPARE, Note, Pod, PodState, walk_pods
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest, read_stage1_tree_id, read_upgrade_tree_ids
from minit.stage0.volumes import list_volumes, names_in, take_away, volume_scratch


@contextmanager
def no_pod_is_prepared(data: Path) -> Iterator[None]:
    """Keep minit and rkt from preparing pods, and so from new references to trees, for the length of a with block."""
    with key_lock(data / "locks", "prepareLock", exclusive=True):
        yield


def tree_users(data: Path, note: Note) -> dict[str, list[str]]:
    """
    Return the IDs of the trees that pods refer to, each with the UUIDs of the pods.

    To be called in `no_pod_is_prepared`. StoreError for unreadable files of a pod, which may refer to any tree.
    """
    users: dict[str, list[str]] = {}
    for pod in walk_pods(data, ADDRESSABLE_PLACES, note):
        for tree_id in _trees_of(pod):
            users.setdefault(tree_id, []).append(pod.uuid)
    return users


def images_of_pods(data: Path, note: Note, *, running_only: bool) -> frozenset[str]:
    """Return the IDs of the images that the apps and volumes of pods were made from."""
    images: set[str] = set()
    for pod in walk_pods(data, ADDRESSABLE_PLACES, note):
        if pod.state is PodState.RUNNING or not running_only:
            images |= needs_of(pod).images
    return frozenset(images)


def volume_users(data: Path, note: Note) -> dict[str, list[str]]:
    """
    Return the names of the volumes that pods have, running or not, each with the UUIDs of the pods.

    StoreError for an unreadable manifest of a pod, which may have any volume.
    """
    users: dict[str, list[str]] = {}
    for pod in walk_pods(data, ADDRESSABLE_PLACES, note):
        for name in needs_of(pod).volumes:
            users.setdefault(name, []).append(pod.uuid)
    return users


class Needs(Value):
    """The images of a pod's apps and volumes, the trees and the named volumes."""

    images: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()
    volumes: frozenset[str] = frozenset()


def needs_of(pod: Pod) -> Needs:
    """Return the references of a pod, none of a pod that is gone; StoreError for unreadable files."""
    trees = frozenset(_trees_of(pod))
    with _readable(pod):
        manifest = read_pod_manifest(pod)
        images = frozenset(app.image_id for app in manifest.apps if app.image_id is not None)
        images |= images_in(manifest, pod.data)
        return Needs(images=images, trees=trees, volumes=names_in(manifest, pod.data))
    return Needs(trees=trees)


def _trees_of(pod: Pod) -> Iterator[str]:
    """Yield the trees of a pod; an incomplete or half deleted pod has the trees that its files name."""
    with _readable(pod):
        # One by one: rkt forgets the apps' trees of a pod without a stage1 tree, and deletes these trees.
        if pod.has_file("stage1TreeStoreID"):
            yield read_stage1_tree_id(pod)
        yield from read_upgrade_tree_ids(pod)
        for name in _names_of_apps(pod):
            if pod.has_file(f"appsinfo/{name}/treeStoreID"):
                yield read_app_tree_id(pod, name)
        if pod.has_file(POD_MANIFEST):
            yield from trees_in(read_pod_manifest(pod))


def _names_of_apps(pod: Pod) -> list[str]:
    try:
        apps = os.open("appsinfo", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=pod.fd)
    except FileNotFoundError:
        return []
    try:
        return os.listdir(apps)
    finally:
        os.close(apps)


@contextmanager
def _readable(pod: Pod) -> Iterator[None]:
    try:
        yield
    except (OSError, MinitError) as error:
        # Deleted meanwhile, or never finished by a program that died: the pod will never run.
        gone = True
        with suppress(OSError):
            gone = not pod.refresh() or pod.place == PREPARE
        if not gone:
            raise StoreError(
                f'pod "{pod.uuid}" may need anything, its files are not readable: {describe(error)}'
            ) from error


def collect_trees(
    data: Path, trees: TreeStore, kept: StoredImage | None, note: Note, *, gone_only: bool = False
) -> None:
    """
    Remove the trees that no pod refers to, but for the tree of the image `kept`.

    With `gone_only` trees of images in the store stay. A failed removal is noted, and the others go on.
    """
    with trees.removal() as remove, no_pod_is_prepared(data):
        needed = {*tree_users(data, note), *([] if kept is None else [trees.tree_id_of(kept.id)])}
        for tree_id in trees.ids():
            if tree_id in needed or (gone_only and trees.has_image(tree_id)):
                continue
            try:
                remove(tree_id)
            except MinitError as error:
                note(f'error removing treestore "{tree_id}": {describe(error)}')
            else:
                note(f'removed treestore "{tree_id}"')
    trees.collect_leftovers()


def collect_images(
    data: Path,
    store: Store,
    kept: StoredImage | None,
    grace_seconds: float,
    say: Note,
    note: Note,
    *,
    running_only: bool = True,
    keeps_named: bool = False,
    leaves: Callable[[StoredImage], bool] = lambda image: False,
) -> int:
    """
    Remove minit's images that no pod was prepared from for `grace_seconds` and no running pod has, but for `kept`.

    Without `running_only`, and on the node of a kubelet, the images of all pods stay, with all names. With
    `keeps_named` images stay that have a name, and images that are left in any case. Steps of builds that no build has
    used for so long are forgotten, too. Return the number of removed images.
    """
    running_only = running_only and not (data / CRI_RECORDS).exists()
    needed = {*images_of_pods(data, note, running_only=running_only), *([] if kept is None else [kept.id])}
    images = store.list()
    named = named_images(images) if keeps_named else ()
    configurations = {image.digests.configuration for image in images if image.id in needed and image.digests}
    now_ns = time.time_ns()
    removed = 0
    for image in images:
        is_needed = (
            image.id in needed or image.id in named or (image.digests and image.digests.configuration in configurations)
        )
        if is_needed or leaves(image) or now_ns - image.last_used_ns <= grace_seconds * 1e9:
            continue
        try:
            if not store.is_own(image.id):
                continue
            store.remove(image.id)
        except StoreError:
            if store.has(image.id):
                raise
            continue  # another process was faster
        say(f'successfully removed aci for image: "{image.id}"')
        removed += 1
    store.steps.forget(now_ns - int(grace_seconds * 1e9))
    store.collect_layers()
    store.collect_leftovers()
    return removed


def render_anew(data: Path, trees: TreeStore, image_id: str, note: Note, progress: Progress) -> None:
    """Replace the tree of an image by a new tree; StoreError if pods refer to the old tree."""
    with no_pod_is_prepared(data):
        tree_id = trees.tree_id_of(image_id)
        users = tree_users(data, note).get(tree_id)
        if users:
            pods = ", ".join(users)
            raise StoreError(f"tree {tree_id} cannot be replaced while pods refer to it: remove these first: {pods}")
        trees.remove(tree_id)
        trees.render(image_id, progress)


def remove_volume(data: Path, name: str, note: Note) -> None:
    """Remove a volume with all files; StoreError for no volume, or for the volume of a pod."""
    with volume_scratch(data) as scratch, no_pod_is_prepared(data):
        users = volume_users(data, note).get(name)
        if users:
            raise StoreError(f'volume "{name}" is in use: remove these pods first: {", ".join(users)}')
        take_away(data, name, scratch)


def prune_volumes(
    data: Path, names: Collection[str], say: Note, note: Note, tell_failure: Callable[[MinitError], None]
) -> None:
    """Remove those of the volumes that no pod has; `say` gets the names, and a failure does not stop the others."""
    with volume_scratch(data) as scratch, no_pod_is_prepared(data):
        for name in unused_volumes(data, note):
            if name not in names:
                continue
            try:
                take_away(data, name, scratch)
            except MinitError as error:
                tell_failure(error)
            else:
                say(name)


def unused_volumes(data: Path, note: Note) -> list[str]:
    """Return the names of the volumes that no pod has."""
    users = volume_users(data, note)
    return [volume.name for volume in list_volumes(data) if volume.name not in users]
