"""Runs a prepared pod: mounts the overlays of stage1 and of the apps, then this process becomes stage1."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from minit.base import jsontext
from minit.base.errors import PodError, describe
from minit.base.idrange import IdRange
from minit.base.userdatabase import DATABASES, GROUP, find_id
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors, make_directory
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.nameservice import write_name_files
from minit.stage0.pods.poddirectory import RUN, Note, Pod, PodState
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest, read_stage1_tree_id
from minit.stage0.pods.privateusers import ids_of_its_own, read_ids
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.entrypoints import RunOptions

RUN_RECORD = "minit-run"
"""In the pod directory: the arguments of stage1's `run`, for a pod that is started again."""

_MTAB_TARGET = "../proc/self/mounts"


def claim_prepared(pod: Pod) -> None:
    """Lock a prepared pod so that nobody else can run the pod; PodError if somebody is about to."""
    if pod.state is not PodState.PREPARED:
        raise PodError(f'pod "{pod.uuid}" is not prepared: its state is "{pod.state}"')
    # Where rkt waits here, the losers of a race hang for the whole life of the pod.
    if not pod.lock(blocking=False):
        raise PodError(f'pod "{pod.uuid}" is already being run')


def run_pod(
    pod: Pod,
    trees: TreeStore,
    options: RunOptions,
    note: Note,
    before_exec: Callable[[], None],
    start_remover: Callable[[], int] | None = None,
    between: Sequence[Path] = (),
) -> NoReturn:
    """
    Become the stage1 of a locked pod that is complete; `before_exec` is called last.

    `start_remover` starts a process that removes the pod after the end, and returns the process's number. `between` are
    layers, the highest first, between the image of each app and the changes of the app.

    A failure before the move to `run` leaves the pod as before; after the move, the pod has ended as if it had run.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    entrypoints.require_path(manifest, "run")
    if options.mutable:
        entrypoints.require_mutable_support(manifest)
    apps = [app.name for app in read_pod_manifest(pod).apps]
    if options.interactive and len(apps) != 1:
        raise PodError(f"--interactive needs a pod of exactly one app, this one has {len(apps)}")
    private_users = read_private_users(pod)
    require_overlay(pod)
    with ids_of_its_own(pod, private_users, note):
        pod.move(RUN)
    remover = None if start_remover is None else start_remover()
    with disk_errors("run pod", pod.path):
        mount_overlays(pod, trees, apps, between)
        # Also for a stage1 too old to be told about the files, as rkt does.
        write_name_files(pod.path / paths.POD_STAGE1_ROOTFS, options.name_service)
        arguments = entrypoints.run_arguments(options, pod.uuid, manifest, private_users, note)
        (pod.path / RUN_RECORD).write_bytes(jsontext.dump(arguments))
    become_stage1(pod, arguments, before_exec, remover)


def read_private_users(pod: Pod) -> str | None:
    """Return the record of the pod's ids on the host, None for a pod without own ids."""
    try:
        return pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace")
    except FileNotFoundError:
        return None


def require_overlay(pod: Pod) -> None:
    """Raise PodError for a pod that needs overlayfs on a host without overlayfs."""
    obstacle = overlay.overlay_obstacle(pod.data) if pod.has_file(paths.POD_OVERLAY_PREPARED) else None
    if obstacle is not None:
        raise PodError(f'pod "{pod.uuid}" was prepared for overlayfs, which this host lacks: {obstacle}')


def mount_overlays(pod: Pod, trees: TreeStore, apps: Sequence[str], between: Sequence[Path] = ()) -> None:
    """Mount the overlays of a pod, if any, and give the apps /etc/mtab."""
    with_overlay = pod.has_file(paths.POD_OVERLAY_PREPARED)
    if with_overlay:
        _mount_stage1(pod, trees)
    for app in apps:
        if with_overlay:
            mount_app(pod, trees, app, between)
        link_mtab(pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app))


def become_stage1(
    pod: Pod, arguments: Sequence[str], before_exec: Callable[[], None], remover: int | None = None
) -> NoReturn:
    """Become the stage1 of a locked pod with mounted overlays; `remover` is the process that removes the pod."""
    run = entrypoints.require_path(entrypoints.read_stage1_manifest(pod), "run")
    environment = {
        **os.environ,
        "RKT_LOCK_FD": str(pod.fd),
        "RKT_SELINUX_CONTEXT": "",
        "RKT_SELINUX_MOUNT_CONTEXT": "",
    }
    if remover is not None:
        environment[paths.REMOVER_VARIABLE] = str(remover)
    os.chdir(pod.path)
    os.set_inheritable(pod.fd, True)
    before_exec()
    entrypoints.execute(pod.path / paths.POD_STAGE1_ROOTFS / run, arguments, environment)


def _mount_stage1(pod: Pod, trees: TreeStore) -> None:
    """Mount the overlay of a pod's stage1."""
    rootfs = pod.path / paths.POD_STAGE1_ROOTFS
    make_directory(rootfs, 0o750)
    _mount_layers(pod, trees, read_stage1_tree_id(pod), None, rootfs)
    status = rootfs / paths.STATUS_DIRECTORY
    try:
        # Copies the directory into the upper layer, from where the statuses are read later.
        os.utime(status)
    except OSError as error:
        raise PodError(f"cannot touch stage1's status directory: {describe(error)}") from error


def mount_app(pod: Pod, trees: TreeStore, app: str, between: Sequence[Path] = ()) -> None:
    """Mount the overlay of an app in the mounted stage1, with the image's manifest beside the overlay."""
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
    _mount_layers(pod, trees, read_app_tree_id(pod, app), app, directory / "rootfs", between)


def _mount_layers(
    pod: Pod, trees: TreeStore, tree_id: str, app: str | None, target: Path, between: Sequence[Path] = ()
) -> None:
    """Mount a tree at `target` with the upper layer of the pod's stage1 (None) or of an app."""
    lower = trees.path(tree_id) / "rootfs"
    try:
        tree_root = (between[0] if between else lower).stat()
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
    # The merged root shows the owner of the upper root.
    ids = read_ids(pod)
    os.chown(upper, *(_on_host(number, ids) for number in (tree_root.st_uid, tree_root.st_gid)))
    upper.chmod(mode)
    overlay.mount_overlay(lower, upper, work, target, ids, between)


def _on_host(number: int, ids: IdRange | None) -> int:
    mapped = number if ids is None else ids.to_host(number)
    if ids is not None and mapped is None:
        raise PodError(f"the owner {number} of the image's root: {ids.describe()}")
    assert mapped is not None
    return mapped


def _give_to_rkt_group(path: Path) -> None:
    if read_held_ids() is not None:
        return  # the number of the host's group is another group here
    # As rkt does; and getgrnam(3) loads libraries, which a static program cannot.
    with suppress(FileNotFoundError):
        group = find_id(Path(DATABASES[GROUP]).read_bytes(), GROUP, b"rkt")
        if group is not None:
            os.chown(path, -1, group)


def link_mtab(rootfs: Path) -> None:
    """Give an app with a real directory /etc an /etc/mtab, unless a file of the name exists."""
    # The image decides on /etc, so no link that could lead out of the root is resolved.
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
