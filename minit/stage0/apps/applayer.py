"""
What an app has changed in the root, as an OCI layer: the changed files, and markers of deleted ones. OCI layer.md

The names of changes come from the upper directory of the overlay, or from a comparison with the image's tree. Files are
read in the root as the app sees it, since an upper directory may have a file's status alone, or a renamed directory's
new files alone. Directories are opened from the root on, following no link. The same files give the same bytes.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from minit.archives.imagenames import parse_image_name, reference_of
from minit.archives.layered import Layer
from minit.archives.layertree import OPAQUE, WHITEOUT_PREFIX
from minit.archives.tar import DEPTH_LIMIT, NAME_LIMIT_BYTES, shown
from minit.base.idrange import IdRange
from minit.base.progress import Progress, silent
from minit.base.utctime import utc_text_ns
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.apps.changes import (
    ADDED,
    CHANGED,
    DELETED,
    NOT_THE_APPS,
    Change,
    compare,
    entries,
    is_same,
)
from minit.stage0.apps.export import app_to_export, keep, mount_places, open_rootfs, open_upper
from minit.stage0.files.treetar import TreeWriter
from minit.stage0.images.making import spooled
from minit.stage0.images.sending import full_name, outgoing, with_layer, write_image
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.overlay import overlay_attribute
from minit.stage0.pods.poddirectory import Note, Pod
from minit.stage0.pods.podstatus import read_app_life, read_app_tree_id, read_pod_manifest
from minit.stage0.pods.privateusers import read_ids

HIDDEN = "hidden"
"""The kind of a directory of which the image's files are gone, beside the kinds of `changes`."""

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
# Documentation/filesystems/overlayfs.rst of Linux
_OPAQUE, _RENAMED = "opaque", "redirect"


def export_layered(
    pod: Pod,
    app: str | None,
    store: Store,
    kind: str,
    output: Path,
    *,
    overwrite: bool,
    image_name: str | None,
    note: Note,
    progress: Progress,
) -> None:
    """
    Write the image of an app (None: the only app) of an ended pod with a layer of the app's changes above.

    `kind` is one of FORMATS; other arguments as in `export_app`. StoreError if the image is gone from the store.
    """
    with keep(pod), store.temporary_file() as file:
        name = app_to_export(pod, app, note)
        image = store.get(_image_of(pod, name))
        full = full_name(image, None) if image_name is None else reference_of(parse_image_name(image_name))
        life = read_app_life(pod, name)
        ended_ns = life.finished_ns or life.created_ns or 0
        with outgoing(store, image, full, note, progress) as sent:
            trees = TreeStore(store.data, store)
            step = f"exporting {name}"
            layer = spool_app_layer(pod, name, trees, file, note=note, count=lambda count: progress(step, count, None))
            created = utc_text_ns(ended_ns)
            history: dict[str, object] = {"created": created, "created_by": f"minit: changes of app {name}"}
            changed = with_layer(sent, layer, history, {"created": created})
            write_image(changed, kind, output, overwrite=overwrite, progress=progress)


def mark_opaque(directory: int) -> None:
    """Have overlays show nothing of lower layers in a directory of an upper layer."""
    os.setxattr(directory, overlay_attribute(_OPAQUE), b"y")


def spool_app_layer(
    pod: Pod, app: str, trees: TreeStore, file: BinaryIO, *, note: Note, count: Callable[[int], None]
) -> Layer:
    """
    Write the changes of an app of an ended pod to the empty `file`, and return the layer, read from `file`.

    `note` is told of files that are left out, `count` the bytes of files so far. PodError as for `open_rootfs`.
    """
    with ExitStack() as stack:
        root = stack.enter_context(open_rootfs(pod, app, trees))
        ids = read_ids(pod)
        has_overlay = pod.has_file(paths.POD_OVERLAY_PREPARED)
        tree_id = read_app_tree_id(pod, app) if has_overlay else trees.render(_image_of(pod, app), silent)
        image = os.open(trees.path(tree_id) / "rootfs", _DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, image)
        if has_overlay:
            upper = open_upper(pod, app, tree_id)
            stack.callback(os.close, upper)
            changes = upper_changes(upper, image, root)
        else:
            changes = compared_changes(root, image, ids)
        return _spool(root, image, changes, ids, file, NOT_THE_APPS, note, count)


def spool_overlay(
    root: int,
    upper: int,
    lower: int,
    file: BinaryIO,
    *,
    made: Collection[str],
    note: Note,
) -> Layer:
    """
    Write the upper directory of the overlay `root` over `lower` to the empty `file`, and return the layer.

    New files among the paths `made`, without anything in them, are left out.
    """
    return _spool(root, lower, upper_changes(upper, lower, root), None, file, made, note, lambda count: None)


def upper_changes(upper: int, lower: int, root: int) -> Iterator[Change]:
    """Yield the changes in an upper directory, a directory before its entries, and deleted entries before others."""
    renamed, opaque = overlay_attribute(_RENAMED), overlay_attribute(_OPAQUE)
    yield Change(kind=CHANGED, path="")
    pending = [("", True, True)]
    while pending:
        directory, is_below, is_own = pending.pop()
        found = entries(upper if is_own else root, directory)
        before = entries(lower, directory) if is_below else {}
        deleted = [path for path, (status, _) in found.items() if _is_whiteout(status)]
        for path in sorted(deleted):
            if path in before:
                yield Change(kind=DELETED, path=path)
        inner = []
        for path in sorted(found.keys() - set(deleted)):
            status, was = found[path][0], before.get(path)
            if not stat.S_ISDIR(status.st_mode):
                yield Change(kind=ADDED if was is None else CHANGED, path=path)
                continue
            was_directory = was is not None and stat.S_ISDIR(was[0].st_mode)
            is_whole = is_own and _has_attribute(upper, path, renamed)
            is_opaque = is_whole or (is_own and _has_attribute(upper, path, opaque, b"y"))
            yield Change(kind=HIDDEN if is_opaque and was_directory else CHANGED if was else ADDED, path=path)
            inner.append((path, was_directory and not is_opaque, is_own and not is_whole))
        pending += reversed(inner)


def compared_changes(root: int, image: int, ids: IdRange | None) -> Iterator[Change]:
    """Yield the changes of a root without overlay, in the same order."""
    found = dict(compare(root, image, ids))
    for path in list(found):
        while path := path.rpartition("/")[0]:
            found.setdefault(path, CHANGED)
    yield Change(kind=CHANGED, path="")
    gone = {path for path, kind in found.items() if kind == DELETED}
    for path in sorted(found, key=lambda path: (path.rpartition("/")[0].split("/"), path not in gone, path)):
        # The marker of a deleted directory stands for all below.
        if path.rpartition("/")[0] not in gone:
            yield Change(kind=found[path], path=path)


def _spool(
    root: int,
    image: int,
    changes: Iterable[Change],
    ids: IdRange | None,
    file: BinaryIO,
    made: Collection[str],
    note: Note,
    count: Callable[[int], None],
) -> Layer:
    digest = hashlib.sha256()

    def write(data: memoryview) -> None:
        digest.update(data)
        file.write(data)

    writer = TreeWriter(write, ids, note, count)
    writer.leave_out(mount_places(root))
    for change in changes:
        _add(writer, root, image, change, ids, made, note)
    writer.finish()
    return spooled(file, digest, "the layer of the app's changes")


def _add(
    writer: TreeWriter,
    root: int,
    image: int,
    change: Change,
    ids: IdRange | None,
    made: Collection[str],
    note: Note,
) -> None:
    path, kind = change.path, change.kind
    parent, slash, name = path.rpartition("/")
    if not path and is_same(os.fstat(root), os.fstat(image), ids):
        return
    if any(part.startswith(WHITEOUT_PREFIX) for part in path.split("/")):
        note(f"left out {shown(path)}: in a layer a name with {WHITEOUT_PREFIX} stands for a deleted file")
    elif path.count("/") >= DEPTH_LIMIT - 1 or len(os.fsencode(path)) >= NAME_LIMIT_BYTES - len(OPAQUE) - 1:
        note(f"left out {shown(path)}: too long or too deep for a layer")
    elif kind == DELETED:
        writer.add_marker(f"{parent}{slash}{WHITEOUT_PREFIX}{name}")
    elif kind == ADDED and path in made and _is_bare(root, path, made):
        pass
    else:
        writer.add_alone(root, path)
        if kind == HIDDEN:
            writer.add_marker(f"{path}/{OPAQUE}")


def _image_of(pod: Pod, app: str) -> str:
    image_id = next(one.image_id for one in read_pod_manifest(pod).apps if one.name == app)
    assert image_id is not None
    return image_id


def _is_whiteout(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def _is_bare(root: int, path: str, made: Collection[str]) -> bool:
    """Tell whether a file of minit's has nothing of the app in it."""
    parent = path.rpartition("/")[0]
    if not stat.S_ISDIR(entries(root, parent)[path][0].st_mode):
        return True
    return all(below in made and _is_bare(root, below, made) for below in entries(root, path))


def _has_attribute(upper: int, path: str, name: str, value: bytes | None = None) -> bool:
    fd = syscalls.openat2(upper, path, _DIRECTORY, resolve=_BENEATH)
    try:
        found = os.getxattr(fd, name)
    except OSError:
        return False  # ENODATA, or a file system without attributes
    finally:
        os.close(fd)
    return value is None or found == value
