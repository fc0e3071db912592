"""
Run by a dumped program after the build: features that must work in a restored interpreter, and have failed once.

The arguments are the modules that must be there.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import ipaddress
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from typing import Any

import structlog
import trio
from pyroute2.netlink.rtnl import RTM_NEWLINK
from pyroute2.netlink.rtnl.ifaddrmsg import ifaddrmsg
from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base import jsontext
from minit.linux import syscalls

missing = [name for name in sys.argv[1:] if name not in sys.modules]
assert not missing, missing
assert not os.environ, os.environ
assert (sys.path, sys.flags.utf8_mode, sys.getfilesystemencoding()) == ([], 1, "utf-8")
assert threading.main_thread().ident == threading.get_ident() and threading.active_count() == 1

# Processes and signals.
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
signal.signal(signal.SIGUSR1, lambda number, frame: found.append(number))
os.kill(os.getpid(), signal.SIGUSR1)
assert found == [signal.SIGUSR1]
assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2,))
assert signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGUSR2,)) == {signal.SIGUSR2}

# Files, directories and variables.
os.environ["NAME"] = "value"
assert os.environ.pop("NAME") == "value" and os.environ.get("NAME") is None and "NAME" not in os.environ
directory = os.path.normpath(os.path.join("/nowhere", "..", "proc", "self"))
os.makedirs(directory, exist_ok=True)
assert os.path.islink(directory) and os.path.basename(directory) == "self"
assert os.path.exists(os.path.dirname(directory))
assert os.path.lexists(directory) and os.uname().sysname == "Linux"
with open(f"{directory}/status", encoding="ascii") as status:
    assert "Pid:" in status.read()
with open(f"{directory}/maps") as maps:
    assert "r-xp" in maps.read()
assert [top for top, _, files in os.walk(f"{directory}/fdinfo", topdown=False) if "0" in files]
with contextlib.ExitStack() as stack:
    file = stack.enter_context(os.fdopen(os.memfd_create("file"), "w+b"))
    stack.callback(gc.disable)
assert file.closed

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
assert right.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b"x"
with socket.socket(fileno=right.detach()) as other:
    assert other.recv(1) == b"x"
assert time.monotonic() > 0 and random.random() != random.random()


async def answer(connection: trio.socket.SocketType, is_answered: trio.Event) -> None:
    """Wait for a message, and answer."""
    assert await connection.recv(1) == b"x"
    await connection.sendmsg([b"y"])
    is_answered.set()


async def use_trio() -> None:
    """Accept and use a connection; start tasks, and cancel a task."""
    client, server = (socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(2))
    server.bind("\0" + os.urandom(8).hex())
    server.listen(1)
    client.connect(server.getsockname())
    with trio.socket.from_stdlib_socket(server) as listener:
        connection, _ = await listener.accept()
        is_answered = trio.Event()
        async with trio.open_nursery() as nursery, trio.Semaphore(1):
            nursery.start_soon(trio.sleep, 0)
            nursery.start_soon(answer, connection, is_answered)
            await trio.sleep(0)
            client.send(b"x")
            await is_answered.wait()
            nursery.start_soon(trio.sleep_forever)
            nursery.cancel_scope.cancel()
        assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_SEQPACKET
    connection.close()
    assert client.recv(1) == b"y"
    client.close()


trio.run(use_trio)

# A line of the log, and messages to the kernel about a link, its address and a route.
log = io.BytesIO()
logger = structlog.wrap_logger(
    log,
    processors=[
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.JSONRenderer(serializer=lambda event, **_: jsontext.dump(event)),
    ],
    wrapper_class=structlog.BoundLogger,
).bind()
logger.write("works", number=1)
assert jsontext.parse(log.getvalue(), "line")
kind = {"attrs": [["IFLA_INFO_KIND", "veth"], ["IFLA_INFO_DATA", {"attrs": []}]]}
interface = ipaddress.ip_interface(("10.1.2.3", 24))
messages: list[tuple[Any, list[list[Any]]]] = [
    (ifinfmsg(), [["IFLA_IFNAME", "eth0"], ["IFLA_ADDRESS", "02:00:00:00:00:01"], ["IFLA_LINKINFO", kind]]),
    (ifaddrmsg(), [["IFA_LOCAL", str(interface.ip)], ["IFA_BROADCAST", str(interface.network.broadcast_address)]]),
    (rtmsg(), [["RTA_DST", str(interface.network.network_address)], ["RTA_OIF", 1]]),
]
for sent, attributes in messages:
    sent["header"]["type"] = RTM_NEWLINK
    sent["family"] = socket.AF_INET
    sent["attrs"] = attributes
    sent.encode()
    received = type(sent)(bytes(sent.data))
    received.decode()
    assert [received.get_attr(name) for name, _ in attributes[:2]] == [value for _, value in attributes[:2]]

# From here on nothing is noted (noting.py), since time and addresses decide about calls.
sys.setprofile(None)


async def wait_in_vain() -> None:
    """Wait until the time is up."""
    with trio.move_on_after(0.01) as scope:
        await trio.sleep_forever()
    assert scope.cancelled_caught


trio.run(wait_in_vain)
thread = threading.Thread(target=lambda: found.append(threading.get_ident()))
thread.start()
thread.join()
assert found[1:] != [threading.get_ident()]

# Memory of the dump and of this process, side by side.
table = {f"key {number}": [number] for number in range(100_000)}
assert table["key 99999"] == [99_999] and len("x".join(table)) > 100_000
del table
gc.enable()
gc.collect()
gc.disable()
assert gc.get_freeze_count() > 10_000

# Code can be executed, data can be written, nothing can be both.
with open("/proc/self/maps") as maps:
    assert not [line for line in maps if line.split()[1].startswith("rwx")]


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
