"""
Refusals of system calls that an app's list allows, because they could harm others.

A guard is a few rules beside those of a list, which cannot undo them: of several that hold the strictest counts
(`minit.plan.rights.syscallfilter`).
"""

from __future__ import annotations

from minit.manifest.seccomp import SeccompPolicy
from minit.plan.inputs.origins import Origins
from minit.plan.inputs.runflags import RunFlags

TYPING = "typing"  # into a terminal, for whoever reads from it next
LIMITS = "limits"  # those of other processes
FRAMES = "frames"  # in which the kernel writes a checksum wherever the sender says, behind all rules of a packet filter
VSOCK = "vsock"  # sockets to the host of a virtual machine, which are of no network namespace
FILESYSTEMS = "filesystems"  # new file systems, control groups for one; what is there may be bound elsewhere
MOUNTS = "mounts"  # any mounts, with which CAP_SYS_ADMIN undoes what is read-only or hidden
HOST = "host"  # any mounts and namespaces, keys of the user, files by handles

DEFAULT_GUARDS = frozenset((TYPING, LIMITS, FRAMES, VSOCK, FILESYSTEMS, HOST))
"""Those of an app for which nobody asks for anything else."""


def plan_guards(
    flags: RunFlags,
    origins: Origins,
    seccomp: SeccompPolicy | None,
    *,
    has_profile: bool,
    is_unconfined: bool,
    is_admin: bool,
    wants_vsock: bool,
) -> frozenset[str]:
    """
    Return the guards of an app whose list of system calls is `seccomp`, None for all.

    `has_profile` tells that the caller gives a profile, `is_unconfined` that the caller names the one without a filter,
    `is_admin` that the caller gives CAP_SYS_ADMIN.

    No filter tells one file system from another, and with a new mount of one an app could have the files of control
    groups. So only a caller allows new mounts, who disables both restrictions or says that the app is unconfined.
    """
    if flags.disable_seccomp and flags.disable_capabilities:
        return frozenset()
    if has_profile and (origins.capabilities is None or flags.disable_capabilities):
        if is_unconfined:
            return frozenset()
        return frozenset((TYPING, LIMITS, FRAMES, FILESYSTEMS, *((MOUNTS,) if is_admin else ())))
    guards = {FILESYSTEMS}
    if not flags.disable_seccomp:
        guards |= {TYPING, LIMITS, FRAMES}
        if not wants_vsock and (seccomp is not None or not origins.caller_calls):
            guards.add(VSOCK)
    if not (origins.caller_calls or flags.disable_seccomp) or (
        origins.capabilities is not None and not flags.disable_capabilities
    ):
        guards.add(HOST)
    return frozenset(guards)
