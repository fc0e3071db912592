"""
The host's ids for a pod with a user namespace: chosen so that no other pod of the data directory has them.

rkt draws at random and does not look, which is why a pod's ids are also those of another one now and then.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

from minit import paths
from minit.errors import PodError
from minit.idrange import IdRange, parse_id_range
from minit.stage0.durable import create_file
from minit.stage0.locks import key_lock
from minit.stage0.pods import PLACES, Pod

# rkt's: every range has 2^16 ids and begins at a multiple of that, below 2^31.
_COUNT = 1 << 16
_BLOCKS = range(1, 0x8000)

_LOCK = "privateUsersLock"
# Whose ids the rootless containers of the host's users are given, subuid(5).
_SUBORDINATE_IDS = ("/etc/subuid", "/etc/subgid")


def supports_user_namespaces() -> bool:
    """Return whether the kernel has user namespaces."""
    return os.path.exists("/proc/self/uid_map")


def claim_ids(pod: Pod) -> IdRange:
    """
    Choose the ids of a pod that is being prepared, and write them into its directory, where stage1's `run` gets them.

    No other pod of the data directory has any of them, as long as its files are there, nor do the host's subordinate
    ids. PodError if there are no more.
    """
    with key_lock(pod.data / "locks", _LOCK, exclusive=True):
        taken = [*_ids_of_pods(pod.data), *_subordinate_ids()]
        ids = choose_ids(taken)
        create_file(pod.path / paths.POD_PRIVATE_USERS, str(ids).encode("ascii"), 0o640)
    return ids


def choose_ids(taken: list[IdRange]) -> IdRange:
    """Return a random range that has none of the ids that are `taken`; PodError if there is none."""
    blocks = set(_BLOCKS)
    for ids in taken:
        blocks.difference_update(range(ids.shift // _COUNT, (ids.shift + ids.count - 1) // _COUNT + 1))
    if not blocks:
        raise PodError("no ids are left for --private-users: remove pods that have ended, with: minit gc")
    return IdRange(shift=random.SystemRandom().choice(sorted(blocks)) * _COUNT, count=_COUNT)


def _ids_of_pods(data: Path) -> Iterator[IdRange]:
    # Along the way that pods go, so that one on the move is met at least once.
    for place in PLACES:
        for record in (data / "pods" / place).glob(f"*/{paths.POD_PRIVATE_USERS}"):
            try:
                ids = parse_id_range(record.read_text("ascii", "replace"))
            except OSError:  # the pod is gone, and its ids are free
                continue
            if ids is not None:
                yield ids


def _subordinate_ids() -> Iterator[IdRange]:
    for path in _SUBORDINATE_IDS:
        try:
            lines = Path(path).read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            _, _, numbers = line.partition(":")
            ids = parse_id_range(numbers.strip())
            if ids is not None:
                yield ids
