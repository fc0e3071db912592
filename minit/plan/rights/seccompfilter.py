"""
The filter of an app's system calls: rules by name, and the program in classic BPF that the kernel runs, seccomp(2).

An action is a value SECCOMP_RET_* of seccomp(2). Of the actions of several filters the kernel takes the strictest. A
guard is a few rules beside those of a list, which refuse calls that could harm others; no list undoes a guard.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable, Iterator

from minit.base.value import Value, replace
from minit.manifest.seccomp import ANCIENT_CALLS, DEFAULT_CALLS, MINIMUM_CALLS, SeccompPolicy
from minit.plan.rights.syscallnumbers import multiplexed_calls, numbers_of

TYPING = "typing"  # into a terminal, for its next reader
LIMITS = "limits"  # of other processes
FRAMES = "frames"  # in which the kernel writes a checksum where the sender says, behind all rules of a packet filter
VSOCK = "vsock"  # sockets to the host of a virtual machine, which are of no network namespace
FILESYSTEMS = "filesystems"  # new file systems, control groups say; existing ones may be bound elsewhere
MOUNTS = "mounts"  # any mounts, by which CAP_SYS_ADMIN makes read-only and hidden files writable
HOST = "host"  # any mounts and namespaces, keys of the user, files by handles

DEFAULT_GUARDS = frozenset((TYPING, LIMITS, FRAMES, VSOCK, FILESYSTEMS, HOST))
"""The guards of an app without a request for others."""

KILL = 0x80000000  # SECCOMP_RET_KILL_PROCESS
ALLOW = 0x7FFF0000  # SECCOMP_RET_ALLOW
_RET_ERRNO = 0x00050000

# How an argument is compared: SCMP_CMP_* of seccomp_rule_add(3).
UNEQUAL, LESS, AT_MOST, EQUAL, AT_LEAST, GREATER, MASKED_EQUAL = range(1, 8)

_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
# The kernel takes an int: in the upper bits, which only a filter sees, a program could hide the number.
INT_MASK = 0xFFFFFFFF
# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET.
_NEW_NAMESPACES = (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000)
# With one of these flags mount(2) works on existing mounts: MS_REMOUNT, BIND, MOVE; UNBINDABLE, PRIVATE, SLAVE, SHARED.
# The kernel ignores an upper half that is the magic number, although some of its bits are flags.
_MOVED_MOUNT = 0x20 | 0x1000 | 0x2000
_CHANGED_MOUNT = 0x20000 | 0x40000 | 0x80000 | 0x100000
_MAGIC, _MAGIC_MASK = 0xC0ED0000, 0xFFFF0000
_AF_VSOCK = 40
_AF_XDP = 44
_SOL_PACKET = 263
# PACKET_VNET_HDR, and PACKET_VNET_HDR_SZ of Linux 6.5: each frame then names the place of a checksum.
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
    """A comparison of an argument, counted from 0, with a value; the `mask` is for MASKED_EQUAL alone."""

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
    """Rules, of which the strictest that holds counts, and the action for all other calls."""

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
    Return the filter of a policy and of guards, which refuse some uses of allowed calls; None without both.

    An ancient call that a whitelist lacks is refused. A newer call fails with ENOSYS, as on a kernel of the time of
    rkt's lists, so that the caller falls back on an older one.
    """
    opened = frozenset() if policy is None else policy.opened
    guarding = tuple(rule for guard in sorted(guards) for rule in _GUARDS[guard] if rule.call not in opened)
    if policy is None:
        return Filter(default=ALLOW, rules=guarding) if guarding else None
    refusal = KILL if policy.error is None else fail_with(policy.error)
    if policy.is_blacklist:
        return Filter(default=ALLOW, rules=(*_rules(policy.names or (), refusal), *guarding))
    allowed = MINIMUM_CALLS | (DEFAULT_CALLS if policy.names is None else policy.names) | opened
    unknown = fail_with(errno.ENOSYS)
    refused = () if refusal == unknown else _rules(ANCIENT_CALLS - allowed, refusal)
    guarding = tuple(rule for rule in guarding if rule.call in allowed)
    return Filter(default=unknown, rules=(*_rules(allowed, ALLOW), *refused, *guarding))


def _rules(names: Iterable[str], action: int) -> tuple[Rule, ...]:
    # Sorted, so that the same policy gives the same bytes.
    return tuple(Rule(call=name, action=action) for name in sorted(names))


def _refuse(call: str, *tests: Test, error: int = errno.EPERM) -> Rule:
    return Rule(call=call, action=fail_with(error), tests=tests)


_GUARDS = {
    TYPING: [_refuse("ioctl", Test(argument=1, mask=INT_MASK, value=request)) for request in (_TIOCSTI, _TIOCLINUX)],
    # Reading the limits does no harm.
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
        # Since Linux 6.8 frames of AF_XDP name such places too.
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
        # The flags of clone3 are in memory, where no filter sees them. Callers fall back on clone.
        _refuse("clone3", error=errno.ENOSYS),
    ],
}


# An instruction, struct sock_filter: code, the steps to skip if true, the steps to skip if false, constant.
_Code = list[tuple[int, int, int, int]]

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _IF_EQUAL, _IF_GREATER, _IF_AT_LEAST = 0x05, 0x15, 0x25, 0x35
_INSTRUCTION = struct.Struct("=HBBI")
_MAXIMUM_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_FARTHEST = 255

# Offsets in struct seccomp_data on little-endian processors.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# By machine: tables of numbers and AUDIT_ARCH_*, the machine's own architecture first.
_ARCHITECTURES = {
    "x86_64": (("x86_64", 0xC000003E), ("i386", 0x40000003)),
    "aarch64": (("aarch64", 0xC00000B7), ("arm", 0x40000028)),
}
_IS_64_BIT = 0x80000000  # __AUDIT_ARCH_64BIT
_X32_BIT = 0x40000000
_NO_CALL = 0xFFFFFFFF  # of a call that a tracer has cancelled
_LOW = 0xFFFFFFFF
_LOG = 0x7FFC0000  # SECCOMP_RET_LOG
# ipc(2) has a version in the upper half of its first argument.
_MULTIPLEXER_MASKS = {"socketcall": _LOW, "ipc": 0xFFFF}


def compile_filter(filter: Filter, machine: str, *, has_secondary: bool = True) -> bytes:
    """
    Return a filter as the array of struct sock_filter that seccomp(2) takes.

    Of the rules that hold for a call the strictest action counts, of equally strict rules the first. Calls that the
    machine lacks are left out. The filter is for the machine's architecture and, with `has_secondary`, for its 32-bit
    programs; a call of any other architecture is fatal. Calls of x32 are fatal: some kernels had several numbers for
    the same call of x32, past any list. OSError for a filter that is too large for the kernel, and for an unknown
    machine.

    The number of a call is looked up in a binary tree. For 32-bit programs the lower halves of arguments and values are
    compared: such programs have no upper halves.
    """
    if machine not in _ARCHITECTURES:
        raise OSError(f"no system calls are known of {machine}: there can be no filter")
    code: _Code = [(_LOAD, 0, 0, _ARCHITECTURE)]
    for name, audit in _ARCHITECTURES[machine][: 2 if has_secondary else 1]:
        code += _if(_IF_EQUAL, audit, _for_architecture(filter, name, is_64_bit=bool(audit & _IS_64_BIT)))
    code += _answer(KILL)
    if len(code) > _MAXIMUM_INSTRUCTIONS:
        raise OSError(f"a filter of {len(code)} instructions is too large")
    return b"".join(_INSTRUCTION.pack(*instruction) for instruction in code)


def _answer(action: int) -> _Code:
    return [(_RETURN, 0, 0, action)]


def _if(comparison: int, value: int, code: _Code) -> _Code:
    """Return code that runs `code`, which must return, if the comparison is true, and goes on behind `code` if not."""
    if len(code) <= _FARTHEST:
        return [(comparison, 0, len(code), value), *code]
    return [(comparison, 1, 0, value), (_JUMP, 0, 0, len(code)), *code]


def _for_architecture(filter: Filter, architecture: str, *, is_64_bit: bool) -> _Code:
    rules: dict[int, list[Rule]] = {}
    for rule in filter.rules:
        for number, here in _numbered(rule, filter.default, architecture):
            rules.setdefault(number, []).append(here)
    default = _answer(filter.default)
    answers = {number: _answer_by(each, filter.default, is_64_bit=is_64_bit) for number, each in rules.items()}
    # Each answer holds up to the next number.
    answers = {0: default} | {number + 1: default for number in answers} | answers
    if architecture == "x86_64":
        answers |= {_X32_BIT: _answer(KILL), _NO_CALL: default}
    parts: list[tuple[int, _Code]] = []
    for number in sorted(answers):
        if not parts or parts[-1][1] != answers[number]:
            parts.append((number, answers[number]))
    return [(_LOAD, 0, 0, _NUMBER), *_look_up(parts)]


def _numbered(rule: Rule, default: int, architecture: str) -> Iterator[tuple[int, Rule]]:
    numbers = numbers_of(architecture)
    if rule.call in numbers:
        yield numbers[rule.call], rule
    if architecture != "i386" or rule.call not in multiplexed_calls():
        return
    multiplexer, value = multiplexed_calls()[rule.call]
    # The arguments of the call are in memory, so a test may hold: the rule may refuse, but not allow.
    if not rule.tests or _strictness(rule.action) < max(_strictness(default), _LOG):
        test = Test(argument=0, value=value, mask=_MULTIPLEXER_MASKS[multiplexer])
        yield numbers[multiplexer], Rule(call=multiplexer, action=rule.action, tests=(test,))


def _strictness(action: int) -> int:
    """Return the kernel's rank of an action, its errno left out: the smaller the stricter."""
    kind = action & 0xFFFF0000
    return kind - (1 << 32) if kind & KILL else kind


def _look_up(parts: list[tuple[int, _Code]]) -> _Code:
    if len(parts) == 1:
        return parts[0][1]
    lower, upper = parts[: len(parts) // 2], parts[len(parts) // 2 :]
    return [*_if(_IF_AT_LEAST, upper[0][0], _look_up(upper)), *_look_up(lower)]


def _answer_by(rules: list[Rule], default: int, *, is_64_bit: bool) -> _Code:
    code: _Code = []
    for rule in sorted(rules, key=lambda rule: _strictness(rule.action)):
        answer = _answer(rule.action)
        if not rule.tests:
            return code + answer
        for test in reversed(rule.tests):
            answer = _compare(test, len(answer), is_64_bit=is_64_bit) + answer
        code += answer
    return code + _answer(default)


def _compare(test: Test, beyond: int, *, is_64_bit: bool) -> _Code:
    """Return code that goes on behind itself if the test holds, and skips `beyond` more instructions if not."""
    # Steps with their targets: None is the next step, True the place for a true test, False that for a false one.
    steps: list[tuple[int, int, bool | None, bool | None]] = []
    place = _ARGUMENTS + 8 * test.argument
    halves = [(place + 4, 32), (place, 0)] if is_64_bit else [(place, 0)]
    holds = test.operator not in (UNEQUAL, LESS, AT_MOST)
    for offset, shift in halves:
        value, mask, is_last = test.value >> shift & _LOW, test.mask >> shift & _LOW, not shift
        if not mask:
            continue
        if test.operator in (MASKED_EQUAL, EQUAL, UNEQUAL):
            steps.append((_LOAD, offset, None, None))
            if mask != _LOW:
                steps.append((_AND, mask, None, None))
            steps.append((_IF_EQUAL, value, holds if is_last else None, not holds))
            continue
        steps.append((_LOAD, offset, None, None))
        if is_last:
            # a < b is not a >= b
            comparison = _IF_AT_LEAST if test.operator in (AT_LEAST, LESS) else _IF_GREATER
            steps.append((comparison, value, holds, not holds))
        else:
            steps += [(_IF_GREATER, value, holds, None), (_IF_EQUAL, value, None, not holds)]
    code: _Code = []
    for left, (instruction, value, if_true, if_false) in zip(reversed(range(len(steps))), steps, strict=True):
        distance = {None: 0, True: left, False: left + beyond}
        code.append((instruction, distance[if_true], distance[if_false], value))
    return code


# A sidecar reads output of apps and input of clients, writes, makes the next log file and accepts clients. Among the
# calls are those of C libraries of other architectures.
_SIDECAR_CALLS = """
    accept4 brk clock_gettime clock_gettime64 close epoll_ctl epoll_pwait epoll_wait exit exit_group flock fstat
    fstat64 fstatat64 ftruncate ftruncate64 futex getpid getrandom getsockname getsockopt gettimeofday _llseek
    lseek madvise mremap munmap newfstatat openat openat2 poll ppoll pread64 pwrite64 read readv recvmsg rename renameat
    renameat2 restart_syscall rt_sigreturn sendmsg setsockopt splice statx tee unlinkat write writev
"""
# FIONREAD, TIOCOUTQ and FIONBIO of any descriptor; TIOCGWINSZ, TIOCSWINSZ, TCGETS and TCGETS2 (tcgetattr(3) of newer C
# libraries) of the app's terminal, ioctl_tty(2). TIOCSTI, which types into the caller's terminal, is left out.
_SIDECAR_REQUESTS = (0x541B, 0x5411, 0x5421, 0x5413, 0x5414, 0x5401, 0x802C542A)
_PROT_EXEC = 4

SIDECAR_FILTER = Filter(
    default=fail_with(errno.EPERM),
    rules=(
        *(Rule(call=name, action=ALLOW) for name in _SIDECAR_CALLS.split()),
        *(
            Rule(call="ioctl", action=ALLOW, tests=(Test(argument=1, mask=INT_MASK, value=request),))
            for request in _SIDECAR_REQUESTS
        ),
        # Memory for data, never for code.
        *(
            Rule(call=name, action=ALLOW, tests=(Test(argument=2, mask=_PROT_EXEC, value=0),))
            for name in ("mmap", "mmap2", "mprotect")
        ),
    ),
)
