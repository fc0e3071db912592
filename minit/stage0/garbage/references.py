"""The trees, images and named volumes that pods refer to, so that nothing is taken away from under a pod."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import MinitError, StoreError, describe
from minit.base.value import Value
from minit.podfiles.paths import POD_MANIFEST
from minit.stage0.files.locks import key_lock
from minit.stage0.images.imagevolumes import images_in, trees_in
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, PREPARE, Note, Pod, PodState, walk_pods
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest, read_stage1_tree_id
from minit.stage0.volumes.volumestore import names_in


@contextmanager
def no_pod_is_prepared(data: Path) -> Iterator[None]:
    """Keep minit and rkt from preparing pods, and so from referring to more trees, for the length of a with block."""
    with key_lock(data / "locks", "prepareLock", exclusive=True):
        yield


def tree_users(data: Path, note: Note) -> dict[str, list[str]]:
    """
    Return the IDs of the trees that pods refer to, each with their UUIDs.

    To be called in `no_pod_is_prepared`. StoreError if a pod's files cannot be read: it may refer to any tree.
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
    Return the names of the volumes that pods have, running or not, each with their UUIDs.

    StoreError if a pod's manifest cannot be read: it may have any volume.
    """
    users: dict[str, list[str]] = {}
    for pod in walk_pods(data, ADDRESSABLE_PLACES, note):
        for name in needs_of(pod).volumes:
            users.setdefault(name, []).append(pod.uuid)
    return users


class Needs(Value):
    """The images that a pod's apps and volumes are made from, its trees and its named volumes."""

    images: frozenset[str] = frozenset()
    trees: frozenset[str] = frozenset()
    volumes: frozenset[str] = frozenset()


def needs_of(pod: Pod) -> Needs:
    """Return what a pod refers to, nothing of one that is gone; StoreError if its files cannot be read."""
    trees = frozenset(_trees_of(pod))
    with _readable(pod):
        manifest = read_pod_manifest(pod)
        images = frozenset(app.image_id for app in manifest.apps if app.image_id is not None)
        images |= images_in(manifest, pod.data)
        return Needs(images=images, trees=trees, volumes=names_in(manifest, pod.data))
    return Needs(trees=trees)


def _trees_of(pod: Pod) -> Iterator[str]:
    """Yield the trees of a pod; one that is incomplete or half deleted has those it names."""
    with _readable(pod):
        # One by one: rkt forgets the apps' trees of a pod that names none for stage1, and deletes them.
        if pod.has_file("stage1TreeStoreID"):
            yield read_stage1_tree_id(pod)
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
        # Deleted meanwhile, or never finished by a program that died: no one will ever run it.
        gone = True
        with suppress(OSError):
            gone = not pod.refresh() or pod.place == PREPARE
        if not gone:
            raise StoreError(
                f'pod "{pod.uuid}" may need anything, its files are not readable: {describe(error)}'
            ) from error
