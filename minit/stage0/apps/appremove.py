"""Removing an app from a pod, which runs or has ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minit.base.errors import PodError
from minit.base.goflags import BOOLEANS
from minit.manifest.annotations import Annotation
from minit.stage0.apps import appmarkers
from minit.stage0.files.durable import disk_errors
from minit.stage0.pods.mutablepods import (
    kept_from_deletion,
    manifest_lock,
    read_mutable_manifest,
    replace_manifest,
    require_app,
    require_controllable,
)
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podmanifest import without_app
from minit.stage0.pods.podstatus import read_manifest_bytes
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import call_crossing
from minit.stage0.start.appfiles import remove_app_files


def remove_app(pod: Pod, app: str, *, debug: bool) -> None:
    """
    Stop an app of a mutable pod if it runs, and remove all that is left of it. PodError if that fails.

    A removal that was cut off can be repeated.
    """
    with manifest_lock(pod):
        manifest = read_mutable_manifest(pod)
        found = require_app(manifest, app)
        if pod.state is PodState.RUNNING:
            require_controllable(pod)
            try:
                for entrypoint in ("app/stop", "app/rm"):
                    call_crossing(pod, entrypoint, entrypoints.app_arguments(app, debug=debug))
            except PodError:
                # With the pod go all of its processes and mounts.
                if not pod.refresh() or pod.state is PodState.RUNNING:
                    raise
        with _undisturbed(pod), disk_errors("remove app", pod.path):
            remove_app_files(pod, app)
            appmarkers.remove_markers(pod, app)
            if pod.state is not PodState.RUNNING:
                kept = found.annotation(Annotation.KEEP_LOGS) or manifest.annotation(Annotation.KEEP_LOGS)
                appmarkers.remove_records(pod, app, keep_logs=BOOLEANS.get(kept or "", False))
            replace_manifest(pod, without_app(read_manifest_bytes(pod), f'pod "{pod.uuid}"', app))


@contextmanager
def _undisturbed(pod: Pod) -> Iterator[None]:
    if pod.state is PodState.RUNNING:
        yield
        return
    if pod.state not in ENDED_STATES:
        raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
    with kept_from_deletion(pod):
        yield
