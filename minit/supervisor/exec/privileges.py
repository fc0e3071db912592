"""
Becoming a program of an app, with no more than it may have and no keys of the caller.

This stands here once. The app, its event handlers and what is entered go through it in three steps, between which each
follows paths of the image: `give_up_capabilities`, `become`, and `install_filters` right before the exec.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence

from minit import syscalls
from minit.manifest.capabilities import capability_mask
from minit.plan.confinement import Confinement
from minit.process import reset_signals

# Of what a program does not get: changing the user, and seccomp(2) without no_new_privs.
_UNTIL_EXEC = capability_mask("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN")


# What this process, or one that forked it, has removed from the bounding set.
_dropped = 0


def drop_bounding_set(kept: int | None) -> None:
    """Remove from the bounding set what is not in the mask `kept`; None keeps everything."""
    global _dropped
    if kept is None:
        return
    gone = syscalls.every_capability() & ~kept
    for number in range(gone.bit_length()):
        if (gone & ~_dropped) >> number & 1:
            syscalls.drop_bounding_capability(number)
    _dropped |= gone


def give_up_capabilities(confinement: Confinement) -> None:
    """
    Keep of all capabilities those of the new bounding set, and what is left to do before an exec takes.

    From here on paths are followed as the new program could: with CAP_SYS_PTRACE a working directory or a "#!" line
    below /proc/1 would lead into the stage1 root. The inheritable and ambient sets become empty, or files with
    inheritable capabilities would gain them.
    """
    drop_bounding_set(confinement.bounding)
    effective, permitted, _ = syscalls.get_capabilities()
    kept = ~_dropped | _UNTIL_EXEC
    syscalls.set_capabilities(effective & kept, permitted & kept, 0)
    syscalls.clear_ambient_capabilities()


def become(confinement: Confinement, begin: Callable[[str], None]) -> None:
    """Be what the program is to be, but for filters that can wait; `begin` gets the name of each step."""
    begin("join a session keyring")
    # While it is root: keys of others are counted against small quotas, across all pods.
    leave_keyring()
    if confinement.installs_filters_as_root:
        begin("install seccomp filters")
        _install(confinement)
    begin("change user")
    become_user(confinement.uid, confinement.gid, confinement.supplementary_gids)
    # Other ids undid it.
    syscalls.set_dumpable(False)
    if confinement.no_new_privileges:
        begin("set no_new_privs")
        syscalls.set_no_new_privileges()
    begin("reset signals")
    reset_signals()


def install_filters(confinement: Confinement) -> None:
    """Install what `become` has left: of what the program may not call anything may have been needed until here."""
    if not confinement.installs_filters_as_root:
        _install(confinement)


def _install(confinement: Confinement) -> None:
    for program in confinement.filters:
        syscalls.install_seccomp_filter(program)


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
