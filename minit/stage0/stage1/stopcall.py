"""Stopping a pod through its stage1."""

from __future__ import annotations

from minit.base.errors import MinitError, PodError
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import EXITED_GARBAGE, GARBAGE, Pod, PodState
from minit.stage0.stage1 import entrypoints


def stop_pod(pod: Pod, *, force: bool) -> bool:
    """
    Ask stage1 to stop the pod and return at once; False if it has ended before, or meanwhile and stage1 did not know.

    PodError if stage1 fails with a pod that goes on.
    """
    if _has_ended(pod):
        return False
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
    try:
        _call_stage1(pod, force=force)
    except (OSError, MinitError):
        # Its files may be gone too: somebody has removed it.
        if not pod.refresh() or _has_ended(pod):
            return False
        raise
    return True


def _has_ended(pod: Pod) -> bool:
    return pod.state is PodState.EXITED or pod.place in (EXITED_GARBAGE, GARBAGE)


def _call_stage1(pod: Pod, *, force: bool) -> None:
    stop = entrypoints.require_path(entrypoints.read_stage1_manifest(pod), "stop")
    program = pod.path / paths.POD_STAGE1_ROOTFS / stop
    code = entrypoints.call(program, entrypoints.stop_arguments(pod.uuid, force=force), pod.path, show_stdout=True)
    if code != 0:
        raise PodError(f'cannot stop pod "{pod.uuid}": its stage1 failed with exit status {code}')
