"""Becoming the user of an app, with no more capabilities than its bounding set and no keys of the caller."""

from __future__ import annotations

import errno
import os

from minit import syscalls
from minit.manifest.capabilities import capability_mask

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

# Of what a program does not get: changing the user, and seccomp(2) without no_new_privs.
_UNTIL_EXEC = capability_mask("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN")


def drop_bounding_set(kept: int | None) -> None:
    """Remove from the bounding set what is not in the mask `kept`; None keeps everything."""
    if kept is None:
        return
    for number in range(syscalls.last_capability() + 1):
        if not kept >> number & 1:
            syscalls.drop_bounding_capability(number)


def give_up_capabilities() -> None:
    """
    Keep of all capabilities those of the bounding set and what is left to do before an exec takes.

    From here on paths are followed as the new program could: with CAP_SYS_PTRACE a working directory or a "#!" line
    below /proc/1 would lead into the stage1 root. The inheritable and ambient sets become empty, or files with
    inheritable capabilities would gain them.
    """
    effective, permitted, _ = syscalls.get_capabilities()
    kept = syscalls.bounding_set() | _UNTIL_EXEC
    syscalls.set_capabilities(effective & kept, permitted & kept, 0)
    syscalls.clear_ambient_capabilities()


def leave_keyring() -> None:
    """Have a new empty session keyring, in place of the one that this process shares with its caller."""
    try:
        syscalls.join_session_keyring()
    except OSError as error:
        # A kernel without keyrings, or a filter around all of minit: an app cannot reach a key either then.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def become_user(uid: int, gid: int, supplementary_gids: Sequence[int]) -> None:
    """Take exactly these ids; leaving uid 0 drops all capabilities."""
    os.setgroups(supplementary_gids)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
