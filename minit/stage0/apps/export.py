"""
`export`: the root filesystem of an ended app, with all that the app made of it, as an image.

An overlay is looked at through a mount of its own that lies nowhere and cannot be written to, so nothing is left
mounted in any case. The app's files there are read by descriptors, and no link of it is followed.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from minit import jsontext, paths, syscalls
from minit.errors import PodError, describe
from minit.idrange import IdRange, parse_id_range
from minit.mountinfo import find_mounts
from minit.progress import Progress, silent
from minit.stage0.files.locks import flock
from minit.stage0.files.outputpaths import output_file
from minit.stage0.files.treetar import TreeWriter
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Note, Pod, PodState
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest

# A file of zeros must not shrink so much that whoever imports the image takes it for a bomb.
_GZIP_LEVEL = 1
_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def export_app(
    pod: Pod,
    app: str | None,
    trees: TreeStore,
    output: Path,
    *,
    overwrite: bool,
    note: Note,
    progress: Progress = silent,
) -> None:
    """
    Write the root filesystem of an app (None: the only one) of an ended pod to a compressed ACI.

    PodError if the pod has not ended, or something is mounted in an app without overlay. `note` is told what was left
    out.
    """
    with _kept(pod):
        name = _choose_app(pod, app, note)
        ids = _read_ids(pod)
        manifest = _complete_manifest(pod.read_file(f"appsinfo/{name}/manifest"), f'pod "{pod.uuid}": image of {name}')
        with (
            _open_rootfs(pod, name, trees) as root,
            output_file(output, overwrite=overwrite, exists="target file exists (try --overwrite)") as file,
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed,
        ):
            writer = TreeWriter(compressed.write, ids, note, lambda count: progress(f"exporting {name}", count, None))
            writer.add_tree(root, "rootfs")
            writer.add_file("manifest", manifest)
            writer.finish()


@contextmanager
def _kept(pod: Pod) -> Iterator[None]:
    """Keep an ended pod from being deleted."""
    # Of a descriptor of its own: looking for the pod's state takes the lock by the pod's, and gives it up.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=pod.fd)
    try:
        try:
            flock(fd, exclusive=False, blocking=False)
        except BlockingIOError:
            gone = False
        else:
            gone = not pod.refresh()
        if gone or pod.state not in (PodState.EXITED, PodState.EXITED_GARBAGE):
            raise PodError("pod is not exited. Only exited pods can be exported")
        yield
    finally:
        os.close(fd)


def _choose_app(pod: Pod, wanted: str | None, note: Note) -> str:
    names = [app.name for app in read_pod_manifest(pod).apps]
    if wanted is not None:
        if wanted not in names:
            raise PodError(f"app {wanted} is not present in pod")
        return wanted
    if not names:
        raise PodError("pod contains zero apps")
    if len(names) > 1:
        note("pod contains multiple apps:")
        for name in names:
            note(f"\t{name}")
        raise PodError('specify app using "minit export --app= ..."')
    return names[0]


def _read_ids(pod: Pod) -> IdRange | None:
    try:
        record = pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    ids = parse_id_range(record)
    if ids is None and record:
        raise PodError(f'pod "{pod.uuid}": {paths.POD_PRIVATE_USERS} holds no range of ids: {record!r}')
    return ids


def _complete_manifest(manifest: bytes, source: str) -> bytes:
    """Return the image's manifest for a root filesystem that needs no other image, and all of which counts."""
    document = jsontext.parse(manifest, source)
    assert isinstance(document, dict)
    if not (document.get("dependencies") or document.get("pathWhitelist")):
        return manifest
    # Kept, they would bring back what the app removed, and lose what it made.
    return jsontext.dump(
        {key: value for key, value in document.items() if key not in ("dependencies", "pathWhitelist")}
    )


@contextmanager
def _open_rootfs(pod: Pod, app: str, trees: TreeStore) -> Iterator[int]:
    """Yield a descriptor of an app's root filesystem as the app left it."""
    with ExitStack() as stack:

        def opened(directory: int, path: str) -> int:
            fd = syscalls.openat2(directory, path, _DIRECTORY, resolve=_INSIDE)
            stack.callback(os.close, fd)
            return fd

        if not pod.has_file(paths.POD_OVERLAY_PREPARED):
            rootfs = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app)}"
            inside = f"{pod.path}/{rootfs}/"
            if any(mount.mount_point.startswith(inside) for mount in find_mounts(inside)):
                raise PodError(
                    "pod has remaining mountpoints. Only pods using overlayfs or with no mountpoints can be exported"
                )
            yield opened(pod.fd, rootfs)
            return
        tree_id = read_app_tree_id(pod, app)
        lower = os.open(trees.path(tree_id) / "rootfs", _DIRECTORY)
        stack.callback(os.close, lower)
        try:
            upper = opened(pod.fd, f"overlay/{tree_id}/upper/{app}")
        except FileNotFoundError as error:
            raise PodError(f'app "{app}" of pod "{pod.uuid}" was never started: {describe(error)}') from error
        mount = _merge(upper, lower)
        stack.callback(os.close, mount)
        yield opened(mount, ".")


def _merge(upper: int, lower: int) -> int:
    """Return a detached, read-only overlay mount of two directories."""
    context = syscalls.fsopen("overlay")
    try:
        # Both as lower layers: the pod's own overlay may be mounted still, and two must not have one upper layer.
        syscalls.fsconfig_set_string(context, "lowerdir", f"/proc/self/fd/{upper}:/proc/self/fd/{lower}")
        # Or the kernel would refuse a layer that is the upper one of another mount.
        syscalls.fsconfig_set_string(context, "index", "off")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    except OSError as error:
        raise PodError(f"cannot mount the app's overlay: {describe(error)}") from error
    finally:
        os.close(context)
