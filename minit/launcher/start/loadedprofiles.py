"""The AppArmor profiles that the kernel has, apparmor(7)."""

from __future__ import annotations

import os

from minit.podfiles.boundedfile import read_bounded

_MAXIMUM_BYTES = 4 << 20


def read_loaded_profiles(sysfs: str = "/sys") -> frozenset[str] | None:
    """Return the names of the loaded profiles, None for a kernel without AppArmor; OSError where nobody can tell."""
    try:
        enabled = _read(f"{sysfs}/module/apparmor/parameters/enabled")
    except FileNotFoundError:
        return None
    if enabled.strip() != "Y":
        return None
    # `NAME (MODE)`; a name may have spaces.
    lines = _read(f"{sysfs}/kernel/security/apparmor/profiles").splitlines()
    return frozenset(line.rpartition(" (")[0] for line in lines)


def _read(path: str) -> str:
    return os.fsdecode(read_bounded(os.open(path, os.O_RDONLY | os.O_CLOEXEC), path, _MAXIMUM_BYTES))
