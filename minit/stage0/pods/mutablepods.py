"""
Pods whose apps come and go while the pods run: the right to change such a pod, and changes of the manifest.

Readers of the manifest take no lock, so the manifest is replaced as a whole.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from minit.base.errors import NotRunningError, PodError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.podfiles import paths
from minit.stage0.files.durable import sync_directory
from minit.stage0.files.locks import flock
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import is_ready, read_pod_manifest

_FILE_MODE = 0o640


def require_controllable(pod: Pod) -> None:
    """Raise NotRunningError unless the pod runs and its supervisor takes commands; in rkt's words."""
    if pod.state is not PodState.RUNNING:
        raise NotRunningError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
    if not is_ready(pod):
        raise NotRunningError(
            f'supervisor for pod "{pod.uuid}" is not yet ready: wait for it with: minit status --wait-ready {pod.uuid}'
        )


def read_mutable_manifest(pod: Pod) -> PodManifest:
    """Return the pod's manifest; PodError for a pod whose apps nobody may change."""
    manifest = read_pod_manifest(pod)
    if not manifest.is_mutable:
        raise PodError('immutable pod: only the apps of a pod that was made by "app sandbox" can be worked with')
    return manifest


def require_app(manifest: PodManifest, app: str) -> RuntimeApp:
    """Return an app of the pod; PodError if there is no app of this name."""
    for candidate in manifest.apps:
        if candidate.name == app:
            return candidate
    names = ", ".join(candidate.name for candidate in manifest.apps) or "none"
    raise PodError(f'nonexistent app "{app}" (apps: {names})')


@contextmanager
def manifest_lock(pod: Pod) -> Iterator[None]:
    """Keep other commands from changing the pod's apps for the length of a with block, and refresh the pod's state."""
    try:
        fd = os.open(paths.POD_LOCK, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=pod.fd)
    except FileNotFoundError as error:
        raise PodError(f'pod "{pod.uuid}" has no {paths.POD_LOCK}: it was not prepared completely') from error
    try:
        flock(fd, exclusive=True)
        if not pod.refresh():
            raise PodError(f'pod "{pod.uuid}" was removed meanwhile')
        yield
    finally:
        os.close(fd)


@contextmanager
def kept_from_deletion(pod: Pod) -> Iterator[None]:
    """Keep an ended pod from being deleted for the length of a with block; PodError during a deletion."""
    try:
        flock(pod.fd, exclusive=False, blocking=False)
    except BlockingIOError as error:
        raise PodError(f'pod "{pod.uuid}" is being removed') from error
    try:
        yield
    finally:
        fcntl.flock(pod.fd, fcntl.LOCK_UN)


def replace_manifest(pod: Pod, data: bytes) -> None:
    """Put a new manifest in the place of the old one, at once and durably; to be called in `manifest_lock`."""
    replace_file(pod, paths.POD_MANIFEST, data)


def replace_file(pod: Pod, name: str, data: bytes) -> None:
    """
    Write a file of the pod directory that others read meanwhile, durably; to be called in `manifest_lock`.

    An old file is replaced at once, and gives the mode.
    """
    with replacement(pod, name, data):
        pass


@contextmanager
def replacement(pod: Pod, name: str, data: bytes) -> Iterator[None]:
    """Write a file as `replace_file` does; the file is in place after the with block, and gone if the block fails."""
    new = f"{name}.new"
    try:
        mode = stat.S_IMODE(os.stat(name, dir_fd=pod.fd, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        mode = _FILE_MODE
    # Always the same name, which nobody else uses under the lock: the file of a killed command is used again.
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=pod.fd)
    try:
        with open(fd, "wb") as file:
            os.fchmod(fd, mode)
            file.write(data + b"\n")
            file.flush()
            os.fsync(fd)
        yield
        os.rename(new, name, src_dir_fd=pod.fd, dst_dir_fd=pod.fd)
    except BaseException:
        with suppress(OSError):
            os.unlink(new, dir_fd=pod.fd)
        raise
    sync_directory((pod.path / name).parent)
