"""
Running a pod once more that has ended: same directory, UUID, name, options and volumes, and what its apps have written.

The pod stays in `run`, where it is running as soon as its lock is held. What the last run left outside the apps' roots
goes first; the logs of apps stay, and go on.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from minit.base import jsontext
from minit.base.errors import MinitError, PodError
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.untrusted import remove_entry
from minit.stage0.garbage.stage1gc import Stage1Cleanup
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.deletion import unmount_below
from minit.stage0.pods.poddirectory import Note, Pod, PodState, ends_settled
from minit.stage0.pods.podstatus import read_pod_manifest, status_root
from minit.stage0.pods.privateusers import ids_of_its_own
from minit.stage0.start.run import RUN_RECORD, become_stage1, mount_overlays, read_private_users, require_overlay

_OF_A_RUN = (paths.POD_PID, paths.POD_PPID, paths.POD_NETNS, paths.POD_NET, paths.POD_NET_INFO, paths.POD_ENTER)
_INTERACTIVE, _MUTABLE = "--interactive", "--mutable"


def claim_ended(pod: Pod) -> list[str]:
    """Lock a pod that has ended, and return the arguments of its last run; PodError if it cannot run again."""
    with ends_settled(pod.data):
        if not pod.refresh() or pod.state is not PodState.EXITED:
            raise PodError(f'pod "{pod.uuid}" cannot start again: its state is "{pod.state}"')
        if not pod.lock(blocking=False):
            raise PodError(f'pod "{pod.uuid}" is already being started')
    arguments = _read_arguments(pod)
    if _MUTABLE in arguments:
        raise PodError(f'pod "{pod.uuid}" cannot start again: apps were added to it, which only a new pod can be given')
    return arguments


def is_interactive(arguments: list[str]) -> bool:
    """Return whether the arguments of a run connect the pod to the terminal."""
    return _INTERACTIVE in arguments


def clear_last_run(pod: Pod, cleanup: Stage1Cleanup, note: Note) -> None:
    """Remove what the last run of a locked pod left: networks, control groups, mounts, and stage1's files of it."""
    cleanup.run(pod, note)
    unmount_below(pod.path)
    with disk_errors("start pod", pod.path):
        for name in (*_OF_A_RUN, paths.POD_SUBCGROUP):
            _remove(pod.fd, name)
        _clear_stage1(pod)


def run_again(
    pod: Pod, trees: TreeStore, arguments: list[str], before_exec: Callable[[], None], note: Note
) -> NoReturn:
    """Become the stage1 of a locked pod that has ended and is cleared."""
    require_overlay(pod)
    with ids_of_its_own(pod, read_private_users(pod), note), disk_errors("start pod", pod.path):
        mount_overlays(pod, trees, [app.name for app in read_pod_manifest(pod).apps])
    become_stage1(pod, arguments, before_exec)


def _read_arguments(pod: Pod) -> list[str]:
    words: object = None
    with suppress(FileNotFoundError, MinitError):
        words = jsontext.parse(pod.read_file(RUN_RECORD), RUN_RECORD)
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PodError(f'pod "{pod.uuid}" cannot start again: minit has no record of how it was run')
    return words


def _clear_stage1(pod: Pod) -> None:
    """Remove the files of a run from stage1's root; its directories stay, and the logs of apps."""
    top = f"{status_root(pod)}/rkt"
    for directory, kept in (
        (top, ("env", "iottymux", "minit", "status")),
        (f"{top}/env", ()),
        (f"{top}/iottymux", ()),
        (f"{top}/status", ()),
        (f"{top}/minit", ("log",)),
    ):
        _empty(pod, directory, lambda name, kept=kept: name in kept)  # type: ignore[misc]
    _empty(pod, f"{top}/minit/log", lambda name: ".log" in name)


def _empty(pod: Pod, directory: str, is_kept: Callable[[str], bool]) -> None:
    # The pod's processes have written there.
    resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
    with suppress(FileNotFoundError):
        fd = syscalls.openat2(pod.fd, directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, resolve=resolve)
        try:
            for name in os.listdir(fd):
                if not is_kept(name):
                    _remove(fd, name)
        finally:
            os.close(fd)


def _remove(directory: int, name: str) -> None:
    with suppress(FileNotFoundError):
        remove_entry(directory, name)
