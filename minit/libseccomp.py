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

# The number of an argument, from 0, SCMP_CMP_*, a value, and a mask for SCMP_CMP_MASKED_EQ, by seccomp_rule_add(3).
Comparison = tuple[int, int, int, int]

LIBRARY = "libseccomp.so.2"
MASKED_EQUAL = 7  # SCMP_CMP_MASKED_EQ

_API_LEVEL = 3  # of Linux 4.14; not what the kernel of a machine can where images are built
_BAD_ARCHITECTURE = 2  # SCMP_FLTATR_ACT_BADARCH
_OPTIMIZE = 8  # SCMP_FLTATR_CTL_OPTIMIZE
_BINARY_TREE = 2
_UNKNOWN_CALL = -1  # __NR_SCMP_ERROR
_INSTRUCTION_BYTES = 8  # of struct sock_filter
_MAXIMUM_BYTES = 4096 * _INSTRUCTION_BYTES  # BPF_MAXINSNS
_KILL = 0x80000000  # SCMP_ACT_KILL_PROCESS

# Other architectures that a machine may run: SCMP_ARCH_X86, SCMP_ARCH_ARM.
_SECONDARY = {"x86_64": 0x40000003, "aarch64": 0x40000028}


class _Comparison(ctypes.Structure):
    _fields_ = [
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


def is_system_call(name: str) -> bool:
    """Return whether the library knows a system call of this name, on whatever architecture."""
    library = _load()
    return bool(library.seccomp_syscall_resolve_name(os.fsencode(name)) != _UNKNOWN_CALL)


def compile_filter(
    default: int, rules: Iterable[tuple[str, int, Sequence[Comparison]]], *, has_secondary: bool = True
) -> bytes:
    """
    Return a filter as the array of struct sock_filter that seccomp(2) takes.

    A rule is a system call, an action that is not the default, and comparisons of different arguments, which must all
    hold. Actions, `default` too, are SECCOMP_RET_* values. Calls that the library does not know are left out. The
    filter is for this machine's architecture and, with `has_secondary`, that of its 32-bit programs; a call of any
    other is fatal. So is one of x32, which had several numbers for the same call in some kernels, past any list.
    OSError for a filter that is too large for the kernel.
    """
    library = _load()
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(default)))
    if not context:
        raise OSError(f"{LIBRARY} cannot make a filter")
    try:
        for attribute, value in ((_BAD_ARCHITECTURE, _KILL), (_OPTIMIZE, _BINARY_TREE)):
            _check(library.seccomp_attr_set(context, attribute, ctypes.c_uint32(value)))
        if has_secondary and (secondary := _SECONDARY.get(os.uname().machine)):
            _check(library.seccomp_arch_add(context, ctypes.c_uint32(secondary)))
        for call, action, comparisons in rules:
            number = library.seccomp_syscall_resolve_name(os.fsencode(call))
            if number == _UNKNOWN_CALL:
                continue
            count = len(comparisons)
            array = (_Comparison * count)(*map(_compare, comparisons))
            _check(library.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, count, array), call)
        program = _export(library, context)
    finally:
        library.seccomp_release(context)
    if len(program) > _MAXIMUM_BYTES:
        raise OSError(f"a filter of {len(program) // _INSTRUCTION_BYTES} instructions is too large")
    return program


def _compare(comparison: Comparison) -> _Comparison:
    argument, operator, value, mask = comparison
    if operator == MASKED_EQUAL:
        return _Comparison(argument, operator, mask, value)
    return _Comparison(argument, operator, value, 0)


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
