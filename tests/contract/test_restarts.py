"""Apps that are started again by their own policy: how often, how soon, and what ends it."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.campaign import LONG, campaign
from tests.support.pods import TIMEOUT_SECONDS, MakePod, PodDirectory, handlers, shell
from tests.support.processes import named
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
# Soon, so that nobody waits.
SOON = {"minit/restart-delay": "10ms", "minit/restart-max-delay": "20ms"}


def restarting(**named: str) -> list[dict[str, str]]:
    """Return annotations of an app, `restart_limit` for minit/restart-limit, with short delays."""
    every = SOON | {f"minit/{name.replace('_', '-')}": value for name, value in named.items()}
    return [{"name": name, "value": value} for name, value in every.items()]


def names(pod: PodDirectory, app: str) -> list[str]:
    """Return the events about the ends and starts of an app."""
    wanted = ("app.exited", "app.started-again", "app.restart-planned", "app.restarts-given-up")
    return [event["event"] for event in pod.events() if event.get("app") == app and event["event"] in wanted]


@pytest.mark.private_users
def test_an_app_that_fails_is_started_until_it_succeeds(make_pod: MakePod) -> None:
    """With on-failure it runs in the same root again, logged all along, until it ends with 0; so does the pod then."""
    script = "echo x >> /tmp/runs; echo run $(wc -l < /tmp/runs); [ $(wc -l < /tmp/runs) -ge 4 ] || exit 7"
    pod = make_pod({"a": shell(script, annotations=restarting(restart="on-failure"))})
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (0, 0)
    assert [line.split(": ", 1)[1] for line in result.stdout.splitlines()] == [f"run {n}" for n in (1, 2, 3, 4)]
    assert names(pod, "a") == 3 * ["app.exited", "app.restart-planned", "app.started-again"] + ["app.exited"]


def test_giving_up_ends_the_pod_as_a_failure_does(make_pod: MakePod) -> None:
    """After minit/restart-limit restarts in a row the last status is the pod's, and the others are stopped."""
    pod = make_pod(
        {"a": shell("exit 7", annotations=restarting(restart="always", restart_limit="2")), "b": shell(FOREVER)}
    )
    result = pod.run()
    assert (result.returncode, pod.status("a"), pod.status("b")) == (7, 7, 0)
    assert 'stage1: app "a": exited with 7, after 2 restarts in a row' in result.stderr
    assert names(pod, "a")[-2:] == ["app.exited", "app.restarts-given-up"]
    assert names(pod, "a").count("app.exited") == 3


def test_a_stop_while_an_app_waits_to_be_started_again(make_pod: MakePod) -> None:
    """Nothing is waited for: the pod ends at once, with 0, and the app keeps its last status."""
    late = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "1h"}]
    pod = make_pod({"a": shell("exit 7", annotations=late)})
    process = pod.start()
    assert pod.wait_status("a") == 7
    state = wait_for(lambda: (app := pod.ask({"op": "state"})["apps"][0])["state"] == "exited" and app, "its end")
    assert (state["restarts"], state["ready"]) == (0, False)
    assert 0 < state["restart_in_seconds"] <= 3600
    # Who follows its log is not sent away meanwhile.
    assert not (pod.stage1 / "rkt/minit/log/a.ended").exists()
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 7
    assert (pod.stage1 / "rkt/minit/log/a.ended").exists()


Process = subprocess.Popen[bytes]
# How all apps of a pod are ended, by its name.
ENDS: dict[str, Callable[[PodDirectory, Process], object]] = {
    "stop": lambda pod, _: pod.stop(),
    "force": lambda pod, _: pod.stop("--force"),
    "signal": lambda _, launcher: launcher.terminate(),
    "death of the launcher": lambda _, launcher: launcher.kill(),
    "failure": lambda pod, _: pod.file("other", "/tmp/go").touch(),
}
MOMENTS = ("app.exited", "app.restart-planned", "app.started-again", "app.state")


@pytest.mark.timeout(1200 if LONG else 240)
@pytest.mark.parametrize("how", ENDS)
def test_an_end_at_any_moment_of_a_restart(make_pod: MakePod, how: str) -> None:
    """Apps that fail again and again have the status of their last end, whenever and however all are ended."""
    section = shell("exit 7", annotations=restarting(restart="always"))
    other = shell("until [ -e /tmp/go ]; do sleep 0.02; done; exit 9")
    generator = random.Random(how)
    for _ in range(campaign(2)):
        pod = make_pod({**dict.fromkeys("abcdefgh", section), "other": other})
        process = pod.start()
        app, moment, count = generator.choice("abcdefgh"), generator.choice(MOMENTS), generator.randrange(1, 5)
        wait_for(lambda: happened(pod, app, moment) >= count, f"{moment} of {app}")  # noqa: B023
        ENDS[how](pod, process)
        process.communicate(timeout=TIMEOUT_SECONDS)
        pod.wait_exited()
        found = {name: (pod.record(name).get("reason"), pod.status(name)) for name in "abcdefgh"}
        ends = {("exited", 7), ("stopped", 7), ("stopped", 0), *([("stopped", 137)] if how == "force" else ())}
        assert set(found.values()) <= ends, found
        assert all(pod.record(name)["status"] == pod.status(name) for name in "abcdefgh")


def test_a_stop_of_one_app_at_any_moment_of_a_restart(make_pod: MakePod) -> None:
    """An app of a mutable pod that fails again and again has the status of its last end when it is stopped."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("a", shell("exit 7", annotations=restarting(restart="always"))).returncode == 0
    generator = random.Random(0)
    for _ in range(campaign(20)):
        before = {moment: happened(sandbox.pod, "a", moment) for moment in MOMENTS}
        sandbox.mark_started("a")
        assert sandbox.pod.ask({"op": "app-start", "app": "a"})["ok"]
        moment, count = generator.choice(MOMENTS), generator.randrange(1, 5)
        wait_for(lambda: happened(sandbox.pod, "a", moment) >= before[moment] + count, f"{count} {moment}")  # noqa: B023
        assert sandbox.pod.ask({"op": "app-stop", "app": "a"})["ok"]
        record = sandbox.pod.record("a")
        assert record["status"] == sandbox.pod.status("a")
        assert (record["reason"], record["status"]) in {("exited", 7), ("stopped", 7), ("stopped", 0)}
    assert sandbox.end().returncode == 0


def happened(pod: PodDirectory, app: str, event: str) -> int:
    """Return how often something has happened to an app."""
    return sum((one["event"], one.get("app")) == (event, app) for one in pod.events())


@pytest.mark.rootless
def test_a_killed_app_comes_back(make_pod: MakePod) -> None:
    """One that dies of a signal has failed; its status is gone while it runs again, in another process."""
    # The number of a process, and the start in ticks since the boot: without groups each has the same number.
    seen = "set -- $(cat /proc/$$/stat); echo $1-${22} >> /tmp/runs"
    script = f"{seen}; [ $(wc -l < /tmp/runs) -ge 2 ] || kill -9 $$; touch /tmp/up; {FOREVER}"
    pod = make_pod({"a": shell(script, annotations=restarting(restart="on-failure"))})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    assert pod.wait_event("app.exited", "a")["status"] == 137
    assert len(set(pod.file("a", "/tmp/runs").read_text().split())) == 2
    assert pod.status("a") is None
    assert pod.ask({"op": "state"})["apps"][0]["restarts"] == 1
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def test_handlers_run_each_time(make_pod: MakePod) -> None:
    """The event handlers belong to every run of the app."""
    script = "echo x >> /tmp/runs; [ $(wc -l < /tmp/runs) -ge 2 ]"
    commands = handlers(pre_start=["/bin/echo", "before"], post_stop=["/bin/echo", "after"])
    section: dict[str, Any] = shell(script, annotations=restarting(restart="on-failure"), eventHandlers=commands)
    pod = make_pod({"a": section})
    result = pod.run()
    assert result.returncode == 0
    assert [line.split(": ", 1)[1] for line in result.stdout.splitlines()] == ["before", "after", "before", "after"]


def test_a_program_that_cannot_be_executed(make_pod: MakePod) -> None:
    """It counts as a failure each time."""
    section = shell("", annotations=restarting(restart="on-failure", restart_limit="1"))
    pod = make_pod({"a": {**section, "exec": ["/missing"]}})
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (203, 203)
    assert result.stderr.count('Unable to open "/missing"') + result.stdout.count('Unable to open "/missing"') == 2


@pytest.mark.private_users
def test_an_app_that_was_added_to_a_pod(make_pod: MakePod) -> None:
    """It is started again by its policy as well, until somebody stops it; started by hand it is as good as new."""
    sandbox = Sandbox(make_pod)
    section = shell("echo x >> /runs; exit 7", annotations=restarting(restart="on-failure", restart_limit="2"))
    sandbox.add("a", section)
    for number in (1, 2):
        assert sandbox.start("a").returncode == 0
        wait_for(lambda: names(sandbox.pod, "a").count("app.restarts-given-up") == number, "its last end")  # noqa: B023
        assert len(sandbox.pod.file("a", "runs").read_text().split()) == 3 * number
    late = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "1h"}]
    sandbox.add("b", shell("exit 0", annotations=late))
    assert sandbox.start("b").returncode == 0
    assert sandbox.pod.wait_status("b") == 0
    wait_for(lambda: "restart_in_seconds" in (sandbox.app("b") or {}), "its delay")
    assert sandbox.stop("b").returncode == 0
    assert "restart_in_seconds" not in (sandbox.app("b") or {})
    assert sandbox.start("b").returncode == 0
    assert sandbox.remove("b").returncode == 0
    assert sandbox.end().returncode == 0


def test_output_that_somebody_holds_open_is_given_up(make_pod: MakePod) -> None:
    """Another app may keep the end of each of an app's pipes: PID 1 does not grow with the restarts for all that."""
    pod = make_pod({"a": shell("exec sleep 1234", annotations=restarting(restart="always"))})
    process = pod.start()
    pod.wait_ready()
    held, seen = [], set[int]()
    counts = []
    try:
        for _ in range(22):
            pid = wait_for(lambda: next(iter({*named(pod.members(), "sleep")} - seen), None), "another process")
            held.append(os.open(f"/proc/{pid}/fd/1", os.O_WRONLY))
            seen.add(pid)
            counts.append((len(named(pod.members(), "iottymux-a")), len(os.listdir(f"/proc/{pod.pid}/fd"))))
            os.kill(pid, signal.SIGKILL)
        # One that was just killed may not be gone.
        assert max(sidecars for sidecars, _ in counts) <= 17 and counts[-1][1] < counts[17][1] + 3, counts
        os.write(held[-1], b"written late\n")
    finally:
        for fd in held:
            os.close(fd)
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, "written late" in result.stdout) == (0, True)
