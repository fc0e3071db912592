"""
The way out of the pods of a user without root: slirp4netns(1) between the machine's network and the user's own.

One process for each user and data directory makes the user's network namespace, the place of the pods' bridges and
rules, starts slirp4netns, starts slirp4netns again after a death, and ends both when nobody needs them. Everybody in
need has a FIFO open for writing. The loopback interface of the machine stays out of reach.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import NoReturn

from minit.base.errors import EXIT_FAILURE, NetworkError, describe
from minit.linux import syscalls
from minit.linux.forks import STARTER, UPLINK, UPLINK_PROGRAM, clone, fork
from minit.linux.loop import wait_readable
from minit.linux.stdio import complain_at_once
from minit.network.namespace import become_namespace, is_namespace, remove_namespace
from minit.podfiles.podfile import file_lock
from minit.podfiles.usersdirectory import runtime_directory, user_network

NAME_SERVER = "10.0.2.3"
"""The address at which slirp4netns answers for the machine's name servers, those on the loopback interface too."""

_PROGRAM = "slirp4netns"
MTU = 65520
"""Bytes of a packet of the uplink."""
# Of slirp4netns(1).
OPTIONS = (
    "--configure",
    f"--mtu={MTU}",
    "--disable-host-loopback",
    "--enable-ipv6",
    "--enable-sandbox",
    "--enable-seccomp",
    "--netns-type=path",
)
_INTERFACE = "tap0"
_TUN = "/dev/net/tun"
_WITHOUT = "or use --net=host or --net=none"
_READY = b"1"
_READY_SECONDS = 10.0
# The result of a start without an error.
_UP = b"up"
_RESULT_BYTES = 4096
# Between two starts, so that a program that dies at once takes no processor.
_PAUSE_SECONDS = 1.0


def find_obstacle() -> str | None:
    """Return why pods of a user can have no networks, with the remedy; None if they can."""
    if shutil.which(_PROGRAM) is None:
        return f"networks need {_PROGRAM}: apt install {_PROGRAM}, {_WITHOUT}"
    if not os.access(_TUN, os.R_OK | os.W_OK):
        return f"networks need {_TUN}, which you cannot open: let root run chmod 0666 {_TUN}, {_WITHOUT}"
    return None


def open_uplink() -> int:
    """
    Return a descriptor that makes the user's uplink stay, started unless there is one.

    This process is in the network of the machine. The user's own network is there, and `await_uplink` tells when pods
    reach others.
    """
    with _locked():
        with suppress(OSError):
            return _open_holder()
        with suppress(FileExistsError):
            os.mkfifo(_fifo(), 0o600)
        _make_network()
        with ExitStack() as closing:
            reader = os.open(_fifo(), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            closing.callback(os.close, reader)
            state = os.open(_state(), os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
            closing.callback(os.close, state)
            fcntl.flock(state, fcntl.LOCK_EX)
            holder = _open_holder()
            # No child of a command, which may become a launcher.
            starter = fork(STARTER, lambda: _start(reader, state))
            os.waitpid(starter, 0)
        return holder


def await_uplink() -> None:
    """Wait until pods of a user reach others; NetworkError with the reason if they never will. Nothing for root."""
    if user_network() is None:
        return
    try:
        state = os.open(_state(), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # nobody has asked for an uplink
    try:
        # Until there is a result, the uplink has the lock.
        fcntl.flock(state, fcntl.LOCK_SH)
        result = os.read(state, _RESULT_BYTES)
    finally:
        os.close(state)
    if result != _UP:
        raise NetworkError(f"the uplink of pods does not work: {os.fsdecode(result) or 'the process has died'}")


def hold_uplink() -> int | None:
    """Return a descriptor that makes the uplink stay; None for root, or without an uplink."""
    if user_network() is not None:
        with suppress(OSError):
            return _open_holder()
    return None


def report_lost_uplink() -> None:
    """Say that pods have no way out any more; a launcher is in the network of the pod, and cannot start an uplink."""
    complain_at_once("networking: warning: the uplink has died: pods have no way out before the next pod is started")


def _fifo() -> str:
    return f"{runtime_directory()}/uplink"


def _state() -> str:
    """Return the path of the file with the result of the uplink's start."""
    return f"{runtime_directory()}/uplink.state"


def _open_holder() -> int:
    """Open the FIFO for writing; OSError without a reader."""
    return os.open(_fifo(), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def _locked() -> AbstractContextManager[None]:
    return file_lock(f"{runtime_directory()}/uplink.lock")


def _make_network() -> None:
    """Make the user's network namespace, unless there is one."""
    path = user_network()
    assert path is not None
    if not is_namespace(path):
        remove_namespace(path)
        report, theirs = os.pipe()
        # Nobody without root can return to the machine's network.
        maker = fork(STARTER, lambda: become_namespace(path), tell=lambda error: _fail(theirs, error))
        os.close(theirs)
        with open(report, "rb") as told:
            failure = os.fsdecode(told.read())
        if os.waitpid(maker, 0)[1] != 0:
            raise NetworkError(f"the network of pods cannot be made: {failure or 'the process has died'}")


def _start(reader: int, state: int) -> None:
    log = os.open(_log(), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    kept = {"fifo": reader, "state": state, "log": log}
    fork(UPLINK, lambda: _serve(reader, state), kept, tell=lambda error: _fail(state, error))


def _log() -> str:
    return f"{runtime_directory()}/uplink.log"


def _fail(report: int, error: BaseException) -> int:
    os.write(report, describe(error).encode()[:_RESULT_BYTES])
    return EXIT_FAILURE


def _serve(reader: int, state: int) -> None:
    """Be the uplink until nobody has the FIFO open for writing."""
    path = user_network()
    assert path is not None
    pid, pidfd = _start_program(path)
    os.write(state, _UP)
    os.close(state)
    while True:
        ready = wait_readable([reader, pidfd])
        if pidfd in ready:
            os.close(pidfd)
            _, status = os.waitpid(pid, 0)
            print(f"{_PROGRAM} has ended with {os.waitstatus_to_exitcode(status)}, and is started again", flush=True)
            time.sleep(_PAUSE_SECONDS)
            pid, pidfd = _start_program(path)
        elif _is_unneeded(reader):
            syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
            return


def _is_unneeded(reader: int) -> bool:
    """Tell whether nobody has come meanwhile; if so, the next one in need makes everything anew."""
    with _locked():
        if reader not in wait_readable([reader], 0):
            return False
        os.unlink(_fifo())
        path = user_network()
        assert path is not None
        remove_namespace(path)
        return True


def _start_program(path: str) -> tuple[int, int]:
    """Start slirp4netns, and return number and pidfd when packets get through; NetworkError if they do not."""
    ready, theirs = os.pipe()
    words = [_PROGRAM, *OPTIONS, f"--ready-fd={theirs}", path, _INTERFACE]
    pid, pidfd = clone(UPLINK_PROGRAM, lambda: _execute(words, theirs), {"ready": theirs})
    os.close(theirs)
    try:
        if ready in wait_readable([ready], _READY_SECONDS) and os.read(ready, len(_READY)) == _READY:
            return pid, pidfd
    finally:
        os.close(ready)
    syscalls.pidfd_send_signal(pidfd, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    raise NetworkError(f"{_PROGRAM} has ended with {code}, and says why: minit unshare cat {_log()}")


def _execute(words: list[str], ready: int) -> NoReturn:
    # The sandbox of the program takes all mounts away, which must reach nobody else.
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    os.set_inheritable(ready, True)
    os.execvp(words[0], words)
