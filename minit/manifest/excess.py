"""
The excess of isolators over the defaults of an app.

An image may take away from the defaults. More is the administrator's to give.
"""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.value import Value
from minit.manifest.app import CAPABILITIES_RETAIN, CPU_SHARES, OOM_SCORE_ADJ, SECCOMP_REMOVE, SECCOMP_RETAIN, Isolator
from minit.manifest.capabilities import DEFAULT, capability_names, read_capability_sets
from minit.manifest.reader import place
from minit.manifest.seccomp import DEFAULT_CALLS, MINIMUM_CALLS, SeccompPolicy, plan_seccomp

CAPABILITIES = "capabilities"
SECCOMP = "seccomp"
PRIORITY = "priority"

_DEFAULT_CPU_SHARES = 1024
_MOST_NAMES = 3


class Excess(Value):
    """The excess of an isolator over the default: `kind` is a constant above, `what` is for a message."""

    kind: str
    isolator: str
    what: str

    def describe(self) -> str:
        """Return the excess as a part of a sentence."""
        return f"{self.isolator} ({self.what})"


def excess_of(app: str, isolators: Sequence[Isolator]) -> tuple[Excess, ...]:
    """Return the excess of an app's isolators over the default; ManifestError for bad values."""
    found = []
    retained, _ = read_capability_sets(isolators, place(f'app "{app}"', "isolators"))
    if beyond := retained & ~DEFAULT:
        found.append(Excess(kind=CAPABILITIES, isolator=CAPABILITIES_RETAIN, what=" ".join(capability_names(beyond))))
    policy, _ = plan_seccomp(app, isolators)
    if calls := _calls_beyond(policy):
        [name] = [isolator.name for isolator in isolators if isolator.name in (SECCOMP_RETAIN, SECCOMP_REMOVE)]
        found.append(Excess(kind=SECCOMP, isolator=name, what=calls))
    found += [
        Excess(kind=PRIORITY, isolator=isolator.name, what=str(isolator.value))
        for isolator in isolators
        if isinstance(isolator.value, int) and _is_above(isolator.name, isolator.value)
    ]
    return tuple(found)


def _calls_beyond(policy: SeccompPolicy | None) -> str:
    """Return the system calls of a policy beyond the default, as a text; empty without any."""
    if policy is None:
        return "every system call"
    listed = policy.names or frozenset()
    if policy.is_blacklist:
        return f"every system call but {len(listed)}"
    names = sorted(listed - DEFAULT_CALLS - MINIMUM_CALLS)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def _is_above(name: str, value: int) -> bool:
    return (name == OOM_SCORE_ADJ and value < 0) or (name == CPU_SHARES and value > _DEFAULT_CPU_SHARES)
