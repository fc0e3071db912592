"""The remains of a pod whose processes are killed one by one."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest

from tests.contract.test_diagnose import report as diagnose_pod
from tests.support.pods import MakePod, PodDirectory, guest, shell
from tests.support.processes import is_alive, named
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for
from tests.support.wantofmemory import memory_group, use_up

FOREVER = "while :; do sleep 1; done"


def started(pod: PodDirectory) -> subprocess.Popen[bytes]:
    """Start a pod and wait until it is ready."""
    process = pod.start()
    pod.wait_ready()
    return process


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_a_killed_launcher_means_an_orderly_end(make_pod: MakePod, overlay: bool) -> None:
    """The apps get SIGTERM, their statuses are written, the output is delivered and the lock is given up."""
    pod = make_pod(
        {"a": shell(FOREVER), "b": shell(f"trap 'echo cleaning up; exit 5' TERM; touch /tmp/up; {FOREVER}")},
        overlay=overlay,
    )
    process = started(pod)
    pod.wait_file("b", "/tmp/up")
    process.kill()
    out, _ = process.communicate(timeout=90)
    pod.wait_exited()
    assert process.returncode == -signal.SIGKILL
    assert (pod.status("a"), pod.status("b")) == (0, 5)
    assert b"]: cleaning up\n" in out
    wait_for(lambda: pod.members() == [], "the end of all processes")
    assert not pod.is_ready()
    assert pod.gc().returncode == 0
    assert pod.control_groups() == []


def test_the_lock_is_held_until_the_last_app_has_ended(make_pod: MakePod) -> None:
    """With the launcher gone PID 1 alone holds it."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod({"a": shell(f"trap '{wait}; exit 0' TERM; touch /tmp/up; {FOREVER}")})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    process.kill()
    process.wait()
    wait_for(lambda: not pod.is_ready(), "the shutdown")
    assert pod.is_running()
    pod.file("a", "/tmp/go").touch()
    pod.wait_exited()
    assert pod.status("a") == 0


def test_a_launcher_killed_at_every_moment_of_the_start(make_pod: MakePod) -> None:
    """PID 1 never outlives it unnoticed, not even from its first instruction."""
    for marker in ("net-info.json" if SURROUNDING == NO_GROUPS else "subcgroup", "pid"):
        for _ in range(5):
            pod = make_pod({"a": shell(FOREVER)})
            process = pod.start()
            while not (pod.path / marker).exists():
                pass
            process.kill()
            process.communicate(timeout=90)
            pod.wait_exited()
            wait_for(lambda pod=pod: pod.members() == [], "the end of all processes")  # type: ignore[misc]
            assert pod.status("a") in (None, 0)
            assert pod.gc().returncode == 0
            assert pod.control_groups() == []


@pytest.mark.parametrize(
    "is_short_of_memory",
    [False, pytest.param(True, marks=pytest.mark.delegated_groups("it sets limits"))],
    ids=["by somebody", "for want of memory"],
)
@pytest.mark.private_users
def test_a_killed_pid_1_ends_everything(make_pod: MakePod, is_short_of_memory: bool) -> None:
    """The launcher says why and ends, the lock is free, and no status is invented; one that was there stays."""
    pod = make_pod({"a": shell(FOREVER), "done": shell("exit 0")})
    process = started(pod)
    assert pod.wait_status("done") == 0
    how, reason = "by somebody on the host", "killed"
    if is_short_of_memory:
        group = memory_group(pod.control_groups(), "init.scope")
        limit = use_up(group)
        how = f"by the kernel for want of memory: the limit of {group} is {limit} bytes ({limit / (1 << 20):.1f} MiB)"
        how, reason = how.replace(".0 MiB", " MiB"), "oom-killed"
    else:
        os.kill(pod.pid, signal.SIGKILL)
    result = pod.finish(process)
    assert result.returncode == -signal.SIGKILL
    sentence = f"PID 1 of the pod was killed {how}"
    assert result.stderr == f"stage1: {sentence}: how apps that ran have ended is not known\n"
    event = pod.events()[-1]
    assert (event["event"], event["reason"], event["end"]) == ("pod.killed", reason, sentence)
    assert [one["seq"] for one in pod.events()] == [*range(1, event["seq"] + 1)]
    assert diagnose_pod(pod)["conclusions"] == [
        f"The pod was ended by force: {sentence}.",
        'App "a" has no status, since its pod was killed.',
    ]
    assert not pod.is_running()
    assert (pod.status("a"), pod.status("done")) == (None, 0)
    wait_for(lambda: pod.members() == [], "the end of all processes")
    assert pod.gc().returncode == 0
    assert pod.control_groups() == []


def test_a_killed_app_is_an_app_that_failed(make_pod: MakePod) -> None:
    """Killed from the host it is recorded as 137, as if the OOM killer had come."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up"), "b": shell(FOREVER)})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    [main] = named(pod.members(), "guest")
    os.kill(main, signal.SIGKILL)
    assert pod.finish(process).returncode == 137
    assert (pod.status("a"), pod.status("b")) == (137, 0)


def test_a_status_that_cannot_be_written_does_not_end_pid_1(make_pod: MakePod) -> None:
    """It is tried again until the obstacle is gone, and the exit code is right all the same."""
    pod = make_pod({"a": shell("while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 0"), "b": shell(FOREVER)})
    process = started(pod)
    log = pod.stage1 / "rkt/minit/supervisor.log"
    # A directory in its place: rename cannot replace it.
    (pod.stage1 / "rkt/status/a").mkdir()
    pod.file("a", "/tmp/go").touch()
    wait_for(lambda: log.exists() and "status.unwritten" in log.read_text(), "the failure")
    assert pod.ask({"op": "ping"})["ok"]
    (pod.stage1 / "rkt/status/a").rmdir()
    wait_for((pod.stage1 / "rkt/status/a").is_file, "the status")
    assert pod.status("a") == 0
    # Who follows the events looks again.
    pod.wait_event("app.end-written", "a")
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_a_status_that_can_never_be_written_is_reported(make_pod: MakePod) -> None:
    """The pod ends with its code, and one line says which status is lost."""
    pod = make_pod({"a": shell("while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 7")})
    process = started(pod)
    (pod.stage1 / "rkt/status/a").mkdir()
    pod.file("a", "/tmp/go").touch()
    result = pod.finish(process)
    (pod.stage1 / "rkt/status/a").rmdir()
    assert result.returncode == 7
    assert result.stderr == 'stage1: app "a": status 7 could not be written\n'


def test_a_suspended_launcher_does_not_hold_up_the_apps(make_pod: MakePod) -> None:
    """It only waits: with it stopped the pod goes on, and ends."""
    pod = make_pod({"a": shell("while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 2")})
    process = started(pod)
    process.send_signal(signal.SIGSTOP)
    pod.file("a", "/tmp/go").touch()
    assert pod.wait_status("a") == 2
    process.send_signal(signal.SIGCONT)
    assert pod.finish(process).returncode == 2
    assert not is_alive(process.pid)
