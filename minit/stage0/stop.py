"""Stopping a pod through its stage1."""

from __future__ import annotations

from minit import paths
from minit.errors import PodError
from minit.stage0 import entrypoints
from minit.stage0.pods import EXITED_GARBAGE, GARBAGE, Pod, PodState


def stop_pod(pod: Pod, *, force: bool) -> bool:
    """Ask stage1 to stop the pod and return at once; False if it has ended before. PodError if stage1 fails."""
    if pod.state is PodState.EXITED or pod.place in (EXITED_GARBAGE, GARBAGE):
        return False
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" is not running: its state is "{pod.state}"')
    stop = entrypoints.require_path(entrypoints.read_stage1_manifest(pod), "stop")
    program = pod.path / paths.POD_STAGE1_ROOTFS / stop
    code = entrypoints.call(program, entrypoints.stop_arguments(pod.uuid, force=force), pod.path, show_stdout=True)
    if code != 0:
        raise PodError(f'cannot stop pod "{pod.uuid}": its stage1 failed with exit status {code}')
    return True
