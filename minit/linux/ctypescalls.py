"""
The module _syscalls of a dumped interpreter (minit/image/dump/syscalls.c), by ctypes.

A module of its own, so that a dumped interpreter loads no ctypes. Everything is bound at import: nothing is looked up
after a change of the root.
"""

from __future__ import annotations

import ctypes
import os
import signal
from struct import Struct
from typing import NoReturn

_libc = ctypes.PyDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long

_SYS_CLONE3 = 435
_CORE_DUMPED = 0x80
_INT = Struct("i")
_END = Struct("ii")
_before_fork, _after_fork_in_parent, _after_fork_in_child = (
    ctypes.pythonapi.PyOS_BeforeFork,
    ctypes.pythonapi.PyOS_AfterFork_Parent,
    ctypes.pythonapi.PyOS_AfterFork_Child,
)
for _hook in (_before_fork, _after_fork_in_parent, _after_fork_in_child):
    _hook.restype = None


def call(path: str | None, number: int, *arguments: int | bytes | bytearray | None) -> int:
    """Return the result of a system call; OSError, with the path if any, for a failed call."""
    result: int = _syscall(ctypes.c_long(number), *map(_word, arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), *([path] if path else []))
    return result


def clone3(arguments: bytearray) -> int:
    """Fork by clone3(2), with the interpreter's hooks; return the child's number, 0 in the child."""
    _before_fork()
    try:
        pid = call(None, _SYS_CLONE3, arguments, len(arguments))
    except BaseException:
        # Without memory, too: the next fork would wait for the locks that this one has taken.
        _after_fork_in_parent()
        raise
    if pid == 0:
        _after_fork_in_child()
    else:
        _after_fork_in_parent()
    return pid


def take_ends(ends: bytearray) -> None:
    """Reap dead children until nobody is dead or there is no room."""
    count, room = _INT.unpack_from(ends)[0], (len(ends) // _INT.size - 1) // 2
    while count < room:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None:
            return
        # Noted before the reaping: the kernel tells nobody again, and there may be no memory for the answer.
        _END.pack_into(ends, _INT.size + count * _END.size, found.si_pid, _wait_status(found))
        count += 1
        _INT.pack_into(ends, 0, count)
        os.waitpid(found.si_pid, os.WNOHANG)


def wait_for_kill() -> NoReturn:
    """Wait for a signal that ends the process."""
    while True:
        signal.pause()


def forget_way_back() -> None:
    """Do nothing: only a dumped interpreter has a way back."""


def address(buffer: bytearray) -> int:
    """Return the address of the bytes, valid while the buffer exists and keeps its length."""
    return ctypes.addressof(_array(buffer))


def _wait_status(found: os.waitid_result) -> int:
    if found.si_code == os.CLD_EXITED:
        return found.si_status << 8
    return found.si_status | (_CORE_DUMPED if found.si_code == os.CLD_DUMPED else 0)


def _word(argument: int | bytes | bytearray | None) -> object:
    if isinstance(argument, int):
        return ctypes.c_long(argument)
    return _array(argument) if isinstance(argument, bytearray) else argument


def _array(buffer: bytearray) -> ctypes.Array[ctypes.c_char]:
    return (ctypes.c_char * len(buffer)).from_buffer(buffer)
