"""
The files of an app of a pod, running or ended, as the host reaches them.

Paths are resolved within the app's root by the kernel (openat2, RESOLVE_IN_ROOT): no link of the app's leads out of it.
Volumes are mounted in the app's own namespace, so a path on one is looked up in the volume's source.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from minit import paths, syscalls
from minit.errors import PodError, describe
from minit.idrange import IdRange
from minit.manifest.pod import PodManifest, RuntimeApp, Volume
from minit.stage0.apps.export import keep, open_rootfs
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.pods.privateusers import read_ids
from minit.value import Value

_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY
# What the image has there is hidden while the app runs.
_OF_THE_KERNEL = frozenset({"dev", "proc", "sys"})


class AppPlace(Value):
    """
    A path in an app: `path`, relative, from the directory `root` on.

    `ids` are those that its owners on the disk are among, None if they are the app's own. `read_only` says why nothing
    can be written there, empty if it can.
    """

    root: int
    path: str
    ids: IdRange | None
    read_only: str = ""

    def open(self, path: str, flags: int) -> int:
        """Open a path from the root on; links are followed as the app would follow them."""
        return syscalls.openat2(self.root, path or ".", flags, resolve=_IN_ROOT)


@contextmanager
def app_place(pod: Pod, app: str | None, path: str, trees: TreeStore) -> Iterator[AppPlace]:
    """
    Yield a place in an app (None: the only one) of a pod that runs or has ended, by an absolute path.

    An ended pod is kept from being deleted meanwhile. PodError if there is no such app, or it has never been started.
    """
    if pod.state is not PodState.RUNNING and pod.state not in ENDED_STATES:
        raise PodError(f'pod "{pod.uuid}" is {pod.state}: only pods that run or have ended have files')
    manifest = read_pod_manifest(pod)
    chosen = choose_app(manifest, app)
    # Two slashes at the start would stay two. What a path ends with has a meaning for copies.
    end = next((end for end in ("/.", "/") if path.endswith(end)), "")
    path = posixpath.normpath(f"/./{path}")
    if path.split("/")[1] in _OF_THE_KERNEL:
        raise PodError(f"{path}: /{path.split('/')[1]} is the kernel's in an app, and its files are nobody's to copy")
    with ExitStack() as stack:
        if pod.state in ENDED_STATES:
            stack.enter_context(keep(pod))
        target, volume = _find_volume(manifest, chosen, path)
        if volume is None:
            root, read_only = _open_root(pod, chosen, trees, stack)
            yield AppPlace(root=root, path=path.lstrip("/") + end, ids=read_ids(pod), read_only=read_only)
            return
        inside = path[len(target) :].lstrip("/")
        root = _open_volume(pod, chosen, volume)
        stack.callback(os.close, root)
        read_only = f'volume "{volume.name}" is read-only' if volume.read_only else ""
        yield AppPlace(root=root, path=inside + end, ids=None if volume.source else read_ids(pod), read_only=read_only)


def choose_app(manifest: PodManifest, wanted: str | None) -> RuntimeApp:
    """Return an app of a pod by name, or the only one; PodError."""
    names = ", ".join(app.name for app in manifest.apps)
    if wanted is None and len(manifest.apps) != 1:
        raise PodError(f"the pod has several apps: choose one of {names}" if names else "the pod has no apps")
    for app in manifest.apps:
        if wanted in (None, app.name):
            return app
    raise PodError(f'the pod has no app "{wanted}", only {names}')


def _find_volume(manifest: PodManifest, app: RuntimeApp, path: str) -> tuple[str, Volume | None]:
    """Return the innermost volume that is mounted on a path or above it, and where."""
    found: tuple[str, Volume | None] = "", None
    for target, volume in manifest.volumes_of(app):
        target = posixpath.normpath(f"/./{target}")
        if len(target) >= len(found[0]) and (path == target or path.startswith(f"{target}/")):
            found = target, volume
    return found


def _open_volume(pod: Pod, app: RuntimeApp, volume: Volume) -> int:
    try:
        if volume.source is not None:
            return os.open(volume.source, _DIRECTORY | os.O_CLOEXEC)
        place = f"{paths.POD_SHARED_VOLUMES}/{volume.name}"
        return syscalls.openat2(pod.fd, place, _DIRECTORY, resolve=_BENEATH)
    except NotADirectoryError as error:
        raise PodError(f'volume "{volume.name}" is a file of the host: copy {volume.source} there') from error
    except OSError as error:
        raise PodError(f'volume "{volume.name}" of app "{app.name}": {describe(error)}') from error


def _open_root(pod: Pod, app: RuntimeApp, trees: TreeStore, stack: ExitStack) -> tuple[int, str]:
    read_only = f'the root of app "{app.name}" is read-only' if app.read_only_root_fs else ""
    rootfs = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app.name)}"
    if pod.has_file(paths.POD_OVERLAY_PREPARED) and not overlay.is_mounted_at(pod.path / rootfs):
        # What is written to the layers would not be seen by who mounts them.
        read_only = f'the root of app "{app.name}" is not mounted any more, and can only be read'
        return stack.enter_context(open_rootfs(pod, app.name, trees)), read_only
    root = syscalls.openat2(pod.fd, rootfs, _DIRECTORY, resolve=_BENEATH)
    stack.callback(os.close, root)
    return root, read_only
