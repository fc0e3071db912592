"""Pods that were made of a Kubernetes YAML file: found again by the names they had there, and taken down."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from minit.base.errors import MinitError, PodError
from minit.stage0.garbage import podgc as collection
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.kubernetes.manifest import NAME_ANNOTATION, NAMESPACE_ANNOTATION
from minit.stage0.kubernetes.references.podfields import PodNames
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, DELETED_STATES, Note, PodState, open_pod, walk_pods
from minit.stage0.pods.podstatus import read_pod_manifest, read_shown_pid
from minit.stage0.pods.podwaiting import Pauses, wait_until_ended
from minit.stage0.reports.podtraces import read_failure
from minit.stage0.stage1.calls import stop_pod

# After the grace period apps are killed; then what they leave in the kernel has to go.
_KILL_SECONDS = 20.0


def find_played(data: Path, names: PodNames) -> list[tuple[str, PodState]]:
    """Return the pods that were made of a Pod of these names, with their states; others are passed over in silence."""
    found = []
    for pod in walk_pods(data, ADDRESSABLE_PLACES, lambda text: None):
        try:
            annotations = dict(read_pod_manifest(pod).user_annotations)
        except (OSError, MinitError):
            continue
        wanted = {NAME_ANNOTATION: names.name, NAMESPACE_ANNOTATION: names.namespace}
        if pod.state not in DELETED_STATES and wanted.items() <= annotations.items():
            found.append((pod.uuid, pod.state))
    return found


def take_down(data: Path, uuid: str, grace_seconds: float, cleanup: Stage1Cleanup, note: Note) -> None:
    """Stop a pod, wait for its end and remove it; no error if somebody else removes it meanwhile."""
    with open_pod(data, uuid) as pod:
        if pod.state is PodState.RUNNING:
            stop_pod(pod, force=False)
            wait_until_ended(pod, grace_seconds + _KILL_SECONDS)
        if pod.refresh() and pod.state not in DELETED_STATES:
            collection.remove(pod, cleanup, note)


def wait_until_running(data: Path, uuid: str, runner_ended: Callable[[], bool]) -> None:
    """
    Return once a pod has its pid, or has ended well; PodError with the reason if it could not be started.

    `runner_ended` tells whether the process that runs the pod has failed to do so.
    """
    pauses = Pauses()
    with open_pod(data, uuid) as pod:
        while True:
            over = runner_ended()
            if not pod.refresh():
                raise PodError(f'pod "{uuid}" was removed before it ran')
            if read_shown_pid(pod) is not None:
                return
            if over:
                reason = read_failure(pod) or "see its output above, or `minit diagnose`"
                raise PodError(f'pod "{uuid}" could not be started: {reason}')
            time.sleep(pauses.next_seconds())
