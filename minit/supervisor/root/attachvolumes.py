"""
Attaching an app's volumes and the files of /etc inside its root, in the app's own mount namespace.

The volumes are detached mounts made by the launcher, read-only ones already so: nothing is ever visible in an app with
more rights than in the end.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence

from minit.base.errors import LaunchError, MinitError, describe
from minit.linux import syscalls
from minit.plan.root.etcfiles import AppFile
from minit.plan.root.mountoperations import BindTree
from minit.plan.root.volumes import VolumeMount
from minit.supervisor.root.applymounts import apply_mounts
from minit.supervisor.root.subpaths import clone_part
from minit.supervisor.root.targets import open_existing, open_target, resolve_target

# A volume that is read-only, or not writable for root of a user namespace.
_NO_PLACE = (errno.EROFS, errno.EACCES)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPTIONS = {
    "nodev": syscalls.MOUNT_ATTR_NODEV,
    "noexec": syscalls.MOUNT_ATTR_NOEXEC,
    "nosuid": syscalls.MOUNT_ATTR_NOSUID,
}


def attach_volumes(
    volumes: Sequence[VolumeMount], trees: Sequence[int], root: int, sysfs: BindTree
) -> list[tuple[str, ...]]:
    """
    Attach `trees`, one of each volume, inside `root`; first `sysfs`, unless a volume lies at the target or below.
    Return the names on the way to each volume.

    The outer ones come first, whatever the manifest's order; of several at one place the last ends up on top.
    LaunchError names volume and target.
    """
    places = [_place_of(volume, root) for volume in volumes]
    if not _has_one_below(sysfs.target, places, root):
        apply_mounts((sysfs,), root)
    for index in sorted(range(len(volumes)), key=places.__getitem__):
        volume, tree = volumes[index], trees[index]
        try:
            attach_tree(tree, root, volume.target)
        except (LaunchError, OSError) as error:
            raise _failure(volume, error) from error
        os.close(tree)
    return places


def open_memory_volume(volume: VolumeMount) -> int:
    """Return a detached mount of a volume in memory, in the stage1 root."""
    try:
        tree = clone_part(volume.source, volume.sub_path)
        attributes = syscalls.MOUNT_ATTR_RDONLY if volume.read_only else 0
        attributes |= option_attributes(volume)
        syscalls.mount_setattr(tree, set=attributes, propagation=syscalls.MS_PRIVATE)
    except (LaunchError, OSError) as error:
        raise _failure(volume, error) from error
    return tree


def option_attributes(volume: VolumeMount) -> int:
    """Return the attributes of mount_setattr(2) for the options of a volume."""
    attributes = 0
    for name in volume.options:
        attributes |= _OPTIONS[name]
    return attributes


def make_directory(path: str, root: int) -> None:
    """Make a directory inside `root`, with the directories above, if nothing is there; OSError names the directory."""
    try:
        if not _exists(root, path):
            os.close(open_target(root, path, is_directory=True))
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def attach_files(
    files: Sequence[AppFile], root: int, dev: int, volumes: Sequence[tuple[str, ...]], *, read_only: bool
) -> None:
    """
    Attach the files of /etc inside `root`; LaunchError names a required file without a place.

    `volumes` are the names on the way to each. The files are in the filesystem of the directory `dev`: the app's own,
    in memory, and bounded.
    """
    for file in files:
        try:
            is_there = (file.if_missing and _exists(root, file.target)) or (
                file.yields and _is_within(file.target, volumes, root)
            )
            if not is_there:
                _attach_file(file, root, dev, read_only=read_only)
        except (MinitError, OSError) as error:
            if isinstance(error, OSError) and error.errno in _NO_PLACE and not file.required:
                continue
            raise LaunchError(f"{file.target}: {describe(error)}") from error


def _place_of(volume: VolumeMount, root: int) -> tuple[str, ...]:
    try:
        return resolve_target(root, volume.target)
    except OSError:
        # An outer volume may hide the present obstacle; otherwise the attachment fails with the reason.
        return tuple(name for name in volume.target.split("/") if name not in ("", "."))


def _has_one_below(target: str, places: Sequence[tuple[str, ...]], root: int) -> bool:
    if not places:
        return False
    top = resolve_target(root, target)
    return any(place[: len(top)] == top for place in places)


def _is_within(target: str, places: Sequence[tuple[str, ...]], root: int) -> bool:
    if not places:
        return False
    names = resolve_target(root, target)
    return any(names[: len(place)] == place for place in places)


def attach_tree(tree: int, root: int, target: str) -> None:
    """Attach a detached mount at `target` inside `root`, in a place made if missing."""
    where = open_target(root, target, is_directory=stat.S_ISDIR(os.fstat(tree).st_mode))
    try:
        syscalls.move_mount(tree, where)
    finally:
        os.close(where)


def _exists(root: int, target: str) -> bool:
    found = open_existing(root, target)
    if found is not None:
        os.close(found)
    return found is not None


def _attach_file(file: AppFile, root: int, dev: int, *, read_only: bool) -> None:
    name = ".minit-file"
    with os.fdopen(os.open(name, _NEW_FILE, 0o644, dir_fd=dev), "wb") as new:
        new.write(file.text)
    # Only a file with a name can be mounted, and only until then.
    tree = syscalls.open_tree(dev, name, syscalls.OPEN_TREE_CLONE)
    try:
        if read_only:
            syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_RDONLY)
        attach_tree(tree, root, file.target)
    finally:
        os.close(tree)
        os.unlink(name, dir_fd=dev)


def _failure(volume: VolumeMount, error: Exception) -> LaunchError:
    reason = describe(OSError(error.errno, error.strerror)) if isinstance(error, OSError) else describe(error)
    return LaunchError(f'volume "{volume.volume}" on {volume.target} ({volume.place}): {reason}')
