"""libseccomp, which other runtimes make their filters with: seccomp_init(3)."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

from minit.plan.rights.seccompfilter import MASKED_EQUAL

# The number of an argument, from 0, SCMP_CMP_*, a value, and a mask for SCMP_CMP_MASKED_EQ, by seccomp_rule_add(3).
Comparison = tuple[int, int, int, int]

LIBRARY = "libseccomp.so.2"

_API_LEVEL = 3  # of Linux 4.14
_BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_KILL = 0x80000000  # SCMP_ACT_KILL_PROCESS
_I386 = 0x40000003  # SCMP_ARCH_X86


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def compile_filter(default: int, rules: Iterable[tuple[str, int, Sequence[Comparison]]]) -> bytes:
    """
    Return a filter for x86-64 and i386 as the array of struct sock_filter that seccomp(2) takes.

    A rule is a system call, an action that is not the default, and comparisons of different arguments, which must all
    hold. Actions are SECCOMP_RET_* values.
    """
    library = ctypes.PyDLL(LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_release.restype = None
    _check(library.seccomp_api_set(_API_LEVEL))
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    try:
        _check(library.seccomp_attr_set(context, _BAD_ARCHITECTURE, ctypes.c_uint32(_KILL)))
        _check(library.seccomp_arch_add(context, ctypes.c_uint32(_I386)))
        for call, action, comparisons in rules:
            number = library.seccomp_syscall_resolve_name(os.fsencode(call))
            array = (_Comparison * len(comparisons))(*map(_compare, comparisons))
            _check(library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, len(comparisons), array))
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _compare(comparison: Comparison) -> _Comparison:
    argument, operator, value, mask = comparison
    if operator == MASKED_EQUAL:
        return _Comparison(argument, operator, mask, value)
    return _Comparison(argument, operator, value, 0)


def _export(library: ctypes.PyDLL, context: ctypes.c_void_p) -> bytes:
    fd = os.memfd_create("seccomp")
    try:
        _check(library.seccomp_export_bpf(context, fd))
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result))
