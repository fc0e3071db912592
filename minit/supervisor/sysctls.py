"""Settings of the kernel for the namespaces that this process is in."""

from __future__ import annotations

from collections.abc import Iterable

from minit.plan.networks.kernelsettings import Sysctl
from minit.reaper.record import write_file


def write_sysctls(settings: Iterable[Sysctl]) -> None:
    """Write settings; OSError names the file of one that this kernel has not, or whose value it refuses."""
    for setting in settings:
        write_file(f"/proc/sys/{setting.path}", setting.value.encode("ascii"))
