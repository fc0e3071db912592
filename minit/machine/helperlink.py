"""The launcher's place on a machine: the socket to its helper, and to the one that is started in its place."""

from __future__ import annotations

import socket
from typing import Any

from minit.jsontext import dump
from minit.machine.disk.trialduty import KEEP, TRIAL_OVER
from minit.machine.machine import Machine
from minit.machine.powerbutton import POWER_BUTTON
from minit.manifest.machineconfig import POWEROFF
from minit.supervisor.apps.podpolicy import BY_LAUNCHER
from minit.supervisor.launcherlink import LauncherLink


class HelperLink(LauncherLink):
    """The socket to the helper, and what is due with that while the pod runs."""

    def __init__(self, machine: Machine, *arguments: Any) -> None:
        super().__init__(*arguments)
        assert machine.helper is not None
        self._machine = machine
        self._helper = machine.helper
        self._is_asked_to_keep = False
        self._due = self._loop.deadline(self._turn)
        self._follow()

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

    def _hear(self) -> None:
        event = self._helper.hear()
        if event == TRIAL_OVER:
            self._machine.on_trial = False
        elif event == POWER_BUTTON:
            self._machine.ask_for(POWEROFF)
            self._request_stop(BY_LAUNCHER, POWER_BUTTON)
        self._follow()

    def _turn(self) -> None:
        self._helper.turn(self._machine.namespace)
        self._follow()

    def _follow(self) -> None:
        """Watch the helper that there is now, and be called when something is due, unless nobody needs it any more."""
        if not self._helper.is_there:
            self._loop.unwatch(self._socket.fileno())
        elif self._helper.link is not self._socket:
            self._socket = self._helper.link
            self._is_asked_to_keep = False
            self._watch()
        if self._pod.exit_code is None:
            self._due.set(self._helper.deadline)
