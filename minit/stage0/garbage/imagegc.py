"""Collecting images and trees: what `image gc` takes away, and what `image verify` renders anew."""

from __future__ import annotations

import time
from pathlib import Path

from minit.base.errors import MinitError, StoreError, describe
from minit.base.progress import Progress
from minit.podfiles.paths import CRI_RECORDS
from minit.stage0.garbage.references import images_of_pods, no_pod_is_prepared, tree_users
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Note


def collect_trees(
    data: Path, trees: TreeStore, kept: StoredImage | None, note: Note, *, gone_only: bool = False
) -> None:
    """
    Remove the trees that no pod refers to, but for that of the image `kept`.

    With `gone_only` those of images stay that are in the store. A failure with one is noted, and the others go on.
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
) -> int:
    """
    Remove minit's images that no pod was prepared from for that long and no running pod has, but for `kept`.

    Without `running_only`, and on the node of a kubelet, those of all pods stay, with all their names. Return how many
    were removed.
    """
    running_only = running_only and not (data / CRI_RECORDS).exists()
    needed = {*images_of_pods(data, note, running_only=running_only), *([] if kept is None else [kept.id])}
    images = store.list()
    configurations = {image.digests.configuration for image in images if image.id in needed and image.digests}
    now_ns = time.time_ns()
    removed = 0
    for image in images:
        is_needed = image.id in needed or (image.digests and image.digests.configuration in configurations)
        if is_needed or now_ns - image.last_used_ns <= grace_seconds * 1e9:
            continue
        try:
            if not store.is_own(image.id):
                continue
            store.remove(image.id)
        except StoreError:
            if store.has(image.id):
                raise
            continue  # somebody else was faster
        say(f'successfully removed aci for image: "{image.id}"')
        removed += 1
    store.collect_leftovers()
    return removed


def render_anew(data: Path, trees: TreeStore, image_id: str, note: Note, progress: Progress) -> None:
    """Replace the tree of an image by a new one; StoreError if pods refer to the old one."""
    with no_pod_is_prepared(data):
        tree_id = trees.tree_id_of(image_id)
        users = tree_users(data, note).get(tree_id)
        if users:
            pods = ", ".join(users)
            raise StoreError(f"tree {tree_id} cannot be replaced while pods refer to it: remove these first: {pods}")
        trees.remove(tree_id)
        trees.render(image_id, progress)
