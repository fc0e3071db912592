"""
Attaching an app's volumes and the files of /etc inside its root, in the app's own mount namespace.

The volumes are detached mounts made by the launcher, read-only ones already so: nothing is ever visible in an app with
more rights than in the end.

A part of a volume is opened by descriptors, since anybody with write access to the volume decides about its links. The
kernel resolves the path beneath the volume and nowhere else, openat2(2), in one step: at no moment can a directory be
exchanged for a link (the class of CVE-2017-1002101 and CVE-2021-25741).
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
from minit.supervisor.root.targets import open_existing, open_target, resolve_target

# A volume that is read-only, or not writable for root of a user namespace.
_NO_PLACE = (errno.EROFS, errno.EACCES)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPTIONS = {
    "nodev": syscalls.MOUNT_ATTR_NODEV,
    "noexec": syscalls.MOUNT_ATTR_NOEXEC,
    "nosuid": syscalls.MOUNT_ATTR_NOSUID,
}

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
_RESOLVE_IN_IMAGE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_ATTEMPTS = 32
_PERMISSIONS, _OWNERS_ALONE = 0o777, 0o700


def attach_volumes(
    volumes: Sequence[VolumeMount], trees: Sequence[int], root: int, sysfs: BindTree, *, sysfs_yields: bool
) -> list[tuple[str, ...]]:
    """
    Attach `trees`, one of each volume, inside `root`; first `sysfs`, unless a volume lies at the target or, if `sysfs`
    yields, below. Return the names on the way to each volume.

    The outer ones come first, whatever the manifest's order; of several at one place the last ends up on top.
    LaunchError names volume and target.
    """
    places = [_place_of(volume, root) for volume in volumes]
    top = resolve_target(root, sysfs.target) if places else ()
    if not any(place[: len(top)] == top if sysfs_yields else place == top for place in places):
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


def clone_part(source: str, sub_path: str, *, recursive: bool = False, of_image: bool = False) -> int:
    """
    Return a detached mount of a path, or with a `sub_path` of the target of `sub_path` there.

    Nothing is made in a tree `of_image`, where links are links of a root.
    """
    flags = syscalls.OPEN_TREE_CLONE | (syscalls.AT_RECURSIVE if recursive else 0)
    if not sub_path:
        return syscalls.open_tree(syscalls.AT_FDCWD, source, flags)
    volume = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        part = _open_in_image(volume, sub_path) if of_image else _open_sub_path(volume, sub_path)
    finally:
        os.close(volume)
    try:
        return syscalls.open_tree(part, "", flags)
    finally:
        os.close(part)


def _open_sub_path(volume: int, path: str) -> int:
    """
    Return an O_PATH descriptor of the target of `path` in the directory `volume`.

    Missing directories are made, with the mode and owner of the parent directory. LaunchError if a link leads out of
    the volume.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    here = _open(volume, ".", path)
    for depth in range(1, len(names) + 1):
        found = _descend(volume, here, names[:depth], path)
        os.close(here)
        here = found
    return here


def _open_in_image(volume: int, path: str) -> int:
    try:
        return syscalls.openat2(volume, path, os.O_PATH, resolve=_RESOLVE_IN_IMAGE)
    except FileNotFoundError as error:
        raise LaunchError(f'"{path}" is not in the image') from error


def _descend(volume: int, parent: int, names: list[str], path: str) -> int:
    for _ in range(_ATTEMPTS):
        try:
            return _open(volume, "/".join(names), path)
        except FileNotFoundError:
            _make(parent, names[-1])
    # A link to nothing stays.
    raise LaunchError(f'"{path}": a link in the volume leads to nothing')


def _open(volume: int, path: str, whole: str) -> int:
    try:
        return syscalls.openat2(volume, path, os.O_PATH, resolve=_RESOLVE)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise LaunchError(f'"{whole}": a link leads out of the volume') from error
        raise


def _make(parent: int, name: str) -> None:
    above = os.fstat(parent)
    try:
        os.mkdir(name, _OWNERS_ALONE, dir_fd=parent)
    except FileExistsError:
        return
    made = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        # A directory put in the place by somebody keeps the owner: a mover of directories must not get one.
        if os.fstat(made).st_mode & _PERMISSIONS != _OWNERS_ALONE or os.listdir(made):
            return
        os.fchown(made, above.st_uid, above.st_gid)
        os.fchmod(made, stat.S_IMODE(above.st_mode))
    finally:
        os.close(made)
