"""The results of `run` for stage0: exit codes, statuses, markers, readiness, subcgroup and pid."""

from __future__ import annotations

import os
import signal
import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.campaign import LONG, thinned
from tests.support.inotify import CREATE, DELETE, MODIFY, MOVED_TO, Watch
from tests.support.pods import MakePod, control_group_name, guest, run_all, shell
from tests.support.processes import status_of
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for

PER_POD = 32
# Those that mean something to somebody, and some of the others; in a long run all of them.
CODES = range(256) if LONG else sorted({*range(0, 256, 16), 1, 2, 7, 126, 127, 128, 129, 137, 143, 203, 253, 254, 255})
# Those whose default action ends a process. SIGTERM has a meaning of its own while a pod is being stopped.
ENDING_SIGNALS = sorted(
    set(range(1, 65))
    - {signal.SIGCHLD, signal.SIGCONT, signal.SIGSTOP, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU}
    - {signal.SIGURG, signal.SIGWINCH, signal.SIGTERM}
)


@pytest.mark.parametrize("overlay", [pytest.param(True, marks=pytest.mark.rootless), False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_exit_code_reaches_the_caller_and_the_status_file(make_pod: MakePod, overlay: bool) -> None:
    """The code of the only app is the entrypoint's own and stands in rkt/status; stage1 itself prints nothing."""
    pod = make_pod({"a": shell("echo hello; exit 42")}, overlay=overlay)
    result = pod.run()
    assert result.returncode == 42, result.stderr
    assert pod.status("a") == 42
    assert result.stdout.endswith("]: hello\n")
    assert result.stderr == ""
    assert not pod.is_running()


@pytest.mark.delegated_groups("it sets limits")
def test_a_caller_that_asks_is_told_which_app_failed(make_pod: MakePod) -> None:
    """The last line says it: of an only app how it ended, of others that the pod ended with it; of success nothing."""
    scripts = {"exit 3": ["exited with 3"], "kill -KILL $$": ["was killed by SIGKILL"], "exit 0": []}
    for script, told in scripts.items():
        result = make_pod({"a": shell(script)}).run("--tell-failure")
        assert result.stderr.splitlines() == [f'run: app "a" {words}' for words in told]
    hungry = [{"name": "resource/memory", "value": {"limit": "16M"}}]
    result = make_pod({"a": shell("exec tail /dev/zero", isolators=hungry)}).run("--tell-failure")
    assert result.stderr.splitlines()[-1] == 'run: app "a" was killed by SIGKILL (out of memory)'
    result = make_pod({"a": shell("sleep 1000"), "b": shell("echo last words >&2; exit 4")}).run("--tell-failure")
    assert result.returncode == 4
    assert result.stderr.splitlines()[-1] == 'run: app "b" exited with 4: the pod was stopped'


def test_every_exit_code_of_an_only_app_is_the_pods(make_pod: MakePod) -> None:
    """They arrive unchanged."""
    pods = [make_pod({"a": shell(f"exit {code}")}) for code in CODES]
    with ThreadPoolExecutor(4) as executor:
        codes = list(executor.map(lambda pod: pod.run().returncode, pods))
    assert codes == list(CODES)
    assert [pod.status("a") for pod in pods] == list(CODES)


def test_every_exit_code_is_recorded_beside_others(make_pod: MakePod) -> None:
    """Each of 32 apps that end at the same time has its own status; the pod's code is that of one of them."""
    for first in thinned(range(0, 256, PER_POD)):
        codes = range(first, first + PER_POD)
        pod = make_pod({f"a{code}": guest("meet", str(PER_POD), "exit", str(code)) for code in codes})
        result = pod.run()
        assert {code: pod.status(f"a{code}") for code in codes} == {code: code for code in codes}
        assert result.returncode in codes and result.returncode != 0


@pytest.mark.private_users
def test_every_signal_is_recorded_as_128_and_its_number(make_pod: MakePod) -> None:
    """Also the real-time ones, and those that write a core."""
    halves = ENDING_SIGNALS[::2], ENDING_SIGNALS[1::2]
    pods = [
        make_pod({f"s{number}": guest("meet", str(len(half)), "die", str(number)) for number in half})
        for half in halves
    ]
    for pod, half, result in zip(pods, halves, run_all(pods), strict=True):
        assert {number: pod.status(f"s{number}") for number in half} == {number: 128 + number for number in half}
        assert result.returncode - 128 in half
        assert {pod.record(f"s{number}")["signal"] for number in half} == set(half)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_an_app_that_kills_itself_decides_the_pods_code(make_pod: MakePod, number: int) -> None:
    """Nobody asked it to stop, so SIGTERM is a death like any other."""
    pod = make_pod({"a": shell(f"kill -{number} $$; sleep 60")})
    assert pod.run().returncode == 128 + number
    assert pod.status("a") == 128 + number


def test_a_pod_whose_apps_all_succeed_succeeds(make_pod: MakePod) -> None:
    """It ends with the last of them, and one that ends early does not end the others."""
    pod = make_pod({"a": shell("exit 0"), "b": shell("while [ ! -e /tmp/go ]; do sleep 0.01; done; echo late")})
    process = pod.start()
    assert pod.wait_status("a") == 0
    pod.wait_ready()
    assert pod.is_running()
    pod.file("b", "/tmp/go").touch()
    result = pod.finish(process)
    assert result.returncode == 0
    assert "late" in result.stdout
    assert (pod.status("a"), pod.status("b")) == (0, 0)


@pytest.mark.rootless
def test_the_first_failing_app_ends_the_pod_and_decides(make_pod: MakePod) -> None:
    """Three apps: one succeeds, one fails with 5 and the third, stopped for it, is recorded as 0."""
    wait = "while [ ! -e /dev/shm/go ]; do sleep 0.01; done"
    apps = {
        "zero": shell("exit 0"),
        "five": shell(f"{wait}; exit 5"),
        "six": shell("touch /dev/shm/go; while :; do sleep 1; done; exit 6"),
    }
    pod = make_pod(apps)
    assert pod.run().returncode == 5
    assert [pod.status(app) for app in apps] == [0, 5, 0]


def test_an_app_that_fails_while_it_is_stopped_keeps_its_code(make_pod: MakePod) -> None:
    """Its own exit code is recorded, but the pod's was fixed when the shutdown began."""
    pod = make_pod(
        {
            "first": shell("while [ ! -e /dev/shm/up ]; do sleep 0.01; done; exit 3"),
            "second": shell("trap 'exit 6' TERM; touch /dev/shm/up; while :; do sleep 1; done"),
        }
    )
    assert pod.run().returncode == 3
    assert (pod.status("first"), pod.status("second")) == (3, 6)


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_files_for_stage0(make_pod: MakePod, overlay: bool) -> None:
    """The status, its markers and the pod files have the contract's form, also under a strict umask."""
    pod = make_pod({"a": shell("exit 7")}, overlay=overlay)
    assert pod.run(umask=0o077).returncode == 7
    status = pod.status_root / "rkt/status"
    assert (status / "a").read_bytes() == b"7\n"
    by_pid_1 = [status / "a", status / "a-created", status / "a-started"]
    subcgroup = pod.path / "subcgroup"
    assert subcgroup.exists() == (SURROUNDING != NO_GROUPS)
    for path in (*by_pid_1, pod.path / "pid", *([subcgroup] if subcgroup.exists() else ())):
        information = path.lstat()
        assert stat.S_ISREG(information.st_mode)
        owner = pod.shift if path in by_pid_1 else 0
        expected = (0o644, owner, owner)
        assert (stat.S_IMODE(information.st_mode), information.st_uid, information.st_gid) == expected, path
    for name in ("a-created", "a-started"):
        assert (status / name).stat().st_size == 0
    assert sorted(path.name for path in status.iterdir() if path.name != "status") == ["a", "a-created", "a-started"]
    assert (status / "a-created").stat().st_mtime <= (status / "a-started").stat().st_mtime
    assert (pod.path / "pid").read_text().strip().isdecimal()
    if subcgroup.exists():
        assert subcgroup.read_text().rpartition("/")[2] == control_group_name(pod.uuid)
        assert not subcgroup.read_text().startswith("/") and not subcgroup.read_text().endswith("\n")
    assert not (pod.path / "ppid").exists()
    record = pod.record("a")
    assert (record["app"], record["status"], record["code"]) == ("a", 7, 7)


def test_a_status_is_never_seen_in_part(make_pod: MakePod) -> None:
    """It appears under its name by a rename and is never written there; so do the files that stage0 reads."""
    pod = make_pod({f"a{number}": guest("meet", "8", "exit", str(number)) for number in range(8)})
    with Watch(pod.stage1 / "rkt/status") as statuses, Watch(pod.path) as files:
        pod.run()
        seen = statuses.events()
        for number in range(8):
            assert [mask for name, mask in seen if name == f"a{number}"] == [MOVED_TO]
        in_pod = files.events()
    names = ["net-info.json", *([] if SURROUNDING == NO_GROUPS else ["subcgroup"]), "pid"]
    assert [name for name, mask in in_pod if mask == MOVED_TO] == names
    assert not [name for name, mask in in_pod if name in names and mask in (CREATE, MODIFY)]


def test_pid_names_pid_1_of_the_pod(make_pod: MakePod) -> None:
    """It is the host pid of the process that is 1 inside, and a child of the launcher; never `ppid`."""
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    process = pod.start()
    status = status_of(pod.pid)
    assert status["NSpid"].split()[-1] == "1"
    assert status["PPid"] == str(process.pid)
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_the_pod_can_be_entered_from_the_moment_pid_appears(make_pod: MakePod) -> None:
    """Ten pods in a row are entered with no wait but that for the file."""
    for _ in range(10):
        pod = make_pod({"a": shell("while :; do sleep 1; done")})
        process = pod.start()
        assert pod.pid
        result = pod.enter(None, "/usr/lib/minit/bin/minit", "-c", "pass")
        assert result.returncode == 0, result.stderr
        pod.stop()
        assert pod.finish(process).returncode == 0


def test_readiness_lasts_from_the_last_start_to_the_shutdown(make_pod: MakePod) -> None:
    """The link says `ready` once all apps are executed, and is gone before a stopped app has ended."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod(
        {
            "a": shell("while :; do sleep 1; done"),
            "b": shell(f"trap '{wait}; exit 0' TERM; touch /tmp/up; while :; do sleep 1; done"),
        }
    )
    with Watch(pod.stage1 / "rkt") as watch:
        process = pod.start()
        pod.wait_ready()
        assert (pod.status_root / "rkt/status/a-started").exists()
        assert (pod.status_root / "rkt/status/b-started").exists()
        pod.wait_file("b", "/tmp/up")
        pod.stop()
        wait_for(lambda: not pod.is_ready(), "the end of readiness")
        assert pod.status("b") is None
        pod.file("b", "/tmp/go").touch()
        assert pod.finish(process).returncode == 0
        events = [mask for name, mask in watch.events() if name == "supervisor-status"]
    assert events == [CREATE, DELETE]
    assert not os.path.lexists(pod.stage1 / "rkt/supervisor-status")


def test_a_pod_that_fails_to_start_is_never_ready(make_pod: MakePod) -> None:
    """Not even while its other apps were prepared, and none of those is executed."""
    pod = make_pod({"good": shell("touch /tmp/ran"), "bad": shell("true", workingDirectory="/not/there")})
    with Watch(pod.stage1 / "rkt") as watch:
        result = pod.run()
        assert not [name for name, _ in watch.events() if name == "supervisor-status"]
    assert result.returncode == 254
    assert not pod.file("good", "/tmp/ran").exists()
    assert pod.status("good") is None, "no status is invented for an app that was never executed"
    assert pod.status("bad") == 254


def test_apps_start_at_once(make_pod: MakePod) -> None:
    """No app waits for another: eight that wait for each other all get going."""
    pod = make_pod({f"a{number}": guest("meet", "8", "exit", "0") for number in range(8)})
    assert pod.run().returncode == 0
    assert [pod.status(app) for app in pod.apps] == [0] * 8


@pytest.mark.parametrize("action", [signal.SIG_IGN, signal.SIG_DFL])
def test_statuses_survive_a_caller_that_ignores_sigchld(make_pod: MakePod, action: signal.Handlers) -> None:
    """With SIGCHLD ignored the kernel would reap the apps itself; rkt's caller may well have done that."""
    failing = "until [ -e /tmp/go ]; do sleep 0.01; done; exit 5"
    pod = make_pod({"a": shell(failing), "b": shell("touch /tmp/up; while :; do sleep 1; done")})
    process = pod.start(preexec_fn=lambda: signal.signal(signal.SIGCHLD, action))
    # An app that has not been executed has no status.
    pod.wait_file("b", "/tmp/up")
    pod.file("a", "/tmp/go").touch()
    result = pod.finish(process)
    assert result.returncode == 5, result.stderr
    assert (pod.status("a"), pod.status("b")) == (5, 0)
