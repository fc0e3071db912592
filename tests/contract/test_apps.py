"""`app/add`, `app/start`, `app/stop` and `app/rm`, driven as rkt drives them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.attached import connect, read_until
from tests.support.campaign import LONG, campaign
from tests.support.pods import MakePod, app_section, handlers, shell
from tests.support.sandbox import Result, Sandbox
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

LIMIT_FILES = ("memory.limit_in_bytes", "memory.max")
GRACE = [{"name": "minit/stop-grace", "value": "500ms"}]


def ok(result: Result) -> None:
    """An entrypoint that did what it should says nothing."""
    assert (result.returncode, result.stdout) == (0, "")


def anonymous_kilobytes(pid: int) -> int:
    """Return how much memory that is of no file a process has, as its page tables say."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("Anonymous:")]
    return int(line.split()[1])


def descriptors(sandbox: Sandbox) -> list[str]:
    """Return what PID 1 holds open, one connection among it."""
    directory = f"/proc/{sandbox.pod.pid}/fd"
    with sandbox.pod.connect() as client:
        # By the third answer it has seen that the clients before are gone.
        for _ in range(3):
            client.send(b'{"op":"ping"}')
            client.recv(1 << 16)
        kinds = [os.readlink(f"{directory}/{fd}").partition(":")[0] for fd in os.listdir(directory)]
        # Its own logs are opened when there is something to write.
        return sorted(kind for kind in kinds if not kind.startswith("/rkt/minit/"))


@pytest.mark.private_users
@pytest.mark.rootless
def test_the_life_of_an_app(make_pod: MakePod) -> None:
    """Added, started, stopped, started again and removed; nothing of it is left, and the pod ends well."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell("trap 'exit 0' TERM; echo one >> /count; while :; do sleep 0.05; done")))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("prepared", "created")
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "count")
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("running", "running")
    ok(sandbox.stop("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web"), sandbox.pod.status("web")) == ("exited", "exited", 0)
    ok(sandbox.start("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("running", "running")
    ok(sandbox.remove("web"))
    assert (sandbox.state("web"), sandbox.rkt_state("web")) == ("unknown", "unknown")
    assert sandbox.traces("web") == []
    assert sandbox.end().returncode == 0


def test_an_app_that_ends(make_pod: MakePod) -> None:
    """Its code is recorded, the pod goes on, and it can be started again, as often as one likes."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("job", shell("echo run; echo x >> /runs; exit 12")))
    for number in range(1, 4):
        ok(sandbox.start("job"))
        assert sandbox.pod.wait_status("job") == 12
        assert len(sandbox.pod.file("job", "runs").read_text().split()) == number
    sandbox.wait_state("job", "exited")
    record = json.loads((sandbox.pod.status_root / "rkt/minit/state/job.json").read_text())
    assert (record["restarts"], record["code"], record["reason"]) == (2, 12, "exited")
    assert record["created"] <= record["started"] <= record["finished"]
    assert sandbox.process.poll() is None
    assert sandbox.end().returncode == 0
    assert sandbox.pod.log("job").count(b" run\n") == 3


def test_starts_at_once_of_what_is_not_there(make_pod: MakePod) -> None:
    """Each says so and nothing else, and one whole status is there in the end."""
    sandbox = Sandbox(make_pod)
    status = sandbox.pod.stage1 / "rkt/status"
    with ThreadPoolExecutor(4) as pool:
        for _ in range(campaign(3)):
            (status / "none").unlink(missing_ok=True)
            for result in pool.map(lambda _: sandbox.call("app/start", "--app=none"), range(8)):
                assert (result.returncode, result.stdout.count("\n")) == (254, 1), result.stdout
            assert (status / "none").read_text() == "254\n"
            assert [path.name for path in status.iterdir() if "none" in path.name] == ["none"]
    assert sandbox.end().returncode == 0


def test_groups_that_were_killed(make_pod: MakePod) -> None:
    """An app is started whether its group was killed while it ran, or while it was empty; each is one start."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("a", shell("exec sleep 1000")))
    files = [path / "system.slice/a.service/cgroup.kill" for path in sandbox.pod.control_groups()]
    kills = [path for path in files if path.exists()]
    has_groups = SURROUNDING != NO_GROUPS
    if has_groups and not kills:
        pytest.skip("cgroup.kill needs a v2 hierarchy")
    for is_running in (False, True, False):
        if is_running:
            ok(sandbox.start("a"))
        if has_groups:
            kills[0].write_text("1")
        elif is_running:
            os.kill(sandbox.pod.first_processes()["a"], signal.SIGKILL)
        if is_running:
            sandbox.wait_state("a", "exited")
        ok(sandbox.start("a"))
        assert sandbox.state("a") == "running"
        ok(sandbox.stop("a"))
    record = json.loads((sandbox.pod.status_root / "rkt/minit/state/a.json").read_text())
    assert record["restarts"] == 3
    assert sandbox.end().returncode == 0


@pytest.mark.private_users
@pytest.mark.delegated_groups("it sets limits")
def test_what_an_added_app_finds(make_pod: MakePod) -> None:
    """Volumes, isolators, files of /etc, its own groups, streams to attach to: all that `run` does for an app."""
    sandbox = Sandbox(make_pod, "--hostname=sand")
    source = sandbox.pod.path / "source"
    source.mkdir()
    (source / "file").write_text("of the host")
    mount = {"path": "/data", "volume": "data"}
    volume = {"name": "data", "kind": "host", "source": str(source), "readOnly": True}
    script = """
        cat /data/file > /seen; touch /data/new || echo read-only >> /seen
        cat /etc/hostname /proc/self/cgroup > /about; ls /proc/self/fd > /fds
        grep -E '^(CapBnd|Seccomp):' /proc/self/status > /status; echo out; echo err >&2; exec sleep 1000
    """
    isolators = [
        {"name": "resource/memory", "value": {"limit": "64Mi"}},
        {"name": "os/linux/capabilities-retain-set", "value": {"set": ["CAP_SYS_ADMIN"]}},
    ]
    section = shell(script, mounts=[{**mount, "appVolume": volume}], isolators=isolators)
    assert sandbox.add("web", section).returncode == 0
    ok(sandbox.start("web"))
    status = sandbox.pod.wait_file("web", "status")
    wait_for(lambda: b" err\n" in sandbox.pod.log("web"), "its output")
    assert sandbox.pod.file("web", "seen").read_text() == "of the hostread-only\n"
    about = sandbox.pod.file("web", "about").read_text()
    assert about.startswith("sand\n") and all(
        line.endswith("/system.slice/web.service") for line in about.splitlines()[1:] if "/machine-rkt" in line
    )
    [bounding, seccomp] = [line.split()[1] for line in status.read_text().splitlines()]
    assert (int(bounding, 16), seccomp) == (1 << 21, "2")
    limits = [path for top in sandbox.pod.control_groups() for path in top.glob("system.slice/web.service/memory.*")]
    assert any(path.read_text().strip() == str(64 << 20) for path in limits if path.name in LIMIT_FILES)
    entered = sandbox.pod.enter("web", "/bin/cat", "/data/file")
    assert (entered.returncode, entered.stdout) == (0, "of the host")
    assert (sandbox.pod.path / "enter/web").stat().st_mode & 0o777 == 0o600
    ok(sandbox.remove("web"))
    assert sandbox.traces("web") == []
    assert (source / "file").read_text() == "of the host"


@pytest.mark.private_users
def test_an_app_that_can_be_attached_to(make_pod: MakePod) -> None:
    """Its sockets are there while it runs, anew after each start, and gone with it."""
    sandbox = Sandbox(make_pod)
    annotations = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "stream"} for name in ("stdin", "stdout")]
    ok(sandbox.add("web", shell("while read x; do echo got $x; done", annotations=annotations)))
    sockets = sandbox.pod.stage1 / "rkt/iottymux/web"
    for word in (b"one", b"two"):
        ok(sandbox.start("web"))
        with connect(sockets, "sock-stdout") as output, connect(sockets, "sock-stdin") as stdin:
            stdin.sendall(word + b"\n")
            read_until(output, b"got " + word)
        ok(sandbox.stop("web"))
    ok(sandbox.remove("web"))
    assert sandbox.traces("web") == []


FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "no source": (
        {"mounts": [{"path": "/a", "volume": "v", "appVolume": {"name": "v", "kind": "host", "source": "/no/such"}}]},
        "Failed to stat /no/such: No such file or directory",
    ),
    "no program": ({"exec": ["nothing"]}, 'unable to find "nothing"'),
    "no user": ({"user": "nobody-here"}, '"nobody-here" user not found'),
    "no place": (
        {"mounts": [{"path": "/etc/passwd/x", "volume": "v", "appVolume": {"name": "v", "kind": "empty"}}]},
        "not a directory",
    ),
    "bad isolator": ({"isolators": [{"name": "resource/memory", "value": {"limit": "x"}}]}, "apps[1].app.isolators[0]"),
    "a console": ({"annotations": [{"name": "coreos.com/rkt/stage2/stdin", "value": "interactive"}]}, "no console"),
}


def test_a_program_that_is_looked_for_late(make_pod: MakePod) -> None:
    """With minit/late-executable an app without a program is added, its start fails, and one may come in between."""
    sandbox = Sandbox(make_pod)
    late = [{"name": "minit/late-executable", "value": "true"}]
    ok(sandbox.add("web", app_section("nothing", annotations=late)))
    failed = sandbox.start("web")
    assert failed.returncode == 254 and 'find executable: unable to find "nothing"' in failed.stdout
    assert sandbox.pod.record("web")["reason"] == "start failed"
    ok(sandbox.add("db", app_section("tool", annotations=late)))
    program = sandbox.pod.file("db", "bin/tool")
    program.write_text("#!/bin/sh\nexit 0\n")
    program.chmod(0o755)
    ok(sandbox.start("db"))
    assert sandbox.pod.wait_status("db") == 0


@pytest.mark.private_users
def test_a_failed_add_leaves_nothing(make_pod: MakePod) -> None:
    """One line says why, also in the pod's own log; no group, no descriptor, no file; `app rm` is the way out."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("good", shell("true")))
    before = descriptors(sandbox)
    for name, (fields, reason) in FAILURES.items():
        result = sandbox.add("bad", {**shell("true"), **fields})
        assert result.returncode in (1, 254), name
        assert reason in result.stdout and result.stdout.count("\n") == 1, name
        assert sandbox.state("bad") == "unknown", name
        assert [trace for trace in sandbox.traces("bad") if "system.slice" in trace or "enter" in trace] == [], name
        assert reason in (sandbox.pod.stage1 / "rkt/minit/supervisor.log").read_text().replace('\\"', '"'), name
        ok(sandbox.remove("bad"))
        assert sandbox.traces("bad") == [], name
    assert descriptors(sandbox) == before
    ok(sandbox.add("bad", shell("exit 7")))
    ok(sandbox.start("bad"))
    assert sandbox.pod.wait_status("bad") == 7


def test_a_duplicate_is_refused(make_pod: MakePod) -> None:
    """An existing app is not touched by it."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell("exec sleep 1000")))
    result = sandbox.call("app/add", f"--uuid={sandbox.pod.uuid}", "--app=web")
    assert (result.returncode, result.stdout) == (254, 'stage1 app add: app "web" is in this pod already\n')
    ok(sandbox.start("web"))
    ok(sandbox.start("web"))
    result = sandbox.call("app/add", f"--uuid={sandbox.pod.uuid}", "--app=web")
    assert result.returncode == 254
    assert sandbox.state("web") == "running"


def test_a_start_that_fails(make_pod: MakePod) -> None:
    """It says why, in rkt's words, and the app has a status, also one that nobody knows."""
    sandbox = Sandbox(make_pod)
    for name, section, reason, status in (
        ("none", {**shell("true"), "exec": ["/nothing"]}, "exec /nothing: no such file or directory", 203),
        ("hook", {**shell("true"), "eventHandlers": handlers(pre_start=["/bin/false"])}, "pre-start: exited", 254),
        ("away", shell("true", workingDirectory="/nowhere"), "change directory to /nowhere: no such", 254),
    ):
        ok(sandbox.add(name, section))
        for _ in range(2):
            result = sandbox.start(name)
            assert result.returncode == 254, name
            assert result.stdout.startswith(f'stage1 app start: "{name}" failed to start: {reason}'), name
            assert (sandbox.pod.status(name), sandbox.rkt_state(name)) == (status, "exited")
    result = sandbox.start("unknown")
    assert result.returncode == 254
    assert result.stdout == 'stage1 app start: "unknown" failed to start: no app "unknown" in this pod\n'
    assert sandbox.pod.status("unknown") == 254


def test_what_is_so_already(make_pod: MakePod) -> None:
    """Stopping what does not run and removing what is not there succeed, starting what runs does nothing."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.stop("nothing"))
    ok(sandbox.call("app/rm", "--debug=false", "--app=nothing"))
    ok(sandbox.add("web", shell("echo x >> /runs; exec sleep 1000")))
    ok(sandbox.stop("web"))
    assert sandbox.state("web") == "prepared"
    for _ in range(3):
        ok(sandbox.start("web"))
    runs = sandbox.pod.wait_file("web", "runs")
    assert wait_for(runs.read_text, "its line") == "x\n"
    ok(sandbox.stop("web"))
    ok(sandbox.stop("web"))
    # Without app/stop before it, and while it runs.
    ok(sandbox.start("web"))
    ok(sandbox.call("app/rm", "--app=web"))
    assert sandbox.state("web") == "unknown"


def test_a_pod_that_has_ended(make_pod: MakePod) -> None:
    """An app of it is stopped, and everything else says in one line that it cannot be."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell("true")))
    sandbox.end()
    ok(sandbox.stop("web"))
    for verb in ("add", "start", "rm"):
        uuid = [f"--uuid={sandbox.pod.uuid}"] if verb == "add" else []
        result = subprocess.run(
            [sandbox.pod.entrypoint(f"app/{verb}"), *uuid, "--app=web"],
            cwd=sandbox.pod.path,
            env={"PATH": "/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 254
        assert result.stderr.startswith(f"stage1 app {verb}: pod is not running any more: "), result.stderr


def test_a_pod_that_is_not_mutable(make_pod: MakePod) -> None:
    """Its apps are what they are."""
    pod = make_pod({"web": shell("exec sleep 1000")})
    pod.start()
    pod.wait_ready()
    for verb in ("start", "stop", "rm"):
        result = pod.call(f"app/{verb}", "--app=web")
        assert (result.returncode, "immutable pod" in result.stderr) == (254, True)
    result = pod.call("app/add", f"--uuid={pod.uuid}", "--app=new")
    assert (result.returncode, result.stderr) == (254, "stage1 app add: immutable pod\n")
    assert pod.ask({"op": "state"})["apps"][0]["state"] == "running"
    # Nor is a status invented for one that runs.
    assert pod.status("web") is None


@pytest.mark.parametrize("verb", ["add", "start", "stop", "rm"])
def test_bad_arguments(make_pod: MakePod, verb: str) -> None:
    """As with every entrypoint: one line, the usage, exit status 2."""
    pod = make_pod({"web": shell("true")})
    for arguments in (["--app=../etc"], ["--app=web", "more"], ["--nothing"], [], ["--debug=maybe", "--app=web"]):
        uuid = [f"--uuid={pod.uuid}"] if verb == "add" else []
        result = pod.call(f"app/{verb}", *uuid, *arguments)
        assert (result.returncode, result.stderr.startswith(f"stage1 app {verb}: ")) == (2, True), arguments
        assert f"Usage of app_{verb}" in result.stderr


STUBBORN = "trap 'touch /told' TERM; touch /begun; while :; do sleep 0.05; done"


def begun(make_pod: MakePod) -> Sandbox:
    """Return a pod with an app that a signal does not end, and that would have an hour."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell(STUBBORN, annotations=[{"name": "minit/stop-grace", "value": "1h"}])))
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "begun")
    return sandbox


@pytest.mark.private_users
@pytest.mark.parametrize(("timeout", "told"), [("500ms", True), ("0s", False)])
def test_a_stop_with_a_time(make_pod: MakePod, timeout: str, told: bool) -> None:
    """It is the grace period; without any the app is killed, and told nothing."""
    sandbox = begun(make_pod)
    ok(sandbox.call("app/stop", "--app=web", f"--timeout={timeout}"))
    assert (sandbox.state("web"), sandbox.pod.status("web")) == ("exited", 137)
    assert sandbox.pod.file("web", "told").exists() is told
    ok(sandbox.start("web"))
    ok(sandbox.call("app/stop", "--app=web", "--timeout=0s"))
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize(("first", "second"), [("1h", "0s"), ("1h", "500ms"), ("1s", "1h")])
def test_the_shorter_time_of_two_stops_counts(make_pod: MakePod, first: str, second: str) -> None:
    """Whichever comes first, and both callers wait for the end."""
    sandbox = begun(make_pod)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(sandbox.call, "app/stop", "--app=web", f"--timeout={first}")
        sandbox.pod.wait_file("web", "told")
        ok(sandbox.call("app/stop", "--app=web", f"--timeout={second}"))
        ok(waiting.result())
    assert (sandbox.state("web"), sandbox.pod.status("web")) == ("exited", 137)
    assert sandbox.end().returncode == 0


def test_a_longer_time_for_the_children(make_pod: MakePod) -> None:
    """What the main process leaves behind has no longer than the first stop said."""
    sandbox = Sandbox(make_pod)
    child = "trap '' TERM; : >/begun; while :; do sleep 1000; done"
    main = f'trap ": >/told; until [ -e /go ]; do sleep 0.02; done; exit" TERM; sh -c "{child}" & wait'
    ok(sandbox.add("web", shell(main)))
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "begun")
    with ThreadPoolExecutor(1) as pool:
        waiting = [pool.submit(sandbox.call, "app/stop", "--app=web", "--timeout=3s")]
        sandbox.pod.wait_file("web", "told")
        with sandbox.pod.connect() as second:
            second.send(b'{"op": "app-stop", "app": "web", "grace_seconds": 3600}')
            sandbox.pod.file("web", "go").touch()
            ok(waiting[0].result())
    assert sandbox.state("web") == "exited"
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize("timeout", ["x", "-1s"])
def test_a_stop_with_a_bad_time(make_pod: MakePod, timeout: str) -> None:
    """It is refused, and the app goes on."""
    sandbox = begun(make_pod)
    result = sandbox.call("app/stop", "--app=web", f"--timeout={timeout}")
    assert result.returncode != 0
    assert "for flag -timeout" in result.stdout
    assert sandbox.state("web") == "running"
    ok(sandbox.call("app/stop", "--app=web", "--timeout=0s"))
    assert sandbox.end().returncode == 0


def test_a_stop_while_a_handler_hangs(make_pod: MakePod) -> None:
    """A start that waits for a pre-start handler holds up nobody, and is answered when somebody stops the app."""
    sandbox = Sandbox(make_pod)
    hooked = {**shell("true"), "eventHandlers": handlers(pre_start=["/bin/sleep", "1000"])}
    ok(sandbox.add("slow", hooked))
    ok(sandbox.add("quick", shell("exit 5")))
    with ThreadPoolExecutor(2) as pool:
        starting = [pool.submit(sandbox.call, "app/start", "--app=slow") for _ in range(2)]
        wait_for(lambda: (sandbox.app("slow") or {})["state"] == "pre-start", "the handler")
        ok(sandbox.start("quick"))
        assert sandbox.pod.wait_status("quick") == 5
        ok(sandbox.stop("slow"))
        for future in starting:
            result = future.result()
            assert result.returncode == 254
            assert '"slow" failed to start: ' in result.stdout
    assert sandbox.pod.status("slow") == 254
    assert sandbox.state("slow") == "exited"


def test_a_client_that_dies(make_pod: MakePod) -> None:
    """Its request is carried out all the same, and nobody waits for it."""
    sandbox = Sandbox(make_pod)
    ok(sandbox.add("web", shell("trap '' TERM; touch /up; while :; do sleep 0.05; done", annotations=GRACE)))
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "up")
    before = descriptors(sandbox)
    for op in ("app-stop", "app-rm"):
        with sandbox.pod.connect() as client:
            client.send(json.dumps({"op": op, "app": "web"}).encode())
            wait_for(lambda: (sandbox.app("web") or {}).get("state") == "stopping", "the stop")
    wait_for(lambda: sandbox.app("web") is None, "the removal")
    assert len(descriptors(sandbox)) < len(before)


def test_start_and_stop_at_once(make_pod: MakePod) -> None:
    """In any order every start and stop is answered, and after the last stop the app does not run."""
    sandbox = Sandbox(make_pod)
    for name in ("one", "two"):
        ok(sandbox.add(name, shell("trap 'exit 0' TERM; while :; do sleep 0.02; done")))
    verbs = ["app-start", "app-stop", "app-start", "app-stop"] * campaign(3)
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(sandbox.pod.ask, {"op": op, "app": app}) for op in verbs for app in ("one", "two")]
        for future in asked:
            reply = future.result()
            assert reply["ok"] or reply["error"].startswith(("it was stopped", "start: stopped")), reply
    for name in ("one", "two"):
        ok(sandbox.stop(name))
        assert sandbox.state(name) in ("exited", "prepared")
        ok(sandbox.start(name))
        assert sandbox.state(name) == "running"
        ok(sandbox.remove(name))
    assert sandbox.end().returncode == 0


def test_a_stop_of_the_pod_ends_its_apps(make_pod: MakePod) -> None:
    """Those that run are stopped, those that wait need not be, and statuses are written before the launcher exits."""
    sandbox = Sandbox(make_pod)
    for name in ("runs", "waits", "ended"):
        ok(sandbox.add(name, shell("exit 4" if name == "ended" else "exec sleep 1000")))
    for name in ("runs", "ended"):
        ok(sandbox.start(name))
    sandbox.pod.wait_status("ended")
    assert sandbox.end().returncode == 0
    assert [sandbox.pod.status(name) for name in ("runs", "waits", "ended")] == [0, None, 4]


@pytest.mark.delegated_groups("it sets limits")
@pytest.mark.rootless
def test_why_an_app_ended(make_pod: MakePod) -> None:
    """The record tells a stop from an end of its own, a signal and the OOM killer, which may have met a child."""
    sandbox = Sandbox(make_pod)
    hungry = [{"name": "resource/memory", "value": {"limit": "16M"}}]
    ends = {
        "stopped": (shell("exec sleep 1000"), 0),
        "signalled": (shell("kill -KILL $$"), 137),
        "oom-killed": (shell("exec tail /dev/zero", isolators=hungry), 137),
        "oom-killed.child": (shell("tail /dev/zero; exit 3", isolators=hungry), 3),
        "exited.well": (shell("tail /dev/zero; exit 0", isolators=hungry), 0),
        "exited": (shell("exit 1"), 1),
        "exited.137": (shell("exit 137"), 137),
    }
    for name, (section, status) in ends.items():
        app, reason = name.replace(".", "-"), name.split(".")[0]
        assert sandbox.add(app, section).returncode == 0
        ok(sandbox.start(app))
        if reason == "stopped":
            ok(sandbox.stop(app))
        assert sandbox.pod.wait_status(app) == status
        assert sandbox.pod.record(app)["reason"] == reason
    told = [line.split(" for want of ")[0] for line in sandbox.end().stderr.splitlines() if "want of memory" in line]
    assert told == [
        'stage1: app "oom-killed": the kernel has killed it',
        'stage1: app "oom-killed-child": the kernel has killed 1 of its processes',
    ]


def test_logs_are_kept_if_somebody_wants_them(make_pod: MakePod) -> None:
    """By the annotation of the app, or of the pod; an app of that name goes on with them."""
    sandbox = Sandbox(make_pod, annotations={"minit/keep-logs": "true"})
    for _ in range(2):
        ok(sandbox.add("web", shell("echo said")))
        ok(sandbox.start("web"))
        wait_for((sandbox.pod.stage1 / "rkt/minit/log/web.ended").exists, "the end of the log")
        ok(sandbox.remove("web"))
    assert sandbox.pod.log("web").count(b" said\n") == 2
    annotation = [{"name": "minit/keep-logs", "value": "false"}]
    ok(sandbox.add("web", shell("echo said", annotations=annotation)))
    ok(sandbox.remove("web"))
    assert sandbox.traces("web") == []


def test_nothing_grows(make_pod: MakePod) -> None:
    """Descriptors, mounts and groups are as many after many apps as before."""
    sandbox = Sandbox(make_pod)

    def round_trip(name: str) -> None:
        ok(sandbox.add(name, shell("exit 0")))
        ok(sandbox.start(name))
        ok(sandbox.stop(name))
        ok(sandbox.remove(name))

    def held() -> tuple[object, ...]:
        groups = [path for top in sandbox.pod.control_groups() for path in top.rglob("*") if path.is_dir()]
        return descriptors(sandbox), sandbox.pod.mounts(), sorted(groups), sandbox.pod.children().keys()

    round_trip("first")
    before = held()
    for _ in range(2):
        names = [f"app{number}" for number in range(100 if LONG else 3)]
        for verb in (lambda name: sandbox.add(name, shell("exec sleep 1000")), sandbox.start, sandbox.stop):
            for name in names:
                ok(verb(name))
        for name in names:
            ok(sandbox.remove(name))
        assert held() == before


@pytest.mark.timeout(2 * 3600 if LONG else 600)
@pytest.mark.host_users("PID 1 holds the same")
def test_apps_of_new_names_leave_nothing_in_the_memory_of_pid_1(make_pod: MakePod) -> None:
    """Once all kept events are of apps that are gone, PID 1 does not grow, however many come and go."""
    sandbox = Sandbox(make_pod)
    memory = []
    names = (f"an-app-of-a-new-name-{number}" for number in count())
    # Eleven events of each app, of which a thousand are kept.
    for apps in (500, 2000, 2500, 5000) if LONG else (110, 15, 15, 15):
        for name in islice(names, apps):
            ok(sandbox.add(name, shell("exit 0")))
            ok(sandbox.start(name))
            ok(sandbox.stop(name))
            ok(sandbox.remove(name))
        memory.append(anonymous_kilobytes(sandbox.pod.pid))
    # What is freed and allocated anew takes some pages more now and then, and what leaks takes them each time.
    if LONG:
        # 100 and 20 bytes for each app.
        assert memory[-1] - memory[0] < 950 and memory[-1] - memory[-2] < 100, memory
    assert min(after - before for before, after in pairwise(memory)) < 48, memory


@pytest.mark.host_root("no root of a user namespace writes these settings of the kernel")
def test_options_of_the_pod_and_of_the_app(make_pod: MakePod) -> None:
    """An app that is added gets what the pod was started with, unless `app/add` is told otherwise."""
    script = (
        "grep ^Seccomp_filters: /proc/self/status > /seen; (: >> /proc/sys/kernel/hostname) && echo open >> /seen; true"
    )
    for flags, own, seen in (
        ((), (), "Seccomp_filters:\t1\n"),
        (("--disable-seccomp", "--disable-paths"), (), "Seccomp_filters:\t1\nopen\n"),
        (("--disable-seccomp",), ("--disable-seccomp=false", "--disable-paths"), "Seccomp_filters:\t1\nopen\n"),
    ):
        sandbox = Sandbox(make_pod, *flags)
        ok(sandbox.add("web", shell(script), *own))
        ok(sandbox.start("web"))
        assert sandbox.pod.wait_status("web") == 0
        assert sandbox.pod.file("web", "seen").read_text() == seen
        sandbox.end()


def test_what_is_no_request(make_pod: MakePod) -> None:
    """Requests that make no sense are refused and change nothing, whatever descriptors come with them."""
    sandbox = Sandbox(make_pod)
    before = descriptors(sandbox)
    fds = [os.open("/dev/null", os.O_RDWR) for _ in range(8)]
    add = {"op": "app-add", "app": "web", "version": 1}
    for request in (
        {"op": "app-add"},
        {**add, "version": 2},
        {**add, "descriptors": 3},
        {**add, "descriptors": ["spec"]},
        {**add, "descriptors": ["spec", *["root"] * 7]},
        {**add, "descriptors": [["spec"], {}, 3, None, True, "a", "b", "c"]},
        {"op": "app-start"},
        {"op": "app-start", "app": {"a": 1}},
        {"op": ["app-start"]},
        {"op": "app-stop " * 20},
        {"op": "reopen-logs", "app": ["web"]},
        {"op": "reopen-logs", "app": {}},
    ):
        for sent in (fds, []):
            with sandbox.pod.connect() as client:
                socket.send_fds(client, [json.dumps(request).encode()], sent)
                reply = json.loads(client.recv(1 << 16))
                assert reply["ok"] is False and reply["error"], request
    with sandbox.pod.connect() as client:
        socket.send_fds(client, [b'{"op":"app-stop","app":"' + b"x" * (1 << 17) + b'"}'], fds)
        assert "at most" in json.loads(client.recv(1 << 16))["error"]
    for fd in fds:
        os.close(fd)
    assert descriptors(sandbox) == before
    ok(sandbox.add("web", shell("true")))


@pytest.mark.host_users("links of map_files are followed with capabilities of the host only")
@pytest.mark.host_root("links of map_files are followed with capabilities of the host only")
def test_an_app_that_reaches_pid_1_cannot_write_what_the_host_executes(make_pod: MakePod) -> None:
    """Every file that PID 1 runs from is on a read-only mount, also what it has loaded since the pod was started."""
    script = """
        for file in /proc/1/exe /proc/1/map_files/*; do (: >> $file) 2>> /errors && echo $file >> /wrote; done
        touch /done
    """
    retained = {"set": ["CAP_SYS_PTRACE", "CAP_SYS_ADMIN", "CAP_CHECKPOINT_RESTORE"]}
    sandbox = Sandbox(make_pod)
    isolators = [{"name": "os/linux/capabilities-retain-set", "value": retained}]
    assert sandbox.add("web", shell(script, isolators=isolators)).returncode == 0
    ok(sandbox.start("web"))
    sandbox.pod.wait_file("web", "done")
    assert not sandbox.pod.file("web", "wrote").exists()
    lines = sandbox.pod.file("web", "errors").read_text().splitlines()
    assert len(lines) > 20 and all(line.endswith(("Read-only file system", "Text file busy")) for line in lines), lines


def test_an_app_with_a_policy(make_pod: MakePod) -> None:
    """It is started again by itself as long as nobody stops it; a stop, also of one that waits, is the end of that."""
    sandbox = Sandbox(make_pod)
    policy = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "50ms"}]
    ok(sandbox.add("web", shell("echo x >> /runs; exit 3", annotations=policy)))
    ok(sandbox.start("web"))
    runs = sandbox.pod.wait_file("web", "runs")
    wait_for(lambda: len(runs.read_text().split()) >= 3, "restarts")
    ok(sandbox.stop("web"))
    count = len(runs.read_text().split())
    assert sandbox.state("web") == "exited"
    ok(sandbox.start("web"))
    wait_for(lambda: len(runs.read_text().split()) >= count + 2, "restarts")
    ok(sandbox.remove("web"))
    assert sandbox.traces("web") == []
