"""Every way to stop a pod meets every kind of app that does not simply end: bounded, complete, nobody left."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minit.launcher.cgroups import pod_subcgroup, read_hierarchies
from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, guest, handlers, shell
from tests.support.processes import named, status_of
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

FOREVER = "touch /tmp/up; while :; do sleep 1; done"
# Of those that only end when it is over; for all others it is so long that nobody can wait for it.
GRACE_SECONDS = 1.5
LONG_GRACE_SECONDS = 3600.0
# What a busy machine may take for the rest.
SLACK_SECONDS = 60.0
PIDS = 100


def group_of(pod: PodDirectory, hierarchy: str) -> Path:
    """Return the control group of the app in a hierarchy."""
    own = pod_subcgroup(read_hierarchies(), pod.uuid)
    return Path("/sys/fs/cgroup", hierarchy, own, "system.slice/a.service")


def processes_of(pod: PodDirectory, *names: str) -> list[int]:
    """Return the processes of the app with one of these names."""
    return named(pod.members_of_app("a"), *names)


class Kind:
    """
    A kind of app: how it is made, what is done to it when it is up, and its status for each way to stop it.

    If `is_stubborn` something of it has to be killed when the grace period is over.
    """

    def __init__(
        self,
        section: dict[str, Any],
        polite: int | None,
        *,
        forced: int | None = 137,
        before: Callable[[PodDirectory], None] = lambda pod: None,
        when_up: Callable[[PodDirectory], None] = lambda pod: None,
        is_up: bool = True,
        is_stubborn: bool = False,
    ) -> None:
        self.section = section
        self.polite = polite
        self.forced = forced
        self.before = before
        self.when_up = when_up
        self.is_up = is_up
        self.is_stubborn = is_stubborn


def _stop_all(pod: PodDirectory) -> None:
    def all_stopped() -> bool:
        with suppress(FileNotFoundError, ProcessLookupError):
            for pid in processes_of(pod, "sh", "sleep"):
                os.kill(pid, signal.SIGSTOP)
            return all(status_of(pid)["State"].startswith("T") for pid in processes_of(pod, "sh", "sleep"))
        return False

    wait_for(all_stopped, "the app to be stopped")


def _freeze_v1(pod: PodDirectory) -> None:
    state = group_of(pod, "freezer") / "freezer.state"
    state.write_text("FROZEN")
    wait_for(lambda: state.read_text() == "FROZEN\n", "the freeze")


def _freeze_v2(pod: PodDirectory) -> None:
    group = group_of(pod, "unified")
    (group / "cgroup.freeze").write_text("1")
    wait_for(lambda: "frozen 1" in (group / "cgroup.events").read_text(), "the freeze")


def _be_born_frozen(pod: PodDirectory) -> None:
    group = group_of(pod, "unified")
    group.mkdir(parents=True)
    (group / "cgroup.freeze").write_text("1")


def _fill(pod: PodDirectory) -> None:
    # The bomb counts as up when its limit is reached.
    if SURROUNDING != NO_GROUPS:
        (group_of(pod, "pids") / "pids.max").write_text(f"{PIDS}")
    (pod.file("a", "/tmp/go")).touch()
    wait_for(lambda: len(processes_of(pod, "guest")) >= PIDS - 1, "the fork bomb")


STUBBORN = (GUEST, "stubborn", "/tmp/up")
ANY_CALL = [{"name": "os/linux/seccomp-retain-set", "value": {"set": ["@appc.io/all"]}}]
# Without groups the limit of a bomb is one of all processes of the user.
OF_USER = [{"name": "minit/ulimits", "value": f'{{"nproc": "{2 * PIDS}"}}'}] if SURROUNDING == NO_GROUPS else []
FROZEN = {"frozen-v1", "frozen-v2", "preparing"}
KINDS = {
    "ignores-term": Kind(guest("stubborn", "/tmp/up"), 137, is_stubborn=True),
    "forks-on-term": Kind(guest("breeder", "/tmp/up"), 0, is_stubborn=True),
    "stopped": Kind(shell(FOREVER), 0, when_up=_stop_all),
    "frozen-v1": Kind(shell(FOREVER), 0, when_up=_freeze_v1),
    "frozen-v2": Kind(shell(FOREVER), 0, when_up=_freeze_v2),
    "traced": Kind(guest("traced", "/tmp/up", isolators=ANY_CALL), 137, is_stubborn=True),
    "fork-bomb": Kind(
        shell(
            "touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.01; done; exec /bin/guest bomb /tmp/boom",
            annotations=OF_USER,
        ),
        137,
        when_up=_fill,
        is_stubborn=True,
    ),
    "preparing": Kind(shell(FOREVER), None, forced=None, before=_be_born_frozen, is_up=False),
    "pre-start": Kind(shell("exit 0", eventHandlers=handlers(pre_start=STUBBORN)), None, forced=None),
    "post-stop": Kind(shell("exit 0", eventHandlers=handlers(post_stop=STUBBORN)), 0, forced=0, is_stubborn=True),
}


def _stop(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    assert pod.stop().returncode == 0


def _force(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    assert pod.stop("--force").returncode == 0


def _terminate(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    process.terminate()


def _stop_twice(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    assert pod.stop().returncode == 0
    if pod.stop().returncode != 0:
        # Whoever ends by the first one has ended by now.
        pod.wait_exited()


WAYS = {"stop": _stop, "force": _force, "signal": _terminate, "twice": _stop_twice}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.delegated_groups("it freezes groups")) if name in FROZEN else name
        for name in KINDS
    ],
)
def test_every_stop_is_bounded(make_pod: MakePod, name: str, way: str) -> None:
    """
    The pod ends within the grace period, or at once, plus two seconds; status, output and emptiness are right.

    Beside the app another one, which has a last word, runs in the pod.
    """
    kind = KINDS[name]
    talker = shell("trap 'seq 2000; exit 3' TERM; touch /tmp/up; while :; do sleep 0.05; done")
    at_once = way in ("force", "twice")
    grace_seconds = GRACE_SECONDS if kind.is_stubborn and not at_once else LONG_GRACE_SECONDS
    grace = {"name": "minit/stop-grace", "value": f"{grace_seconds}s"}
    section = {**kind.section, "annotations": [*kind.section.get("annotations", ()), grace]}
    annotations = {"minit/stop-grace": f"{LONG_GRACE_SECONDS}s"}
    pod = make_pod({"a": section, "b": talker}, annotations=annotations)
    kind.before(pod)
    process = pod.start()
    if kind.is_up:
        pod.wait_file("a", "/tmp/up")
        pod.wait_file("b", "/tmp/up")
    else:
        assert pod.pid
        # An answer means that it has been preparing for the two seconds before trio is imported.
        assert pod.ask({"op": "state"})["apps"][0]["state"] == "preparing"
    kind.when_up(pod)
    before = time.monotonic()
    WAYS[way](pod, process)
    result = pod.finish(process)
    elapsed = time.monotonic() - before
    assert elapsed < GRACE_SECONDS + 2 + SLACK_SECONDS
    assert pod.members() == []
    assert not pod.is_running()
    assert result.returncode == 0, result
    assert pod.status("a") in (
        (kind.polite, kind.forced) if way == "twice" else (kind.forced if at_once else kind.polite,)
    )
    if kind.is_up and not at_once:
        assert pod.status("b") == 3
        lines = [line.rpartition(" ")[2] for line in result.stdout.splitlines() if line.startswith("b[")]
        assert lines == [str(number) for number in range(1, 2001)]


@pytest.mark.delegated_groups("it freezes groups")
def test_an_app_frozen_from_above_is_reported(make_pod: MakePod, tmp_path: Path) -> None:
    """A freeze of the pod's own group cannot be undone from within: the app is given up on, and that is said."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, annotations={"minit/stop-grace": "200ms"})
    # Files: the frozen app keeps the pipes of the test open.
    with (tmp_path / "errors").open("wb") as errors:
        process = pod.start(net="host", stdout=errors, stderr=errors)
    pod.wait_file("a", "/tmp/up")
    state = group_of(pod, "freezer").parent / "freezer.state"
    state.write_text("FROZEN")
    try:
        before = time.monotonic()
        pod.stop()
        assert process.wait(90) == 254
        elapsed = time.monotonic() - before
        assert not pod.is_running()
        assert pod.gc().returncode == 75
    finally:
        state.write_text("THAWED")
    assert 10 < elapsed < 10 + 5 + 2 + SLACK_SECONDS, "the kill wait, the wait for output, the launcher's patience"
    assert re.fullmatch(
        r'stage1: app "a": giving up on unkillable processes: \d+ \(\w+\)\n'
        "stage1: the pod has ended, but for processes that a tracer or a freezer keeps from ending\n",
        (tmp_path / "errors").read_text(),
    )
    wait_for(lambda: pod.members() == [], "the end of the app")
    assert pod.gc().returncode == 0


def test_an_app_held_by_a_tracer_on_the_host_has_ended(make_pod: MakePod, tmp_path: Path) -> None:
    """A tracer that does not wait keeps the dead process from PID 1; its status and the pod's end do not wait."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, annotations={"minit/stop-grace": "500ms"})
    with (tmp_path / "errors").open("wb") as errors:
        process = pod.start(net="host", stdout=errors, stderr=errors)
    pod.wait_file("a", "/tmp/up")
    [main] = processes_of(pod, "guest")
    tracer = subprocess.Popen([pod.file("a", GUEST), "trace", str(main)], stdout=subprocess.PIPE)
    try:
        assert tracer.stdout is not None and tracer.stdout.read(1) == b"T"
        before = time.monotonic()
        pod.stop()
        assert pod.wait_status("a") == 137
        assert process.wait(90) == 0
        assert 0.5 < time.monotonic() - before < 0.5 + 2 + SLACK_SECONDS
        assert not pod.is_running()
    finally:
        tracer.kill()
        tracer.wait()
        assert tracer.stdout is not None
        tracer.stdout.close()
    assert "a tracer or a freezer" in (tmp_path / "errors").read_text()
    wait_for(lambda: not Path(f"/proc/{main}").exists(), "the end of the app")


@pytest.mark.delegated_groups("without groups no process of an app gets a parent outside")
def test_the_last_process_may_be_reaped_by_another_than_pid_1(make_pod: MakePod) -> None:
    """A subreaper outside the group takes PID 1's news; the group itself tells that it is empty."""
    pod = make_pod({"a": guest("adopted", "/tmp/pids"), "b": shell(FOREVER)}, annotations={"minit/stop-grace": "1h"})
    process = pod.start()
    pod.wait_file("a", "/tmp/pids")
    assert pod.wait_status("a") == 0
    reaper, child = _adopted(pod)
    (group_of(pod, "unified").parents[1] / "init.scope/cgroup.procs").write_text(f"{reaper}")
    assert pod.ask({"op": "state"})["apps"][0]["state"] == "lingering"
    os.kill(child, signal.SIGKILL)
    wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["state"] == "exited", "a's end")
    pod.stop()
    assert pod.finish(process).returncode == 0


def _adopted(pod: PodDirectory) -> tuple[int, int]:
    """Return the host's pids of the subreaper and its child, of which the guest only knows those of the pod."""
    inner = list(map(int, pod.file("a", "/tmp/pids").read_text().split()))
    by_inner = {int(status_of(pid)["NSpid"].split()[-1]): pid for pid in processes_of(pod, "guest")}
    reaper, child = (by_inner[pid] for pid in inner)
    return reaper, child
