"""Running a prepared pod: its overlays are mounted, then this process becomes stage1."""

from __future__ import annotations

import grp
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from minit import paths, syscalls
from minit.errors import PodError, describe
from minit.stage0 import entrypoints, overlay
from minit.stage0.diskerrors import disk_errors
from minit.stage0.durable import make_directory
from minit.stage0.entrypoints import RunOptions
from minit.stage0.nameservice import write_name_files
from minit.stage0.pods import RUN, Note, Pod, PodState
from minit.stage0.podstatus import read_app_tree_id, read_pod_manifest, read_stage1_tree_id
from minit.stage0.privateusers import ids_of_its_own
from minit.stage0.treestore import TreeStore

_MTAB_TARGET = "../proc/self/mounts"


def claim_prepared(pod: Pod) -> None:
    """Lock a prepared pod so that nobody else can run it; PodError if somebody is about to."""
    if pod.state is not PodState.PREPARED:
        raise PodError(f'pod "{pod.uuid}" is not prepared: its state is "{pod.state}"')
    # Where rkt waits here, the losers of a race hang for the whole life of the pod.
    if not pod.lock(blocking=False):
        raise PodError(f'pod "{pod.uuid}" is already being run')


def run_pod(pod: Pod, trees: TreeStore, options: RunOptions, note: Note, before_exec: Callable[[], None]) -> NoReturn:
    """
    Become the stage1 of a locked pod that is complete; `before_exec` is called last.

    A failure before the pod is moved to `run` leaves it as it was; after that, the pod has ended as if it had run.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    run = entrypoints.require_path(manifest, "run")
    version = entrypoints.interface_version(manifest)
    apps = [app.name for app in read_pod_manifest(pod).apps]
    if options.interactive and len(apps) != 1:
        raise PodError(f"--interactive needs a pod of exactly one app, this one has {len(apps)}")
    private_users = _read_optional(pod, paths.POD_PRIVATE_USERS)
    with_overlay = pod.has_file(paths.POD_OVERLAY_PREPARED)
    if with_overlay:
        obstacle = overlay.overlay_obstacle(pod.data)
        if obstacle is not None:
            raise PodError(f'pod "{pod.uuid}" was prepared for overlayfs, which this host lacks: {obstacle}')
    with ids_of_its_own(pod, private_users, note):
        pod.move(RUN)
    rootfs = pod.path / paths.POD_STAGE1_ROOTFS
    with disk_errors("run pod", pod.data):
        if with_overlay:
            _mount_stage1(pod, trees)
        for app in apps:
            if with_overlay:
                _mount_app(pod, trees, app)
            _link_mtab(rootfs / paths.app_rootfs(app))
        # Also for a stage1 that is too old to be told about them, as rkt does.
        write_name_files(rootfs, options.name_service)
    arguments = entrypoints.run_arguments(options, pod.uuid, version, private_users, note)
    environment = {
        **os.environ,
        "RKT_LOCK_FD": str(pod.fd),
        "RKT_SELINUX_CONTEXT": "",
        "RKT_SELINUX_MOUNT_CONTEXT": "",
    }
    os.chdir(pod.path)
    os.set_inheritable(pod.fd, True)
    before_exec()
    entrypoints.execute(rootfs / run, arguments, environment)


def _mount_stage1(pod: Pod, trees: TreeStore) -> None:
    rootfs = pod.path / paths.POD_STAGE1_ROOTFS
    make_directory(rootfs, 0o750)
    _mount_layers(pod, trees, read_stage1_tree_id(pod), None, rootfs)
    status = rootfs / paths.STATUS_DIRECTORY
    try:
        # Copies the directory into the upper layer, which is where the statuses are read from later.
        os.utime(status)
    except OSError as error:
        raise PodError(f"cannot touch stage1's status directory: {describe(error)}") from error


def _mount_app(pod: Pod, trees: TreeStore, app: str) -> None:
    directory = pod.path / paths.POD_STAGE1_ROOTFS / "opt/stage2" / app
    make_directory(directory, 0o750)
    manifest = directory / "manifest"
    manifest.write_bytes(pod.read_file(f"appsinfo/{app}/manifest"))
    manifest.chmod(0o644)
    make_directory(directory / "rootfs", 0o750)
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
    os.chown(upper, tree_root.st_uid, tree_root.st_gid)
    upper.chmod(mode)
    overlay.mount_overlay(lower, upper, work, target)


def _give_to_rkt_group(path: Path) -> None:
    try:
        group = grp.getgrnam("rkt")
    except KeyError:
        return
    os.chown(path, -1, group.gr_gid)


def _link_mtab(rootfs: Path) -> None:
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


def _read_optional(pod: Pod, name: str) -> str | None:
    try:
        return pod.read_file(name).decode("ascii", "replace")
    except FileNotFoundError:
        return None
