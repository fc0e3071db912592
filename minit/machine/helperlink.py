"""The launcher's place on a machine: the socket to its helper, which is started again when it has died."""

from __future__ import annotations

import socket
import time
from typing import Any

from minit.errors import describe
from minit.jsontext import dump
from minit.machine.disk.trialduty import KEEP, TRIAL_OVER
from minit.machine.helper import Helper
from minit.machine.machine import Machine
from minit.machine.powerbutton import POWER_BUTTON
from minit.messages import receive_message
from minit.plan.life.restart import ALWAYS, RestartPolicy
from minit.stdio import complain_at_once
from minit.supervisor.apps.backoff import Restarts
from minit.supervisor.apps.podpolicy import BY_LAUNCHER
from minit.supervisor.launcherlink import LauncherLink

_RESTARTS = RestartPolicy(condition=ALWAYS, delay_seconds=1.0, reset_seconds=60.0)


class HelperLink(LauncherLink):
    """The socket to the helper."""

    def __init__(self, machine: Machine, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._start_due = self._loop.deadline(self._start)
        self._machine = machine
        self._is_asked_to_keep = False
        self._restarts = Restarts(_RESTARTS)
        self._begun = time.monotonic()

    def tell_seconds(self, seconds: float) -> None:
        """Do nothing: the helper kills nobody; the watchdog does."""

    def keep_version(self) -> None:
        """Have the helper tell the firmware to boot this version from now on; its answer ends the trial."""
        if self._is_asked_to_keep:
            return
        try:
            self._socket.send(dump({KEEP: True}), socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
            self._is_asked_to_keep = True
        except OSError:
            pass  # another one is started soon

    def _start(self) -> None:
        """Start another helper, unless nobody needs it any more."""
        if self._pod.exit_code is not None:
            return
        self._restarts.begin()
        self._begun = time.monotonic()
        try:
            machine = self._machine
            machine.helper = Helper(machine.config, machine.image, machine.namespace)
        except OSError as error:
            self._start_later(f"cannot be started: {describe(error)}")
            return
        self._socket = machine.helper.link
        self._is_asked_to_keep = False
        self._watch()

    def _hear(self) -> None:
        message, _ = receive_message(self._socket)
        if message is None:
            # The apps go on: they have what it made, and a pod without its network can still do something.
            self._loop.unwatch(self._socket.fileno())
            self._socket.close()
            self._machine.helper = None
            self._start_later("has ended")
        elif "failed" in message:
            complain_at_once(f"minit: {message['failed']}")
        elif message.get("event") == TRIAL_OVER:
            self._machine.on_trial = False
        elif message.get("event") == POWER_BUTTON:
            self._machine.ask_to_power_off()
            self._request_stop(BY_LAUNCHER, POWER_BUTTON)

    def _start_later(self, reason: str) -> None:
        now = time.monotonic()
        self._restarts.end(failed=True, ran_seconds=now - self._begun)
        delay_seconds = self._restarts.delay_seconds
        assert delay_seconds is not None
        self._start_due.set(now + delay_seconds)
        complain_at_once(f"minit: the machine's helper {reason}: another one starts in {delay_seconds:g} s")
