"""
The first use of a named volume: it is made, and begins with what the image of an app has at its place, as Docker's do.

The images' files are read from trees that nobody changes, or from roots of a pod that has not run yet.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.treecopy import copy_directory
from minit.manifest.pod import PodManifest
from minit.podfiles import paths
from minit.stage0.files.durable import create_file, disk_errors
from minit.stage0.files.locks import directory_lock
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import read_app_tree_id
from minit.stage0.volumes import create_volume, home_of, name_of, names_in, volume_scratch

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o644
# The directory is not empty: somebody has put files there; or it is somebody's mount point.
_NOT_OURS = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)


def provide_volumes(pod: Pod, trees: TreeStore, manifest: PodManifest, *, overlay: bool, ids: IdRange | None) -> None:
    """
    Make the named volumes of a pod whose apps have their files, and give those that no pod has had what images have.

    A volume gets the first directory that an app has at its place, in the order of the manifest, with its owners, which
    are those of the pod with `ids`. To be called while the lock is held that keeps volumes from being removed.
    """
    for name in sorted(names_in(manifest, pod.data)):
        create_volume(pod.data, name)
        places = list(_places(manifest, name, pod.data))
        home = home_of(pod.data, name)
        with disk_errors(f'volume "{name}"', pod.data), directory_lock(home, exclusive=True):
            if not places or (home / "used").exists():
                continue
            if not os.listdir(home / "data"):
                roots = ((_root(pod, trees, app, overlay=overlay), target) for app, target in places)
                # Those of a tree are not shifted.
                any(_fill(pod.data, name, root, target, None if overlay else ids) for root, target in roots)
            create_file(home / "used", b"", _FILE_MODE)


def _places(manifest: PodManifest, name: str, data: Path) -> Iterator[tuple[str, str]]:
    """Yield the apps that mount a volume, and where."""
    for app in manifest.apps:
        for path, volume in manifest.volumes_of(app):
            if name_of(volume, data) == name:
                yield app.name, path


def _root(pod: Pod, trees: TreeStore, app: str, *, overlay: bool) -> Path:
    if overlay:
        return trees.path(read_app_tree_id(pod, app)) / "rootfs"
    return pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app)


def _fill(data: Path, name: str, root: Path, target: str, ids: IdRange | None) -> bool:
    """Copy what an image has at a path to an empty volume; return whether there is a directory."""
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        source = syscalls.openat2(root_fd, target, os.O_RDONLY | os.O_DIRECTORY, resolve=syscalls.RESOLVE_IN_ROOT)
    except (FileNotFoundError, NotADirectoryError):
        return False
    finally:
        os.close(root_fd)
    with volume_scratch(data) as scratch:
        new = scratch / "data"
        try:
            new.mkdir(0o700)
            copy = os.open(new, _DIRECTORY)
        except BaseException:
            os.close(source)
            raise
        copy_directory(source, copy, target, ids)
        fd = os.open(new, _DIRECTORY)
        try:
            syscalls.syncfs(fd)
            os.rename(new, home_of(data, name) / "data")
        except OSError as error:
            if error.errno not in _NOT_OURS:
                raise
        finally:
            os.close(fd)
    return True
