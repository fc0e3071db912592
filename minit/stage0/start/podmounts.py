"""The overlays of a pod, mounted in the caller's mount namespace: stage1's, and the apps' in it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from minit.base.errors import PodError, describe
from minit.base.idrange import IdRange
from minit.base.userdatabase import DATABASES, GROUP, find_id
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.files.durable import make_directory
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import read_app_tree_id, read_stage1_tree_id
from minit.stage0.pods.privateusers import read_ids

_MTAB_TARGET = "../proc/self/mounts"


def mount_stage1(pod: Pod, trees: TreeStore) -> None:
    """Mount the overlay of a pod's stage1."""
    rootfs = pod.path / paths.POD_STAGE1_ROOTFS
    make_directory(rootfs, 0o750)
    _mount_layers(pod, trees, read_stage1_tree_id(pod), None, rootfs)
    status = rootfs / paths.STATUS_DIRECTORY
    try:
        # Copies the directory into the upper layer, which is where the statuses are read from later.
        os.utime(status)
    except OSError as error:
        raise PodError(f"cannot touch stage1's status directory: {describe(error)}") from error


def mount_app(pod: Pod, trees: TreeStore, app: str) -> None:
    """Mount the overlay of an app in the stage1 that is mounted, with the image's manifest beside it."""
    directory = pod.path / paths.POD_STAGE1_ROOTFS / "opt/stage2" / app
    make_directory(directory, 0o750)
    ids = read_ids(pod)
    manifest = directory / "manifest"
    manifest.write_bytes(pod.read_file(f"appsinfo/{app}/manifest"))
    manifest.chmod(0o644)
    make_directory(directory / "rootfs", 0o750)
    if ids is not None:
        for path in (directory, manifest):
            os.chown(path, ids.shift, ids.shift)
    _mount_layers(pod, trees, read_app_tree_id(pod, app), app, directory / "rootfs")


def _mount_layers(pod: Pod, trees: TreeStore, tree_id: str, app: str | None, target: Path) -> None:
    """Mount a tree at `target` with the upper layer of the pod's stage1 (None) or of an app."""
    lower = trees.path(tree_id) / "rootfs"
    try:
        tree_root = lower.stat()
    except OSError as error:
        raise PodError(f'pod "{pod.uuid}" needs a tree that is not in the store: {describe(error)}') from error
    overlays = pod.path / "overlay"
    make_directory(overlays, 0o750)
    # A setgid bit inherited from packaged parents would show in every app's root.
    overlays.chmod(0o750)
    layers = overlays / tree_id
    make_directory(layers, 0o750)
    _give_to_rkt_group(layers)
    upper, work = layers / "upper", layers / "work"
    mode = stat.S_IMODE(tree_root.st_mode)
    make_directory(upper, mode)
    make_directory(work, 0o750)
    if app is not None:
        upper, work = upper / app, work / app
        make_directory(upper, mode)
        make_directory(work, 0o750)
    # The merged root shows the owner of the upper one.
    ids = read_ids(pod)
    os.chown(upper, *(_on_host(number, ids) for number in (tree_root.st_uid, tree_root.st_gid)))
    upper.chmod(mode)
    overlay.mount_overlay(lower, upper, work, target, ids)


def _on_host(number: int, ids: IdRange | None) -> int:
    mapped = number if ids is None else ids.to_host(number)
    if ids is not None and mapped is None:
        raise PodError(f"the owner {number} of the image's root: {ids.describe()}")
    assert mapped is not None
    return mapped


def _give_to_rkt_group(path: Path) -> None:
    # As rkt does; and getgrnam(3) loads libraries, which a static program cannot.
    with suppress(FileNotFoundError):
        group = find_id(Path(DATABASES[GROUP]).read_bytes(), GROUP, b"rkt")
        if group is not None:
            os.chown(path, -1, group)


def link_mtab(rootfs: Path) -> None:
    """Give an app with a real directory /etc an /etc/mtab, unless it has something of that name."""
    # The image decides what /etc is, so nothing is resolved that could lead out of its root.
    root = os.open(rootfs, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        etc = syscalls.openat2(
            root,
            "etc",
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
            resolve=syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_SYMLINKS,
        )
    except OSError:
        return
    finally:
        os.close(root)
    try:
        os.symlink(_MTAB_TARGET, "mtab", dir_fd=etc)
    except FileExistsError:
        pass
    finally:
        os.close(etc)
