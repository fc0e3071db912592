"""Ending a pod: by signals, by `stop`, with and without force, and at every moment of its start."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.pods import CONTROL, MakePod, PodDirectory, app_section, guest, shell
from tests.support.processes import is_alive, named, status_of
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
QUICK = {"minit/stop-grace": "300ms"}
# With it, a pod that ends has not waited for the grace period, however busy the machine is.
NEVER = {"minit/stop-grace": "1h"}
SWEEP_STEPS = 600 if LONG else 30
SWEEP_SECONDS = 0.12


def until_told(code: int) -> str:
    """Return a script that makes /tmp/up and, on SIGTERM, ends with `code` once there is a /tmp/go."""
    return f"trap 'while [ ! -e /tmp/go ]; do sleep 0.01; done; exit {code}' TERM; touch /tmp/up; {FOREVER}"


def started(pod: PodDirectory) -> subprocess.Popen[bytes]:
    """Start a pod and wait until it is ready."""
    process = pod.start()
    pod.wait_ready()
    return process


def assert_nobody_left(pod: PodDirectory) -> None:
    """No process of the pod is left, and nobody holds its lock."""
    pod.wait_exited()
    assert pod.members() == []


@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPWR, signal.SIGRTMIN + 3],
    ids=["TERM", "INT", "HUP", "PWR", "RTMIN+3"],
)
def test_a_signal_to_the_launcher_stops_the_pod(make_pod: MakePod, number: int) -> None:
    """Apps that end by SIGTERM are recorded as 0, and so ends the pod."""
    pod = make_pod({"a": shell(FOREVER), "b": shell("trap 'exit 0' TERM; " + FOREVER)})
    process = started(pod)
    process.send_signal(number)
    assert pod.finish(process).returncode == 0
    assert (pod.status("a"), pod.status("b")) == (0, 0)
    assert_nobody_left(pod)


@pytest.mark.rootless
def test_stop_returns_at_once_and_the_pod_ends(make_pod: MakePod) -> None:
    """The entrypoint prints nothing and does not wait for the apps."""
    pod = make_pod({"a": shell(until_told(0))})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    result = pod.stop()
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert pod.is_running()
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0
    assert_nobody_left(pod)


def test_what_an_app_says_while_it_is_stopped_does_not_count(make_pod: MakePod) -> None:
    """It is recorded, but the pod was stopped on request."""
    pod = make_pod({"a": shell(until_told(4))})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    assert pod.stop().returncode == 0
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 4


@pytest.mark.parametrize("first", ["stop", "TERM", "INT"])
@pytest.mark.parametrize("second", ["stop", "TERM", "INT"])
def test_a_second_stop_kills_at_once(make_pod: MakePod, first: str, second: str) -> None:
    """A second request, in any way, does not wait for the grace period."""

    def ask(how: str) -> None:
        if how == "stop":
            assert pod.stop().returncode == 0
        else:
            process.send_signal(signal.Signals[f"SIG{how}"])

    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, annotations=NEVER)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    ask(first)
    wait_for(lambda: not pod.is_ready(), "the shutdown")
    ask(second)
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 137
    assert_nobody_left(pod)


@pytest.mark.parametrize("signals", [["TERM", "HUP"], ["HUP", "TERM"], ["HUP", "HUP"]], ids="-".join)
def test_a_hangup_is_not_a_second_stop(make_pod: MakePod, signals: list[str]) -> None:
    """systemd sends it with SIGTERM, and so does a terminal that goes away while its pod is being stopped."""
    pod = make_pod({"a": shell(until_told(0))})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    for name in signals:
        process.send_signal(signal.Signals[f"SIG{name}"])
    wait_for(lambda: not pod.is_ready(), "the shutdown")
    assert pod.ask({"op": "state"})["state"] == "stopping"
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


@pytest.mark.parametrize("first", ["launcher", "pod"])
def test_a_signal_to_every_process_of_a_pod_is_one_stop(make_pod: MakePod, first: str) -> None:
    """As systemd stops a unit by default: PID 1 gets it as well as the launcher, and the app keeps its time."""
    pod = make_pod({"a": shell(until_told(0))})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    members = pod.members()
    groups = {process.pid}, {*members} - {*named(members, "sleep")}
    for pids in groups if first == "launcher" else reversed(groups):
        for pid in pids:
            # What was about to be another sleep may have ended.
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        # Each way in by itself: signals that wait together are one.
        wait_for(lambda: not pod.is_ready(), "the shutdown")
    wait_for(lambda: not pod.is_ready(), "the shutdown")
    assert pod.ask({"op": "state"})["state"] == "stopping"
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def test_a_stop_that_gets_no_answer_is_one_stop(make_pod: MakePod) -> None:
    """It claims nothing; but it was sent and is carried out later, and a signal on top would make two of it."""
    pod = make_pod({"a": shell(until_told(0))})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    assert pod.ask({"op": "ping"})["ok"]
    os.kill(pod.pid, signal.SIGSTOP)
    result = pod.stop()
    assert result.returncode == 254
    assert result.stderr == (
        "stage1 stop: supervisor of this pod: no answer within 10.0 s; it may never stop the pod, --force does\n"
    )
    os.kill(pod.pid, signal.SIGCONT)
    wait_for(lambda: not pod.is_ready(), "the shutdown")
    assert pod.ask({"op": "state"})["state"] == "stopping"
    pod.file("a", "/tmp/go").touch()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def test_a_signal_that_is_not_taken_is_no_stop(make_pod: MakePod) -> None:
    """Without a control socket PID 1 is signalled, and one that does not look at that may never stop."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    assert pod.ask({"op": "ping"})["ok"]
    (pod.path / CONTROL).rename(pod.path / f"{CONTROL}.hidden")
    os.kill(pod.pid, signal.SIGSTOP)
    result = pod.stop()
    assert result.returncode == 254
    assert result.stderr.endswith(", nor does it take a signal; --force stops the pod\n")
    os.kill(pod.pid, signal.SIGCONT)
    assert pod.finish(process).returncode == 0


def test_a_signal_that_is_taken_is_a_stop(make_pod: MakePod) -> None:
    """Without a control socket, as while PID 1 starts."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    assert pod.ask({"op": "ping"})["ok"]
    (pod.path / CONTROL).unlink()
    result = pod.stop()
    assert (result.returncode, result.stderr) == (0, "")
    assert pod.finish(process).returncode == 0


@pytest.mark.delegated_groups("it freezes groups")
def test_a_pod_that_does_not_end_by_force_is_not_called_stopped(make_pod: MakePod) -> None:
    """A freeze from above keeps all of it, even from dying, in v1."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    [state] = [path for top in pod.control_groups() if (path := top / "freezer.state").exists()]
    state.write_text("FROZEN")
    try:
        result = pod.stop("--force")
    finally:
        state.write_text("THAWED")
    assert result.returncode == 254
    assert result.stderr.startswith("stage1 stop: PID 1 is killed, but ") and result.stderr.count("\n") == 1
    assert pod.finish(process).returncode != 0


def test_a_pod_that_failed_before_it_was_stopped_keeps_its_code(make_pod: MakePod) -> None:
    """The code is fixed when the shutdown begins, by whatever began it."""
    pod = make_pod(
        {
            "a": shell("while [ ! -e /dev/shm/up ]; do sleep 0.01; done; exit 3"),
            "b": shell(until_told(0).replace("/tmp/up", "/dev/shm/up")),
        }
    )
    process = pod.start()
    assert pod.wait_status("a") == 3
    assert pod.stop().returncode == 0
    pod.file("b", "/tmp/go").touch()
    assert pod.finish(process).returncode == 3


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_force_kills_apps_that_ignore_sigterm(make_pod: MakePod, overlay: bool) -> None:
    """They are recorded as 137, and the pod has ended when the entrypoint returns."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, overlay=overlay, annotations=NEVER)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    assert pod.stop("--force").returncode == 0
    assert_nobody_left(pod)
    pod.finish(process)
    assert pod.status("a") == 137


def test_force_after_stop_cuts_the_grace_short(make_pod: MakePod) -> None:
    """A second request does not wait for the ten seconds."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    assert pod.stop().returncode == 0
    assert pod.stop("--force=true").returncode == 0
    assert_nobody_left(pod)
    pod.finish(process)
    assert pod.status("a") == 137


@pytest.mark.private_users
def test_force_ends_a_pod_whose_supervisor_hangs(make_pod: MakePod) -> None:
    """PID 1 itself is killed when it does not answer, and no status is invented."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    os.kill(pod.pid, signal.SIGSTOP)
    assert pod.stop("--force").returncode == 0
    assert pod.finish(process).returncode == -signal.SIGKILL
    assert_nobody_left(pod)
    assert pod.status("a") is None


KILLED = "stage1: PID 1 does not stop the pod: it is killed, 20 s after it was due\n"


@pytest.mark.parametrize("asked_before", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_supervisor_that_hangs_is_killed(make_pod: MakePod, asked_before: bool) -> None:
    """The launcher ends a pod whose PID 1 neither begins to stop it nor goes on with that; no status is invented."""
    # It has announced an end within that time; one that it has not begun to stop is due at once.
    grace = {"minit/stop-grace": "3s" if asked_before else "1h"}
    pod = make_pod({"a": guest("stubborn", "/tmp/up")}, annotations=grace)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    if asked_before:
        assert pod.stop().returncode == 0
        wait_for(lambda: not pod.is_ready(), "the shutdown")
    os.kill(pod.pid, signal.SIGSTOP)
    if not asked_before:
        process.terminate()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (254, KILLED)
    assert_nobody_left(pod)
    assert pod.status("a") is None
    assert (pod.events()[-1]["event"], pod.events()[-1]["reason"]) == ("pod.killed", "late")


@pytest.mark.delegated_groups("it freezes groups")
def test_a_supervisor_that_hangs_and_cannot_be_killed(make_pod: MakePod, tmp_path: Path) -> None:
    """In a group of v1 that is frozen from above not even SIGKILL works: the launcher says so and ends."""
    pod = make_pod({"a": shell(FOREVER)})
    # A file: the frozen app keeps the pipes of the test open.
    with (tmp_path / "errors").open("wb") as errors:
        process = pod.start(net="host", stdout=errors, stderr=errors)
    pod.wait_ready()
    [state] = [path for top in pod.control_groups() if (path := top / "freezer.state").exists()]
    state.write_text("FROZEN")
    try:
        process.terminate()
        assert process.wait(90) == 254
    finally:
        state.write_text("THAWED")
    kept = "stage1: the pod has ended, but for processes that a tracer or a freezer keeps from ending\n"
    assert (tmp_path / "errors").read_text() == KILLED + kept
    # Thawed, they die of the SIGKILL that waits for them.
    wait_for(lambda: not pod.members(), "the end of every process")
    assert_nobody_left(pod)


def test_the_apps_own_stop_signal(make_pod: MakePod) -> None:
    """It is all the app gets; a death by it is recorded as 0, and its own grace period follows it."""
    quit_, own = ({"name": "minit/stop-signal", "value": value} for value in ("SIGQUIT", "RTMIN+1"))
    grace = {"name": "minit/stop-grace", "value": "300ms"}
    loud = "trap 'echo terminated' TERM; trap 'echo quit; exit 4' QUIT; touch /tmp/up; while :; do sleep 0.01; done"
    pod = make_pod(
        {
            "a": shell(loud, annotations=[quit_]),
            "b": app_section("/bin/sleep", "1000", annotations=[own]),
            "c": guest("stubborn", "/tmp/up", annotations=[grace]),
        },
        annotations=NEVER,
    )
    process = started(pod)
    for app in ("a", "c"):
        pod.wait_file(app, "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert [pod.status(app) for app in pod.apps] == [4, 0, 137]
    assert result.stdout.endswith("]: quit\n") and "terminated" not in result.stdout


def test_an_app_that_ignores_sigterm_is_killed_after_the_grace_period(make_pod: MakePod) -> None:
    """The annotation sets the period; the death is recorded as 137 and the pod still ends with 0."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up"), "b": shell(FOREVER)}, annotations=QUICK)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    before = time.monotonic()
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert time.monotonic() - before >= 0.3
    assert (pod.status("a"), pod.status("b")) == (137, 0)


def test_the_grace_period_is_ten_seconds_by_default(make_pod: MakePod) -> None:
    """An app that does not end is killed then, and no sooner."""
    pod = make_pod({"a": guest("stubborn", "/tmp/up")})
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    before = time.monotonic()
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert 10 <= time.monotonic() - before < 60
    assert pod.status("a") == 137


def test_children_that_outlive_the_main_process_are_terminated(make_pod: MakePod) -> None:
    """They get SIGTERM at once, and the pod does not end before they do."""
    child = "trap 'echo terminated; exit 0' TERM; touch /tmp/up; while :; do sleep 0.01; done"
    pod = make_pod({"a": shell(f"({child}) & while [ ! -e /tmp/up ]; do sleep 0.01; done; exit 6")})
    result = pod.run()
    assert result.returncode == 6
    assert result.stdout.endswith("]: terminated\n")
    assert pod.status("a") == 6
    assert_nobody_left(pod)


@pytest.mark.private_users
def test_children_that_ignore_sigterm_are_killed(make_pod: MakePod) -> None:
    """After the grace period, with the main process's status already written."""
    script = "/bin/guest stubborn /tmp/up & while [ ! -e /tmp/go ]; do sleep 0.01; done; exit 0"
    pod = make_pod({"a": shell(script), "b": shell(FOREVER)}, annotations={"minit/stop-grace": "1s"})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    [survivor] = named(pod.members(), "guest")
    pod.file("a", "/tmp/go").touch()
    assert pod.wait_status("a") == 0
    assert is_alive(survivor)
    wait_for(lambda: not is_alive(survivor), "its end")
    assert pod.is_running(), "the other app goes on"
    pod.stop()
    assert pod.finish(process).returncode == 0


@pytest.mark.rootless
def test_an_app_that_forks_on_sigterm_leaves_nobody(make_pod: MakePod) -> None:
    """Its late child ignores SIGTERM and is killed with the rest of the group."""
    pod = make_pod({"a": guest("breeder", "/tmp/up")}, annotations=QUICK)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0
    assert_nobody_left(pod)


def test_a_stopped_app_is_continued_to_be_terminated(make_pod: MakePod) -> None:
    """SIGCONT follows SIGTERM, so no grace period passes in vain."""
    pod = make_pod({"a": shell("touch /tmp/up; " + FOREVER)}, annotations=NEVER)
    process = started(pod)
    pod.wait_file("a", "/tmp/up")
    for pid in named(pod.members(), "sh", "sleep"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 0


def test_an_exited_pod_is_stopped(make_pod: MakePod) -> None:
    """It ended while stage0 asked whether it runs; so did one whose start failed before it had a PID 1."""
    pods = {code: make_pod({"a": shell("exit 0", **fields)}) for code, fields in ((0, {}), (254, {"user": "nobody"}))}
    for code, pod in pods.items():
        assert pod.run().returncode == code
        assert (pod.path / "pid").exists() == (code == 0)
        for flags in ((), ("--force",)):
            result = pod.stop(*flags)
            assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_pod_that_was_never_started_cannot_be_stopped(make_pod: MakePod) -> None:
    """One that was only prepared has no lock, and is not one that has ended."""
    pod = make_pod({"a": shell("exit 0")})
    prepared = pod.data / "pods/prepared" / pod.uuid
    prepared.mkdir(parents=True)
    result = subprocess.run([pod.entrypoint("stop"), pod.uuid], cwd=prepared, capture_output=True, text=True)
    assert result.returncode == 254
    assert result.stderr.startswith("stage1 stop: error reading pid: ")


def test_a_pod_that_is_about_to_have_ended(make_pod: MakePod) -> None:
    """Its PID 1 is gone, and its launcher, which has the lock, in a moment."""
    pod = make_pod({"a": shell("exit 0")})
    pod.run()
    launcher = os.open(pod.path, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(launcher, fcntl.LOCK_EX)
    with subprocess.Popen([pod.entrypoint("stop"), pod.uuid], cwd=pod.path) as stop:
        with pytest.raises(subprocess.TimeoutExpired):
            stop.wait(0.5)
        os.close(launcher)
        assert stop.wait() == 0


@pytest.mark.parametrize("force", [False, True])
def test_a_pod_that_ends_instead_of_answering(make_pod: MakePod, force: bool) -> None:
    """A PID 1 that dies with the request has ended the pod."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    os.kill(pod.pid, signal.SIGSTOP)
    words = [pod.entrypoint("stop"), *(["--force"] if force else []), pod.uuid]
    with subprocess.Popen(words, cwd=pod.path, stderr=subprocess.PIPE) as stop:
        wait_for(lambda: _awaits_an_answer(stop.pid), "the request")
        os.kill(pod.pid, signal.SIGKILL)
        assert stop.communicate()[1] == b""
        assert stop.returncode == 0
    pod.finish(process)


def _awaits_an_answer(pid: int) -> bool:
    """Return whether a process sleeps with a socket, which is connected and sent to without sleeping."""
    with suppress(FileNotFoundError):
        links = [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")]
        return any(link.startswith("socket:") for link in links) and status_of(pid)["State"].startswith("S")
    return False


def test_a_pod_without_a_pid_cannot_be_stopped(make_pod: MakePod) -> None:
    """rkt's message."""
    pod = make_pod({"a": shell("exit 0")})
    result = pod.stop()
    assert result.returncode == 254
    assert result.stderr.startswith("stage1 stop: error reading pid: ")


def test_a_pod_that_has_no_pid_yet_is_waited_for(make_pod: MakePod) -> None:
    """It runs, and may be ready, before the launcher has written who its PID 1 is."""
    pod = make_pod({"a": shell(FOREVER)})
    process = started(pod)
    assert pod.pid
    file = pod.path / "pid"
    file.rename(file.with_name("later"))
    stop = subprocess.Popen([pod.entrypoint("stop"), pod.uuid], cwd=pod.path)
    with pytest.raises(subprocess.TimeoutExpired):
        stop.wait(0.5)
    file.with_name("later").rename(file)
    assert stop.wait() == 0
    assert pod.finish(process).returncode == 0


@pytest.mark.parametrize("force", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_pid_that_is_somebody_elses_is_left_alone(make_pod: MakePod, force: bool) -> None:
    """Neither an ordinary process nor PID 1 of another pod is signalled for a stale pid file."""
    flags = ("--force",) if force else ()
    other = make_pod({"a": shell(FOREVER)})
    started(other)
    bystander = subprocess.Popen(["sleep", "60"])
    pod = make_pod({"a": shell("exit 0")})
    pod.run()
    for pid in (bystander.pid, other.pid):
        (pod.path / "pid").write_text(f"{pid}\n")
        assert pod.stop(*flags).returncode == 0, "the pod has ended"
        launcher = os.open(pod.path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(launcher, fcntl.LOCK_EX)
        result = pod.stop(*flags)
        os.close(launcher)
        assert result.returncode == 254, result
        assert result.stderr.startswith("stage1 stop: pod is not running any more")
    assert bystander.poll() is None and is_alive(other.pid) and other.is_ready()
    bystander.kill()
    bystander.wait()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [(["--force=perhaps"], 2), (["--no-such"], 2), ([], 2), (["nonsense"], 254)],
    ids=["value", "flag", "missing", "uuid"],
)
def test_bad_arguments_of_stop(make_pod: MakePod, arguments: list[str], code: int) -> None:
    """As everywhere: usage and 2 for flags, 254 for the UUID."""
    pod = make_pod({"a": shell("exit 0")})
    result = pod.call("stop", *arguments)
    assert result.returncode == code
    assert ("Usage of stop" in result.stderr) == (code == 2)


# SIGTERM while a pod starts.


def _assert_sane_end(pod: PodDirectory, process: subprocess.Popen[bytes], number: int) -> None:
    result = pod.finish(process)
    # Before the launcher takes over signals it simply dies; afterwards the pod is stopped in an orderly way.
    assert result.returncode in (0, -number), result
    assert result.stderr == ""
    pod.wait_exited()
    wait_for(lambda: pod.members() == [], "the end of the pod's processes")
    for app in pod.apps:
        has_started = (pod.status_root / f"rkt/status/{app}-started").exists()
        # One that was told to start may be stopped before its program is executed: it has no status then.
        assert pod.status(app) in ((None, 0) if has_started else (None,)), (app, has_started, result)
    assert not pod.is_ready()
    assert pod.gc().returncode == 0
    assert pod.control_groups() == []
    # Now, not after the test: a flat one has copies of the images, and a campaign many pods.
    pod.remove()


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_sigterm_at_every_moment_of_the_start(make_pod: MakePod, overlay: bool) -> None:
    """Whenever it comes, the pod ends, nothing is left of it and no status is invented."""

    def attempt(step: int, pod: PodDirectory) -> None:
        process = pod.start()
        time.sleep(SWEEP_SECONDS * step / SWEEP_STEPS)
        process.terminate()
        _assert_sane_end(pod, process, signal.SIGTERM)

    steps = range(SWEEP_STEPS)
    with ThreadPoolExecutor(2) as executor:
        for pair in zip(steps[::2], steps[1::2]):
            pods = [make_pod({"a": shell(FOREVER), "b": shell(FOREVER)}, overlay=overlay) for _ in pair]
            list(executor.map(attempt, pair, pods))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=["INT", "HUP"])
def test_the_terminals_signals_while_a_pod_starts(make_pod: MakePod, number: int) -> None:
    """A Ctrl-C or a closed terminal is no different, and prints nothing."""
    steps = 400 if LONG else 20
    for step in range(steps):
        pod = make_pod({"a": shell(FOREVER)})
        process = pod.start()
        time.sleep(0.05 * step / steps)
        process.send_signal(number)
        _assert_sane_end(pod, process, number)


def test_a_pod_under_nohup(make_pod: MakePod) -> None:
    """It outlives a SIGHUP, and ends by a signal that comes after it."""
    pod = make_pod({"a": shell(FOREVER)})
    process = pod.start(under=["nohup"])
    pod.wait_ready()
    process.send_signal(signal.SIGHUP)
    process.terminate()
    assert pod.finish(process).returncode == 0
    [stop] = [event for event in pod.events() if event["event"] == "pod.stop-requested"]
    assert stop["reason"] == f"launcher signal {signal.SIGTERM:d}"


@pytest.mark.parametrize(
    "marker", [pytest.param("subcgroup", marks=pytest.mark.delegated_groups("it looks at groups")), "pid"]
)
def test_sigterm_as_soon_as_a_file_appears(make_pod: MakePod, marker: str) -> None:
    """The moments at which the groups are made and the apps are forked, hit as exactly as a poll can."""
    for _ in range(8):
        pod = make_pod({"a": shell(FOREVER), "b": shell(FOREVER)})
        process = pod.start()
        while not (pod.path / marker).exists():
            pass
        process.terminate()
        _assert_sane_end(pod, process, signal.SIGTERM)


def test_sigterm_to_pid_1_right_after_its_birth(make_pod: MakePod) -> None:
    """From its first instruction PID 1 keeps the signal until it can act on it."""
    for _ in range(8):
        pod = make_pod({"a": shell(FOREVER)})
        process = pod.start()
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (born := children.read_text().split()):
            pass
        os.kill(int(born[0]), signal.SIGTERM)
        _assert_sane_end(pod, process, signal.SIGTERM)


def test_stop_as_soon_as_pid_appears(make_pod: MakePod) -> None:
    """The control socket answers, or the signal does, from the moment stage0 can know of the pod."""
    for _ in range(8):
        pod = make_pod({"a": shell(FOREVER)})
        process = pod.start()
        assert pod.pid
        assert pod.stop().returncode == 0
        _assert_sane_end(pod, process, signal.SIGTERM)
