"""The machine as PID 1 holds it: its configuration, its helper, its watchdog, and how it is to end."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from minit.launcher.ownimage import image_descriptor
from minit.launcher.podhelper import PodHelper
from minit.machine.helper import Helper
from minit.machine.kernellog import Recorder
from minit.machine.requests import EndRequests, Senders
from minit.machine.watchdog import Feeder
from minit.manifest.machineconfig import POWEROFF, REBOOT, STAY, MachineConfig


class Machine:
    """
    The state of the machine; `run_machine` and the supervisor change it.

    `pod_helpers` are the processes that follow devices and check the health of apps, where the pod has any use of them.
    `namespace` is a descriptor of its own mounts, once PID 1 has a namespace for the pod's, `image` that of the stage1
    root, in which a helper that is started later finds libraries, `lock` that of the locked pod directory. Its pod is
    `supervised` once it has been started. It has `failed` if its pod could not be run, and `crashed` if that is a fault
    of minit itself. The version that runs is `on_trial` if the firmware boots it once, and `trial_failure` is why it
    will not be kept.
    """

    def __init__(self) -> None:
        # Until it is read: whatever fails before may not fail the next time.
        self.config = MachineConfig(on_exit=REBOOT)
        self.helper: Helper | None = None
        self.feeder: Feeder | None = None
        self.recorder: Recorder | None = None
        self.requests: EndRequests | None = None
        self.senders = Senders()
        self.pod_helpers: list[PodHelper] = []
        self.namespace: int | None = None
        self.lock: int | None = None
        self.image = image_descriptor()
        self.supervised = False
        self.failed = False
        self.crashed = False
        self.on_trial = False
        self.trial_failure: str | None = None
        self._asked: str | None = None

    @property
    def ending(self) -> str:
        """The action once the pod has ended: the one that somebody asked for, or else that of the configuration."""
        # Nobody could ask a machine to end that stays with a broken supervisor. A trial ends with the other version.
        return self._asked or (REBOOT if self.crashed or self.on_trial else self.config.on_exit)

    def ask_to_end(self, signals: Sequence[int]) -> None:
        """Take signals for what they say about the end: Ctrl-Alt-Del wants a reboot, failing power none."""
        if signal.SIGINT in signals:
            self._asked = REBOOT
        elif signal.SIGPWR in signals or (signals and self.config.on_exit == STAY):
            self._asked = POWEROFF

    def fail_trial(self, reason: str) -> None:
        """Have this version not be kept, and the machine start again with the other one."""
        self.trial_failure = reason
        self._asked = REBOOT

    def ask_for(self, ending: str) -> None:
        """Take it that the machine shall be switched off, or started again, whatever is configured."""
        self._asked = ending

    def feed(self) -> None:
        """Tell the watchdog that PID 1 is alive, if there is one and it is time to."""
        if self.feeder is not None:
            self.feeder.feed()

    def descriptors(self) -> list[int]:
        """Return the descriptors that outlive the pod."""
        own = [] if self.namespace is None else [self.namespace]
        return own + [holder.fd for holder in (self.feeder, self.recorder, self.requests) if holder is not None]

    def pod_descriptors(self) -> list[int]:
        """Return the descriptors that PID 1 needs while the pod runs."""
        image = [] if self.image is None else [self.image]
        helper = [] if self.helper is None else self.helper.descriptors()
        return [*self.descriptors(), *image, *helper, *(each.fileno() for each in self.pod_helpers)]

    def close(self) -> None:
        """Forget the machine's mounts."""
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None
