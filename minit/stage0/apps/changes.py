"""
`diff`: the files that an app has added, changed and deleted in the root, by comparison with the image's tree.

An overlay's upper layer would tell most changes faster, but not the meaning of replaced or renamed directories;
and pods without overlay have none. Directories are opened from the root on, following no link: the app may run.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator

from minit.base.idrange import IdRange
from minit.base.progress import Progress
from minit.base.value import Value
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.apps.export import mount_places
from minit.stage0.apps.podfiles import app_root, choose_app
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest
from minit.stage0.pods.privateusers import read_ids

ADDED, CHANGED, DELETED = "A", "C", "D"

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY
NOT_THE_APPS = frozenset({"dev", "proc", "run", "sys", "tmp", "etc/mtab"})
"""Files that stage0 and stage1 make where an image has none."""


class Change(Value):
    """A file that an app has ADDED, CHANGED or DELETED, by the absolute path."""

    kind: str
    path: str


def find_changes(pod: Pod, app: str | None, trees: TreeStore, progress: Progress) -> list[Change]:
    """
    Return the changes of an app (None: the only app), by path; all directories above a change are changed, too.

    PodError if the pod has never run, or has no such app. Files on volumes are no changes.
    """
    chosen = choose_app(read_pod_manifest(pod), app)
    with app_root(pod, chosen, trees) as root:
        if pod.has_file(paths.POD_OVERLAY_PREPARED):
            tree_id = read_app_tree_id(pod, chosen.name)
        else:
            assert chosen.image_id is not None
            tree_id = trees.render(chosen.image_id, progress)
        image = os.open(trees.path(tree_id) / "rootfs", os.O_PATH | os.O_DIRECTORY)
        try:
            ignored = {(status.st_dev, status.st_ino) for status in mount_places(root)}
            found = dict(compare(root, image, read_ids(pod), lambda now: (now.st_dev, now.st_ino) in ignored))
        finally:
            os.close(image)
    for path in list(found):
        while path := path.rpartition("/")[0]:
            found.setdefault(path, CHANGED)
    return [Change(kind=kind, path=f"/{path}") for path, kind in sorted(found.items())]


def compare(
    root: int, image: int, ids: IdRange | None, is_ignored: Callable[[os.stat_result], bool] = lambda now: False
) -> Iterator[tuple[str, str]]:
    """Yield relative paths with the kind of change; of a root and an image's tree, both open directories."""
    pending = [("", True)]
    while pending:
        directory, in_image = pending.pop()
        now = entries(root, directory)
        before = entries(image, directory) if in_image else {}
        for path in sorted(now.keys() | before.keys()):
            new, old = now.get(path), before.get(path)
            if new is None:
                yield path, DELETED
                continue
            if old is None:
                if path not in NOT_THE_APPS and not is_ignored(new[0]):
                    yield path, ADDED
            elif _facts(*new, ids) != _facts(*old, None):
                yield path, CHANGED
            if stat.S_ISDIR(new[0].st_mode):
                pending.append((path, old is not None and stat.S_ISDIR(old[0].st_mode)))


def entries(root: int, directory: str) -> dict[str, tuple[os.stat_result, str]]:
    """Return the files in a directory by path, each with status and target of a link."""
    try:
        fd = syscalls.openat2(root, directory or ".", _DIRECTORY, resolve=_BENEATH)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            raise
        return {}  # no directory, or none any more since its name was read
    found = {}
    try:
        for name in os.listdir(fd):
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                target = os.readlink(name, dir_fd=fd) if stat.S_ISLNK(status.st_mode) else ""
            except OSError:
                continue  # gone, or something else
            found[f"{directory}/{name}" if directory else name] = status, target
    finally:
        os.close(fd)
    return found


def is_same(now: os.stat_result, before: os.stat_result, ids: IdRange | None) -> bool:
    """Tell whether a directory has mode and owner of the image."""
    return _facts(now, "", ids) == _facts(before, "", None)


def _facts(status: os.stat_result, target: str, ids: IdRange | None) -> tuple[object, ...]:
    """Return what is the same as long as nobody changes a file; of a directory not its time, which entries change."""
    uid, gid = status.st_uid, status.st_gid
    owner = (uid, gid) if ids is None or (uid, gid) == (0, 0) else (ids.from_host(uid), ids.from_host(gid))
    content: tuple[object, ...] = ()
    if not stat.S_ISDIR(status.st_mode):
        content = status.st_size, status.st_mtime_ns, status.st_rdev, target
    return status.st_mode, owner, content
