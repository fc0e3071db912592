"""
The host's ids for a pod with a user namespace: chosen so that no other pod of the data directory has them.

rkt draws at random and does not look, which is why a pod's ids are also those of another one now and then.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from minit.base.errors import PodError
from minit.base.idrange import IdRange, parse_id_range
from minit.podfiles import paths
from minit.stage0.files.durable import create_file
from minit.stage0.files.locks import key_lock
from minit.stage0.pods.poddirectory import PLACES, RUN, Note, Pod, PodState, walk_pods

# rkt's: every range has 2^16 ids and begins at a multiple of that, below 2^31.
_COUNT = 1 << 16
_BLOCKS = range(1, 0x8000)

_LOCK = "privateUsersLock"
# Whose ids the rootless containers of the host's users are given, subuid(5).
_SUBORDINATE_IDS = ("/etc/subuid", "/etc/subgid")


def supports_user_namespaces() -> bool:
    """Return whether the kernel has user namespaces."""
    return os.path.exists("/proc/self/uid_map")


def read_ids(pod: Pod) -> IdRange | None:
    """Return the host's ids of a pod with users of its own, None if it has none."""
    try:
        return parse_id_range(pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace"))
    except FileNotFoundError:
        return None


def claim_ids(pod: Pod, given: IdRange | None) -> IdRange:
    """
    Choose the ids of a pod that is being prepared, and write them into its directory, where stage1's `run` gets them.

    No other pod of the data directory has any of them, as long as its files are there, nor do the host's subordinate
    ids. PodError if there are no more. Those that are `given` may be of pods that have ended, or the host's: whoever
    gives them answers for that.
    """
    with key_lock(pod.data / "locks", _LOCK, exclusive=True):
        ids = given or choose_ids([*_ids_of_pods(pod.data), *_subordinate_ids()])
        create_file(pod.path / paths.POD_PRIVATE_USERS, str(ids).encode("ascii"), 0o640)
    return ids


@contextmanager
def ids_of_its_own(pod: Pod, record: str | None, note: Note) -> Iterator[None]:
    """
    Keep other pods from being started while the with block starts one whose `record` of ids is this, None for none.

    PodError if a pod that runs has any of its ids, which happens if rkt prepared one of them.
    """
    ids = None if record is None else parse_id_range(record)
    if ids is None:  # what is none is for stage1 to refuse
        yield
        return
    with key_lock(pod.data / "locks", _LOCK, exclusive=True):
        for other in walk_pods(pod.data, (RUN,), note):
            if other.uuid == pod.uuid or other.state is not PodState.RUNNING:
                continue
            theirs = _read(other.path / paths.POD_PRIVATE_USERS)
            if theirs is not None and theirs.overlaps(ids):
                raise PodError(
                    f'pod "{pod.uuid}" has ids of the running pod "{other.uuid}" on the host ({ids} and {theirs}):'
                    " wait for its end, or prepare the pod again"
                )
        yield


def choose_ids(taken: list[IdRange]) -> IdRange:
    """Return a random range that has none of the ids that are `taken`; PodError if there is none."""
    blocks = set(_BLOCKS)
    for ids in taken:
        last = min((ids.shift + ids.count - 1) // _COUNT, max(_BLOCKS))
        blocks.difference_update(range(ids.shift // _COUNT, last + 1))
    if not blocks:
        raise PodError("no ids are left for --private-users: remove pods that have ended, with: minit gc")
    return IdRange(shift=random.SystemRandom().choice(sorted(blocks)) * _COUNT, count=_COUNT)


def _ids_of_pods(data: Path) -> Iterator[IdRange]:
    # Along the way that pods go, so that one on the move is met at least once.
    for place in PLACES:
        for record in (data / "pods" / place).glob(f"*/{paths.POD_PRIVATE_USERS}"):
            ids = _read(record)
            if ids is not None:
                yield ids


def _read(record: Path) -> IdRange | None:
    try:
        return parse_id_range(record.read_text("ascii", "replace"))
    except OSError:  # no ids of its own, or the pod is gone, and its ids are free
        return None


def _subordinate_ids() -> Iterator[IdRange]:
    for path in _SUBORDINATE_IDS:
        try:
            lines = Path(path).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            # Not by parse_id_range: what is too much for a pod may be given to a user all the same.
            _, *numbers = line.strip().split(":")
            if len(numbers) == 2 and all(number.isascii() and number.isdigit() for number in numbers):
                shift, count = map(int, numbers)
                yield IdRange(shift=shift, count=count)
