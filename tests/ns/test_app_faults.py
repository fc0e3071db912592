"""`app add` and `app rm` of which a system call fails, or at which they are killed: what is left can be dealt with."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import tempfile
from collections.abc import Sequence

import pytest

from tests.ns.test_app_commands import ENTRYPOINTS, contents
from tests.support.campaign import LONG
from tests.support.faults import KILL, LAUNCHER, Call, Faults
from tests.support.stage0_world import RunningPod, World, write_stage1

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

# What changes anything outside of the process that calls it.
EFFECTS = {
    *("chown", "clone", "fchmod", "fchown", "fsync", "mkdir", "mount", "rename", "rmdir", "symlink", "symlinkat"),
    *("umount2", "unlink", "unlinkat", "vfork", "write"),
}
SAMPLE = 3
LONG_SECONDS = 1800 if LONG else 120
EXECS = 1  # of the interpreter


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


@pytest.fixture
def world(world: World) -> World:
    """A data directory of its own, and a stage1 for mutable pods."""
    write_stage1(world.stage1, entrypoints=ENTRYPOINTS)
    return world


class Pod:
    """A pod with an app, to and from which another one of the same image goes."""

    def __init__(self, world: World, pod: RunningPod, faults: Faults) -> None:
        self._world = world
        self._pod = pod
        self._faults = faults
        world.minit("fetch", world.app)
        world.minit(*self.words("add", "kept"))
        self.before = contents(world, pod)

    def words(self, verb: str, app: str = "one") -> tuple[str, ...]:
        """Return a command for the app."""
        if verb == "add":
            return ("app", "add", self._pod.uuid, "example.com/busybox", f"--name={app}")
        return ("app", "rm", self._pod.uuid, f"--app={app}")

    def record(self, verb: str) -> list[Call]:
        """Return the calls of a command that change something, from the first on that belongs to the app."""
        with tempfile.TemporaryFile("w+") as log:
            assert self._run(verb, self._faults.recording(log.fileno()), log.fileno()).returncode == 0
            log.seek(0)
            calls = self._faults.read_calls(log)
        return [call for call in calls if call.who == LAUNCHER and call.name in EFFECTS]

    def disturb(self, verb: str, call: Call, number: int) -> subprocess.CompletedProcess[str]:
        """Run a command of which a call goes wrong."""
        with tempfile.TemporaryFile("w+") as log:
            return self._run(verb, self._faults.fault(log.fileno(), call, number), log.fileno())

    def has_app(self) -> bool:
        """Return whether the app is in the pod's manifest."""
        manifest = (self._world.pod_path("run", self._pod.uuid) / "pod").read_bytes()
        return any(app["name"] == "one" for app in json.loads(manifest)["apps"])

    def is_untouched(self) -> bool:
        """Return whether everything is as it was in the beginning."""
        return contents(self._world, self._pod) == self.before

    def do(self, verb: str) -> None:
        """Run a command that succeeds."""
        self._world.minit(*self.words(verb))

    def _run(self, verb: str, tracer: Sequence[str], fd: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*tracer, *self._world.command(*self.words(verb))],
            env={**self._world.environment(), "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            pass_fds=(fd,),
            check=False,
        )


def disturbances(calls: Sequence[Call]) -> Sequence[tuple[Call, int]]:
    """Return what is to happen at some of the calls, in a long run at all of them."""
    every = [(call, number) for call in calls for number in (errno.EIO, KILL)]
    # An odd step meets both.
    return every if LONG else every[:: len(every) // SAMPLE | 1]


@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize("flags", [[], ["--no-overlay"]] if LONG else [[]])
def test_an_add_that_does_not_get_through(world: World, faults: Faults, flags: list[str]) -> None:
    """A call that fails leaves nothing, or is told with what to do; after a kill the app can be removed, or added."""
    with world.start_sandbox(*flags) as running:
        pod = Pod(world, running, faults)
        calls = pod.record("add")
        pod.do("rm")
        assert pod.is_untouched()
        for call, number in disturbances(calls):
            result = pod.disturb("add", call, number)
            told = "cannot be taken back" in result.stderr
            assert number == KILL or told or pod.has_app() == (result.returncode == 0), (call, result.stderr)
            assert number == KILL or told or pod.has_app() or pod.is_untouched(), (call, result.stderr)
            assert "Traceback" not in result.stderr, (call, result.stderr)
            if not pod.has_app() and not pod.is_untouched():
                pod.do("add")
            if pod.has_app():
                pod.do("rm")
            assert pod.is_untouched(), (call, number, result.stderr)


@pytest.mark.timeout(LONG_SECONDS)
@pytest.mark.parametrize("flags", [[], ["--no-overlay"]] if LONG else [[]])
def test_a_removal_that_does_not_get_through(world: World, faults: Faults, flags: list[str]) -> None:
    """It can be repeated, whatever failed, and wherever it was killed."""
    with world.start_sandbox(*flags) as running:
        pod = Pod(world, running, faults)
        pod.do("add")
        calls = pod.record("rm")
        for call, number in disturbances(calls):
            pod.do("add")
            result = pod.disturb("rm", call, number)
            assert "Traceback" not in result.stderr, (call, result.stderr)
            assert (result.returncode == 0) <= (not pod.has_app()), (call, result.stderr)
            if pod.has_app():
                pod.do("rm")
            assert pod.is_untouched(), (call, number, result.stderr)
