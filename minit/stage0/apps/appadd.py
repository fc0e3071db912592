"""
Adds an app to a running pod, and removes an app from a running or ended pod: files, manifest, and stage1's part.

rkt leaves remains when one step fails; minit takes all steps back. In stage1's root stage0 has files for an added app:
the environment, and markers whose times are those of the addition and of the start. With the status they are the app's
state. rkt removes only the status of an app, so the next app of the same name begins as a running one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType

from minit.base.errors import MinitError, PodError, describe
from minit.base.goflags import BOOLEANS
from minit.base.idrange import IdRange
from minit.base.progress import Progress
from minit.linux import syscalls
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp, parse_pod_manifest
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore, require_trees
from minit.stage0.pods.appsection import AppOverrides, Json, Pairs, PodDefaults
from minit.stage0.pods.mutablepods import (
    kept_from_deletion,
    manifest_lock,
    read_mutable_manifest,
    replace_manifest,
    require_app,
    require_controllable,
)
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podmanifest import PlannedApp, plan_added_app, with_app, without_app
from minit.stage0.pods.podstatus import read_manifest_bytes
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import DEFAULT_PATH, call_crossing
from minit.stage0.start.appfiles import (
    provide_volumes,
    remove_app_files,
    remove_directory,
    stage1_root,
    write_app_files,
)
from minit.stage0.start.run import link_mtab, mount_app

_HELD_BACK = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)

_WITHIN = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_FILE_MODE = 0o644

# rkt's value for an app without the variable, for `enter` of rkt's own stage1.
_DEFAULT_ENVIRONMENT = (
    ("PATH", DEFAULT_PATH),
    ("SHELL", "/bin/sh"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("HOME", "/root"),
)


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
    Add an app to a running mutable pod, to be started later. PodError after a failure, with the pod as before.

    Arguments in `overrides` replace the image's arguments, as in rkt. `insecure` and
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
    """An app on the way into a pod; `in_manifest` and `in_stage1` say how far the app may be."""

    def __init__(self, pod: Pod, app: PlannedApp) -> None:
        self.pod = pod
        self.app = app
        self.in_manifest = False
        self.in_stage1 = False

    def write(self, store: Store, trees: TreeStore, entry: Json, progress: Progress) -> None:
        pod, name = self.pod, self.app.name
        # Remains of an app of this name that rkt has removed, or whose addition was killed.
        remove_app_files(pod, name)
        remove_markers(pod, name)
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
            _write_environment(pod, name, _environment(manifest, name), ids)
            self.in_manifest = True
            replace_manifest(pod, changed)
        _mark_created(pod, name, ids)

    def take_back(self, reason: BaseException, *, debug: bool) -> None:
        """Undo the whole addition; PodError with `reason` and the remedy if that fails."""
        pod, name = self.pod, self.app.name
        try:
            if self.in_stage1 and pod.refresh() and pod.state is PodState.RUNNING:
                call_crossing(pod, "app/rm", entrypoints.app_arguments(name, debug=debug), alone=True)
            remove_app_files(pod, name)
            remove_markers(pod, name)
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

    # Not ignored or blocked: a program executed meanwhile would inherit the setting.
    before = {number: signal.signal(number, note) for number in _HELD_BACK}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def _environment_lines(app: str, environment: Sequence[tuple[str, str]]) -> bytes:
    """Return the file of an app's environment: defaults, the app's variables, and the app's name."""
    own = {name: value for name, value in environment if name != "AC_APP_NAME"}
    defaults = {name: value for name, value in _DEFAULT_ENVIRONMENT if name not in own}
    variables = {**defaults, **own, "AC_APP_NAME": app}
    return "".join(f"{name}={value}\n" for name, value in variables.items()).encode(errors="surrogateescape")


def _write_environment(pod: Pod, app: str, environment: Sequence[tuple[str, str]], ids: IdRange | None) -> None:
    """Write the environment of an app."""
    _write(pod, paths.env_file(app), _environment_lines(app, environment), ids)


def _mark_created(pod: Pod, app: str, ids: IdRange | None) -> None:
    """Mark an app as added now."""
    _write(pod, paths.created_marker(app), b"", ids)


def mark_started(pod: Pod, app: str, ids: IdRange | None) -> None:
    """Mark an app as started now, and forget the last end."""
    _remove(pod, paths.started_marker(app))
    _remove(pod, paths.status_file(app))
    _write(pod, paths.started_marker(app), b"", ids)


def unmark_started(pod: Pod, app: str) -> None:
    """Forget that an app was started."""
    _remove(pod, paths.started_marker(app))


def remove_markers(pod: Pod, app: str) -> None:
    """Remove the environment and the markers of an app."""
    for name in (paths.status_file(app), paths.started_marker(app), paths.created_marker(app), paths.env_file(app)):
        _remove(pod, name)


def remove_records(pod: Pod, app: str, *, keep_logs: bool) -> None:
    """Remove the files of minit's stage1 about an app of an ended pod, with the logs unless the logs are kept."""
    _remove(pod, paths.state_file(app))
    remove_directory(pod, f"{stage1_root(pod)}{paths.iottymux_directory(app)}")
    if keep_logs:
        return
    _remove(pod, paths.log_end_marker(app))
    log = paths.log_file(app)
    directory, _, name = log.rpartition("/")
    try:
        fd = _open_directory(pod, directory)
    except OSError:
        return
    try:
        for entry in os.listdir(fd):
            if entry == name or (entry.startswith(f"{name}.") and entry.removeprefix(f"{name}.").isdecimal()):
                os.unlink(entry, dir_fd=fd)
    finally:
        os.close(fd)


def _write(pod: Pod, path: str, data: bytes, ids: IdRange | None) -> None:
    """Write a new file in stage1's root, owned by the root of the pod, in the place of any old file."""
    directory, _, name = path.rpartition("/")
    try:
        parent = _open_directory(pod, directory)
    except OSError as error:
        raise PodError(f"cannot open stage1's {directory}: {describe(error)}") from error
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE, dir_fd=parent)
        with open(fd, "wb") as file:
            os.fchmod(fd, _FILE_MODE)
            if ids is not None:
                os.fchown(fd, ids.shift, ids.shift)
            file.write(data)
    finally:
        os.close(parent)


def _remove(pod: Pod, path: str) -> None:
    directory, _, name = path.rpartition("/")
    try:
        parent = _open_directory(pod, directory)
    except FileNotFoundError:
        return
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)


def _open_directory(pod: Pod, path: str) -> int:
    # Not by a link: with private users PID 1, which could make links, is not root.
    return syscalls.openat2(pod.fd, f"{stage1_root(pod)}{path}", os.O_RDONLY | os.O_DIRECTORY, resolve=_WITHIN)


def remove_app(pod: Pod, app: str, *, debug: bool) -> None:
    """
    Stop an app of a mutable pod if the app runs, and remove all remains. PodError if that fails.

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
                # The pod's end takes all processes and mounts along.
                if not pod.refresh() or pod.state is PodState.RUNNING:
                    raise
        with _undisturbed(pod), disk_errors("remove app", pod.path):
            remove_app_files(pod, app)
            remove_markers(pod, app)
            if pod.state is not PodState.RUNNING:
                kept = found.annotation(Annotation.KEEP_LOGS) or manifest.annotation(Annotation.KEEP_LOGS)
                remove_records(pod, app, keep_logs=BOOLEANS.get(kept or "", False))
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
