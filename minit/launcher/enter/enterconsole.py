"""The terminal of an entered command: a pty of the pod in place of the caller's terminal, which stays outside."""

from __future__ import annotations

import os
from collections.abc import Callable

from minit.base.errors import LaunchError, describe
from minit.base.value import Value
from minit.launcher.relay import Relay
from minit.linux.loop import Loop
from minit.linux.terminal import CallerTerminal, keep_line_ends, look_at_terminal
from minit.supervisor.exec.podconsole import PTMX, open_pty


class EnterConsole(Value):
    """Both ends of the pty, the caller's terminal, and which of its descriptors shows what is written to the pty."""

    master: int
    slave: int
    terminal: CallerTerminal
    output: int

    def start_relay(self, loop: Loop, hung_up: Callable[[], None]) -> Relay:
        """Begin to pass on what is typed and shown; `hung_up` is called if the caller's terminal goes away."""
        return Relay(loop, self.master, self.terminal, hung_up=hung_up, output=self.output)


def open_enter_console(pid: int, terminals: tuple[int, ...], uid: int) -> EnterConsole:
    """
    Return a new pty of the pod whose PID 1 is `pid`, for a caller of whose standard streams these are terminals.

    It belongs to the user `uid` of the pod. It is made on the host, by PID 1's view of the pod, which no app can
    change, and needs nothing from PID 1.
    """
    try:
        master, slave = open_pty(f"/proc/{pid}/root{PTMX}")
        os.fchown(slave, outer_id(pid, uid), -1)
    except OSError as error:
        raise LaunchError(f"failed to make a terminal in the pod: {describe(error)}") from error
    terminal = look_at_terminal(is_read=0 in terminals)
    terminal.prepare(slave)
    if terminal.settings is None:
        keep_line_ends(slave)
    # Only input is a terminal: what is typed is shown there.
    output = next((fd for fd in (1, 2) if fd in terminals), 0)
    return EnterConsole(master=master, slave=slave, terminal=terminal, output=output)


def outer_id(pid: int, uid: int) -> int:
    """Return the id here for a user of the pod, the same one for a pod in this user namespace."""
    if os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
        # The map of the own namespace tells the ids around.
        return uid
    with open(f"/proc/{pid}/uid_map", encoding="ascii") as lines:
        for line in lines:
            inner, outer, count = map(int, line.split())
            if inner <= uid < inner + count:
                return outer + uid - inner
    raise LaunchError(f"failed to make a terminal in the pod: its uid_map has no {uid}")
