"""
Becoming a program of an app, with no more than its rights and no keys of the caller.

The app, its event handlers and an entered command all end in `become_program`. The `Confinement` has the differences,
beside two points on the way where each does something of its own; a command is forked at the first.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeAlias

from minit.base.errors import Step
from minit.linux import syscalls
from minit.linux.attributes import Limit
from minit.linux.process import hold_limits, reset_signals
from minit.manifest.capabilities import capability_mask
from minit.plan.confinement import Confinement
from minit.reaper.diagnose import check_exec
from minit.reaper.exit_status import STEP_EXEC

# As execve(2) takes a command: the path, the arguments, and the environment.
Command: TypeAlias = tuple[str | bytes, list[bytes], Mapping[bytes, bytes]]

# Rights kept until the exec: changing the user, and seccomp(2) without no_new_privs.
_UNTIL_EXEC = capability_mask("CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP", "CAP_SYS_ADMIN")
_PROFILE_OF_EXEC = "/proc/self/attr/apparmor/exec"
_FOR_FILTERS = capability_mask("CAP_SYS_ADMIN")


# Capabilities removed from the bounding set by this process, or by an earlier one before the fork.
_dropped = 0


def dropped() -> int:
    """Return the mask of the capabilities that have left the bounding set."""
    return _dropped


def note_dropped(mask: int) -> None:
    """Note what has left the bounding set in another program of this process."""
    global _dropped
    _dropped = mask


def choose_profile(confinement: Confinement) -> None:
    """
    Have the next exec of this process, or of a child, take the AppArmor profile; apparmor(7).

    To be called before the root of the app is entered: a volume at /proc there would get the name.
    """
    if confinement.apparmor_profile is not None:
        with Step("choose the AppArmor profile"):
            fd = os.open(_PROFILE_OF_EXEC, os.O_WRONLY | os.O_CLOEXEC)
            os.write(fd, b"exec " + os.fsencode(confinement.apparmor_profile))
            os.close(fd)


def drop_bounding_set(kept: int | None) -> None:
    """Remove capabilities outside of the mask `kept` from the bounding set; None keeps everything."""
    global _dropped
    if kept is None:
        return
    gone = syscalls.every_capability() & ~kept
    for number in range(gone.bit_length()):
        if (gone & ~_dropped) >> number & 1:
            syscalls.drop_bounding_capability(number)
    _dropped |= gone


def execute(
    confinement: Confinement, limits: Sequence[Limit], look_up: Callable[[], None], get_ready: Callable[[], Command]
) -> NoReturn:
    """
    Be the program, by the last steps of a process of ours.

    `look_up` follows paths of the manifest and the image, with no more capabilities than the program could.
    """
    give_up_capabilities(confinement)
    look_up()
    become_program(confinement, limits, get_ready)


def become_program(confinement: Confinement, limits: Sequence[Limit], get_ready: Callable[[], Command]) -> NoReturn:
    """
    Be the program, in a process that has given up its capabilities.

    `get_ready` does the rest of the work, as the program's user, and returns the command to execute. `limits` are the
    program's, and not of the work before: a program may get less memory than an interpreter takes.
    """
    with Step("join a session keyring"):
        # While root: keys of others are counted against small quotas, across all pods.
        leave_keyring()
    with Step("change user"):
        if confinement.needs_right_to_filters:
            syscalls.keep_capabilities()
        groups = confinement.supplementary_gids if confinement.sets_groups else None
        become_user(confinement.uid, confinement.gid, groups)
        if confinement.needs_right_to_filters:
            # Not effective, so that all work before the filters is done as that user; an exec takes the right.
            syscalls.set_capabilities(0, _FOR_FILTERS, 0)
        # The change of ids undid an earlier setting.
        syscalls.set_dumpable(False)
    if confinement.no_new_privileges:
        with Step("set no_new_privs"):
            syscalls.set_no_new_privileges()
    with Step("reset signals"):
        reset_signals()
    path, arguments, environment = get_ready()
    if confinement.has_own_filters:
        with Step(STEP_EXEC):
            # Filters may leave no way to report a failed exec.
            check_exec(os.fsdecode(path))
    with Step("set resource limits"):
        hold_limits(limits)
    # Last: until here the process may need system calls refused to the program.
    _install_filters(confinement)
    with Step(STEP_EXEC):
        os.execve(path, arguments, environment)


def give_up_capabilities(confinement: Confinement) -> None:
    """
    Keep the capabilities of the new bounding set, and those for the work before an exec.

    From here on paths are followed as the new program could: with CAP_SYS_PTRACE a working directory or a "#!" line
    below /proc/1 would lead into the stage1 root. The inheritable and ambient sets become empty, or files with
    inheritable capabilities would gain capabilities.
    """
    with Step("drop capabilities"):
        drop_bounding_set(confinement.bounding)
        effective, permitted, _ = syscalls.get_capabilities()
        kept = ~_dropped | _UNTIL_EXEC
        syscalls.set_capabilities(effective & kept, permitted & kept, 0)
        syscalls.clear_ambient_capabilities()


def _install_filters(confinement: Confinement) -> None:
    if confinement.filters:
        with Step("install seccomp filters"):
            if confinement.needs_right_to_filters:
                syscalls.set_capabilities(_FOR_FILTERS, _FOR_FILTERS, 0)
            for program in confinement.filters:
                syscalls.install_seccomp_filter(program)


def leave_keyring() -> None:
    """Have a new empty session keyring, in place of the one shared with the caller."""
    try:
        syscalls.join_session_keyring()
    except OSError as error:
        # A kernel without keyrings, or a filter around all of minit: an app cannot reach a key either then.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def become_user(uid: int, gid: int, supplementary_gids: Sequence[int] | None, saved_uid: int | None = None) -> None:
    """
    Take exactly these ids, and with None keep the groups; leaving uid 0 drops all capabilities, unless kept.

    The saved user is another one if given; -1 keeps the present one.
    """
    if supplementary_gids is not None:
        os.setgroups(supplementary_gids)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid if saved_uid is None else saved_uid)
