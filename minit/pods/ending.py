"""Releasing and removing pods, and all that minit has made on a machine."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

from minit.base.errors import PodError
from minit.linux import syscalls
from minit.podfiles.usersdirectory import RUNTIME, is_of_user, program_directory
from minit.pods.caller import Caller
from minit.pods.stopping import stop
from minit.stage0.files.durable import disk_errors
from minit.stage0.garbage import podgc
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import (
    ADDRESSABLE_PLACES,
    DELETED_STATES,
    Note,
    PodState,
    find_pod,
    open_pod,
    walk_pods,
)
from minit.stage0.pods.waiting import wait_for_remover, wait_until_ended
from minit.stage0.stage1.calls import stop_pod

# After the grace period apps are killed; then the kernel has to free the rest.
_KILL_SECONDS = 20.0


def remove(caller: Caller, cleanup: Stage1Cleanup, name: str, *, force: bool) -> str:
    """Remove the pod of a UUID or name, and return the UUID; with `force` a running pod is stopped first."""
    with find_pod(caller.data, name, caller.note) as pod:
        # A pod of --rm removes itself.
        if not force or stop(pod, force=False):
            podgc.remove(pod, cleanup, caller.note)
        return pod.uuid


def release(caller: Caller, cleanup: Stage1Cleanup, name: str, *, force: bool) -> str:
    """Give back networks and leases of a pod, and return the UUID; with `force` a running pod is killed first."""
    with find_pod(caller.data, name, caller.note) as pod:
        if not force or stop(pod, force=True):
            podgc.release(pod, cleanup, caller.note)
        return pod.uuid


def take_down(data: Path, uuid: str, grace_seconds: float, cleanup: Stage1Cleanup, note: Note) -> None:
    """Stop a pod, wait for the end and remove the pod; no error if somebody else removes the pod meanwhile."""
    with open_pod(data, uuid) as pod:
        if pod.state is PodState.RUNNING:
            stop_pod(pod, force=False)
            wait_until_ended(pod, grace_seconds + _KILL_SECONDS)
            wait_for_remover(pod)
        if pod.refresh() and pod.state not in DELETED_STATES:
            podgc.remove(pod, cleanup, note)


def uninstall(caller: Caller, *, with_data: bool) -> None:
    """
    Undo all that minit has made on the machine outside its package; with `with_data` the data directory goes, too.

    PodError, and nothing is undone, while pods run.
    """
    data = caller.data
    running = [pod.uuid for pod in walk_pods(data, ADDRESSABLE_PLACES, caller.note) if pod.state is PodState.RUNNING]
    if running:
        raise PodError(f"pods are running: {', '.join(running)}: stop them first, as with: minit stop --all")
    if data.is_dir():
        with Store(data) as store, cleanup_of(caller, store) as cleanup:
            end = podgc.remove if with_data else podgc.release
            for pod in walk_pods(data, ADDRESSABLE_PLACES, caller.note):
                end(pod, cleanup, caller.note)
            if with_data:
                podgc.collect(data, 0, cleanup, caller.note, caller.note)
    directories = (program_directory(), *((data,) if with_data else ()))
    if with_data and is_of_user():
        with suppress(OSError):
            syscalls.umount2(str(data / RUNTIME), syscalls.MNT_DETACH)
    for directory in directories:
        with disk_errors(f"remove {directory}", directory.parent), suppress(FileNotFoundError):
            shutil.rmtree(directory)


def cleanup_of(caller: Caller, store: Store) -> Stage1Cleanup:
    """Return the cleanup of stage1, with the trees of the store, for removals of pods."""
    return Stage1Cleanup(TreeStore(caller.data, store), caller.local_config, debug=caller.debug)
