"""
The host's ids for a pod with a user namespace: no other pod of the data directory has the same ids.

rkt draws at random and does not look, so now and then two pods have the same ids.
"""

from __future__ import annotations

import os
import random
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import PodError
from minit.base.idrange import SUBORDINATE_REMEDY, HeldIds, IdRange, parse_id_range
from minit.linux.idmapping import read_held_ids
from minit.podfiles import paths
from minit.stage0.files.durable import create_file
from minit.stage0.files.locks import key_lock
from minit.stage0.pods.poddirectory import PLACES, RUN, Note, Pod, PodState, walk_pods

# rkt's: every range has 2^16 ids and begins at a multiple of 2^16, below 2^31.
_COUNT = 1 << 16
_BLOCKS = range(1, 0x8000)

_LOCK = "privateUsersLock"
# The ids for rootless containers of the host's users, subuid(5).
SUBORDINATE_IDS = ("/etc/subuid", "/etc/subgid")


def supports_user_namespaces() -> bool:
    """Return whether the kernel has user namespaces."""
    return os.path.exists("/proc/self/uid_map")


def read_ids(pod: Pod) -> IdRange | None:
    """Return the host's ids of a pod with own users, None for other pods."""
    try:
        return parse_id_range(pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace"))
    except FileNotFoundError:
        return None


def claim_ids(pod: Pod, given: IdRange | None) -> IdRange:
    """
    Choose the ids of a pod in preparation, and write the ids into the pod's directory for stage1's `run`.

    No other pod of the data directory has any of the ids, as long as the pod's files exist, nor do the host's
    subordinate ids. PodError if no ids are left. `given` ids may belong to pods that have ended, or to the host: the
    giver answers for the choice.
    """
    held = read_held_ids()
    with key_lock(pod.data / "locks", _LOCK, exclusive=True):
        # The files are about ids of the machine.
        files = SUBORDINATE_IDS if held is None else ()
        of_users = [ids for file in files for ids in subordinate_ids(Path(file))]
        ids = given or choose_ids([*_ids_of_pods(pod.data), *of_users], held)
        create_file(pod.path / paths.POD_PRIVATE_USERS, str(ids).encode("ascii"), 0o640)
    return ids


@contextmanager
def ids_of_its_own(pod: Pod, record: str | None, note: Note) -> Iterator[None]:
    """
    Keep other pods from being started while the with block starts a pod with `record` as ids, None for none.

    PodError if a running pod has any of the ids, which happens if rkt prepared one of the two pods.
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


def ids_obstacle(given: IdRange | None) -> str | None:
    """Return why no pod can have ids of its own, chosen or `given`, with the remedy; None if a pod can."""
    held = read_held_ids()
    if held is None or (_blocks_of(held) if given is None else held.holds(given)):
        return None
    if given is None:
        return f"--private-users needs {_COUNT} ids beyond the first {_COUNT} of yours: {SUBORDINATE_REMEDY}"
    return f"--private-users={given}: not all of these ids are yours: {SUBORDINATE_REMEDY}"


def _blocks_of(held: HeldIds) -> set[int]:
    """Return the blocks that have a user and a group for each id; the first block is of pods without own ids."""
    users, groups = (
        {block for first, count in ranges for block in range(-(-first // _COUNT), (first + count) // _COUNT)}
        for ranges in (held.users, held.groups)
    )
    return users & groups & {*_BLOCKS}


def choose_ids(taken: list[IdRange], held: HeldIds | None = None) -> IdRange:
    """Return a random range of the ids `held`, None for every id, without ids that are `taken`; PodError if none is."""
    blocks = set(_BLOCKS) if held is None else _blocks_of(held)
    for ids in taken:
        last = min((ids.shift + ids.count - 1) // _COUNT, max(_BLOCKS))
        blocks.difference_update(range(ids.shift // _COUNT, last + 1))
    if not blocks:
        raise PodError("no ids are left for --private-users: remove pods that have ended, with: minit gc")
    return IdRange(shift=random.SystemRandom().choice(sorted(blocks)) * _COUNT, count=_COUNT)


def _ids_of_pods(data: Path) -> Iterator[IdRange]:
    # In the order of a pod's moves, so that a moving pod is met at least once.
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


def subordinate_ids(path: Path, users: Collection[str] | None = None) -> list[IdRange]:
    """Return the ranges of a file, subuid(5), of users by names and numbers, or of all; none without a file."""
    found = []
    with suppress(OSError):
        for line in path.read_text("utf-8", "replace").splitlines():
            # Not by parse_id_range: a user may have more ids than a pod.
            user, *numbers = line.strip().split(":")
            is_wanted = users is None or user in users
            if is_wanted and len(numbers) == 2 and all(number.isascii() and number.isdigit() for number in numbers):
                shift, count = map(int, numbers)
                found.append(IdRange(shift=shift, count=count))
    return found
