"""
Removing pod directories, without ever touching what is only mounted into them.

Mounts are undone first. Then the files go by descriptor: no symbolic link is followed and no mount point crossed, so a
host directory that a pod had as a volume survives even when its mount could not be undone.
"""

from __future__ import annotations

import errno
import os
import signal
from contextlib import suppress
from pathlib import Path

from minit import paths, syscalls
from minit.errors import EXIT_UNFINISHED, MinitError, PodError, UnfinishedError, describe
from minit.mountinfo import Mount, find_mounts
from minit.stage0 import overlay
from minit.stage0.entrypoints import (
    call,
    declared_path,
    gc_arguments,
    interface_version,
    read_stage1_manifest,
)
from minit.stage0.pods import GARBAGE, Note, Pod
from minit.stage0.podstatus import read_stage1_tree_id, status_root
from minit.stage0.treestore import TreeStore
from minit.value import Value

# Deeper directories are moved up before they are emptied: a pod may nest them far beyond the limit of open files.
_MAX_DEPTH = 64


class Stage1Cleanup(Value):
    """What deleting an ended pod needs beside its directory, in order to run stage1's `gc`."""

    trees: TreeStore
    debug: bool
    local_config: str


def delete_ended_pod(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """Have stage1 clean up after a pod in `exited-garbage`, then delete it, unless somebody else just did."""
    pod.lock(blocking=True)
    if pod.refresh():
        _run_stage1_gc(pod, cleanup, note)
        _delete(pod)


def delete_garbage(pod: Pod) -> None:
    """Delete a pod in `garbage`, which never ran, unless somebody else just did."""
    pod.lock(blocking=True)
    if pod.refresh():
        _delete(pod)


def discard(pod: Pod) -> None:
    """Delete a pod that we hold the lock of and whose preparation failed."""
    pod.move(GARBAGE)
    _delete(pod)


def _run_stage1_gc(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """
    Run the `gc` entrypoint; a failure is noted and must not keep the pod from being deleted.

    UnfinishedError if it was killed, or says itself that it has not finished: what it has not come to would be left for
    ever, while a later one finishes it.
    """
    rootfs = pod.path / paths.POD_STAGE1_ROOTFS
    mounted = False
    try:
        manifest = read_stage1_manifest(pod)
        entrypoint = declared_path(manifest, "gc")
        if entrypoint is None:
            note(f'pod "{pod.uuid}": stage1 has no gc entrypoint, skipping stage1 GC')
            return
        arguments = gc_arguments(
            pod.uuid, interface_version(manifest), debug=cleanup.debug, local_config=cleanup.local_config
        )
        # The overlay is gone after a reboot. Its upper layer still has stage1's records of what to clean up.
        if pod.has_file(paths.POD_OVERLAY_PREPARED) and not overlay.is_mounted_at(rootfs):
            tree_id = read_stage1_tree_id(pod)
            layers = pod.path / "overlay" / tree_id
            for place in (rootfs, layers / "upper", layers / "work"):
                _refuse_links(pod, place)
            overlay.mount_overlay(cleanup.trees.path(tree_id) / "rootfs", layers / "upper", layers / "work", rootfs)
            mounted = True
    except (OSError, MinitError) as error:
        note(f'pod "{pod.uuid}": skipping stage1 GC: {describe(error)}')
        return
    try:
        code = call(rootfs / entrypoint, arguments, pod.path, show_stdout=False)
        if code == -signal.SIGKILL:
            raise UnfinishedError(f'pod "{pod.uuid}" not removed: stage1 GC was killed; remove the pod again')
        if code == EXIT_UNFINISHED:
            raise UnfinishedError(f'pod "{pod.uuid}" not removed: stage1 GC has not finished; remove the pod again')
        if code != 0:
            note(f'pod "{pod.uuid}": stage1 GC failed: exit status {code}')
    except OSError as error:
        note(f'pod "{pod.uuid}": stage1 GC failed: {describe(error)}')
    finally:
        if mounted:
            try:
                syscalls.umount2(str(rootfs), syscalls.UMOUNT_NOFOLLOW)
            except OSError as error:
                note(f'pod "{pod.uuid}": cannot unmount stage1: {describe(error)}')


def _refuse_links(pod: Pod, place: Path) -> None:
    """Raise OSError if a link is on the way from the pod directory to a directory in it."""
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    os.close(syscalls.openat2(pod.fd, str(place.relative_to(pod.path)), os.O_PATH | os.O_DIRECTORY, resolve=resolve))


def _delete(pod: Pod) -> None:
    try:
        unmount_below(pod.path)
    except PodError as error:
        raise PodError(f'pod "{pod.uuid}" not removed: {error}') from error
    try:
        # First what can be big and can fail: with the manifest still there, a later gc tries again.
        with suppress(FileNotFoundError, NotADirectoryError, PodError):
            _remove(pod.fd, status_root(pod), pod.fd, 0)
        remove_content(pod.fd)
        os.rmdir(pod.path)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):
            raise PodError(
                f'pod "{pod.uuid}" not removed: something is mounted on {error.filename} in {pod.path}'
            ) from error
        raise PodError(f'pod "{pod.uuid}" not removed: {describe(error)}') from error


def unmount_below(directory: Path) -> None:
    """
    Undo every mount below `directory` in this mount namespace; PodError if one stays.

    Paths are resolved by a child with `directory` as its root, where no link that a pod left can lead outside.
    """
    mounts = _mounts_below(directory)
    if not mounts:
        return
    child = os.fork()
    if child == 0:
        _unmount_in_child(str(directory), mounts)
    os.waitpid(child, 0)
    left = _mounts_below(directory)
    if left:
        raise PodError(f"cannot unmount {left[-1].mount_point}")


def _mounts_below(directory: Path) -> list[Mount]:
    """Return the mounts below a directory, parents before children, the latest on a mount point last."""
    prefix = f"{directory}/"
    mounts = [mount for mount in find_mounts(prefix) if mount.mount_point.startswith(prefix)]
    return sorted(mounts, key=lambda mount: mount.mount_point.count("/"))


def _unmount_in_child(directory: str, mounts: list[Mount]) -> None:
    """Unmount what can be unmounted and end the process; the parent looks at what is left."""
    try:
        os.chroot(directory)
        os.chdir("/")
        inside = [(mount.mount_point[len(directory) :], mount.tags) for mount in mounts]
        for point, tags in inside:
            # Or the unmount would spread to peers of the mount outside the pod.
            if any(tag.startswith(("shared:", "master:")) for tag in tags):
                with suppress(OSError):
                    syscalls.mount(None, point, None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        for point, _ in reversed(inside):
            _unmount(point)
    finally:
        os._exit(0)


def _unmount(point: str) -> None:
    try:
        syscalls.umount2(point, syscalls.UMOUNT_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EBUSY:
            with suppress(OSError):
                syscalls.umount2(point, syscalls.UMOUNT_NOFOLLOW | syscalls.MNT_DETACH)


def remove_content(fd: int) -> None:
    """Remove everything in the directory `fd`; OSError at a mount point, EXDEV or EBUSY, or what cannot be removed."""
    _empty(fd, fd, 0)


def _empty(fd: int, top_fd: int, depth: int) -> None:
    """Remove everything in the directory `fd`, again if directories were moved up into it meanwhile."""
    while True:
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        if not names:
            return
        for name in names:
            _remove(fd, name, top_fd, depth)


def _remove(parent_fd: int, name: str, top_fd: int, depth: int) -> None:
    try:
        os.unlink(name, dir_fd=parent_fd)
        return
    except IsADirectoryError:
        pass
    if depth >= _MAX_DEPTH:
        os.rename(name, f"moved-up-{os.urandom(8).hex()}", src_dir_fd=parent_fd, dst_dir_fd=top_fd)
        return
    fd = syscalls.openat2(
        parent_fd,
        name,
        os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW,
        resolve=syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV,
    )
    try:
        _empty(fd, top_fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent_fd)
