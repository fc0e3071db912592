"""
The files of stage0 for each app of a pod, from preparation or addition to removal; and the first use of volumes.

Files to remove are reached by descriptor from the pod directory, without following a link: apps write to their roots.
On the first use of a named volume stage0 makes the volume, and copies the files that the image of an app has at the
volume's target, as Docker does. The files come from trees that nobody changes, or from roots of a pod before its first
run.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from minit.base.errors import PodError
from minit.base.idrange import IdRange
from minit.base.progress import Progress
from minit.base.userdatabase import DATABASES, GROUP, USER, find_id, parse_decimal
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.linux.treecopy import copy_directory
from minit.manifest.pod import PodManifest
from minit.podfiles import paths
from minit.stage0.files.durable import create_file, disk_errors, make_directory
from minit.stage0.files.locks import directory_lock
from minit.stage0.files.untrusted import remove_content
from minit.stage0.images.extract import extract_image
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.deletion import unmount_below
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podmanifest import PlannedApp
from minit.stage0.pods.podstatus import read_app_tree_id, read_stage1_tree_id, status_root
from minit.stage0.volumes import create_volume, home_of, name_of, names_in, volume_scratch

_WITHIN = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_TREE_ID = "treeStoreID"

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE_MODE = 0o644
_DATABASE_BYTES = 1 << 20
# The directory is not empty: somebody has put files there; or the directory is somebody's mount point.
_NOT_OURS = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)


def write_app_files(
    pod: Pod, store: Store, trees: TreeStore, app: PlannedApp, progress: Progress, *, overlay: bool, ids: IdRange | None
) -> None:
    """
    Write the image's manifest of a new app, and the root, or with `overlay` the name of the tree to mount later.

    To be called under the lock that keeps trees from being collected. PodError for an image of stage1.
    """
    info = pod.path / _info(app.name)
    make_directory(info, 0o750)
    write_new_file(info / "manifest", app.image.manifest_bytes, 0o640)
    if not overlay:
        target = pod.path / paths.POD_STAGE1_ROOTFS / "opt/stage2" / app.name
        make_directory(target, 0o750)
        extract_image(store, app.image.id, target, progress, ids)
        return
    tree_id = trees.render(app.image.id, progress)
    if tree_id == read_stage1_tree_id(pod):
        # Both would have upper layers in one directory, the app's inside stage1's.
        raise PodError(f'app "{app.name}" is made from the stage1 image: that needs --no-overlay')
    # At once: as long as a pod's tree is unknown, no tree can be collected.
    write_new_file(info / "new", tree_id.encode(), 0o640)
    os.rename(info / "new", info / _TREE_ID)


def write_new_file(path: Path, data: bytes, mode: int) -> None:
    """Write a file of exactly `mode`; FileExistsError if the file exists."""
    with open(path, "xb", opener=_open_private) as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)


def remove_app_files(pod: Pod, app: str) -> None:
    """
    Undo the mounts of an app in this mount namespace, and remove the app's root and the image's manifest.

    A missing file is no error, so that an interrupted removal can be repeated. PodError if a mount
    stays, OSError if a file does.
    """
    home = f"{stage1_root(pod)}/opt/stage2/{app}"
    unmount_below(pod.path / paths.POD_STAGE1_ROOTFS / "opt/stage2" / app)
    if pod.has_file(f"{_info(app)}/{_TREE_ID}"):
        # Not all of the tree's layers, as rkt does: other apps of the image have theirs there.
        layers = f"overlay/{read_app_tree_id(pod, app)}"
        for part in ("upper", "work"):
            remove_directory(pod, f"{layers}/{part}/{app}")
            _remove_if_empty(pod, f"{layers}/{part}")
        _remove_if_empty(pod, layers)
    remove_directory(pod, home)
    # Last, since this file names the place of the layers.
    remove_directory(pod, _info(app))


def remove_directory(pod: Pod, name: str) -> None:
    """Remove a directory of the pod, by a relative path, with the content; no error if there is none."""
    parent, _, last = name.rpartition("/")
    try:
        parent_fd = syscalls.openat2(pod.fd, parent, os.O_PATH | os.O_DIRECTORY, resolve=_WITHIN)
    except FileNotFoundError:
        return
    try:
        fd = syscalls.openat2(
            parent_fd,
            last,
            os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
            resolve=_WITHIN | syscalls.RESOLVE_NO_XDEV,
        )
        try:
            remove_content(fd)
        finally:
            os.close(fd)
        os.rmdir(last, dir_fd=parent_fd)
    except FileNotFoundError:
        pass
    finally:
        os.close(parent_fd)


def stage1_root(pod: Pod) -> str:
    """
    Return where files of stage1's root are to be changed, relative to the pod directory.

    The overlay where mounted: an overlay may never see changes made directly in the upper layer.
    """
    rootfs = paths.POD_STAGE1_ROOTFS
    if not pod.has_file(paths.POD_OVERLAY_PREPARED) or overlay.is_mounted_at(pod.path / rootfs):
        return rootfs
    return status_root(pod)


def _info(app: str) -> str:
    return f"appsinfo/{app}"


def _remove_if_empty(pod: Pod, name: str) -> None:
    with suppress(FileNotFoundError):
        try:
            os.rmdir(name, dir_fd=pod.fd)
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, 0o600)


def provide_volumes(pod: Pod, trees: TreeStore, manifest: PodManifest, *, overlay: bool, ids: IdRange | None) -> None:
    """
    Make the named volumes of a pod whose apps have their files, and give new volumes the images' files.

    A volume gets the first directory that an app has at its place, in the order of the manifest, with its owners, which
    are the pod's with `ids`. To be called under the lock that keeps volumes from being removed.
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
                # Owners of a tree are not shifted.
                any(_fill(pod.data, name, root, target, None if overlay else ids) for root, target in roots)
            create_file(home / "used", b"", _FILE_MODE)


def require_ids(
    pod: Pod, trees: TreeStore, manifest: PodManifest, apps: Iterable[PlannedApp], *, overlay: bool
) -> None:
    """
    Raise PodError for an app with a user or a group that this user namespace does not have.

    Stage1 refuses the same, and names that are not in the image, but after the pod's start.
    """
    held = read_held_ids()
    if held is None:
        return
    images = {app.name: app.image.manifest for app in apps}
    for runtime in manifest.apps:
        app = runtime.app or images[runtime.name].app
        if app is None:
            continue
        root = _root(pod, trees, runtime.name, overlay=overlay)
        needed = [
            (f'user "{app.user}"', _find_id(root, USER, app.user), None),
            (f'group "{app.group}"', None, _find_id(root, GROUP, app.group)),
            *(("supplementary group", None, number) for number in app.supplementary_gids),
        ]
        for what, uid, gid in needed:
            lack = held.find_lack(uid, gid)
            if lack is not None:
                raise PodError(f'app "{runtime.name}": {what}: {lack}')


def _find_id(root: Path, kind: str, text: str) -> int | None:
    """Return the number of a user or group of an image; None for a path, and for an unknown name."""
    number = parse_decimal(text)
    if number is not None or text.startswith("/"):
        return number
    root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # Nothing is opened that could block, or be a device.
        found = syscalls.openat2(root_fd, DATABASES[kind], os.O_PATH, resolve=syscalls.RESOLVE_IN_ROOT)
    except OSError:
        return None
    finally:
        os.close(root_fd)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            return None
        with open(f"/proc/self/fd/{found}", "rb") as file:
            return find_id(file.read(_DATABASE_BYTES), kind, text.encode())
    finally:
        os.close(found)


def _places(manifest: PodManifest, name: str, data: Path) -> Iterator[tuple[str, str]]:
    """Yield the apps that mount a volume, and the places."""
    for app in manifest.apps:
        for path, volume in manifest.volumes_of(app):
            if name_of(volume, data) == name:
                yield app.name, path


def _root(pod: Pod, trees: TreeStore, app: str, *, overlay: bool) -> Path:
    if overlay:
        return trees.path(read_app_tree_id(pod, app)) / "rootfs"
    return pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app)


def _fill(data: Path, name: str, root: Path, target: str, ids: IdRange | None) -> bool:
    """Copy the image's files at a path to an empty volume; return whether there is a directory."""
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
