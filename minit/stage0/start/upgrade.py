"""
Gives a running pod a later stage1 image: minit's own, in the place of the image that the pod was prepared with.

The files go into a directory of their own in the pod's stage1 root, STAGE1_UPGRADES/TREE, whole or not at all. PID 1
gets the image from the `control` entrypoint of the new tree. Last of all the stage1 manifest in the pod directory is
replaced by one that names the entrypoints in the new directory. So stage0 and rkt execute programs of one image at any
moment, and a killed upgrade is finished by another one.

PID 1 runs from the tree in the tree store, as other pods do: they share the memory of the program. A file of the pod
directory has the IDs of such trees, which `gc` keeps.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import MinitError, PodError, StoreError, describe
from minit.base.processors import Processor
from minit.base.progress import Progress
from minit.base.value import Value
from minit.linux import syscalls
from minit.manifest.image import ImageManifest
from minit.podfiles import paths
from minit.podfiles.controlmessages import AskState, LivePod, Upgrade
from minit.stage0.files.durable import disk_errors, make_directory, remove_file
from minit.stage0.files.locks import key_lock
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.mutablepods import manifest_lock, replace_file, replacement, require_controllable
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import read_stage1_tree_id, read_upgrade_tree_ids
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.reports.podtraces import is_stopping
from minit.stage0.stage1.calls import UnansweredError, ask_by
from minit.stage0.stage1.entrypoints import read_stage1_manifest
from minit.stage0.start.newpod import copy_tree, make_missing_directories

_ENTRYPOINTS = "/entrypoints/"
_PROGRAMS = "usr"
_UNFINISHED = ".new"
_TREES_KEPT = 2
_OF_THE_FIRST_TREE = {f"{paths.ANNOTATION_STAGE1}enter", paths.ANNOTATION_GC_MANY}


class Versions(Value):
    """The versions of a pod's stage1 before and after an upgrade."""

    before: str
    after: str


def require_upgrading(image: ImageManifest, processor: Processor) -> None:
    """Raise StoreError unless running pods of this machine can go on in a stage1 image."""
    if image.name != paths.STAGE1_NAME:
        raise StoreError(
            f'image "{image.name}" is not minit\'s stage1 ("{paths.STAGE1_NAME}"): pods cannot go on in it'
        )
    if image.label("arch") != processor.appc:
        raise StoreError(
            f"stage1 image {_version(image)} is for {image.label('arch')}: this machine is {processor.appc}"
        )
    if _format(image) is None:
        raise StoreError(f"stage1 image {_version(image)} is too old: no running pod can go on in it")


def require_upgradable(uuid: str, present: ImageManifest, image: ImageManifest) -> None:
    """Raise PodError unless a pod with the stage1 of one manifest can go on in the stage1 of another."""
    if present.name != paths.STAGE1_NAME:
        raise PodError(f'pod "{uuid}" has another kind of stage1, "{present.name}": only minit\'s can be upgraded')
    if _format(present) is None:
        raise PodError(
            f'pod "{uuid}" has stage1 {_version(present)}, which cannot be upgraded: run the pod anew for another one'
        )
    if _format(present) != _format(image):
        raise PodError(
            f'pod "{uuid}" has stage1 {_version(present)} with a state of format {_format(present)}, and stage1'
            f" {_version(image)} reads format {_format(image)}: run the pod anew for it"
        )


def upgraded_manifest(present: ImageManifest, image: StoredImage, tree_id: str) -> bytes:
    """
    Return the stage1 manifest of an upgraded pod: the new image's, with the entrypoints where the pod has them.

    But for those that stage0 executes in the tree that the pod was prepared with, which stay.
    """
    manifest = jsontext.parse(image.manifest_bytes, image.name)
    assert isinstance(manifest, dict)
    annotations = {
        name: f"{_place(tree_id)}{value}" if value.startswith(_ENTRYPOINTS) else value
        for name, value in image.manifest.annotations
        if name not in _OF_THE_FIRST_TREE
    }
    annotations |= {name: value for name, value in present.annotations if name in _OF_THE_FIRST_TREE}
    annotations[paths.ANNOTATION_TREE] = tree_id
    return jsontext.dump(
        {**manifest, "annotations": [{"name": name, "value": value} for name, value in annotations.items()]}
    )


def upgrade_pod(pod: Pod, trees: TreeStore, image: StoredImage, progress: Progress) -> Versions | None:
    """
    Have a running pod go on in another stage1 image, for which `require_upgrading` is true.

    None if the pod has the image already. MinitError for a pod that cannot go on in the image, and nothing has changed.
    """
    # The lock of additions of apps, of which both sides are of one image.
    with disk_errors("upgrade pod", pod.path), manifest_lock(pod):
        if pod.state is PodState.RUNNING and is_stopping(pod):
            raise _ending(pod)
        require_controllable(pod)
        present = read_stage1_manifest(pod)
        require_upgradable(pod.uuid, present, image.manifest)
        tree_id = trees.tree_id_of(image.id)
        if _is_at(pod, present, tree_id):
            _remove_earlier(pod)
            return None
        control = (image.manifest.annotation(paths.ANNOTATION_CONTROL) or "").lstrip("/")
        program = trees.path(tree_id) / "rootfs" / control
        # Written before PID 1 is asked: on a full disk nothing happens.
        with (
            replacement(pod, paths.POD_STAGE1_MANIFEST, upgraded_manifest(present, image, tree_id)),
            _tree_kept(pod, trees, image, progress),
        ):
            _require_going_on(pod, program)
            with _files_placed(pod, trees, tree_id, progress):
                progress("upgrading the pod", 0, None)
                ask_by(program, pod, Upgrade())
        # What stays goes with the next upgrade.
        with suppress(OSError):
            _remove_earlier(pod)
    return Versions(before=_version(present), after=_version(image.manifest))


def _is_at(pod: Pod, present: ImageManifest, tree_id: str) -> bool:
    """Tell whether programs and PID 1 of a pod are those of a tree: no upgrade to another one was interrupted."""
    first = read_stage1_tree_id(pod)
    latest = (first, *read_upgrade_tree_ids(pod))[-1]
    return latest == tree_id == (present.annotation(paths.ANNOTATION_TREE) or first)


def _require_going_on(pod: Pod, program: Path) -> None:
    """Raise PodError for a pod that is ending, or for a new `control` that does not work."""
    try:
        state = ask_by(program, pod, AskState())
    except UnansweredError as error:
        # Nothing has been asked of PID 1 that changes anything.
        raise PodError(describe(error)) from error
    if not isinstance(state, LivePod) or state.state != "running":
        raise _ending(pod)


def _ending(pod: Pod) -> PodError:
    return PodError(f'pod "{pod.uuid}" is ending: it cannot be upgraded')


@contextmanager
def _tree_kept(pod: Pod, trees: TreeStore, image: StoredImage, progress: Progress) -> Iterator[None]:
    """Have the tree of an image stay as long as the pod, unless the with block fails."""
    before = read_upgrade_tree_ids(pod)
    try:
        with key_lock(pod.data / "locks", "prepareLock", exclusive=False):
            tree_id = trees.render(image.id, progress)
            _write_tree_ids(pod, (*(each for each in before if each != tree_id), tree_id))
        yield
    except UnansweredError:
        raise
    except (MinitError, OSError):
        _write_tree_ids(pod, before)
        raise


def _write_tree_ids(pod: Pod, tree_ids: tuple[str, ...]) -> None:
    if tree_ids:
        replace_file(pod, paths.POD_UPGRADES, "\n".join(tree_ids).encode())
    else:
        remove_file(pod.path / paths.POD_UPGRADES)


@contextmanager
def _files_placed(pod: Pod, trees: TreeStore, tree_id: str, progress: Progress) -> Iterator[None]:
    """Have the files of a tree in the pod; new ones are gone if the with block fails."""
    tree = trees.path(tree_id) / "rootfs"
    root = pod.path / paths.POD_STAGE1_ROOTFS
    place = Path(f"{root}{_place(tree_id)}")
    ids = read_ids(pod)
    make_directory(place.parent, 0o755)
    for left in place.parent.glob(f"*{_UNFINISHED}"):
        _remove(left)
    is_new = not place.exists()
    new = place.with_name(f"{place.name}{_UNFINISHED}")
    try:
        if is_new:
            progress("copying stage1", 0, None)
            copy_tree(tree, new, ids)
            new.rename(place)
        make_missing_directories(tree, root, _PROGRAMS, ids)
        syscalls.syncfs(pod.fd)
        yield
    except UnansweredError:
        raise
    except (MinitError, OSError):
        if is_new:
            # A half removed copy never has the name of a whole one.
            with suppress(OSError):
                _remove(new if new.exists() else place)
        raise


def _remove_earlier(pod: Pod) -> None:
    """
    Remove what earlier upgrades have left, but for the version before: launcher, helpers and sidecars may still run it.
    """
    tree_ids = read_upgrade_tree_ids(pod)
    if len(tree_ids) > _TREES_KEPT:
        tree_ids = tree_ids[-_TREES_KEPT:]
        _write_tree_ids(pod, tree_ids)
    for place in Path(f"{pod.path / paths.POD_STAGE1_ROOTFS}{paths.STAGE1_UPGRADES}").glob("*"):
        if place.name not in tree_ids:
            _remove(place)


def _remove(place: Path) -> None:
    """Remove a directory of files, which is whole or has another name at any moment."""
    unfinished = place.with_name(f"{place.name.removesuffix(_UNFINISHED)}{_UNFINISHED}")
    place.rename(unfinished)
    shutil.rmtree(unfinished)


def _place(tree_id: str) -> str:
    return f"{paths.STAGE1_UPGRADES}/{tree_id}"


def _format(image: ImageManifest) -> str | None:
    return image.annotation(paths.ANNOTATION_STATE_FORMAT)


def _version(image: ImageManifest) -> str:
    return image.label("version") or "without a version"
