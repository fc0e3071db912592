"""
The launcher once there is a PID 1, in one program after another.

When PID 1 has gone on in the program of another version of minit, the launcher does too, execve(2): the caller of `run`
waits for the same process. State, trial and way back are those of PID 1, minit/linux/ownprogram.py.
"""

from __future__ import annotations

import gc
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from functools import partial

from minit.base.carried import Carried, CarriedCodec, Descriptor
from minit.base.errors import LaunchError, MinitError, NetworkError, Step, describe
from minit.launcher.cgroups import Hierarchy, kill_pod_groups
from minit.launcher.devices.devicehelper import resume_following
from minit.launcher.health.healthhelper import resume_checks
from minit.launcher.podhelper import LEAVE, STAY, PodHelper, RunningHelper
from minit.launcher.start.watch import Watch
from minit.launcher.stop import read_pid
from minit.linux import syscalls
from minit.linux.forks import show_words
from minit.linux.messages import memory_file, read_memory_file
from minit.linux.ownprogram import (
    Program,
    close_on_exec,
    execute,
    forget_way_back,
    has_way_back,
    program_in,
    try_program,
)
from minit.linux.process import forget_imports
from minit.linux.stdio import complain, complain_at_once
from minit.network.podnames import withdraw
from minit.network.uplink import report_lost_uplink

_NAME = "minit-launcher"
# Other versions of minit execute these too.
_RESUME = "from minit.launcher.start.launch import resume_launcher; resume_launcher()"
_PROVE = "from minit.launcher.start.launch import prove_launcher; prove_launcher()"
# What goes on with the work of a helper, by the kind of the helper. Connections to ports live in the process of theirs.
_SUCCESSORS: dict[str, Callable[[bytes], PodHelper]] = {"health": resume_checks, "devices": resume_following}


class Launcher(Carried):
    """
    Everything that another program of the launcher goes on with.

    `program` is that of this process, None if it cannot be executed, and `offer` the program of another version while
    the launcher tries that. `words` are the command line to show, `death_signal` is sent at the end of the parent.
    `held` are descriptors by which things of a user without root stay, the `uplink` too. `left` are the control groups
    of a pod without a PID namespace, whose processes do not end with PID 1. `named` is the UUID of a pod whose names
    other pods know. `lost` are the sockets of helpers whose deaths have been reported.
    """

    lock: Descriptor
    program: Program | None
    offer: Program | None
    words: str
    death_signal: int
    held: list[Descriptor]
    uplink: Descriptor | None
    left: tuple[tuple[Hierarchy, ...], str] | None
    named: str | None
    tells_failure: bool
    helpers: list[RunningHelper]
    lost: set[int]
    watch: Watch

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
        self.watch = watch
        self.lock = lock
        self.program = program
        self.offer = None
        self.words = ""
        self.death_signal = 0
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
                self._watch_helper(helper)

    def _watch_helper(self, helper: RunningHelper) -> None:
        self.watch.add_helper(helper.fileno(), partial(self._hear, helper))

    def _hear(self, helper: RunningHelper) -> None:
        """Take in the work of a helper that leaves, or its death."""
        state = helper.read_state()
        if state is None:
            self._on_loss(helper.fileno(), helper.report_death)
            return
        try:
            successor = _SUCCESSORS[helper.kind](state)
            successor.wait_begun()
        except (MinitError, OSError) as error:
            helper.tell(STAY)
            complain_at_once(f"stage1: the old version of minit goes on with {helper.kind}: {describe(error)}")
            return
        self.watch.remove_helper(helper.fileno())
        helper.end()
        self.helpers[self.helpers.index(helper)] = successor.plain()
        self._watch_helper(successor)

    def _on_loss(self, fd: int, report: Callable[[], None]) -> None:
        self.watch.remove_helper(fd)
        self.lost.add(fd)
        report()

    def exchange_helpers(self) -> None:
        """Ask the helpers of the version before to leave; each hands its work over when there is a good moment."""
        for helper in self.helpers:
            if helper.kind in _SUCCESSORS and helper.fileno() not in self.lost:
                helper.tell(LEAVE)

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
        """Execute the program in a mount of an image; a failure is one line, and changes nothing."""
        try:
            if self.program is None:
                raise LaunchError("this program of the launcher cannot be executed")
            self.offer = program_in(image)
            _require_own(self.offer, read_pid())
            self._execute(self.program, self.offer)
        except (MinitError, OSError) as error:
            self._refuse(describe(error))
        finally:
            os.close(image)

    def _execute(self, program: Program, offer: Program) -> None:
        self.words, self.death_signal = _own_words(), syscalls.parent_death_signal()
        self.watch.leave()
        state, descriptors = CODEC.encode(self)
        memory = memory_file("state", state)
        kept = {*descriptors, memory}
        try:
            try_program(offer, _PROVE, memory, kept, _hide_nothing)
            # The last argument makes room for the words.
            way_back = [*program.way_back(_RESUME, memory), self.words]
            execute(offer, offer.command(_RESUME, memory, way_back), kept)
        finally:
            os.close(memory)

    def _refuse(self, reason: str) -> None:
        offer, self.offer = self.offer, None
        if offer is not None:
            offer.close()
        complain_at_once(f"stage1: the launcher goes on in the old version of minit: {reason}")

    def settle(self, memory: int) -> None:
        """Be the launcher for good, with nothing left of the program before, nor of the state in a file."""
        if has_way_back():
            forget_way_back()
            old, self.program, self.offer = self.program, self.offer, None
            assert old is not None
            old.close()
            self.exchange_helpers()
        else:
            _restore_group(self.death_signal)
            self._refuse("the new version has failed")
        os.close(memory)
        close_on_exec()
        # Not before: the words replace the arguments, which lead back.
        show_words(self.words)


CODEC = CarriedCodec(Launcher)


def decode_launcher(memory: int) -> Launcher:
    """Return what another program of the launcher has left; ManifestError for a state of another form."""
    launcher = CODEC.decode(read_memory_file(memory), "state of the launcher")
    assert isinstance(launcher, Launcher)
    return launcher


def take_over(memory: int) -> Launcher:
    """Be the launcher in this program, with the state at a descriptor."""
    syscalls.set_process_name(_NAME)
    forget_imports()
    gc.disable()
    launcher = decode_launcher(memory)
    launcher.watch.attach()
    launcher.settle(memory)
    return launcher


def _require_own(program: Program, pod: int) -> None:
    """Refuse a program of which root of the user namespace of `pod`, a PID 1, could have chosen a part."""
    status = os.fstat(program.file)
    if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise LaunchError("the program is not the launcher's user's own")
    # Such a root could have mounted other libraries and modules in the image, and could do so after a look at them.
    if program.image is not None and not os.path.samestat(
        os.stat(f"/proc/{pod}/ns/user"), os.stat("/proc/self/ns/user")
    ):
        raise LaunchError("with private users only a dumped program is taken from PID 1")


def _hide_nothing() -> None:
    """Leave the memory to root of the host, who may look at the launcher at any time."""


def _restore_group(death_signal: int) -> None:
    """Undo what the way back does for a process whose memory is to be hidden."""
    group = os.getresgid()[0]
    os.setresgid(-1, group, group)
    syscalls.set_dumpable(True)
    syscalls.set_parent_death_signal(death_signal)


def kill_left(left: tuple[Sequence[Hierarchy], str] | None) -> None:
    """Kill what is in the control groups of a pod, None for no such pod."""
    if left is not None:
        pids = kill_pod_groups(*left)
        if pids:
            complain(f"stage1: processes of the pod cannot be killed: {' '.join(map(str, pids))}")


def _own_words() -> str:
    """Return the command line of this process as ps(1) shows it."""
    with open("/proc/self/cmdline", "rb") as file:
        return os.fsdecode(file.read().rstrip(b"\0").replace(b"\0", b" "))
