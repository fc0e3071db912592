"""
The pod directory as a state machine: the place of the directory and the holder of the lock are the pod's state.

Makes, finds, locks, names and moves pod directories. The contents belong to `newpod`, `podstatus` and `deletion`. Every
lock is a flock(2) of a descriptor of the directory, so the lock follows each rename and ends with the last process that
holds the descriptor. The name that a user gives a pod is a file of the directory and has no other record, so a name
moves and goes with the pod; no two pods have the same name.
"""

from __future__ import annotations

import fcntl
import os
import re
import uuid as uuids
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import Self

from minit.base import jsontext
from minit.base.errors import PodError, describe
from minit.podfiles.boundedfile import read_at_most
from minit.stage0.files.durable import make_directory, sync_directory
from minit.stage0.files.locks import flock, key_lock

Note = Callable[[str], None]
"""Tells the user something on the side, one line at a time."""

EMBRYO = "embryo"
PREPARE = "prepare"
PREPARED = "prepared"
RUN = "run"
EXITED_GARBAGE = "exited-garbage"
GARBAGE = "garbage"

# A pod only ever moves forward in this order, so one walk along it cannot miss a pod on the move.
PLACES = (EMBRYO, PREPARE, PREPARED, RUN, EXITED_GARBAGE, GARBAGE)
ADDRESSABLE_PLACES = (PREPARE, PREPARED, RUN, EXITED_GARBAGE)

_DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
# As of JSON that is read.
_MAX_FILE_BYTES = jsontext.MAX_SIZE_BYTES
_UUID = re.compile(r"[0-9a-f]{32}")

_NAME_FORM = "letters, digits and inner . _ -, at most 63 of them"

_FILE = "minit-name"
_NEW_FILE = ".minit-name.new"
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_WHOLE_UUID = re.compile(r"[0-9a-f]{8}(-?[0-9a-f]{4}){3}-?[0-9a-f]{12}", re.IGNORECASE)


class PodState(StrEnum):
    """The state of a pod; the values are the texts rkt prints and writes to JSON."""

    EMBRYO = "embryo"
    PREPARING = "preparing"
    ABORTED_PREPARE = "aborted prepare"
    PREPARED = "prepared"
    RUNNING = "running"
    EXITED = "exited"
    EXITED_DELETING = "exited deleting"
    EXITED_GARBAGE = "exited garbage"
    DELETING = "deleting"
    GARBAGE = "garbage"


DELETED_STATES = frozenset({PodState.EXITED_DELETING, PodState.DELETING, PodState.GARBAGE})
ENDED_STATES = frozenset({PodState.EXITED, PodState.EXITED_DELETING, PodState.EXITED_GARBAGE})

# (state while somebody holds the lock, state while nobody does)
_STATES = {
    EMBRYO: (PodState.EMBRYO, PodState.EMBRYO),
    PREPARE: (PodState.PREPARING, PodState.ABORTED_PREPARE),
    PREPARED: (PodState.PREPARED, PodState.PREPARED),
    RUN: (PodState.RUNNING, PodState.EXITED),
    EXITED_GARBAGE: (PodState.EXITED_DELETING, PodState.EXITED_GARBAGE),
    GARBAGE: (PodState.DELETING, PodState.GARBAGE),
}
# The lock of a pod in these places says nothing about the state, and probing could disturb a process about to lock.
_NOT_PROBED = frozenset({EMBRYO, PREPARED})


class Pod:
    """
    An open pod directory, a context manager that closes it.

    `place` and `state` are what the last `refresh` saw. Files are read relative to `fd`, so they stay within
    reach when somebody renames the directory.
    """

    def __init__(self, data: Path, uuid: str, fd: int) -> None:
        self.data = data
        self.uuid = uuid
        self.fd = fd
        self.place = EMBRYO
        self.state = PodState.EMBRYO
        self._locked = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the directory, which gives up the lock unless another process inherited the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def take(self) -> Pod:
        """Return this pod, with the lock, as another object, and close this object."""
        taken = Pod(self.data, self.uuid, self.fd)
        taken.place, taken.state, taken._locked = self.place, self.state, self._locked
        self.fd = -1
        return taken

    @property
    def path(self) -> Path:
        """The directory's path as of the last `refresh` or `move`."""
        return Path(_pod_path(self.data, self.place, self.uuid))

    def refresh(self) -> bool:
        """Look again for the pod's place and the lock's holder; False once the directory is deleted."""
        while True:
            place = next((place for place in PLACES if self._is_in(place)), None)
            if place is None:
                return False
            held, free = _STATES[place]
            state = held if self._locked or place in _NOT_PROBED or not self._probe() else free
            # A preparer renames first and unlocks then: a free lock means nothing if the pod has moved meanwhile.
            if self._is_in(place):
                self.place, self.state = place, state
                return True

    def lock(self, *, blocking: bool) -> bool:
        """Take the exclusive lock and hold the lock until `close`; False if held elsewhere and not `blocking`."""
        try:
            flock(self.fd, exclusive=True, blocking=blocking)
        except BlockingIOError:
            return False
        self._locked = True
        return True

    def unlock(self) -> None:
        """Give up the lock; the next `refresh` sees the new state."""
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        self._locked = False

    def move(self, place: str, *, durably: bool = True) -> None:
        """Rename the directory to another place; PodError if somebody else moved or deleted it."""
        target = self.data / "pods" / place
        try:
            os.rename(self.path, target / self.uuid)
        except FileNotFoundError as error:
            raise PodError(f'pod "{self.uuid}" is no longer {self.state}: it was moved by another command') from error
        self.place = place
        if durably:
            sync_directory(target)

    def has_file(self, name: str) -> bool:
        """Return whether `name` exists in the pod directory."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def read_file(self, name: str) -> bytes:
        """Return the content of a file of the pod directory; PodError if the file is larger than any should be."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self.fd)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self.path / name)) from error
        with open(fd, "rb") as file:
            data = read_at_most(file, _MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise PodError(f"{self.path / name}: larger than {_MAX_FILE_BYTES} bytes")
        return data

    def _is_in(self, place: str) -> bool:
        try:
            seen = os.stat(_pod_path(self.data, place, self.uuid), follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(seen, os.fstat(self.fd))

    def _probe(self) -> bool:
        """Return whether nobody holds the exclusive lock."""
        try:
            flock(self.fd, exclusive=False, blocking=False)
        except BlockingIOError:
            return False
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return True


def create_pod(data: Path) -> Pod:
    """Make a new pod directory with a random UUID, locked, in the state `preparing`."""
    make_directory(data, 0o770)
    make_directory(data / "pods", 0o750)
    for place in PLACES:
        make_directory(data / "pods" / place, 0o750)
    uuid = str(uuids.uuid4())
    path = Path(_pod_path(data, EMBRYO, uuid))
    make_directory(path, 0o750)
    pod = Pod(data, uuid, os.open(path, _DIRECTORY_FLAGS))
    try:
        pod.lock(blocking=True)
        pod.move(PREPARE)
    except BaseException:
        with pod, suppress(OSError):
            pod.path.rmdir()
        raise
    pod.state = PodState.PREPARING
    return pod


def open_pod(data: Path, uuid: str) -> Pod:
    """Return the pod with exactly this UUID in any place; PodError if there is none."""
    for place in PLACES:
        try:
            fd = os.open(_pod_path(data, place, uuid), _DIRECTORY_FLAGS)
        except FileNotFoundError:
            continue
        pod = Pod(data, uuid, fd)
        try:
            if pod.refresh():
                return pod
        except BaseException:
            pod.close()
            raise
        pod.close()
    raise PodError(f'no matches found for "{uuid}"')


def name_pod(pod: Pod, name: str) -> None:
    """Give a pod a name that no other pod has until removal; PodError if another pod has the name."""
    check_name(name)
    # Of two processes with the same name at once the second sees the first one's.
    with key_lock(pod.data / "locks", "podNames", exclusive=True):
        taken = uuid_of_name(pod.data, name)
        if taken is not None and taken != pod.uuid:
            raise PodError(f'the name "{name}" is taken by pod "{taken}": remove that pod, or rename it (minit rename)')
        _write_name(pod.fd, name)


def find_pod(data: Path, word: str, note: Note) -> Pod:
    """Return the pod named `word`, or the only pod whose UUID starts with `word`, in any case; PodError without one."""
    if not word:
        raise PodError("no UUID given (see `minit list --full`)")
    named = None if is_whole_uuid(word) else uuid_of_name(data, word)
    return open_pod(data, _uuid_of_prefix(data, word, note) if named is None else named)


@contextmanager
def ends_settled(data: Path) -> Iterator[None]:
    """
    Keep starters of ended pods and collectors apart for the length of a with block.

    Both look at a pod's state, and then take the lock or move the pod, which rkt does without a common lock.
    """
    with key_lock(data / "locks", "endedPods", exclusive=True):
        yield


def uuid_of_name(data: Path, name: str) -> str | None:
    """Return the UUID of the pod of a name, None if no pod has it."""
    # In the order of a pod's moves, so that no pod is missed.
    for place in PLACES[:-1]:
        for uuid in pod_uuids(data, place, lambda text: None):
            if read_name(_pod_path(data, place, uuid)) == name:
                return uuid
    return None


def _uuid_of_prefix(data: Path, prefix: str, note: Note) -> str:
    wanted = prefix.lower()
    matches = {
        uuid
        for place in ADDRESSABLE_PLACES
        for uuid in pod_uuids(data, place, note)
        if uuid.startswith(wanted) or uuid.replace("-", "").startswith(wanted)
    }
    if not matches:
        raise PodError(f'no matches found for "{prefix}"')
    if len(matches) > 1:
        raise PodError(f"ambiguous uuid, {len(matches)} matches")
    return matches.pop()


def walk_pods(data: Path, places: Sequence[str], note: Note) -> Iterator[Pod]:
    """Yield the pods in `places` by UUID, each open for one turn of the loop, without pods gone meanwhile."""
    for uuid in sorted({uuid for place in places for uuid in pod_uuids(data, place, note)}):
        try:
            pod = open_pod(data, uuid)
        except PodError:
            continue
        except OSError as error:
            note(f'skipping pod "{uuid}": {describe(error)}')
            continue
        with pod:
            yield pod


def pod_uuids(data: Path, place: str, note: Note) -> list[str]:
    """Return the names of the pods in a place; other entries are noted and left out."""
    try:
        entries = sorted(os.scandir(data / "pods" / place), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    uuids_found = []
    for entry in entries:
        if not entry.is_dir(follow_symlinks=False):
            note(f'unrecognized file "{entry.path}", ignoring')
        elif not _UUID.fullmatch(entry.name.replace("-", "").lower()):
            note(f'"{entry.name}" in {place} is not a pod UUID, ignoring')
        else:
            uuids_found.append(entry.name)
    return uuids_found


def _pod_path(data: Path, place: str, uuid: str) -> str:
    # Text, as a list of many pods asks for many UUIDs.
    return f"{data}/pods/{place}/{uuid}"


def is_whole_uuid(text: str) -> bool:
    """Return whether a text is a UUID to its end, with or without hyphens."""
    return _WHOLE_UUID.fullmatch(text) is not None


def check_name(name: str) -> None:
    """Raise PodError for a text that cannot be a pod's name."""
    if not _NAME.fullmatch(name):
        raise PodError(f'the name of a pod is {_NAME_FORM}: got "{name}"')
    if is_whole_uuid(name):
        raise PodError(f'the name of a pod cannot be a UUID: got "{name}"')


def read_name(directory: int | str) -> str | None:
    """Return the name of the pod with this directory, by descriptor or path; None without a name."""
    # By path in one call: a look-up by name asks every pod.
    at = {"dir_fd": directory} if isinstance(directory, int) else {}
    path = _FILE if isinstance(directory, int) else f"{directory}/{_FILE}"
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, **at)
    except OSError:
        return None
    try:
        text = os.read(fd, 80).decode("ascii", "replace").removesuffix("\n")
    finally:
        os.close(fd)
    return text if _NAME.fullmatch(text) else None


def _write_name(directory: int, name: str) -> None:
    """Record the name of the pod with this directory for good."""
    with suppress(FileNotFoundError):
        os.unlink(_NEW_FILE, dir_fd=directory)  # of somebody who was killed
    fd = os.open(_NEW_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644, dir_fd=directory)
    try:
        os.write(fd, f"{name}\n".encode("ascii"))
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(_NEW_FILE, _FILE, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)
