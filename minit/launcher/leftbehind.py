"""
Helpers left behind by `app/add` for an app with minit/hotplug or minit/health.

Such a helper works like a helper of the launcher, but lives by a pipe: PID 1 closes the other end when PID 1 lets go of
the app, or the kernel does when PID 1 ends. `app/rm` returns after the end of the helpers.
"""

from __future__ import annotations

import fcntl
import os
import signal

from minit.base.errors import ControlError, LaunchError
from minit.launcher.cgroups import hierarchies_of, write_group_file
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, send_message
from minit.podfiles.controlmessages import FindHelpers
from minit.supervisor.control.ask import ask

_END_SECONDS = 10.0
_F_SETSIG = 10  # missing in fcntl


def settle(socket: Socket, pod: int) -> int:
    """
    Have this process, a helper of the pod with PID 1 `pod`, outlive the parent, and tell the parent.

    From now on words of the helper go to PID 1, by `socket`. Returns the end of the pipe that the process lives by.
    """
    _join_groups_of(_parent_of(pod))
    null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.dup2(null, 1)
    os.dup2(socket.fileno(), 2)
    os.close(null)
    syscalls.set_parent_death_signal(0)
    end, life = os.pipe2(os.O_CLOEXEC)
    _die_at_end_of(end)
    send_message(socket, {"settled": True}, [life])
    os.close(life)
    return end


def _die_at_end_of(pipe: int) -> None:
    """Have the kernel kill this process, even a stopped one, when nobody has the other end any more, fcntl(2)."""
    fcntl.fcntl(pipe, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(pipe, _F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, os.O_ASYNC)


def find_helpers(app: str) -> list[int]:
    """Return pidfds of the helpers of an app, none if PID 1 cannot be asked."""
    try:
        return ask(FindHelpers(app=app))[1]
    except ControlError:
        return []  # they end with it


def end_helpers(pidfds: list[int]) -> None:
    """Wait for the end of helpers after PID 1 let go of them; LaunchError for a helper without an end."""
    for pidfd in pidfds:
        if not wait_readable([pidfd], _END_SECONDS):
            raise LaunchError("a process that follows devices or checks health does not end")
        os.close(pidfd)


def _parent_of(pid: int) -> int:
    with open(f"/proc/{pid}/status", encoding="utf-8", errors="surrogateescape") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("PPid:"))


def _join_groups_of(pid: int) -> None:
    """Move from the control groups of `app/add`, perhaps short-lived, to the groups of the launcher."""
    try:
        for hierarchy in hierarchies_of(pid):
            file = "cgroup.procs" if hierarchy.is_v2 else "tasks"
            write_group_file(f"{hierarchy.mount_point}/{hierarchy.own_path}/{file}", "0")
    except OSError:
        pass  # it stays where it is
