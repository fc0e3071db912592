"""Running a prepared pod: its overlays are mounted, then this process becomes stage1."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import NoReturn

from minit.base import jsontext
from minit.base.errors import PodError
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.nameservice import write_name_files
from minit.stage0.pods.poddirectory import RUN, Note, Pod, PodState
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.pods.privateusers import ids_of_its_own
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.podmounts import link_mtab, mount_app, mount_stage1

RUN_RECORD = "minit-run"
"""In the pod directory: the arguments of stage1's `run`, for a pod that is started again."""


def claim_prepared(pod: Pod) -> None:
    """Lock a prepared pod so that nobody else can run it; PodError if somebody is about to."""
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
) -> NoReturn:
    """
    Become the stage1 of a locked pod that is complete; `before_exec` is called last.

    `start_remover` starts a process that removes the pod when it has ended, and returns its number.

    A failure before the pod is moved to `run` leaves it as it was; after that, the pod has ended as if it had run.
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
        mount_overlays(pod, trees, apps)
        # Also for a stage1 that is too old to be told about them, as rkt does.
        write_name_files(pod.path / paths.POD_STAGE1_ROOTFS, options.name_service)
        arguments = entrypoints.run_arguments(options, pod.uuid, manifest, private_users, note)
        (pod.path / RUN_RECORD).write_bytes(jsontext.dump(arguments))
    become_stage1(pod, arguments, before_exec, remover)


def read_private_users(pod: Pod) -> str | None:
    """Return the record of the pod's ids on the host, None if it has none of its own."""
    try:
        return pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace")
    except FileNotFoundError:
        return None


def require_overlay(pod: Pod) -> None:
    """Raise PodError for a pod that needs overlayfs on a host without it."""
    obstacle = overlay.overlay_obstacle(pod.data) if pod.has_file(paths.POD_OVERLAY_PREPARED) else None
    if obstacle is not None:
        raise PodError(f'pod "{pod.uuid}" was prepared for overlayfs, which this host lacks: {obstacle}')


def mount_overlays(pod: Pod, trees: TreeStore, apps: Sequence[str]) -> None:
    """Mount the overlays of a pod, if it has some, and give its apps /etc/mtab."""
    with_overlay = pod.has_file(paths.POD_OVERLAY_PREPARED)
    if with_overlay:
        mount_stage1(pod, trees)
    for app in apps:
        if with_overlay:
            mount_app(pod, trees, app)
        link_mtab(pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app))


def become_stage1(
    pod: Pod, arguments: Sequence[str], before_exec: Callable[[], None], remover: int | None = None
) -> NoReturn:
    """Become the stage1 of a locked pod whose overlays are mounted; `remover` is the process that removes it."""
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
