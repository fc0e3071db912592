"""The user and group ids that a pod with a user namespace has on the host."""

from __future__ import annotations

from minit.base.value import Value

# (uid_t) -1 is no id. rkt draws its shifts from the half below, kubelets from all.
MAX_HOST_ID = 0xFFFFFFFE
_MAX_DIGITS = 10


class IdRange(Value):
    """
    The `count` ids of the host from `shift` on, which a pod sees as 0 to `count` - 1, users and groups alike.

    user_namespaces(7). The host's root is never among them.
    """

    shift: int
    count: int

    def __str__(self) -> str:
        return f"{self.shift}:{self.count}"

    def describe(self) -> str:
        """Return which ids the pod has, as the end of a line about one that it has not."""
        return f"--private-users maps 0 to {self.count - 1}"

    def to_host(self, number: int) -> int | None:
        """Return what an id of the pod is on the host, None if it is not mapped."""
        return self.shift + number if 0 <= number < self.count else None

    def from_host(self, number: int) -> int | None:
        """Return what an id of the host is in the pod, None if it is not mapped."""
        return number - self.shift if 0 <= number - self.shift < self.count else None

    def overlaps(self, other: IdRange) -> bool:
        """Tell whether an id of the host is in both."""
        return self.shift < other.shift + other.count and other.shift < self.shift + self.count


def parse_id_range(text: str) -> IdRange | None:
    """Return the range that rkt writes as `SHIFT:COUNT`; None if that is none, begins at 0 or ends above 2^32 - 2."""
    words = text.split(":")
    if len(words) != 2 or not all(word.isascii() and word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
        return None
    shift, count = map(int, words)
    if shift == 0 or count == 0 or shift + count - 1 > MAX_HOST_ID:
        return None
    return IdRange(shift=shift, count=count)
