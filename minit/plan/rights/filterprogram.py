"""
A filter of system calls as a program for the kernel, in classic BPF on struct seccomp_data: seccomp(2).

The number of a call is looked up in a binary tree. For 32-bit programs the lower halves of arguments and values are
compared, all that such a program has.

SIDECAR_FILTER is the filter for a sidecar, which reads what apps and clients write. All that is left for it to do is to
read, to write, to make the next log file, and to take clients.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator

from minit.plan.rights.syscallfilter import (
    ALLOW,
    AT_LEAST,
    AT_MOST,
    EQUAL,
    INT_MASK,
    KILL,
    LESS,
    MASKED_EQUAL,
    UNEQUAL,
    Filter,
    Rule,
    Test,
    fail_with,
)
from minit.plan.rights.syscallnumbers import multiplexed_calls, numbers_of

# An instruction: its code, how many to pass over if it holds and if not, and its constant; struct sock_filter.
_Code = list[tuple[int, int, int, int]]

_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_JUMP, _IF_EQUAL, _IF_GREATER, _IF_AT_LEAST = 0x05, 0x15, 0x25, 0x35
_INSTRUCTION = struct.Struct("=HBBI")
_MAXIMUM_INSTRUCTIONS = 4096  # BPF_MAXINSNS
_FARTHEST = 255

# In struct seccomp_data, of processors with the low byte first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# The numbers of programs, and AUDIT_ARCH_*; first the machine's own.
_ARCHITECTURES = {
    "x86_64": (("x86_64", 0xC000003E), ("i386", 0x40000003)),
    "aarch64": (("aarch64", 0xC00000B7), ("arm", 0x40000028)),
}
_IS_64_BIT = 0x80000000  # __AUDIT_ARCH_64BIT
_X32_BIT = 0x40000000
_NO_CALL = 0xFFFFFFFF  # of a call that a tracer has taken away
_LOW = 0xFFFFFFFF
_LOG = 0x7FFC0000  # SECCOMP_RET_LOG
# ipc(2) has a version in the upper half of its first argument.
_MULTIPLEXER_MASKS = {"socketcall": _LOW, "ipc": 0xFFFF}


def compile_filter(filter: Filter, machine: str, *, has_secondary: bool = True) -> bytes:
    """
    Return a filter as the array of struct sock_filter that seccomp(2) takes.

    Of the rules that hold for a call the strictest action counts, of equally strict ones the first. A call that the
    machine does not have is left out. The filter is for the machine's architecture and, with `has_secondary`, that of
    its 32-bit programs; a call of any other is fatal. So is one of x32, which had several numbers for the same call in
    some kernels, past any list. OSError for a filter that is too large for the kernel, or of an unknown machine.
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
    """Return code for what compares so, which must return, before code for anything else."""
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
    # Each is the answer up to the next one.
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
    # The arguments of the call are in memory: a rule that may hold refuses, and does not allow.
    if not rule.tests or _strictness(rule.action) < max(_strictness(default), _LOG):
        test = Test(argument=0, value=value, mask=_MULTIPLEXER_MASKS[multiplexer])
        yield numbers[multiplexer], Rule(call=multiplexer, action=rule.action, tests=(test,))


def _strictness(action: int) -> int:
    """Return the rank of an action as the kernel has it, whatever its errno: the smaller the stricter."""
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
    """Return code that goes on behind itself if the test holds, else passes over `beyond` instructions more."""
    # Steps with the places to go to: None for the next step, True where the test holds, False where it does not.
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


def _names(text: str) -> list[str]:
    return text.split()


# With the calls by which the C libraries of other architectures do the same.
_SIDECAR_CALLS = _names(
    """
    accept4 brk clock_gettime clock_gettime64 close epoll_ctl epoll_pwait epoll_wait exit exit_group flock fstat
    fstat64 fstatat64 ftruncate ftruncate64 futex getpid getrandom getsockname getsockopt gettimeofday _llseek
    lseek madvise mremap munmap newfstatat openat openat2 poll ppoll pread64 pwrite64 read readv recvmsg rename renameat
    renameat2 restart_syscall rt_sigreturn sendmsg setsockopt splice statx tee unlinkat write writev
    """
)
# FIONREAD, TIOCOUTQ and FIONBIO of any descriptor, TIOCGWINSZ, TIOCSWINSZ, TCGETS and TCGETS2, which is tcgetattr(3) of
# newer C libraries, of the app's terminal; TIOCSTI, by which something is typed into the caller's, is not among them
# (ioctl_tty(2)).
_SIDECAR_REQUESTS = (0x541B, 0x5411, 0x5421, 0x5413, 0x5414, 0x5401, 0x802C542A)
_PROT_EXEC = 4

SIDECAR_FILTER = Filter(
    default=fail_with(errno.EPERM),
    rules=(
        *(Rule(call=name, action=ALLOW) for name in _SIDECAR_CALLS),
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
