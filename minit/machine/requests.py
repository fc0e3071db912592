"""
The requests to end a machine: the kernel's by a signal, and those of processes by a FIFO in the machine's own mounts.

A signal from a process is ignored, since any app that is root can send one. The sender of a signal cannot be known for
sure: another process may have the sender's number by then, and the kernel forgets senders when too many signals wait
(RLIMIT_SIGPENDING). PID 1 reads the FIFO; the command and the helper write there.
"""

from __future__ import annotations

import os

from minit.base.carried import Carried, Descriptor
from minit.base.errors import PodError, describe
from minit.linux import syscalls
from minit.linux.stdio import complain_at_once
from minit.manifest.machineconfig import POWEROFF, REBOOT
from minit.podfiles import paths
from minit.supervisor.supervisor import HALT_SIGNALS

# The kernel's PROC_PID_INIT_INO.
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
_MAXIMUM_BYTES = 4096


class EndRequests(Carried):
    """The FIFO, and the signals that count; `fd` is readable after a request."""

    fd: Descriptor

    def __init__(self) -> None:
        """OSError if the FIFO cannot be made."""
        os.makedirs(os.path.dirname(paths.MACHINE_ENDING), exist_ok=True)
        os.mkfifo(paths.MACHINE_ENDING, 0o600)
        # For writing as well: otherwise the FIFO would be at its end without writers.
        self.fd = os.open(paths.MACHINE_ENDING, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)

    def take(self) -> str | None:
        """Read all requests; return the last, POWEROFF or REBOOT, or None."""
        try:
            words = os.read(self.fd, _MAXIMUM_BYTES).split()
        except BlockingIOError:
            return None
        known = [name for word in words for name in (POWEROFF, REBOOT) if word == name.encode()]
        return known[-1] if known else None


class Senders(Carried):
    """The senders of signals; the first ignored sender is reported."""

    _is_container: bool
    _has_said: bool

    def __init__(self, *, is_container: bool = False) -> None:
        # A container is ended by signals from outside, where processes have no number in the container.
        self._is_container = is_container
        self._has_said = False

    def heeds(self, number: int, code: int, pid: int) -> bool:
        """Return whether a signal with this si_code counts, from this process, 0 for a process outside."""
        if number not in HALT_SIGNALS or code == syscalls.SI_KERNEL:
            return True
        if self._is_container and (code, pid) == (syscalls.SI_USER, 0):
            return True
        if not self._has_said:
            self._has_said = True
            complain_at_once(
                f"minit: signal {number} of process {pid} is ignored: minit poweroff or reboot end a machine"
            )
        return False


def is_container() -> bool:
    """Tell whether this first process is a PID namespace's, and not a kernel's."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino != _FIRST_PID_NAMESPACE
    except OSError:
        return False


def request_ending(ending: str) -> None:
    """Ask for POWEROFF or REBOOT, after the apps have stopped; PodError if nobody can be asked."""
    try:
        fd = os.open(paths.MACHINE_ENDING, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(fd, ending.encode() + b"\n")
        finally:
            os.close(fd)
    except OSError as error:
        raise PodError(f"{ending}: {describe(error)}") from error
