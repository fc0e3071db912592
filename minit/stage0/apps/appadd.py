"""
Adding an app to a pod that runs: its files, its place in the manifest, and stage1's part of it.

rkt leaves behind what was done when one of these fails. Here all of it is taken back.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from minit.base.errors import MinitError, PodError, describe
from minit.base.progress import Progress
from minit.manifest.pod import PodManifest, RuntimeApp, parse_pod_manifest
from minit.podfiles import paths
from minit.stage0.apps import appmarkers
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore, require_trees
from minit.stage0.pods.appsection import AppOverrides, Json, Pairs, PodDefaults
from minit.stage0.pods.mutablepods import (
    manifest_lock,
    read_mutable_manifest,
    replace_manifest,
    require_app,
    require_controllable,
)
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podmanifest import PlannedApp, plan_added_app, with_app, without_app
from minit.stage0.pods.podstatus import read_manifest_bytes
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import call_crossing
from minit.stage0.start.appfiles import remove_app_files, write_app_files
from minit.stage0.start.podmounts import link_mtab, mount_app
from minit.stage0.start.volumefilling import provide_volumes

_HELD_BACK = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


def add_app(
    pod: Pod,
    store: Store,
    trees: TreeStore,
    image: StoredImage,
    overrides: AppOverrides,
    progress: Progress,
    *,
    debug: bool,
    insecure: frozenset[str] = frozenset(),
    from_file: Pairs = (),
) -> None:
    """
    Add an app to a mutable pod that runs; it is started later. PodError if it cannot be, with all as it was before.

    The arguments in `overrides`, if there are any, replace those of the image, as in rkt. `insecure` and
    `from_file` are as in PodDefaults.
    """
    manifest = entrypoints.read_stage1_manifest(pod)
    for entrypoint in ("enter", "app/add"):
        entrypoints.require_path(manifest, entrypoint)
    with manifest_lock(pod):
        require_controllable(pod)
        defaults = PodDefaults(
            uid=os.getuid(),
            gid=os.getgid(),
            data=pod.data,
            private_users=read_ids(pod) is not None,
            insecure=insecure,
            from_file=from_file,
        )
        app, entry = plan_added_app(read_mutable_manifest(pod), image, overrides, defaults)
        addition = _Addition(pod, app)
        try:
            with disk_errors("add app", pod.path):
                addition.write(store, trees, entry, progress)
            addition.in_stage1 = True
            call_crossing(pod, "app/add", entrypoints.app_add_arguments(pod.uuid, app.name, debug=debug))
        except BaseException as error:
            with _signals_held_back():
                addition.take_back(error, debug=debug)
            raise


class _Addition:
    """An app on its way into a pod; `in_manifest` and `in_stage1` say how far it may be."""

    def __init__(self, pod: Pod, app: PlannedApp) -> None:
        self.pod = pod
        self.app = app
        self.in_manifest = False
        self.in_stage1 = False

    def write(self, store: Store, trees: TreeStore, entry: Json, progress: Progress) -> None:
        pod, name = self.pod, self.app.name
        # Of an app of this name that rkt has removed, or of which the adding was killed.
        remove_app_files(pod, name)
        appmarkers.remove_markers(pod, name)
        ids = read_ids(pod)
        with_overlay = pod.has_file(paths.POD_OVERLAY_PREPARED)
        store.mark_used(self.app.image.id)
        with key_lock(pod.data / "locks", "prepareLock", exclusive=False):
            write_app_files(pod, store, trees, self.app, progress, overlay=with_overlay, ids=ids)
            changed = with_app(read_manifest_bytes(pod), f'pod "{pod.uuid}"', entry)
            manifest = parse_pod_manifest(changed, "new pod")
            require_trees(manifest, trees)
            provide_volumes(pod, trees, manifest, overlay=with_overlay, ids=ids)
            if with_overlay:
                mount_app(pod, trees, name)
            link_mtab(pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(name))
            appmarkers.write_environment(pod, name, _environment(manifest, name), ids)
            self.in_manifest = True
            replace_manifest(pod, changed)
        appmarkers.mark_created(pod, name, ids)

    def take_back(self, reason: BaseException, *, debug: bool) -> None:
        """Undo all of it; PodError with `reason` and what to do if that fails."""
        pod, name = self.pod, self.app.name
        try:
            if self.in_stage1 and pod.refresh() and pod.state is PodState.RUNNING:
                call_crossing(pod, "app/rm", entrypoints.app_arguments(name, debug=debug), alone=True)
            remove_app_files(pod, name)
            appmarkers.remove_markers(pod, name)
            if self.in_manifest:
                replace_manifest(pod, without_app(read_manifest_bytes(pod), f'pod "{pod.uuid}"', name))
        except (OSError, MinitError) as error:
            remedy = (
                f"remove it with: minit app rm {pod.uuid} --app={name}"
                if self.in_manifest
                else "what is left of it is removed when an app of its name is added, or with the pod"
            )
            why = describe(reason) or type(reason).__name__
            raise PodError(f'{why}; and app "{name}" cannot be taken back: {describe(error)}: {remedy}') from error


def _environment(manifest: PodManifest, name: str) -> tuple[tuple[str, str], ...]:
    app: RuntimeApp = require_app(manifest, name)
    return () if app.app is None else app.app.environment


@contextmanager
def _signals_held_back() -> Iterator[None]:
    """Let signals that end this process wait for the end of the with block."""
    arrived: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        arrived.append(number)

    # Not ignored or blocked: a program that is executed meanwhile would inherit that.
    before = {number: signal.signal(number, note) for number in _HELD_BACK}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])
