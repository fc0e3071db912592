"""
The library that knows the numbers of system calls and writes filters of them, seccomp_init(3).

It is loaded by the first call, in the launcher or while an image is built; PID 1 and its children have no use for it.
The stage1 image carries it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterable, Sequence

# The number of an argument, from 0, a mask, a value, and whether the argument must have that or not have it.
Comparison = tuple[int, int, int, bool]

LIBRARY = "libseccomp.so.2"

_API_LEVEL = 3  # of Linux 4.14; not what the kernel of a machine can where images are built
_BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE
_BINARY_TREE = 2
_UNEQUAL = 1  # SCMP_CMP_NE
_MASKED_EQUAL = 7  # SCMP_CMP_MASKED_EQ
_UNKNOWN_CALL = -1  # __NR_SCMP_ERROR
_KILL = 0x80000000  # SCMP_ACT_KILL_PROCESS

# Other architectures that a machine may run: SCMP_ARCH_X86, SCMP_ARCH_ARM.
_SECONDARY = {"x86_64": 0x40000003, "aarch64": 0x40000028}


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("mask", ctypes.c_uint64),
        ("value", ctypes.c_uint64),
    ]


def is_system_call(name: str) -> bool:
    """Return whether the library knows a system call of this name, on whatever architecture."""
    library = _load()
    return bool(library.seccomp_syscall_resolve_name(os.fsencode(name)) != _UNKNOWN_CALL)


def compile_filter(default: int, rules: Iterable[tuple[str, int, Sequence[Comparison]]]) -> bytes:
    """
    Return a filter as the array of struct sock_filter that seccomp(2) takes.

    A rule is a system call, an action, and comparisons, which must all hold; a mask counts for equality only. Actions,
    `default` too, are SECCOMP_RET_* values. Calls that the library does not know are left out. The filter is for this
    machine's architecture and that of its 32-bit programs; a call of any other is fatal. So is one of x32, which had
    several numbers for the same call in some kernels, past any list.
    """
    library = _load()
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    if not context:
        raise OSError(f"{LIBRARY} cannot make a filter")
    try:
        for attribute, value in ((_BAD_ARCHITECTURE, _KILL), (_OPTIMIZE, _BINARY_TREE)):
            _check(library.seccomp_attr_set(context, attribute, ctypes.c_uint32(value)))
        if secondary := _SECONDARY.get(os.uname().machine):
            _check(library.seccomp_arch_add(context, ctypes.c_uint32(secondary)))
        for call, action, comparisons in rules:
            number = library.seccomp_syscall_resolve_name(os.fsencode(call))
            if number == _UNKNOWN_CALL:
                continue
            count = len(comparisons)
            array = (_Comparison * count)(*map(_compare, comparisons))
            _check(library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, count, array), call)
        return _export(library, context)
    finally:
        library.seccomp_release(context)


def _compare(comparison: Comparison) -> _Comparison:
    argument, mask, value, is_equal = comparison
    if is_equal:
        return _Comparison(argument, _MASKED_EQUAL, mask, value)
    return _Comparison(argument, _UNEQUAL, value, 0)


def _load() -> ctypes.PyDLL:
    # By its path in the image: the loader would look in the directories of the host first.
    own = f"{sys.prefix}/lib/{LIBRARY}"
    library = ctypes.PyDLL(own if os.path.exists(own) else LIBRARY)
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_release.restype = None
    _check(library.seccomp_api_set(_API_LEVEL))
    return library


def _export(library: ctypes.PyDLL, context: ctypes.c_void_p) -> bytes:
    fd = os.memfd_create("seccomp")
    try:
        _check(library.seccomp_export_bpf(context, fd))
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def _check(result: int, call: str | None = None) -> None:
    if result < 0:
        raise OSError(-result, os.strerror(-result), call)
