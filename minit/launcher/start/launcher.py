"""
The launcher once there is a PID 1, in one program after another.

When PID 1 has gone on in the program of another version of minit, the launcher does too, execve(2): the caller of `run`
waits for the same process. State, trial and way back are those of PID 1, minit/linux/ownprogram.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from minit.base.carried import CarriedCodec, Descriptor
from minit.base.errors import NetworkError, Step, describe
from minit.launcher.cgroups import Hierarchy, kill_pod_groups
from minit.launcher.podhelper import RunningHelper
from minit.launcher.start.watch import Watch
from minit.launcher.upgradable import Upgradable
from minit.linux.ownprogram import Program
from minit.linux.stdio import complain
from minit.network.podnames import withdraw
from minit.network.uplink import report_lost_uplink


class Launcher(Upgradable):
    """
    Everything that another program of the launcher goes on with.

    `held` are descriptors by which things of a user without root stay, the `uplink` too. `left` are the control groups
    of a pod without a PID namespace, whose processes do not end with PID 1. `named` is the UUID of a pod whose names
    other pods know. `lost` are the sockets of helpers whose deaths have been reported.
    """

    lock: Descriptor
    held: list[Descriptor]
    uplink: Descriptor | None
    left: tuple[tuple[Hierarchy, ...], str] | None
    named: str | None
    tells_failure: bool
    helpers: list[RunningHelper]
    lost: set[int]
    watch: Watch

    who = "the launcher"
    name = "minit-launcher"
    resume = "from minit.launcher.start.launch import resume_launcher; resume_launcher()"
    prove = "from minit.launcher.start.launch import prove_launcher; prove_launcher()"
    is_dumpable = True

    def __init__(
        self,
        watch: Watch,
        lock: int,
        program: Program | None,
        *,
        held: Sequence[int],
        uplink: int | None,
        left: tuple[Sequence[Hierarchy], str] | None,
        named: str | None,
        tells_failure: bool,
        helpers: Iterable[RunningHelper],
    ) -> None:
        super().__init__(program)
        self.watch = watch
        self.lock = lock
        self.held = [*held]
        self.uplink = uplink
        self.left = None if left is None else (tuple(left[0]), left[1])
        self.named = named
        self.tells_failure = tells_failure
        self.helpers = [helper.plain() for helper in helpers]
        self.lost = set()

    def follow(self) -> int:
        """Wait for the end of PID 1 and return the pod's exit code; then nothing of the pod is left on the host."""
        try:
            self._watch_helpers()
            with Step("wait for PID 1"):
                code = self.watch.run(self._go_on_in, self._kill_left)
            self._withdraw_names()
            if self.tells_failure and self.watch.cause is not None:
                complain(f"run: {self.watch.cause}")
            return code
        finally:
            try:
                self._kill_left()
            finally:
                for helper in self.helpers:
                    helper.end()

    def _watch_helpers(self) -> None:
        if self.uplink is not None and self.uplink not in self.lost:
            # Without a reader of the FIFO there is an error to poll for.
            self.watch.add_helper(self.uplink, partial(self._on_loss, self.uplink, report_lost_uplink))
        for helper in self.helpers:
            if helper.fileno() not in self.lost:
                self.watch.add_helper(helper.fileno(), partial(self._on_loss, helper.fileno(), helper.report_death))

    def _on_loss(self, fd: int, report: Callable[[], None]) -> None:
        self.watch.remove_helper(fd)
        self.lost.add(fd)
        report()

    def _kill_left(self) -> None:
        """Kill the rest of a pod without a PID namespace when its PID 1 has ended."""
        left, self.left = self.left, None
        kill_left(left)

    def _withdraw_names(self) -> None:
        """Have others forget the pod, after the end, before gc does."""
        if self.named is not None:
            try:
                withdraw(self.named)
            except NetworkError as error:
                complain(f"networking: {describe(error)}")

    def _go_on_in(self, image: int) -> None:
        """Execute the program in a mount of an image, as do the helpers."""
        for helper in self.helpers:
            helper.upgrade(image)
        self.go_on_in(image, CODEC)

    def leave(self) -> None:
        """Note what the loop knows."""
        self.watch.leave()

    def attach(self) -> None:
        """Make the loop."""
        self.watch.attach()


CODEC = CarriedCodec(Launcher)


def kill_left(left: tuple[Sequence[Hierarchy], str] | None) -> None:
    """Kill what is in the control groups of a pod, None for no such pod."""
    if left is not None:
        pids = kill_pod_groups(*left)
        if pids:
            complain(f"stage1: processes of the pod cannot be killed: {' '.join(map(str, pids))}")
