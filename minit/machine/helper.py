"""
The machine's helper: the one process that does beside PID 1 what the host does for a pod elsewhere.

PID 1 forks it before anything else. It loads modules, mounts file systems and connects the network, reports that, and
stays for devices that come later, leases that have to be renewed and the power button. One that dies is started again,
out of a PID 1 that has left the machine's mounts by then.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable

from minit import syscalls
from minit.errors import LaunchError, MinitError, describe
from minit.forks import MACHINE_HELPER, fork
from minit.launcher.cgroups import write_group_file
from minit.loop import wait_readable
from minit.machine.disk.trialduty import TRIAL_BEGUN, TRIAL_FAILED, TRIAL_OVER
from minit.machine.duties import do_duties
from minit.machine.kernellog import start_recording
from minit.machine.mounts import CGROUPS
from minit.machine.powerbutton import POWER_BUTTON
from minit.manifest.machineconfig import MachineConfig
from minit.messages import Socket, receive_message, send_message, socket_pair
from minit.process import set_oom_score
from minit.stdio import complain_at_once
from minit.supervisor.supervisor import HALT_SIGNALS

# Beyond what the configuration lets it wait: for loading modules and checking disks.
_PREPARE_SECONDS = 120.0
_TICK_SECONDS = 1.0
_NOTE_SECONDS = 10.0
# When memory is short it is killed after all apps, and before PID 1.
_OOM_SCORE = -900


class Helper:
    """
    PID 1's side of the helper.

    `image` is a descriptor of the stage1 root, and `namespace` one of the machine's mounts if PID 1 has left them: then
    the machine is prepared already. Whether its version is `on_trial` is known soon after that begins.
    """

    def __init__(self, config: MachineConfig, image: int | None, namespace: int | None) -> None:
        self._config = config
        self.on_trial = False
        self.link, theirs = socket_pair()
        try:
            fork(
                MACHINE_HELPER,
                lambda: _help(config, theirs, namespace),
                {"link": theirs.fileno(), "image": image, "mount namespace of the machine": namespace},
                tell=lambda error: _fail(theirs, error),
            )
        except OSError:
            self.link.close()
            theirs.close()
            raise
        theirs.close()

    def wait(self, feed: Callable[[], None]) -> None:
        """
        Wait until the machine is prepared, with a watchdog that `feed` feeds.

        LaunchError if something is missing that the configuration calls required, if nothing comes of it, or if
        somebody wants the machine to end first; the signal stays for whoever ends it.
        """
        waits = [filesystem.wait_seconds for filesystem in self._config.filesystems]
        waits += [rule.wait_seconds for rule in self._config.devices]
        waits += [interface.wait_seconds for interface in self._config.interfaces]
        until = time.monotonic() + _PREPARE_SECONDS + sum(waits)
        is_prepared = False
        while not is_prepared:
            while not wait_readable([self.link.fileno()], _TICK_SECONDS):
                feed()
                if time.monotonic() >= until:
                    raise LaunchError("the machine's helper takes too long: the pod is not started")
                if not signal.sigpending().isdisjoint(HALT_SIGNALS):
                    raise LaunchError("told to end before the machine is prepared: the pod is not started")
            message, _ = receive_message(self.link)
            if message is None:
                raise LaunchError("the machine's helper died before the machine was prepared")
            if "failed" in message:
                raise LaunchError(str(message["failed"]))
            is_prepared = "prepared" in message
            self.on_trial |= message.get("event") == TRIAL_BEGUN

    def note_trial(self, reason: str, feed: Callable[[], None]) -> None:
        """Have it written down why this version will not be kept, and wait for that, but not for long."""
        until = time.monotonic() + _NOTE_SECONDS
        try:
            send_message(self.link, {TRIAL_FAILED: reason})
            while (left := until - time.monotonic()) > 0:
                feed()
                if not wait_readable([self.link.fileno()], min(left, _TICK_SECONDS)):
                    continue
                message, _ = receive_message(self.link)
                if message is None or message.get("event") == TRIAL_OVER:
                    return
        except OSError:
            pass  # it is gone, and the next boot knows no reason

    def take_press(self) -> bool:
        """Take what the helper has said while no supervisor listened; returns whether the power button was pressed."""
        while wait_readable([self.link.fileno()], 0):
            message, _ = receive_message(self.link)
            if message is None:
                return False  # it is gone
            if message.get("event") == POWER_BUTTON:
                return True
        return False


def _help(config: MachineConfig, link: Socket, namespace: int | None) -> None:
    set_oom_score(_OOM_SCORE)
    start_recording()
    if namespace is not None:
        _return_to_machine(namespace)
    do_duties(config, link, is_first=namespace is None)


def _fail(link: Socket, error: BaseException) -> None:
    if isinstance(error, MinitError):
        _report(link, str(error))
    elif isinstance(error, OSError):
        _report(link, f"machine: {describe(error)}")
    else:
        # A defect of ours: only the traceback says why, and PID 1 goes on without.
        traceback.print_exception(error)


def _return_to_machine(namespace: int) -> None:
    """Be where the first helper was: in the machine's mounts, and in no group of the pod's."""
    syscalls.setns(namespace, syscalls.CLONE_NEWNS)
    os.close(namespace)
    try:
        write_group_file(f"{CGROUPS}/cgroup.procs", "0")
    except OSError:
        pass  # it stays where PID 1 is


def _report(link: Socket, line: str) -> None:
    try:
        send_message(link, {"failed": line})
    except OSError:
        complain_at_once(f"minit: {line}")
