"""
Hiding paths of an app's root and making them read-only, in the app's own mount namespace.

The cover of a masked path comes from a filesystem of PID 1's that no app ever sees: nobody can exchange it for
something else before it is mounted (the class of CVE-2025-31133).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from minit import syscalls
from minit.plan.rights.protection import Protection
from minit.plan.root.groupmounts import COVER, HIDDEN
from minit.plan.root.mountoperations import COVERS, EMPTY_DIRECTORY, EMPTY_FILE, BindTree
from minit.plan.root.volumes import VolumeMount
from minit.supervisor.root.targets import open_existing

Names = tuple[str, ...]


def protect_paths(
    protection: Protection, root: int, volumes: Sequence[tuple[VolumeMount, Names]], groups: Sequence[BindTree]
) -> None:
    """
    Apply `protection` inside the directory `root`; OSError names the path that failed.

    `volumes` are the app's, each with the names that lead to it. `groups` are shown in place of what they are in.
    """
    writable = [(path, _copy_mount(root, path)) for path in protection.writable]
    for path in protection.read_only:
        where = open_existing(root, path)
        if where is not None:
            tree = syscalls.open_tree(where, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
            syscalls.mount_setattr(tree, flags=syscalls.AT_RECURSIVE, set=syscalls.MOUNT_ATTR_RDONLY)
            _attach(tree, where, path)
    for path, copy in writable:
        if copy is not None:
            _cover(copy, root, path)
    if protection.masked:
        # In this namespace, for all the copies of it.
        syscalls.mount_setattr(syscalls.AT_FDCWD, COVERS, set=syscalls.MOUNT_ATTR_RDONLY)
    for path in protection.masked:
        names = tuple(path.split("/")[1:])
        if _is_lifted(names, volumes):
            continue
        where = open_existing(root, path)
        if where is None:
            continue
        is_directory = stat.S_ISDIR(os.fstat(where).st_mode)
        shown = groups if path == HIDDEN and is_directory else ()
        cover = COVER if shown else EMPTY_DIRECTORY if is_directory else EMPTY_FILE
        _attach(syscalls.open_tree(syscalls.AT_FDCWD, cover, syscalls.OPEN_TREE_CLONE), where, path)
        for group in shown:
            # Read-only, as the whole of the hierarchies is in the stage1 root.
            _cover(syscalls.open_tree(syscalls.AT_FDCWD, group.source, syscalls.OPEN_TREE_CLONE), root, group.target)


def _is_lifted(masked: Names, volumes: Sequence[tuple[VolumeMount, Names]]) -> bool:
    """Tell whether a volume lies there that somebody else than the image wants there, or that hides nothing of ours."""
    within = [volume for volume, place in volumes if place[: len(masked)] == masked]
    # An app with a volume below /sys has no sysfs, unless it is another volume.
    harmless = masked[0] == "sys" and not any(masked[: len(place)] == place != masked for _, place in volumes)
    return any(harmless or not volume.by_image for volume in within)


def _copy_mount(root: int, path: str) -> int | None:
    """Return a detached copy of what is at a path with all below it, None if there is nothing."""
    found = open_existing(root, path)
    if found is None:
        return None
    try:
        return syscalls.open_tree(found, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
    finally:
        os.close(found)


def _cover(tree: int, root: int, path: str) -> None:
    where = open_existing(root, path)
    if where is None:  # no file of the kernel, but one of a volume, which somebody has renamed
        os.close(tree)
    else:
        _attach(tree, where, path)


def _attach(tree: int, where: int, path: str) -> None:
    try:
        syscalls.move_mount(tree, where)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error
    finally:
        os.close(where)
        os.close(tree)
