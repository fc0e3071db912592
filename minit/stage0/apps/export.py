"""
`export`: the root filesystem of an ended app, with all changes of the app, as an image.

An overlay is read through an own mount that lies nowhere and cannot be written to, so nothing is left
mounted in any case. The app's files there are read by descriptors, and no link of the app is followed.
"""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from minit.base import jsontext
from minit.base.errors import LaunchError, PodError, describe
from minit.base.idrange import IdRange, parse_id_range
from minit.base.progress import Progress
from minit.linux import syscalls
from minit.linux.mountinfo import find_mounts
from minit.manifest.image import parse_image_manifest
from minit.podfiles import paths
from minit.stage0.files.locks import flock
from minit.stage0.files.temporary import output_file
from minit.stage0.files.treetar import TreeWriter
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import Note, Pod, PodState
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest

# Where PID 1 binds its own files.
_BOUND_FILES = ("etc/hostname", "etc/hosts", "etc/resolv.conf")
# A file of zeros must not shrink so much that an importer of the image suspects a bomb.
_GZIP_LEVEL = 1
_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS | syscalls.RESOLVE_NO_XDEV
_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def export_app(
    pod: Pod,
    app: str | None,
    trees: TreeStore,
    output: Path,
    *,
    overwrite: bool,
    image_name: str | None,
    note: Note,
    progress: Progress,
) -> None:
    """
    Write the root filesystem of an app (None: the only app) of an ended pod to a compressed ACI.

    `image_name` is NAME or NAME:VERSION; the image keeps what it does not say of those of the app's image.

    PodError if the pod has not ended, or something is mounted in an app without overlay. `note` is told what was left
    out.
    """
    with keep(pod):
        name = app_to_export(pod, app, note)
        ids = _read_ids(pod)
        source = f'pod "{pod.uuid}": image of {name}'
        manifest = _complete_manifest(pod.read_file(f"appsinfo/{name}/manifest"), source, image_name)
        with (
            open_rootfs(pod, name, trees) as root,
            output_file(output, overwrite=overwrite, exists="target file exists (try --overwrite)") as file,
        ):
            write_image(file, root, manifest, ids, note, lambda count: progress(f"exporting {name}", count, None))


def write_image(
    file: BinaryIO, root: int, manifest: bytes, ids: IdRange | None, note: Note, count: Callable[[int], None]
) -> None:
    """Write a compressed ACI of an app's root; `note` is told of omissions, `count` the bytes of files so far."""
    with gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed:
        writer = TreeWriter(compressed.write, ids, note, count)
        writer.add_tree(root, "rootfs", left_out=mount_places(root))
        writer.add_file("manifest", manifest)
        writer.finish()


@contextmanager
def keep(pod: Pod) -> Iterator[None]:
    """Keep an ended pod from being deleted."""
    # With an own descriptor: a look at the pod's state takes the lock by the pod's descriptor, and gives the lock up.
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


def app_to_export(pod: Pod, wanted: str | None, note: Note) -> str:
    """Return the name of the wanted, or the only, app of a pod; PodError, of which `note` is told the apps."""
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


def _complete_manifest(manifest: bytes, source: str, image_name: str | None) -> bytes:
    """Return the image's manifest for a root filesystem that needs no other image, with all files counted."""
    document = jsontext.parse(manifest, source)
    assert isinstance(document, dict)
    # Kept, these fields would bring back files that the app removed, and lose files that the app made.
    dropped = ("dependencies", "pathWhitelist")
    changed = {key: value for key, value in document.items() if key not in dropped or not value}
    if image_name is not None:
        changed["name"], colon, version = image_name.partition(":")
        if colon:
            if not version:
                raise PodError(f"--name={image_name}: the version is missing")
            others = [label for label in document.get("labels") or () if label["name"] != "version"]
            changed["labels"] = [*others, {"name": "version", "value": version}]
    if changed == document:
        return manifest
    data = jsontext.dump(changed)
    parse_image_manifest(data, f"--name={image_name}")
    return data


def mount_places(root: int) -> Iterator[os.stat_result]:
    """Yield files only made for a mount and still as mknod(2) left them; no app has ever seen such a file."""
    for path in _BOUND_FILES:
        try:
            fd = syscalls.openat2(root, path, os.O_PATH, resolve=_IN_ROOT)
        except OSError:
            continue
        status = os.fstat(fd)
        os.close(fd)
        # An image's own empty file was given its time later.
        if stat.S_ISREG(status.st_mode) and status.st_size == 0 and status.st_mtime_ns == status.st_ctime_ns:
            yield status


@contextmanager
def open_rootfs(pod: Pod, app: str, trees: TreeStore) -> Iterator[int]:
    """Yield a descriptor of an app's root filesystem as the app left the files."""
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
        upper = open_upper(pod, app, tree_id)
        stack.callback(os.close, upper)
        try:
            mount = _merge(upper, trees.path(tree_id) / "rootfs", _read_ids(pod), pod.path / "overlay" / tree_id / app)
        except (OSError, LaunchError) as error:
            raise PodError(f"cannot mount the app's overlay: {describe(error)}") from error
        stack.callback(os.close, mount)
        yield opened(mount, ".")


def open_upper(pod: Pod, app: str, tree_id: str) -> int:
    """Return a descriptor of the upper directory of an app's overlay; PodError for an app that was never started."""
    try:
        return syscalls.openat2(pod.fd, f"overlay/{tree_id}/upper/{app}", _DIRECTORY, resolve=_INSIDE)
    except FileNotFoundError as error:
        raise PodError(f'app "{app}" of pod "{pod.uuid}" was never started: {describe(error)}') from error


def _merge(upper: int, tree: Path, ids: IdRange | None, beside: Path) -> int:
    """Return a detached, read-only overlay mount of two directories."""
    with ExitStack() as stack:
        lower = os.open(stack.enter_context(overlay.mapped_lower(tree, ids, beside)), _DIRECTORY)
        stack.callback(os.close, lower)
        return _merged(upper, lower)


def _merged(upper: int, lower: int) -> int:
    """Return a detached, read-only overlay mount of two open directories."""
    context = syscalls.fsopen("overlay")
    try:
        # Both as lower layers: the pod's own overlay may be mounted still, and two must not have one upper layer.
        syscalls.fsconfig_set_string(context, "lowerdir", f"/proc/self/fd/{upper}:/proc/self/fd/{lower}")
        # Or the kernel would refuse a layer that is the upper one of another mount.
        syscalls.fsconfig_set_string(context, "index", "off")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    finally:
        os.close(context)
