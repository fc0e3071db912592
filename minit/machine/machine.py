"""The machine in PID 1: configuration, helper, watchdog, and the end of the machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from typing import NoReturn

from minit.base.carried import Carried, Descriptor
from minit.base.errors import EXIT_FAILURE, describe
from minit.launcher.ownimage import image_descriptor
from minit.launcher.podhelper import RunningHelper
from minit.linux import syscalls
from minit.linux.forks import UNMOUNTER, fork
from minit.linux.stdio import complain_at_once
from minit.machine.hardware import POWER_BUTTON, Feeder
from minit.machine.helper import Helper
from minit.machine.kernellog import Recorder
from minit.machine.mounts import unmount_all
from minit.machine.requests import EndRequests, Senders
from minit.machine.slots import TRIAL_OVER
from minit.manifest.machineconfig import HALT, POWEROFF, REBOOT, STAY, MachineConfig
from minit.reaper.reaper import has_children, reap
from minit.supervisor.supervisor import HALT_SIGNALS, WATCHED_SIGNALS

_COMMANDS = {
    POWEROFF: syscalls.REBOOT_POWER_OFF,
    REBOOT: syscalls.REBOOT_RESTART,
    HALT: syscalls.REBOOT_HALT,
}
_GRACE_SECONDS = 5.0
_KILL_SECONDS = 2.0
_TICK_SECONDS = 0.5
_REBOOT_ATTEMPTS = 3


class Machine(Carried):
    """
    The state of the machine; `run_machine` and the supervisor change it.

    `pod_helpers` are the processes that follow devices and check the health of apps, if the pod needs them. `namespace`
    is a descriptor of the machine's own mounts, once PID 1 has another namespace for the pod, `image` a descriptor of
    the stage1 root, in which a later helper finds libraries, `lock` a descriptor of the locked pod directory. The pod
    is `supervised` once started. The machine has `failed` if its pod could not be run, and `crashed` if the fault is
    minit's own. The running version is `on_trial` if the firmware boots it once, and `trial_failure` is the reason
    against keeping it. `asked` is the requested action at the end.
    """

    config: MachineConfig
    helper: Helper | None
    feeder: Feeder | None
    recorder: Recorder | None
    requests: EndRequests | None
    senders: Senders
    pod_helpers: list[RunningHelper]
    namespace: Descriptor | None
    lock: Descriptor | None
    image: Descriptor | None
    supervised: bool
    failed: bool
    crashed: bool
    on_trial: bool
    trial_failure: str | None
    asked: str | None

    def __init__(self) -> None:
        # Until the configuration is read: an earlier failure may not happen the next time.
        self.config = MachineConfig(on_exit=REBOOT)
        self.helper = None
        self.feeder = None
        self.recorder = None
        self.requests = None
        self.senders = Senders()
        self.pod_helpers = []
        self.namespace = None
        self.lock = None
        self.image = image_descriptor()
        self.supervised = False
        self.failed = False
        self.crashed = False
        self.on_trial = False
        self.trial_failure = None
        self.asked = None

    @property
    def ending(self) -> str:
        """The action after the pod's end: the requested action, or else the configured one."""
        # Nobody could end a machine that stayed with a broken supervisor. A trial ends with the other version.
        return self.asked or (REBOOT if self.crashed or self.on_trial else self.config.on_exit)

    def ask_to_end(self, signals: Sequence[int]) -> None:
        """Read the wanted end from signals: Ctrl-Alt-Del asks for a reboot, failing power for none."""
        if signal.SIGINT in signals:
            self.asked = REBOOT
        elif signal.SIGPWR in signals or (signals and self.config.on_exit == STAY):
            self.asked = POWEROFF

    def fail_trial(self, reason: str) -> None:
        """Reject this version, and have the machine start again with the other version."""
        self.trial_failure = reason
        self.asked = REBOOT

    def ask_for(self, ending: str) -> None:
        """Have the machine switched off, or started again, whatever is configured."""
        self.asked = ending

    def note_event(self, event: str | None) -> bool:
        """Take in an event of the helper; return whether the machine is to be switched off for the event."""
        if event == TRIAL_OVER:
            self.on_trial = False
        elif event == POWER_BUTTON:
            self.ask_for(POWEROFF)
        return event == POWER_BUTTON

    def hear_helper(self) -> bool:
        """Take all messages of the helper, without a supervisor; return whether the machine is to be switched off."""
        is_pressed = False
        while self.helper is not None and self.helper.has_spoken():
            is_pressed |= self.note_event(self.helper.hear())
        return is_pressed

    def feed(self) -> None:
        """Feed the watchdog, if there is one and it is time."""
        if self.feeder is not None:
            self.feeder.feed()

    def descriptors(self) -> list[int]:
        """Return the descriptors that outlive the pod."""
        own = [] if self.namespace is None else [self.namespace]
        return own + [holder.fd for holder in (self.feeder, self.recorder, self.requests) if holder is not None]

    def pod_descriptors(self) -> list[int]:
        """Return the descriptors for PID 1 while the pod runs."""
        image = [] if self.image is None else [self.image]
        helper = [] if self.helper is None else self.helper.descriptors()
        return [*self.descriptors(), *image, *helper, *(each.fileno() for each in self.pod_helpers)]


def end_machine(machine: Machine) -> NoReturn:
    """
    End the machine: no process left, every file system unmounted, then the requested action; a failing or hanging step
    is left out, for the next steps matter.
    """
    for step in (_linger, _end_processes, _leave_pod, _unmount, _release_watchdog):
        try:
            step(machine)
        except BaseException as error:
            complain_at_once(f"minit: the machine cannot be ended in order: {describe(error)}")
    for _ in range(_REBOOT_ATTEMPTS):
        try:
            syscalls.reboot(_COMMANDS.get(machine.ending, syscalls.REBOOT_RESTART))
        except OSError as error:
            complain_at_once(f"minit: {machine.ending}: {describe(error)}")
            time.sleep(_TICK_SECONDS)
    # A kernel without its first program panics, and starts again after the seconds of panic= on its command line.
    os._exit(EXIT_FAILURE)


def _linger(machine: Machine) -> None:
    if machine.failed and machine.ending != STAY:
        # Time to read the reason, and a brake for repeated failures.
        until = time.monotonic() + machine.config.failure_wait_seconds
        while (left := until - time.monotonic()) > 0 and not _is_asked_to_end(machine, min(left, _TICK_SECONDS)):
            pass
    if machine.ending == STAY:
        complain_at_once("minit: the machine stays")
        while machine.ending == STAY:
            _is_asked_to_end(machine, _TICK_SECONDS)
    complain_at_once(f"minit: {machine.ending}")


def _is_asked_to_end(machine: Machine, seconds: float) -> bool:
    if machine.helper is not None:
        if machine.ending == STAY:
            machine.helper.turn(machine.namespace)
        if machine.hear_helper():
            return True
    asked = None if machine.requests is None else machine.requests.take()
    if asked is not None:
        machine.ask_for(asked)
        return True
    return _wait(machine, seconds)


def _end_processes(machine: Machine) -> None:
    # First: spawner and helper end with their last peer, and open files hold on to file systems.
    syscalls.close_all_but((0, 1, 2, *machine.descriptors()))
    for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, _KILL_SECONDS)):
        try:
            os.kill(-1, number)
        except ProcessLookupError:
            return
        _wait_until(machine, lambda: not has_children(), seconds)


def _leave_pod(machine: Machine) -> None:
    """Go back to the machine's own mounts; the pod's mounts end with their namespace."""
    if machine.namespace is not None:
        syscalls.setns(machine.namespace, syscalls.CLONE_NEWNS)
        machine.close_fields("namespace")


def _unmount(machine: Machine) -> None:
    """Have a child unmount every file system: a disk without answers would stop PID 1 for ever."""
    pid = fork(UNMOUNTER, _unmount_and_sync)
    seconds = machine.config.unmount_seconds
    if not _wait_until(machine, lambda: not has_children(pid), seconds):
        complain_at_once(f"minit: file systems are still in use after {seconds} s: left as they are")


def _unmount_and_sync() -> None:
    unmount_all()
    os.sync()


def _release_watchdog(machine: Machine) -> None:
    if machine.ending == HALT and machine.feeder is not None:
        machine.feeder.release()


def _wait_until(machine: Machine, condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for `condition` at most so long; return whether it holds."""
    until = time.monotonic() + seconds
    while not condition():
        left = until - time.monotonic()
        if left <= 0:
            return False
        _wait(machine, min(left, _TICK_SECONDS))
    return True


def _wait(machine: Machine, seconds: float) -> bool:
    """Wait for a signal, reap, feed the watchdog; returns whether the signal asks for the end."""
    found = signal.sigtimedwait(WATCHED_SIGNALS, seconds)
    is_heeded = found is not None and machine.senders.heeds(found.si_signo, found.si_code, found.si_pid)
    number = found.si_signo if found is not None and is_heeded else None
    if number in HALT_SIGNALS:
        machine.ask_to_end([number])
    while reap(set(), []):
        pass
    machine.feed()
    return number in HALT_SIGNALS
