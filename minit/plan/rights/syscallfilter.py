"""
From a seccomp policy to the filter that enforces it, with system calls still by name.

An action is what the kernel is to be told, SECCOMP_RET_* of seccomp(2). Several filters answer together: of their
actions the kernel takes the least permissive.
"""

from __future__ import annotations

import errno
from collections.abc import Iterable

from minit.base.value import Value, replace
from minit.manifest.seccomp import SeccompPolicy
from minit.manifest.syscallsets import ANCIENT, DEFAULT, MINIMUM
from minit.plan.rights.guards import FILESYSTEMS, FRAMES, HOST, LIMITS, MOUNTS, TYPING, VSOCK

KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
_RET_ERRNO = 0x00050000

# How an argument is compared: SCMP_CMP_* of seccomp_rule_add(3).
UNEQUAL, LESS, AT_MOST, EQUAL, AT_LEAST, GREATER, MASKED_EQUAL = range(1, 8)

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
# The kernel takes an int: a program could hide the number below bits that only a filter looks at.
INT_MASK = 0xFFFFFFFF
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
# With one of these flags mount(2) works on mounts that are there: MS_REMOUNT, BIND, MOVE; UNBINDABLE, PRIVATE, SLAVE,
# SHARED. The kernel takes the upper half for nothing if it is this magic number, though it looks like some of them.
_MOVED_MOUNT = 0x20 | 0x1000 | 0x2000
_CHANGED_MOUNT = 0x20000 | 0x40000 | 0x80000 | 0x100000
_MAGIC, _MAGIC_MASK = 0xC0ED0000, 0xFFFF0000
_AF_VSOCK = 40
_AF_XDP = 44
_SOL_PACKET = 263
# PACKET_VNET_HDR, and PACKET_VNET_HDR_SZ of Linux 6.5: frames then come with the place of their checksum.
_FRAME_HEADERS = (15, 24)
_MOUNT_CALLS = (
    *("mount", "umount", "umount2", "pivot_root", "fsopen", "fsconfig", "fsmount", "fspick", "move_mount", "open_tree"),
    *("open_tree_attr", "mount_setattr"),
)
_HOST_CALLS = (
    *("unshare", "setns", "add_key", "request_key", "keyctl", "name_to_handle_at", "open_by_handle_at"),
    *_MOUNT_CALLS,
)


class Test(Value):
    """An argument of a call, its number from 0, and what is to hold of it; the `mask` is for MASKED_EQUAL alone."""

    argument: int
    value: int
    mask: int = 0xFFFFFFFFFFFFFFFF
    operator: int = MASKED_EQUAL


class Rule(Value):
    """The action for a system call, if all tests of its arguments hold."""

    call: str
    action: int
    tests: tuple[Test, ...] = ()


class Filter(Value):
    """Rules, of which the strictest counts that holds, and the action for what none of them is about."""

    default: int
    rules: tuple[Rule, ...]


def fail_with(error: int) -> int:
    """Return the action by which a system call fails with an errno."""
    return _RET_ERRNO | error


def with_calls(policy: SeccompPolicy, calls: frozenset[str]) -> SeccompPolicy:
    """Return a policy that allows some more calls."""
    if not policy.is_blacklist:
        return replace(policy, opened=policy.opened | calls)
    return replace(policy, names=(policy.names or frozenset()) - calls)


def filter_of(policy: SeccompPolicy | None, guards: frozenset[str]) -> Filter | None:
    """
    Return the filter of a policy and of guards, which refuse some uses of what it allows; None if neither is there.

    A call that a whitelist does not have is refused if it existed when rkt's lists were written; a newer one fails with
    ENOSYS, as it would have in a kernel of that time, and whoever tries it does without.
    """
    opened = frozenset() if policy is None else policy.opened
    guarding = tuple(rule for guard in sorted(guards) for rule in _GUARDS[guard] if rule.call not in opened)
    if policy is None:
        return Filter(default=ALLOW, rules=guarding) if guarding else None
    refusal = KILL if policy.error is None else fail_with(policy.error)
    if policy.is_blacklist:
        return Filter(default=ALLOW, rules=(*_rules(policy.names or (), refusal), *guarding))
    allowed = MINIMUM | (DEFAULT if policy.names is None else policy.names) | opened
    unknown = fail_with(errno.ENOSYS)
    refused = () if refusal == unknown else _rules(ANCIENT - allowed, refusal)
    guarding = tuple(rule for rule in guarding if rule.call in allowed)
    return Filter(default=unknown, rules=(*_rules(allowed, ALLOW), *refused, *guarding))


def _rules(names: Iterable[str], action: int) -> tuple[Rule, ...]:
    # Sorted, so that the same policy gives the same bytes.
    return tuple(Rule(call=name, action=action) for name in sorted(names))


def _refuse(call: str, *tests: Test, error: int = errno.EPERM) -> Rule:
    return Rule(call=call, action=fail_with(error), tests=tests)


_GUARDS = {
    TYPING: [_refuse("ioctl", Test(argument=1, mask=INT_MASK, value=request)) for request in (_TIOCSTI, _TIOCLINUX)],
    # To read them does no harm.
    LIMITS: [
        _refuse(
            "prlimit64",
            Test(argument=0, value=0, operator=UNEQUAL),
            Test(argument=2, value=0, operator=UNEQUAL),
        )
    ],
    FRAMES: [
        *(
            _refuse(
                "setsockopt",
                Test(argument=1, mask=INT_MASK, value=_SOL_PACKET),
                Test(argument=2, mask=INT_MASK, value=option),
            )
            for option in _FRAME_HEADERS
        ),
        # Since Linux 6.8 its frames have such places too.
        _refuse("socket", Test(argument=0, mask=INT_MASK, value=_AF_XDP), error=errno.EAFNOSUPPORT),
    ],
    VSOCK: [_refuse("socket", Test(argument=0, mask=INT_MASK, value=_AF_VSOCK), error=errno.EAFNOSUPPORT)],
    FILESYSTEMS: [
        _refuse("mount", Test(argument=3, mask=_MOVED_MOUNT | _CHANGED_MOUNT, value=0)),
        _refuse("mount", Test(argument=3, mask=_MOVED_MOUNT | _MAGIC_MASK, value=_MAGIC)),
        _refuse("fsopen"),
    ],
    MOUNTS: [_refuse(call) for call in _MOUNT_CALLS],
    HOST: [
        *(_refuse(call) for call in _HOST_CALLS),
        *(_refuse("clone", Test(argument=0, mask=bit, value=bit)) for bit in _NEW_NAMESPACES),
        # Its flags are in memory, where no filter sees them. Whoever tries it falls back on clone.
        _refuse("clone3", error=errno.ENOSYS),
    ],
}
