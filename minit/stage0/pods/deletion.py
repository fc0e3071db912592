"""
Removing pod directories, without ever touching mounted files.

Mounts are undone first. Then the files go by descriptor: no symbolic link is followed and no mount point crossed, so a
host directory that was a volume of the pod survives even when the mount could not be undone.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from minit.base.errors import MinitError, PodError, describe
from minit.linux import syscalls
from minit.linux.forks import REMOVER, Kept, fork
from minit.linux.mountinfo import Mount, parse_line
from minit.linux.stdio import write_all
from minit.stage0.files.untrusted import remove_content, remove_entry
from minit.stage0.pods.poddirectory import GARBAGE, Note, Pod
from minit.stage0.pods.podstatus import status_root

# So many pods are locked, and their directories open, at once.
_BATCH_PODS = 64
# More than processors: the processes wait for the disk most of the time.
_WORKERS = 4


class _Below(NamedTuple):
    """A mount below a directory, by a path of the directory."""

    directory: Path
    mount: Mount


class Deletions:
    """
    Pods that are deleted by other processes while the caller goes on; a context manager that waits for the last pods.

    The failure of a pod is noted when the next batch begins, or at the end.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._batch: list[Pod] = []
        self._workers: list[_Worker] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._start()
        for pod in self._batch:
            pod.close()
        self._wait()

    def add(self, pod: Pod) -> None:
        """Take over a locked pod, which is closed after the deletion."""
        self._batch.append(pod.take())
        if len(self._batch) == _BATCH_PODS:
            self._start()

    def _start(self) -> None:
        self._wait()
        mounts = _mounts_below([pod.path for pod in self._batch])
        shares = (self._batch[first::_WORKERS] for first in range(_WORKERS))
        self._workers = [_Worker(share, mounts) for share in shares if share]
        self._batch = []

    def _wait(self) -> None:
        for worker in self._workers:
            worker.wait(self._note)
        self._workers = []


class _Worker:
    """A process that deletes pods, and reports errors on a pipe."""

    def __init__(self, pods: Sequence[Pod], mounts: Mapping[Path, Sequence[_Below]]) -> None:
        self._pods = pods
        self._said, writer = os.pipe()
        kept: dict[str, Kept] = {"report": writer, "pods": [pod.fd for pod in pods]}
        self._pid = fork(REMOVER, lambda: _remove(pods, mounts, writer), kept)
        os.close(writer)

    def wait(self, note: Note) -> None:
        """Wait until the process has ended, and note the errors; then the pods are closed."""
        with open(self._said, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                note(line.rstrip("\n"))
        _, status = os.waitpid(self._pid, 0)
        for pod in self._pods:
            if status and pod.refresh():
                note(f'pod "{pod.uuid}" not removed: what was to remove it has died')
            pod.close()


def _remove(pods: Sequence[Pod], mounts: Mapping[Path, Sequence[_Below]], writer: int) -> None:
    left = []
    # Before any file is removed: the end of an overlay waits until the whole file system is written.
    for pod in pods:
        try:
            _unmount_all(pod.path, mounts[pod.path])
            left.append(pod)
        except PodError as error:
            _say_problem(writer, pod, _not_removed(pod, error))
    for pod in left:
        try:
            _remove_files(pod)
        except (OSError, MinitError) as error:
            _say_problem(writer, pod, error)


def _say_problem(writer: int, pod: Pod, error: Exception) -> None:
    write_all(writer, f'pod "{pod.uuid}": {describe(error)}\n'.encode("utf-8", "replace"))


def _not_removed(pod: Pod, error: PodError) -> PodError:
    return PodError(f'pod "{pod.uuid}" not removed: {error}')


def delete(pod: Pod) -> None:
    """Delete a pod with the caller's lock; PodError if something of the pod stays."""
    try:
        unmount_below(pod.path)
    except PodError as error:
        raise _not_removed(pod, error) from error
    _remove_files(pod)


def discard(pod: Pod) -> None:
    """Delete a pod with the caller's lock after the preparation failed."""
    pod.move(GARBAGE)
    delete(pod)


def _remove_files(pod: Pod) -> None:
    try:
        # First the parts that can be big and can fail: with the manifest still there, a later gc tries again.
        with suppress(FileNotFoundError, NotADirectoryError, PodError):
            remove_entry(pod.fd, status_root(pod))
        remove_content(pod.fd)
        os.rmdir(pod.path)
    except OSError as error:
        if error.errno in (errno.EXDEV, errno.EBUSY):
            raise PodError(
                f'pod "{pod.uuid}" not removed: something is mounted on {error.filename} in {pod.path}'
            ) from error
        raise PodError(f'pod "{pod.uuid}" not removed: {describe(error)}') from error


def unmount_below(directory: Path) -> None:
    """Undo every mount below `directory`, a pod's or an app's, in this mount namespace; PodError if a mount stays."""
    _unmount_all(directory, _mounts_below([directory])[directory])


def _unmount_all(directory: Path, mounts: Sequence[_Below]) -> None:
    if not _unmount(mounts):
        left = _mounts_below([directory])[directory]
        if left:
            raise PodError(f"cannot unmount {left[-1].mount.mount_point}")


def _mounts_below(directories: Sequence[Path]) -> dict[Path, list[_Below]]:
    """
    Return the mounts below each directory, parents before children, the latest on a mount point last.

    A directory that can be seen at several places, as where the data directory is a bind mount in a shared tree, has
    the same mounts at each of them: they are twins, and none goes as long as another one has mounts below it.
    """
    mounts: dict[Path, list[_Below]] = {directory: [] for directory in directories}
    places = {directory: directory for directory in directories}
    # There may be thousands of other mounts. The kernel escapes nothing in the names of pods and apps.
    names = {directory.name: directory for directory in directories}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape", newline="\n") as lines:
        found = [parse_line(line) for line in lines if not names.keys().isdisjoint(line.split(" ", 5)[4].split("/"))]
    for mount in sorted(found, key=lambda mount: mount.mount_point.count("/")):
        for parent in Path(mount.mount_point).parents:
            if parent not in places and parent.name in names and _is_same(parent, names[parent.name]):
                places[parent] = names[parent.name]
            if parent in places:
                mounts[places[parent]].append(_Below(parent, mount))
    return mounts


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _unmount(mounts: Sequence[_Below]) -> bool:
    """
    Undo mounts, even mounts in use, and return whether all are undone.

    A mount point is resolved from its directory on, with no link followed: one that a pod left leads nowhere.
    """
    all_undone = True
    # Or the unmount would spread to peers of the mount outside the pod.
    for below in mounts:
        if any(tag.startswith(("shared:", "master:")) for tag in below.mount.tags):
            with suppress(OSError), _mount_point(below) as path:
                syscalls.mount(None, path, None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for below in reversed(mounts):
        try:
            with _mount_point(below) as path:
                # Detached, as the descriptor is a user of it too.
                syscalls.umount2(path, syscalls.MNT_DETACH)
        except OSError:
            all_undone = False  # or a twin of it, with which it went
    return all_undone


@contextmanager
def _mount_point(below: _Below) -> Iterator[str]:
    top = os.open(below.directory, os.O_PATH | os.O_DIRECTORY)
    try:
        inside = os.path.relpath(below.mount.mount_point, below.directory)
        resolve = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
        fd = syscalls.openat2(top, inside, os.O_PATH, resolve=resolve)
    finally:
        os.close(top)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)
