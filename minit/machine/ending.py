"""The end of a machine: no process left, every file system unmounted, then off, or whatever is asked for."""

from __future__ import annotations

import _signal
import os
import time

from minit import syscalls
from minit.errors import describe
from minit.machine.mounts import unmount_all
from minit.manifest.machine import HALT, POWEROFF, REBOOT, STAY
from minit.reaper.reaper import has_children, reap
from minit.stdio import complain
from minit.supervisor.supervisor import HALT_SIGNALS, WATCHED_SIGNALS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from minit.machine.machine import Machine

_COMMANDS = {
    POWEROFF: syscalls.REBOOT_POWER_OFF,
    REBOOT: syscalls.REBOOT_RESTART,
    HALT: syscalls.REBOOT_HALT,
}
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 2.0
_TICK_SECONDS = 0.5


def end_machine(machine: Machine) -> NoReturn:
    """End the machine as it was asked to; it may not survive a failure of this, but it does not hang in it."""
    try:
        _end(machine)
    except BaseException as error:
        complain(f"minit: the machine cannot be ended in order: {describe(error)}")
    os.sync()
    try:
        syscalls.reboot(_COMMANDS.get(machine.ending, syscalls.REBOOT_RESTART))
    except OSError as error:
        complain(f"minit: {machine.ending}: {describe(error)}")
    # Whatever is left to wait for: the first program of a machine must not end, or the kernel panics.
    while True:
        _wait(machine, _TICK_SECONDS)


def _end(machine: Machine) -> None:
    if machine.failed and machine.ending != STAY:
        # Time to read why, and a brake for a machine that fails again and again.
        _wait_at_most(machine, machine.config.failure_wait_seconds)
    if machine.ending == STAY:
        complain("minit: the pod has ended, the machine stays")
        while machine.ending == STAY:
            _wait(machine, _TICK_SECONDS)
    complain(f"minit: {machine.ending}")
    # First: spawner and helper end when nobody is left to talk to, and what is open holds on to file systems.
    syscalls.close_all_but((0, 1, 2, *machine.descriptors()))
    _end_processes(machine)
    if machine.namespace is not None:
        syscalls.setns(machine.namespace, syscalls.CLONE_NEWNS)
        machine.close()
    unmount_all()
    if machine.ending == HALT and machine.feeder is not None:
        machine.feeder.release()


def _end_processes(machine: Machine) -> None:
    for number, seconds in ((_signal.SIGTERM, _GRACE_SECONDS), (_signal.SIGKILL, _KILL_SECONDS)):
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return
        until = time.monotonic() + seconds
        while has_children() and time.monotonic() < until:
            _wait(machine, max(0.0, min(_TICK_SECONDS, until - time.monotonic())))


def _wait_at_most(machine: Machine, seconds: float) -> None:
    """Wait so long, or until somebody asks for the end."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0:
        if _wait(machine, min(left, _TICK_SECONDS)):
            return


def _wait(machine: Machine, seconds: float) -> bool:
    """Wait for a signal, reap, feed the watchdog; returns whether the signal asks for the end."""
    found = _signal.sigtimedwait(WATCHED_SIGNALS, seconds)
    number = None if found is None else found.si_signo
    if number in HALT_SIGNALS:
        machine.ask_to_end([number])
    while reap():
        pass
    machine.feed()
    return number in HALT_SIGNALS
