"""
Run by a dumped program when it has just been built: what has to work in a restored interpreter, and has once failed.

Its arguments are the modules that have to be there.
"""

from __future__ import annotations

import ctypes
import gc
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback

import structlog
import trio

from minit import syscalls

missing = [name for name in sys.argv[1:] if name not in sys.modules]
assert not missing, missing
assert not os.environ, os.environ
assert (sys.path, sys.flags.utf8_mode, sys.getfilesystemencoding()) == ([], 1, "utf-8")
assert threading.main_thread().ident == threading.get_ident() and threading.active_count() == 1

# Memory of the dump and of this process, side by side.
table = {f"key {number}": [number] for number in range(100_000)}
assert table["key 99999"] == [99_999] and len("x".join(table)) > 100_000
del table
gc.enable()
gc.collect()
gc.disable()
assert gc.get_freeze_count() > 10_000


def descend(depth: int) -> int:
    """Call itself so often."""
    return depth and 1 + descend(depth - 1)


assert descend(900) == 900
try:
    descend(10**6)
except RecursionError as error:
    assert "RecursionError" in "".join(traceback.format_exception(error))
else:
    raise AssertionError("recursion without an end")

# Processes, threads and signals.
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
pid, pidfd = syscalls.clone3()
if pid == 0:
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 8
os.close(pidfd)
found: list[int] = []
thread = threading.Thread(target=lambda: found.append(threading.get_ident()))
thread.start()
thread.join()
assert found != [threading.get_ident()]
signal.signal(signal.SIGUSR1, lambda number, frame: found.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
assert found[1:] == [signal.SIGUSR1]
assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN

# System calls, with and without ctypes.
try:
    syscalls.umount2("/nowhere")
except OSError as error:
    assert error.filename == "/nowhere", error
else:
    raise AssertionError("unmounted what is not there")
assert ctypes.PyDLL(None).PyErr_Occurred() == 0
assert syscalls.get_capabilities()[1] <= syscalls.every_capability()
left, right = socket.socketpair()
left.send(b"x")
assert right.recv(1) == b"x"
assert time.monotonic() > 0 and random.random() != random.random()


async def use_trio() -> None:
    """Start a task, wait and cancel."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 0)
        with trio.move_on_after(0.01) as scope:
            await trio.sleep_forever()
        assert scope.cancelled_caught


trio.run(use_trio)
structlog.get_logger()

# Code can be executed, data can be written, nothing can be both.
with open("/proc/self/maps") as maps:
    assert not [line for line in maps if line.split()[1].startswith("rwx")]
