"""
Hiding paths of an app's root and making them read-only, in the app's own mount namespace.

The cover of a masked path comes from a filesystem of PID 1's that no app ever sees: nobody can exchange it for
something else before it is mounted (the class of CVE-2025-31133).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from minit.base.errors import LaunchError
from minit.linux import syscalls
from minit.plan.rights.protection import Protection
from minit.plan.root.groupmounts import COVER, COVER_OF_GROUPS, GROUPS, HIDDEN
from minit.plan.root.mountoperations import COVERS, EMPTY_DIRECTORY, EMPTY_FILE, PROC, BindTree
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
        where = _find(protection, root, path)
        if where is not None:
            tree = syscalls.open_tree(where, "", syscalls.OPEN_TREE_CLONE | syscalls.AT_RECURSIVE)
            syscalls.mount_setattr(tree, flags=syscalls.AT_RECURSIVE, set=syscalls.MOUNT_ATTR_RDONLY)
            _attach(tree, where, path)
    for path, copy in writable:
        if copy is not None:
            _cover(copy, root, path)
    if protection.masked:
        _seal_covers()
    for path in protection.masked:
        names = tuple(path.split("/")[1:])
        if not protection.is_exact and _is_lifted(names, volumes):
            continue
        where = _find(protection, root, path)
        if where is None:
            continue
        is_directory = stat.S_ISDIR(os.fstat(where).st_mode)
        if path == HIDDEN and is_directory and groups and not protection.is_exact:
            _show_groups(COVER, where, path, root, groups)
            continue
        cover = EMPTY_DIRECTORY if is_directory else EMPTY_FILE
        _attach(syscalls.open_tree(syscalls.AT_FDCWD, cover, syscalls.OPEN_TREE_CLONE), where, path)


def hide_hierarchies(root: int, volumes: Sequence[tuple[VolumeMount, Names]], groups: Sequence[BindTree]) -> None:
    """
    Show an app its `groups` alone where the host's hierarchies are, if `protect_paths` is not to hide all around them.

    The arguments are as there.
    """
    if _is_lifted(tuple(GROUPS.split("/")[1:]), volumes):
        return
    where = open_existing(root, GROUPS)
    if where is not None:
        _seal_covers()
        _show_groups(COVER_OF_GROUPS, where, GROUPS, root, groups)


def _seal_covers() -> None:
    # In this namespace, for all the copies of it.
    syscalls.mount_setattr(syscalls.AT_FDCWD, COVERS, set=syscalls.MOUNT_ATTR_RDONLY)


def _show_groups(cover: str, where: int, path: str, root: int, groups: Sequence[BindTree]) -> None:
    _attach(syscalls.open_tree(syscalls.AT_FDCWD, cover, syscalls.OPEN_TREE_CLONE), where, path)
    for group in groups:
        # Read-only, as the whole of the hierarchies is in the stage1 root.
        _cover(syscalls.open_tree(syscalls.AT_FDCWD, group.source, syscalls.OPEN_TREE_CLONE), root, group.target)


def _find(protection: Protection, root: int, path: str) -> int | None:
    """Return what a path leads to, None if that is missing; LaunchError for a link into the kernel's files."""
    where = open_existing(root, path)
    if where is None or not protection.is_exact or path.startswith(f"{PROC.target}/"):
        return where
    proc = open_existing(root, PROC.target)
    if proc is not None:
        is_within = os.fstat(where).st_dev == os.fstat(proc).st_dev
        os.close(proc)
        if is_within:
            # What is there anew with each start of an app that is PID 1 would not be found again.
            os.close(where)
            raise LaunchError(f"{path}: a link of the image leads to {PROC.target}, where no other path is protected")
    return where


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
