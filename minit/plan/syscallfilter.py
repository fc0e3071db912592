"""
From a seccomp policy to the filters that enforce it, with system calls still by name.

An action is what the kernel is to be told, SECCOMP_RET_* of seccomp(2). Several filters answer together: of their
actions the kernel takes the least permissive.
"""

from __future__ import annotations

import errno

from minit.manifest.syscallsets import ANCIENT, DEFAULT, MINIMUM
from minit.value import Value

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from minit.manifest.seccomp import SeccompPolicy

KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
_RET_ERRNO = 0x00050000

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
# The kernel takes an int: a program could hide the number below bits that only a filter looks at.
IOCTL_MASK = 0xFFFFFFFF
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)


class Rule(Value):
    """
    The action for a system call; with `argument`, its number from 0, only if its bits in `mask` are those of `value`.
    """

    call: str
    action: int
    argument: int | None = None
    mask: int = 0
    value: int = 0


class Filter(Value):
    """Rules of which no two are about the same calls, and the action for what none of them is about."""

    default: int
    rules: tuple[Rule, ...]


def fail_with(error: int) -> int:
    """Return the action by which a system call fails with an errno."""
    return _RET_ERRNO | error


def filters_of(policy: SeccompPolicy) -> tuple[Filter, ...]:
    """
    Return the filters of a policy, in the order in which they have to be installed.

    A call that a whitelist does not have is refused if it existed when rkt's lists were written; a newer one fails
    with ENOSYS, as it would have in a kernel of that time, and whoever tries it does without.
    """
    refusal = KILL if policy.error is None else fail_with(policy.error)
    if policy.is_blacklist:
        names = policy.names or frozenset()
        guards = (rule for rule in _guards(policy) if rule.call not in names)
        return (Filter(default=ALLOW, rules=(*_rules(names, refusal), *guards)),)
    allowed = MINIMUM | (DEFAULT if policy.names is None else policy.names)
    unknown = fail_with(errno.ENOSYS)
    refused = () if refusal == unknown else _rules(ANCIENT - allowed, refusal)
    return (
        # A filter of its own: where a call is allowed, no rule of the same filter can refuse some uses of it.
        Filter(default=ALLOW, rules=tuple(_guards(policy))),
        Filter(default=unknown, rules=(*_rules(allowed, ALLOW), *refused)),
    )


def _rules(names: Iterable[str], action: int) -> tuple[Rule, ...]:
    # Sorted, so that the same policy gives the same bytes.
    return tuple(Rule(call=name, action=action) for name in sorted(names))


def _guards(policy: SeccompPolicy) -> list[Rule]:
    """Return what is refused in calls that a filter allows."""
    refusal = fail_with(errno.EPERM)
    # By these two a program types into its terminal, for whoever reads from it next.
    rules = [
        Rule(call="ioctl", action=refusal, argument=1, mask=IOCTL_MASK, value=request)
        for request in (_TIOCSTI, _TIOCLINUX)
    ]
    if policy.is_default_list:
        # Its flags do what unshare(2) does, which is not in the list.
        rules += [Rule(call="clone", action=refusal, argument=0, mask=bit, value=bit) for bit in _NEW_NAMESPACES]
    return rules
