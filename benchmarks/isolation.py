"""The cost of isolation until the first instruction of an app, against runc and crun, filtered and not."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.first_instruction import RUNS, minit, oci, peer
from benchmarks.table import Measure, compare
from benchmarks.world import world
from minit.manifest.seccomp import ANCIENT_CALLS, DEFAULT_CALLS, MINIMUM_CALLS
from minit.plan.rights.protection import plan_protection

ALLOWED = sorted(MINIMUM_CALLS | DEFAULT_CALLS)
_PROTECTION = plan_protection(disabled=False, own_network=True)
# The same list in the words of OCI, without what it cannot say about arguments.
_PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "architectures": ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86"],
    "syscalls": [
        {"names": ALLOWED, "action": "SCMP_ACT_ALLOW"},
        {"names": sorted(ANCIENT_CALLS - {*ALLOWED}), "action": "SCMP_ACT_KILL_PROCESS"},
    ],
}
# With what minit hides, too.
SAME = {
    "seccomp": _PROFILE,
    "maskedPaths": _PROTECTION.masked,
    "readonlyPaths": _PROTECTION.read_only,
}
ISOLATOR = {"name": "os/linux/seccomp-retain-set", "value": {"set": ALLOWED}}

NOTHING = ("--disable-seccomp", "--disable-paths", "--disable-capabilities-restriction")


def main() -> None:
    """Print the table."""
    with world() as bench:
        measures: dict[str, Measure | str] = {
            "minit, by default": lambda: minit(bench),
            "minit, no filter": lambda: minit(bench, "--disable-seccomp"),
            "minit, no filter, paths, devices or capabilities": lambda: minit(bench, *NOTHING),
            "minit, the same list as an isolator": lambda: minit(bench, isolators=[ISOLATOR]),
        }
        for runtime in ("runc", "crun"):
            measures[f"{runtime}, no filter"] = peer(runtime, partial(oci, bench, runtime))
            measures[f"{runtime}, the same list"] = peer(runtime, partial(oci, bench, runtime, SAME))
        compare("exec to first instruction, isolated", "ms", measures, RUNS)
