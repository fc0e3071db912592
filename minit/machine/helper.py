"""
The machine's helper: the process beside PID 1 that does the host's work for a pod.

PID 1 forks the helper before anything else. The helper loads modules, mounts file systems and connects the network,
reports that, and stays for later devices, leases to renew and the power button. PID 1 asks now and then whether the
helper hangs, and replaces a hanging or dead helper, perhaps after leaving the machine's mounts.
"""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable
from enum import Enum

from minit.base.carried import Carried, Descriptor
from minit.base.errors import LaunchError, MinitError, describe
from minit.base.jsontext import dump
from minit.launcher.cgroups import write_group_file
from minit.linux import syscalls
from minit.linux.forks import MACHINE_HELPER, fork
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.process import set_oom_score
from minit.linux.stdio import complain_at_once
from minit.machine.duties import do_duties
from minit.machine.kernellog import start_recording
from minit.machine.mounts import CGROUPS
from minit.machine.requests import EndRequests
from minit.machine.slots import KEEP, TRIAL_BEGUN, TRIAL_FAILED, TRIAL_OVER
from minit.manifest.machineconfig import MachineConfig
from minit.plan.life.restart import ALWAYS, RestartPolicy
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.supervisor import HALT_SIGNALS

# Beyond the configured waiting times: for loading modules and checking disks.
_PREPARE_SECONDS = 120.0
_TICK_SECONDS = 1.0
_NOTE_SECONDS = 10.0
# The loading of a module may keep the helper from answering for a while.
_PERIOD_SECONDS = 20.0
_ANSWER_SECONDS = 20.0
# For the death of a killed helper, which a hanging system call delays.
_KILL_SECONDS = 5.0
_RESTARTS = RestartPolicy(condition=ALWAYS, delay_seconds=1.0, reset_seconds=60.0)
# When memory is short, the helper is killed after all apps, and before PID 1.
_OOM_SCORE = -900


class _Due(Enum):
    """What is to be done for the helper next."""

    ASK = "ask"
    KILL = "kill"
    GIVE_UP = "give up"
    START = "start"


class Helper(Carried):
    """
    PID 1's side of the helper, and of its successors.

    `image` is a descriptor of the stage1 root. `link` is the socket to the helper while it `is_there`, and `event` the
    event of the last message, until somebody has acted. At `deadline`, of the monotonic clock, `turn` has something to
    do. Whether the machine's version is `on_trial` is known soon after the beginning.
    """

    link: Socket
    is_there: bool
    event: str | None
    deadline: float
    on_trial: bool
    _config: MachineConfig
    _image: Descriptor | None
    _restarts: Restarts
    _process: Descriptor | None
    _reason: str
    _begun: float
    _due: _Due

    def __init__(self, config: MachineConfig, image: int | None) -> None:
        """Start the first helper, which prepares the machine; OSError if that fails."""
        self._config = config
        self.on_trial = False
        self.event = None
        self._image = image
        self._restarts = Restarts(_RESTARTS)
        self._start(None, is_first=True)

    def wait(self, feed: Callable[[], None], requests: EndRequests | None) -> None:
        """
        Wait until the machine is prepared; meanwhile `feed` feeds the watchdog, and `requests` may ask for the
        machine's end.

        LaunchError if a required part is missing, if the helper fails, or if a request ends the machine first; the
        request stays for the end of the machine.
        """
        waits = [filesystem.wait_seconds for filesystem in self._config.filesystems]
        waits += [rule.wait_seconds for rule in self._config.devices]
        waits += [interface.wait_seconds for interface in self._config.interfaces]
        waits += [] if self._config.clock is None else [self._config.clock.wait_seconds]
        until = time.monotonic() + _PREPARE_SECONDS + sum(waits)
        is_prepared = False
        while not is_prepared:
            while not wait_readable([self.link.fileno()], _TICK_SECONDS):
                feed()
                if time.monotonic() >= until:
                    raise LaunchError("the machine's helper takes too long: the pod is not started")
                is_asked = requests is not None and bool(wait_readable([requests.fd], 0))
                if is_asked or not signal.sigpending().isdisjoint(HALT_SIGNALS):
                    raise LaunchError("told to end before the machine is prepared: the pod is not started")
            message, _ = receive_message(self.link)
            if message is None:
                raise LaunchError("the machine's helper died before the machine was prepared")
            if "failed" in message:
                raise LaunchError(str(message["failed"]))
            is_prepared = "prepared" in message
            self.on_trial |= message.get("event") == TRIAL_BEGUN
        self._ask_later()

    def end_trial(self, failure: str | None, feed: Callable[[], None]) -> None:
        """Have this version kept, or write down the `failure` against it; wait for the answer, but not long."""
        until = time.monotonic() + _NOTE_SECONDS
        try:
            send_message(self.link, {KEEP: True} if failure is None else {TRIAL_FAILED: failure})
            while (left := until - time.monotonic()) > 0:
                feed()
                if not wait_readable([self.link.fileno()], min(left, _TICK_SECONDS)):
                    continue
                message, _ = receive_message(self.link)
                if message is None or message.get("event") == TRIAL_OVER:
                    return
        except OSError:
            pass  # it is gone, and the next boot knows no reason

    def descriptors(self) -> list[int]:
        """Return the descriptors for PID 1."""
        return [self.link.fileno(), *([] if self._process is None else [self._process])]

    def hear(self) -> str | None:
        """Take a message of the helper, or its end; return the event, None without an event."""
        message, _ = receive_message(self.link)
        if message is None:
            self._end()
            return None
        self.event = str(message["event"]) if "event" in message else None
        # Any message shows that the helper does not hang.
        self._ask_later()
        if "failed" in message:
            complain_at_once(f"minit: {message['failed']}")
        return self.event

    def has_spoken(self) -> bool:
        """Tell whether there is a message of the helper, or its end."""
        return self.is_there and bool(wait_readable([self.link.fileno()], 0))

    def turn(self, namespace: int | None) -> None:
        """
        Do the due work: ask the helper for an answer, end a hanging helper, start a successor.

        `namespace` is a descriptor of the machine's mounts if PID 1 has left them.
        """
        if time.monotonic() < self.deadline:
            return
        if self._due == _Due.START:
            self._start_again(namespace)
        elif self._due == _Due.ASK:
            self._ask()
        elif self._due == _Due.KILL:
            self._kill()
        else:
            self._end()

    def _start(self, namespace: int | None, *, is_first: bool) -> None:
        config, image = self._config, self._image
        self.link, theirs = socket_pair()
        self.is_there = True
        self._process = None
        self._reason = "has ended"
        try:
            pid = fork(
                MACHINE_HELPER,
                lambda: _help(config, theirs, namespace, is_first=is_first),
                {"link": theirs.fileno(), "image": image, "mount namespace of the machine": namespace},
                tell=lambda error: _fail(theirs, error),
            )
            self._process = os.pidfd_open(pid)
        finally:
            theirs.close()
            self._begun = time.monotonic()
            self._ask_later()

    def _start_again(self, namespace: int | None) -> None:
        self.link.close()
        self._restarts.begin(by_itself=True)
        try:
            self._start(namespace, is_first=False)
        except OSError as error:
            self._reason = f"cannot be started: {describe(error)}"
            self._end()

    def _ask_later(self) -> None:
        self._set(_PERIOD_SECONDS, _Due.ASK)

    def _ask(self) -> None:
        try:
            # The socket of a hanging helper may be full.
            self.link.send(dump({"ask": True}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
        except OSError:
            pass
        self._set(_ANSWER_SECONDS, _Due.KILL)

    def _kill(self) -> None:
        self._reason = "hangs"
        if self._process is not None:
            syscalls.send_signals(self._process, signal.SIGKILL)
        self._set(_KILL_SECONDS, _Due.GIVE_UP)

    def _end(self) -> None:
        """Note the end of the helper; the apps go on, with its mounts and links."""
        self._restarts.end(failed=True, ran_seconds=time.monotonic() - self._begun)
        delay_seconds = self._restarts.delay_seconds
        assert delay_seconds is not None
        self._set(delay_seconds, _Due.START)
        # Not before: an error leaves a helper whose end is still to be noted.
        self.is_there = False
        self.close_fields("_process")
        complain_at_once(f"minit: the machine's helper {self._reason}: another one starts in {delay_seconds:g} s")

    def _set(self, seconds: float, due: _Due) -> None:
        self.deadline, self._due = time.monotonic() + seconds, due


def _help(config: MachineConfig, link: Socket, namespace: int | None, *, is_first: bool) -> None:
    set_oom_score(_OOM_SCORE)
    start_recording()
    if namespace is not None:
        _return_to_machine(namespace)
    do_duties(config, link, is_first=is_first)


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
