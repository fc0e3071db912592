"""Becoming the user of an app, with no more capabilities than its bounding set."""

from __future__ import annotations

import os

from minit import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def drop_bounding_set(kept: int | None) -> None:
    """Remove from the bounding set what is not in the mask `kept`; None keeps everything."""
    if kept is None:
        return
    for number in range(syscalls.last_capability() + 1):
        if not kept >> number & 1:
            syscalls.drop_bounding_capability(number)


def clear_inheritable() -> None:
    """Empty the inheritable and ambient sets, or files with inheritable capabilities would gain them."""
    effective, permitted, _ = syscalls.get_capabilities()
    syscalls.set_capabilities(effective, permitted, 0)
    syscalls.clear_ambient_capabilities()


def become_user(uid: int, gid: int, supplementary_gids: Sequence[int]) -> None:
    """Take exactly these ids; leaving uid 0 drops all capabilities."""
    os.setgroups(supplementary_gids)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
