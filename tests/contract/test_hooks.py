"""Hooks of apps: what they run as, when they run, and what their end means for their app."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from minit.plan.life.hooks import HOOK_POST_START, HOOK_PRE_STOP
from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

# Nothing is said of a sleep that the signal ends too.
FOREVER = "exec 2> /dev/null; while :; do sleep 0.05; done"
# Hours are as good as for ever: no test waits for one.
SLOW_STOP = {"minit/stop-grace": "1h"}
QUICK_STOP = {"minit/stop-grace": "0.3s"}


def hooked(
    script: str,
    post_start: object = None,
    pre_stop: object = None,
    annotations: dict[str, str] | None = None,
    **fields: Any,
) -> dict[str, Any]:
    """Return an app with hooks, which are shell scripts, or else the objects themselves."""
    hooks = {
        name: {"exec": ["/bin/sh", "-c", hook]} if isinstance(hook, str) else hook
        for name, hook in ((HOOK_POST_START, post_start), (HOOK_PRE_STOP, pre_stop))
        if hook is not None
    }
    every = {**(annotations or {}), "minit/hooks": json.dumps(hooks)}
    return shell(script, annotations=[{"name": name, "value": value} for name, value in every.items()], **fields)


def ends_of_hooks(pod: PodDirectory) -> list[tuple[str, str]]:
    """Return the name and the end of each hook or handler that has ended, in their order."""
    return [(event["handler"], event["end"]) for event in pod.events() if event["event"] == "handler.ended"]


def state(pod: PodDirectory, app: str = "a") -> str:
    """Return the state of an app."""
    [found] = [entry["state"] for entry in pod.ask({"op": "state"})["apps"] if entry["name"] == app]
    return str(found)


@pytest.mark.private_users
def test_the_surroundings_of_a_hook(make_pod: MakePod, own_rootfs: Path) -> None:
    """All of them are the app's: user, groups, capabilities, filters, namespaces, control group, directory, limits."""
    (own_rootfs / "work").mkdir()
    section = hooked(
        f"{GUEST} report /tmp/app; touch /tmp/up; {FOREVER}",
        {"exec": [GUEST, "report", "/tmp/post-start", "a b", "$x"]},
        {"exec": ["guest", "report", "/tmp/pre-stop"]},
        user="1000",
        group="1001",
        supplementaryGIDs=[7],
        workingDirectory="/work",
        environment=[{"name": "PATH", "value": f"/bin:{os.path.dirname(GUEST)}"}, {"name": "OWN", "value": "x\ny"}],
        isolators=[{"name": "os/linux/oom-score-adj", "value": 321}],
    )
    pod = make_pod({"a": section}, own_rootfs)
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert result.returncode == 0, result.stderr
    app = pod.report("a", "/tmp/app")
    for path in ("/tmp/post-start", "/tmp/pre-stop"):
        report = pod.report("a", path)
        assert (report.one("uids"), report.one("gids"), report.all("group")) == (
            "1000 1000 1000",
            "1001 1001 1001",
            ["7"],
        )
        same = ("CapBnd", "CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Umask")
        assert [report.status.get(name) for name in same] == [app.status.get(name) for name in same]
        assert report.environment["OWN"] == app.environment["OWN"] == "x\ny"
        for part in ("cwd", "mountinfo", "oom_score_adj"):
            assert report.one(part) == app.one(part)
        # Hierarchies come and go with other tests, and everybody is at the top of one that is new.
        [groups, of_app] = [
            [line for line in each.one("cgroup").splitlines() if not line.endswith(":/")] for each in (report, app)
        ]
        assert groups == of_app != []
        assert sorted(report.descriptors) == [0, 1, 2]
        assert report.descriptors[0][1] == "/dev/null"
    assert pod.report("a", "/tmp/post-start").arguments[1:] == [b"report", b"/tmp/post-start", b"a b", b"$x"]


def test_an_app_is_ready_when_its_post_start_hook_has_ended(make_pod: MakePod) -> None:
    """It runs meanwhile, is not checked, and those that wait for it do."""
    check = {"minit/health": json.dumps({"liveness": {"exec": ["/bin/touch", "/tmp/checked"], "interval": "100ms"}})}
    wait = "echo hooked; while [ ! -e /tmp/go ]; do sleep 0.01; done"
    after = [{"name": "minit/after", "value": "a"}]
    pod = make_pod(
        {"a": hooked(f"touch /tmp/up; {FOREVER}", wait, annotations=check), "b": shell(FOREVER, annotations=after)}
    )
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    wait_for(lambda: state(pod) == "post-start", "the hook")
    assert state(pod, "b") == "prepared"
    assert not pod.is_ready()
    [entry] = [entry for entry in pod.ask({"op": "state"})["apps"] if entry["name"] == "a"]
    assert (entry["lifecycle_state"], entry["ready"]) == ("running", False)
    assert not pod.file("a", "/tmp/checked").exists()
    pod.file("a", "/tmp/go").touch()
    pod.wait_ready()
    assert (state(pod), state(pod, "b")) == ("running", "running")
    pod.wait_file("a", "/tmp/checked")
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, "]: hooked\n" in result.stdout) == (0, True)
    assert ends_of_hooks(pod) == [(HOOK_POST_START, "exited with 0")]


@pytest.mark.private_users
def test_a_failed_post_start_hook_ends_its_app(make_pod: MakePod) -> None:
    """In order, with its pre-stop hook; its status is 254, and the reason is a line and in its record."""
    section = hooked("trap 'echo stopped; exit 0' TERM; " + FOREVER, "echo why >&2; exit 3", "echo cleaned")
    pod = make_pod({"a": section})
    result = pod.run()
    assert (result.returncode, pod.status("a")) == (254, 254)
    # Each has a sidecar of its own, so that of the app may be faster.
    assert sorted(line.partition("]: ")[2] for line in result.stdout.splitlines()) == ["cleaned", "stopped"]
    assert sorted(line.partition("]: ")[2] or line for line in result.stderr.splitlines()) == [
        'stage1: app "a": post-start: exited with 3',
        "why",
    ]
    assert pod.record("a")["end"] == "post-start: exited with 3"
    assert ends_of_hooks(pod) == [(HOOK_POST_START, "exited with 3"), (HOOK_PRE_STOP, "exited with 0")]


def test_an_app_is_started_again_after_a_failed_post_start_hook(make_pod: MakePod) -> None:
    """By its restart policy, and its hook is run each time."""
    again = {"minit/restart": "on-failure", "minit/restart-delay": "10ms"}
    count = "echo x >> /tmp/runs; [ $(wc -l < /tmp/runs) = 3 ]"
    pod = make_pod({"a": hooked(FOREVER, count, annotations=again)})
    process = pod.start()
    pod.wait_ready()
    assert len(pod.file("a", "/tmp/runs").read_text().split()) == 3
    assert [event["status"] for event in pod.events() if event["event"] == "app.exited"] == [254, 254]
    pod.stop()
    assert pod.finish(process).returncode == 0


@pytest.mark.private_users
@pytest.mark.rootless
def test_a_pre_stop_hook_runs_before_the_stop_signal(make_pod: MakePod) -> None:
    """What it leaves running gets the signal with the app."""
    script = "trap 'echo signal >> /tmp/order; exit 5' TERM; touch /tmp/up; " + FOREVER
    hook = "sleep 1000 >/dev/null 2>&1 & sleep 0.3; echo hook >> /tmp/order"
    pod = make_pod({"a": hooked(script, pre_stop=hook)}, annotations=SLOW_STOP)
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.file("a", "/tmp/order").read_text().split() == ["hook", "signal"]
    assert (pod.status("a"), pod.record("a")["reason"], pod.members()) == (5, "stopped", [])


@pytest.mark.parametrize(
    ("hook", "line"),
    [
        ("exit 4", "exited with 4"),
        ({"exec": ["/not-there"]}, "exited with 203"),
        ({"exec": ["not-there"]}, "exited with 254"),
    ],
    ids=["code", "path", "name"],
)
def test_a_failed_pre_stop_hook_changes_nothing(make_pod: MakePod, hook: object, line: str) -> None:
    """The app gets its signal, its status is its own, and one line and an event tell of the hook."""
    pod = make_pod({"a": hooked("trap 'exit 0' TERM; touch /tmp/up; " + FOREVER, pre_stop=hook)}, annotations=SLOW_STOP)
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a")) == (0, 0)
    assert f'stage1: app "a": pre-stop: {line}\n' in result.stderr
    assert ("not-there" in result.stderr) == (line != "exited with 4")
    assert ends_of_hooks(pod) == [(HOOK_PRE_STOP, line)]


@pytest.mark.parametrize("hook", ["trap '' TERM; sleep 1000", {"sleep": "1h"}], ids=["command", "sleep"])
def test_a_hanging_pre_stop_hook_ends_with_the_grace_period(make_pod: MakePod, hook: object) -> None:
    """Then the app still gets its signal, and two seconds for it."""
    script = "trap 'echo signal; exit 6' TERM; touch /tmp/up; " + FOREVER
    pod = make_pod({"a": hooked(script, pre_stop=hook)}, annotations=QUICK_STOP)
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["signal"]
    assert (result.returncode, pod.status("a"), pod.members()) == (0, 6, [])
    assert 'stage1: app "a": pre-stop: not over within the grace period\n' in result.stderr
    assert ends_of_hooks(pod) == [(HOOK_PRE_STOP, "killed by signal 9" if isinstance(hook, str) else "cut short")]


def test_a_pre_stop_hook_is_part_of_the_grace_period(make_pod: MakePod) -> None:
    """An app that is deaf to the signal has what the hook left of it, not all of it once more."""
    script = "trap '' TERM; touch /tmp/up; " + FOREVER
    pod = make_pod({"a": hooked(script, pre_stop="sleep 5")}, annotations={"minit/stop-grace": "7s"})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.finish(process).returncode == 0
    times = {event["state"]: event["time"] for event in pod.events() if event["event"] == "app.state"}
    seconds = {name: float(time[17:29]) for name, time in times.items()}
    # A whole period from the signal on would be seven seconds at least.
    assert pod.status("a") == 137
    assert (seconds["killed"] - seconds["stopping"]) % 60 < 7


@pytest.mark.parametrize(("script", "status"), [("exit 3", 3), ("kill -9 $$", 137), ("exit 0", 0)])
def test_an_app_that_ends_by_itself_has_no_pre_stop_hook(make_pod: MakePod, script: str, status: int) -> None:
    """However it ends: there is nobody to be told."""
    pod = make_pod({"a": hooked(script, pre_stop="touch /tmp/ran")})
    assert (pod.run().returncode, pod.status("a")) == (status, status)
    assert not pod.file("a", "/tmp/ran").exists()


def test_an_app_that_ends_during_its_pre_stop_hook(make_pod: MakePod) -> None:
    """The hook is asked to end too, and nothing is said of it."""
    script = "touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 8"
    pod = make_pod({"a": hooked(script, pre_stop="touch /tmp/go; exec sleep 1000")}, annotations=SLOW_STOP)
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), result.stderr) == (0, 8, "")
    assert ends_of_hooks(pod) == [(HOOK_PRE_STOP, "killed by signal 15")]


def test_an_app_that_ends_during_its_post_start_hook(make_pod: MakePod) -> None:
    """Its status is its own, and the hook is asked to end."""
    pod = make_pod(
        {"a": hooked("while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 8", "touch /tmp/go; exec sleep 1000")}
    )
    result = pod.run()
    assert (result.returncode, pod.status("a"), pod.members()) == (8, 8, [])


@pytest.mark.parametrize("way", ["force", "twice"])
def test_a_forced_stop_does_not_wait_for_a_hook(make_pod: MakePod, way: str) -> None:
    """Neither for the one that runs, nor for another."""
    pod = make_pod(
        {"a": hooked("touch /tmp/up; " + FOREVER, pre_stop="touch /tmp/in; sleep 1000")}, annotations=SLOW_STOP
    )
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    if way == "twice":
        pod.stop()
        pod.wait_file("a", "/tmp/in")
    pod.stop(*(["--force"] if way == "force" else []))
    assert pod.finish(process).returncode == 0
    assert (pod.status("a"), pod.members()) == (137, [])
    assert pod.file("a", "/tmp/in").exists() == (way == "twice")


def test_a_grace_period_of_nothing_has_no_pre_stop_hook(make_pod: MakePod) -> None:
    """There is no time for it."""
    pod = make_pod(
        {"a": hooked("touch /tmp/up; " + FOREVER, pre_stop="sleep 1000")}, annotations={"minit/stop-grace": "0"}
    )
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert ends_of_hooks(pod) == []


@pytest.mark.parametrize("pre_stop", [None, "touch /tmp/stopping"], ids=["alone", "both"])
def test_a_stop_during_a_post_start_hook(make_pod: MakePod, pre_stop: str | None) -> None:
    """The hook ends, by SIGKILL before another one, and its app is stopped in order."""
    script = "trap 'touch /tmp/signal; exit 0' TERM; " + FOREVER
    section = hooked(script, "touch /tmp/in; exec sleep 1000", pre_stop)
    pod = make_pod({"a": section}, annotations=SLOW_STOP)
    process = pod.start()
    pod.wait_file("a", "/tmp/in")
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), result.stderr) == (0, 0, "")
    assert pod.file("a", "/tmp/signal").exists()
    assert pod.file("a", "/tmp/stopping").exists() == (pre_stop is not None)
    assert dict(ends_of_hooks(pod))[HOOK_POST_START] == f"killed by signal {15 if pre_stop is None else 9}"
    assert pod.members() == []


def test_hooks_that_sleep(make_pod: MakePod) -> None:
    """The app is ready after the first, and gets its signal after the second; no process is made."""
    script = "trap 'exit 0' TERM; touch /tmp/up; " + FOREVER
    pod = make_pod({"a": hooked(script, {"sleep": "200ms"}, {"sleep": "200ms"})}, annotations=SLOW_STOP)
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert ends_of_hooks(pod) == [(HOOK_POST_START, "slept"), (HOOK_PRE_STOP, "slept")]
    assert not [event for event in pod.events() if event["event"] == "handler.started" and "pid" in event]


def test_an_app_that_fails_its_check_has_its_pre_stop_hook(make_pod: MakePod) -> None:
    """It is stopped in order, and started again by its policy with no hook in between."""
    check = {"exec": ["/bin/sh", "-c", "[ ! -e /tmp/sick ]"], "interval": "100ms", "failures": 1, "timeout": "30s"}
    more = {"minit/health": json.dumps({"liveness": check}), "minit/restart": "always", "minit/restart-delay": "10ms"}
    section = hooked(f"echo x >> /tmp/runs; {FOREVER}", pre_stop="rm /tmp/sick", annotations=more)
    pod = make_pod({"a": section})
    process = pod.start()
    pod.wait_ready()
    pod.file("a", "/tmp/sick").touch()
    wait_for(lambda: pod.file("a", "/tmp/runs").read_text() == "x\nx\n", "another start")
    assert not pod.file("a", "/tmp/sick").exists()
    assert pod.stop("--force").returncode == 0
    pod.finish(process)
    assert ends_of_hooks(pod) == [(HOOK_PRE_STOP, "exited with 0")]


def test_hooks_and_event_handlers_of_one_app(make_pod: MakePod) -> None:
    """Each has its turn."""
    order = {name: f"echo {name} >> /tmp/order" for name in ("pre-start", "post-start", "pre-stop", "post-stop")}
    both = handlers(pre_start=("/bin/sh", "-c", order["pre-start"]), post_stop=("/bin/sh", "-c", order["post-stop"]))
    section = hooked(FOREVER, order["post-start"], order["pre-stop"], eventHandlers=both)
    pod = make_pod({"a": section})
    process = pod.start()
    pod.wait_ready()
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.file("a", "/tmp/order").read_text().split() == [*order]


def test_a_killed_launcher_lets_hooks_run(make_pod: MakePod) -> None:
    """The pod ends in order."""
    pod = make_pod({"a": hooked("touch /tmp/up; " + FOREVER, pre_stop="echo cleaned up")})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    process.send_signal(signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    pod.wait_exited()
    assert b"]: cleaned up\n" in out


def test_hooks_of_an_app_that_is_added(make_pod: MakePod) -> None:
    """They run at each start, and at each stop while the pod goes on."""
    sandbox = Sandbox(make_pod)
    section = hooked(FOREVER, "echo start >> /tmp/order", "echo stop >> /tmp/order")
    sandbox.add("a", section)
    for _ in range(2):
        assert sandbox.start("a").returncode == 0
        wait_for(lambda: (sandbox.app("a") or {}).get("ready"), "its readiness")
        assert sandbox.stop("a").returncode == 0
    assert sandbox.pod.file("a", "/tmp/order").read_text().split() == ["start", "stop"] * 2
    assert sandbox.remove("a").returncode == 0
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize(("timeout", "output"), [("300ms", "signal"), ("0s", "")])
def test_a_shorter_time_ends_a_pre_stop_hook(make_pod: MakePod, timeout: str, output: str) -> None:
    """That of a second stop of an app counts for the hook of the first, too."""
    sandbox = Sandbox(make_pod)
    script = "trap 'echo signal > /tmp/told; exit 0' TERM; " + FOREVER
    hook = "touch /tmp/in; sleep 1000"
    assert sandbox.add("a", hooked(script, pre_stop=hook, annotations=SLOW_STOP)).returncode == 0
    assert sandbox.start("a").returncode == 0
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.call, "app/stop", "--app=a")
        sandbox.pod.wait_file("a", "/tmp/in")
        assert sandbox.call("app/stop", "--app=a", f"--timeout={timeout}").returncode == 0
        assert waiting.result().returncode == 0
    told = sandbox.pod.file("a", "/tmp/told")
    assert (told.read_text().strip() if told.exists() else "") == output
    assert sandbox.end().returncode == 0


def test_an_image_has_no_hooks(make_pod: MakePod) -> None:
    """They are for the pod's author to give: one of an image is refused."""
    pod = make_pod({"a": shell("exit 0")}, image_annotations={"minit/hooks": '{"pre-stop": {"sleep": "1h"}}'})
    result = pod.run()
    assert result.returncode == 254
    assert 'annotation "minit/hooks" is one of apps, not of images' in result.stderr
