"""User and group ids: the host's for a pod with a user namespace, and those that a user namespace has."""

from __future__ import annotations

from minit.base.value import Value

# (uid_t) -1 is no id. rkt draws shifts from the lower half, kubelets from the whole range.
MAX_HOST_ID = 0xFFFFFFFE
_MAX_DIGITS = 10
SUBORDINATE_REMEDY = "let root add subordinate ids (see docs/rootless.md)"


class IdRange(Value):
    """
    The `count` ids of the host from `shift` on, which a pod sees as 0 to `count` - 1, users and groups alike.

    user_namespaces(7). The host's root is never in the range.
    """

    shift: int
    count: int

    def __str__(self) -> str:
        return f"{self.shift}:{self.count}"

    def describe(self) -> str:
        """Return the ids of the pod as a text, for the end of a line about another id."""
        return f"--private-users maps 0 to {self.count - 1}"

    def to_host(self, number: int) -> int | None:
        """Return the host's id for an id of the pod, None if unmapped."""
        return self.shift + number if 0 <= number < self.count else None

    def from_host(self, number: int) -> int | None:
        """Return the pod's id for an id of the host, None if unmapped."""
        return number - self.shift if 0 <= number - self.shift < self.count else None

    def overlaps(self, other: IdRange) -> bool:
        """Tell whether an id of the host is in both."""
        return self.shift < other.shift + other.count and other.shift < self.shift + self.count


class HeldIds(Value):
    """
    The users and groups that a user namespace has, as the first id and the number of ids of each range.

    `sets_groups` tells whether a process there may change its supplementary groups (user_namespaces(7)).
    """

    users: tuple[tuple[int, int], ...]
    groups: tuple[tuple[int, int], ...]
    sets_groups: bool = True
    remedy: str = SUBORDINATE_REMEDY

    @property
    def is_single(self) -> bool:
        """Tell whether root is the only user and the only group."""
        return self.users == self.groups == _ROOT_ALONE

    def holds(self, ids: IdRange) -> bool:
        """Tell whether there is a user and a group for each id of a range."""
        return all(
            any(first <= ids.shift and ids.shift + ids.count <= first + count for first, count in ranges)
            for ranges in (self.users, self.groups)
        )

    def find_lack(self, uid: int | None, gid: int | None) -> str | None:
        """Return which of a user and a group is missing, with the remedy; None if both are there. None asks nothing."""
        for kind, number, ranges in (("user", uid, self.users), ("group", gid, self.groups)):
            if number is not None and not _holds(ranges, number):
                return f"there is no {kind} {number}, only {_describe(ranges)}: {self.remedy}"
        return None


# Users and groups of a user without subordinate ids.
_ROOT_ALONE = ((0, 1),)


def _holds(ranges: tuple[tuple[int, int], ...], number: int) -> bool:
    return any(first <= number < first + count for first, count in ranges)


def _describe(ranges: tuple[tuple[int, int], ...]) -> str:
    return ", ".join(str(first) if count == 1 else f"{first} to {first + count - 1}" for first, count in ranges)


def parse_id_range(text: str) -> IdRange | None:
    """Return the range in rkt's form `SHIFT:COUNT`; None for other texts, a range from 0 on or beyond 2^32 - 2."""
    words = text.split(":")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return None
    shift, count = map(int, words)
    if shift == 0 or count == 0 or shift + count - 1 > MAX_HOST_ID:
        return None
    return IdRange(shift=shift, count=count)
