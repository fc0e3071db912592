"""Event handlers: what they run as and in, when they run, and what their end means for their app and its pod."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, app_section, guest, handlers, shell
from tests.support.processes import descriptors_of
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
LINE = re.compile(r"^([\w-]+)\[(\d+)\]: (.*)$")


def scripts(**texts: str) -> list[dict[str, Any]]:
    """Return event handlers that are shell scripts."""
    return handlers(**{name: ("/bin/sh", "-c", text) for name, text in texts.items()})


def lines_of(text: str) -> list[tuple[str, str]]:
    """Return the app and the text of each line of a pod's output, all of which have the prefix."""
    matches = [LINE.match(line) for line in text.splitlines()]
    assert None not in matches, text
    return [(match[1], match[3]) for match in matches if match]


def annotated(**values: str) -> list[dict[str, str]]:
    """Return annotations of ours for an app."""
    return [{"name": "minit/" + name.replace("_", "-"), "value": value} for name, value in values.items()]


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
@pytest.mark.private_users
def test_handlers_run_before_and_after_their_app(make_pod: MakePod, overlay: bool) -> None:
    """Their output is the app's, each with its own pid, on the console as in the log."""
    section = shell("echo app; exit 4", eventHandlers=scripts(pre_start="echo before", post_stop="echo after >&2"))
    pod = make_pod({"a": section}, overlay=overlay)
    result = pod.run()
    assert result.returncode == 4
    # Each has a sidecar of its own, so that of the app may be faster.
    assert sorted(lines_of(result.stdout)) == [("a", "app"), ("a", "before")]
    assert lines_of(result.stderr) == [("a", "after")]
    pids = [LINE.match(line)[2] for line in (result.stdout + result.stderr).splitlines()]  # type: ignore[index]
    assert len(set(pids)) == 3
    assert sorted(line.split(b" ", 3)[1:] for line in pod.log("a").splitlines()) == [
        [b"stderr", b"F", b"after"],
        [b"stdout", b"F", b"app"],
        [b"stdout", b"F", b"before"],
    ]
    assert pod.status("a") == 4


@pytest.mark.private_users
def test_the_surroundings_of_a_handler(make_pod: MakePod, own_rootfs: Path) -> None:
    """It is root with the app's bounding set; all else is the app's: root, groups, environment, directory, limits."""
    (own_rootfs / "work").mkdir(mode=0o777)
    (own_rootfs / "work").chmod(0o777)
    reports = handlers(
        pre_start=(GUEST, "report", "/tmp/pre"), post_stop=(GUEST, "report", "/tmp/post", "a b", "", "$x")
    )
    section = guest(
        *("report", "/tmp/report"),
        **{"user": "1000", "group": "1000", "supplementaryGIDs": [7], "workingDirectory": "/work"},
        environment=[{"name": "OWN", "value": "x\ny"}],
        eventHandlers=reports,
    )
    pod = make_pod({"a": section}, own_rootfs)

    def spoil() -> None:
        effective, permitted, _ = syscalls.get_capabilities()
        syscalls.set_capabilities(effective, permitted, permitted)
        os.umask(0o777)
        Path("/proc/self/oom_score_adj").write_text("321")
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    leaks = [os.open("/", os.O_RDONLY) for _ in range(64)]
    try:
        result = pod.run(pass_fds=leaks, preexec_fn=spoil)
    finally:
        for fd in leaks:
            os.close(fd)
    assert result.returncode == 0, result.stderr
    app = pod.report("a")
    for path in ("/tmp/pre", "/tmp/post"):
        report = pod.report("a", path)
        status = report.status
        assert (report.one("uids"), report.one("gids"), report.all("group")) == ("0 0 0", "0 0 0", [])
        assert status["CapBnd"] == status["CapEff"] == app.status["CapBnd"]
        assert {status["CapInh"], status["CapAmb"], status["SigBlk"], status["SigIgn"]} == {"0" * 16}
        assert (status["NoNewPrivs"], status["Umask"]) == ("1", "0022")
        assert (report.environment, report.one("cwd")) == (app.environment, "/work")
        assert (report.one("cgroup"), report.one("mountinfo")) == (app.one("cgroup"), app.one("mountinfo"))
        assert (report.one("oom_score_adj"), report.one("pid")) == ("0\n", report.one("sid"))
        descriptors = report.descriptors
        assert sorted(descriptors) == [0, 1, 2]
        assert descriptors[0][1] == "/dev/null"
        assert all(target.startswith("pipe:") for _, target in list(descriptors.values())[1:])
        assert not {target for _, target in descriptors.values()} & {t for _, t in list(app.descriptors.values())[1:]}
    assert pod.report("a", "/tmp/post").arguments == [GUEST.encode(), b"report", b"/tmp/post", b"a b", b"", b"$x"]


def test_streams_that_are_null_for_the_app_are_for_its_handlers(make_pod: MakePod) -> None:
    """Each stream by itself."""
    annotations = [{"name": "coreos.com/rkt/stage2/stdout", "value": "null"}]
    both = scripts(pre_start="echo out; echo pre >&2", post_stop="echo out; echo post >&2")
    pod = make_pod({"a": shell("exit 0", annotations=annotations, eventHandlers=both)})
    result = pod.run()
    assert (result.stdout, lines_of(result.stderr)) == ("", [("a", "pre"), ("a", "post")])


def test_a_hanging_pre_start_handler_blocks_only_its_app(make_pod: MakePod) -> None:
    """The other apps run, the pod is not ready, the control socket answers, and the handler's end starts the app."""
    wait = "touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod({"a": shell(FOREVER, eventHandlers=scripts(pre_start=wait)), "b": shell("touch /tmp/up;" + FOREVER)})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.wait_file("b", "/tmp/up")
    states = {app["name"]: app["state"] for app in pod.ask({"op": "state"})["apps"]}
    assert states == {"a": "pre-start", "b": "running"}
    assert not pod.is_ready()
    assert not (pod.status_root / "rkt/status/a-started").exists()
    assert pod.enter("a", "/bin/test", "-e", "/tmp/up").returncode == 0
    pod.file("a", "/tmp/go").touch()
    pod.wait_ready()
    assert (pod.status_root / "rkt/status/a-started").exists()
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert (pod.status("a"), pod.status("b")) == (0, 0)


@pytest.mark.parametrize("delay", ["", "sleep 0.5; "], ids=["quick", "late"])
def test_a_failed_pre_start_handler_fails_the_app_and_ends_the_pod(make_pod: MakePod, delay: str) -> None:
    """The app is never executed; its status is 254, its record names the handler, and so does one line."""
    section = shell("touch /tmp/ran", eventHandlers=scripts(pre_start=f"{delay}echo why >&2; exit 3"))
    pod = make_pod({"a": section, "b": app_section("/bin/sleep", "1000")})
    result = pod.run()
    assert result.returncode == 254
    assert sorted(line.partition("]: ")[2] or line for line in result.stderr.splitlines()) == [
        'stage1: app "a": pre-start: exited with 3',
        "why",
    ]
    assert (pod.status("a"), pod.status("b")) == (254, 0)
    record = pod.record("a")
    assert (record["step"], record["path"], record["end"]) == ("pre-start", "exited with 3", "pre-start: exited with 3")
    assert not pod.file("a", "/tmp/ran").exists()
    assert not (pod.status_root / "rkt/status/a-started").exists()


@pytest.mark.parametrize(
    ("command", "fields", "line", "code"),
    [
        ("/not-there", {}, 'Error: Unable to open "/not-there": No such file or directory', 203),
        ("/etc/passwd", {}, 'Error: "/etc/passwd" is not executable', 203),
        (
            "/bin/true",
            {"workingDirectory": "/gone"},
            "Error: change directory to /gone: no such file or directory",
            254,
        ),
    ],
    ids=["missing", "mode", "directory"],
)
def test_a_handler_that_cannot_be_executed(
    make_pod: MakePod, own_rootfs: Path, command: str, fields: dict[str, Any], line: str, code: int
) -> None:
    """The reason is a line of its standard error, like that of an app."""
    (own_rootfs / "gone").mkdir()
    section = shell("rmdir /gone; exit 0", eventHandlers=handlers(post_stop=(command,)), **fields)
    pod = make_pod({"a": section}, own_rootfs)
    result = pod.run()
    assert result.returncode == 0
    assert {text.partition("]: ")[2] or text for text in result.stderr.splitlines()} == {
        line,
        f'stage1: app "a": post-stop: exited with {code}',
    }
    assert pod.record("a")["post-stop"] == f"exited with {code}"
    assert pod.status("a") == 0


@pytest.mark.parametrize(
    "section",
    [shell("exit 7"), shell("kill -9 $$"), guest("missing-verb"), {**shell("x"), "exec": ["/not/there"]}],
    ids=["code", "signal", "usage", "exec"],
)
def test_a_post_stop_handler_runs_however_its_app_ended(make_pod: MakePod, section: dict[str, Any]) -> None:
    """And changes neither its status nor the pod's code, though it fails too, which its record says."""
    pod = make_pod({"a": {**section, "eventHandlers": scripts(post_stop="echo cleaned up; exit 1")}})
    result = pod.run()
    assert lines_of(result.stdout)[-1] == ("a", "cleaned up")
    assert result.returncode == pod.status("a") in (7, 137, 2, 203)
    assert 'stage1: app "a": post-stop: exited with 1\n' in result.stderr
    assert pod.record("a")["post-stop"] == "exited with 1"


def test_the_status_is_written_before_the_post_stop_handler_ends(make_pod: MakePod) -> None:
    """When the main process dies; only the pod's end waits for the handler."""
    wait = "while [ ! -e /tmp/go ]; do sleep 0.01; done; echo done"
    pod = make_pod({"a": shell("exit 0", eventHandlers=scripts(post_stop=wait)), "b": shell("exit 0")})
    process = pod.start()
    assert (pod.wait_status("a"), pod.wait_status("b")) == (0, 0)
    assert pod.is_running()
    pod.file("a", "/tmp/go").touch()
    result = pod.finish(process)
    assert (result.returncode, lines_of(result.stdout)) == (0, [("a", "done")])


def test_a_failed_app_stops_the_pod_and_every_post_stop_handler_runs(make_pod: MakePod) -> None:
    """Those of the apps that are stopped, too; not that of an app which was never begun."""
    clean = scripts(post_stop="echo cleaned up")
    pod = make_pod(
        {
            "a": shell("while [ ! -e /dev/shm/up ]; do sleep 0.01; done; exit 6", eventHandlers=clean),
            "b": shell("touch /dev/shm/up; " + FOREVER, eventHandlers=clean),
        }
    )
    result = pod.run()
    assert result.returncode == 6
    assert sorted(lines_of(result.stdout)) == [("a", "cleaned up"), ("b", "cleaned up")]
    never = make_pod({"a": shell("exit 0", eventHandlers=clean), "b": shell("exit 0", workingDirectory="/gone")})
    result = never.run()
    assert (result.returncode, result.stdout) == (254, "")


def test_a_post_stop_handler_finds_nothing_of_its_app_alive(make_pod: MakePod) -> None:
    """Also not what ignored SIGTERM, and also after the group was killed."""
    look = "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in guest) echo found;; esac; done; echo looked"
    section = guest(
        "stubborn", "/tmp/up", eventHandlers=scripts(post_stop=look), annotations=annotated(stop_grace="3s")
    )
    pod = make_pod({"a": section})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, lines_of(result.stdout)) == (0, [("a", "looked")])
    assert pod.status("a") == 137


@pytest.mark.private_users
@pytest.mark.rootless
def test_what_handlers_leave_behind_does_not_outlive_the_app(make_pod: MakePod) -> None:
    """Children of a pre-start handler end with the app, those of a post-stop handler with the pod."""
    leave = "sleep 1000 >/dev/null 2>&1 & exit 0"
    section = shell("exit 0", eventHandlers=scripts(pre_start=leave, post_stop=leave))
    pod = make_pod({"a": section}, annotations={"minit/stop-grace": "1h"})
    assert pod.run().returncode == 0
    assert pod.members() == []


def test_handlers_of_many_apps_at_once(make_pod: MakePod) -> None:
    """Sixteen of each, none of which loses a line or a status."""
    both = scripts(pre_start="seq 200", post_stop="seq 201 400")
    pod = make_pod({f"a{number}": shell(f"exit {number}", eventHandlers=both) for number in range(16)})
    # Every app but the first fails; the pod is stopped at the first of them.
    result = pod.run()
    assert result.returncode in range(1, 16)
    texts: dict[str, list[str]] = {}
    for app, text in lines_of(result.stdout):
        texts.setdefault(app, []).append(text)
    for number, app in enumerate(pod.apps):
        status = pod.status(app)
        assert status in (number, 0, None), "its own, stopped, or stopped before it was executed"
        seen = [int(text) for text in texts.get(app, [])]
        assert seen == sorted(seen)
        assert seen[-200:] == list(range(201, 401))
        assert status is None or seen == list(range(1, 401))


def test_a_killed_sidecar_of_a_handler_loses_nothing(make_pod: MakePod, tmp_path: Path) -> None:
    """Its unwritten output is still in the handler's pipe, and another one takes over."""
    count = "seq 5000; touch /tmp/up; while [ ! -e /tmp/go ]; do sleep 0.01; done; seq 5001 10000"
    pod = make_pod({"a": shell("exit 0", eventHandlers=scripts(pre_start=count))})
    with (tmp_path / "out").open("wb") as file:
        process = pod.start(stdout=file)
    pod.wait_file("a", "/tmp/up")
    # What the handler wrote was in its pipe before they had their name.
    wait_for(lambda: len(_sidecars(pod)) == 2, "the sidecars")
    for pid in _sidecars(pod):
        os.kill(pid, signal.SIGKILL)
    pod.file("a", "/tmp/go").touch()
    assert process.wait(90) == 0
    numbers = [int(line.rpartition(" ")[2]) for line in (tmp_path / "out").read_text().splitlines() if line]
    assert list(dict.fromkeys(numbers)) == list(range(1, 10001))


def _sidecars(pod: PodDirectory) -> list[int]:
    found = []
    for pid in pod.members():
        # Any other may end while it is looked at.
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text().startswith("iottymux"):
                found.append(pid)
    return found


@pytest.mark.private_users
def test_what_a_pre_start_handler_leaves_is_killed(make_pod: MakePod) -> None:
    """Before its app is executed, be it in a session of its own or deaf to SIGTERM; the app finds itself alone."""
    leave = 'for n in 1 2 3; do (trap "" TERM HUP; exec sleep 1000) & echo $! >> /tmp/left; done'
    commands = handlers(pre_start=("/bin/sh", "-c", leave))
    # The dead have no program, though PID 1 may not have reaped them yet.
    script = "for pid in $(cat /tmp/left); do readlink /proc/$pid/exe; done; wc -l < /tmp/left"
    pod = make_pod({"a": shell(f"{{ {script}; }} 2> /dev/null", eventHandlers=commands)})
    result = pod.run()
    assert [line.partition("]: ")[2] for line in result.stdout.splitlines()] == ["3"]


@pytest.mark.private_users
def test_what_a_post_stop_handler_leaves_is_killed(make_pod: MakePod) -> None:
    """At once, though the app would have an hour to end."""
    commands = handlers(post_stop=("/bin/sh", "-c", 'trap "" TERM; sleep 1000 & sleep 1000 &'))
    pod = make_pod({"a": shell("true", eventHandlers=commands)}, annotations={"minit/stop-grace": "1h"})
    assert pod.run().returncode == 0
    assert not pod.members()


def test_a_handler_leaves_no_descriptor_in_pid_1(make_pod: MakePod) -> None:
    """Neither its pipes, nor its process, nor its sidecar are held when it has ended."""
    both = scripts(pre_start="echo x", post_stop="echo y; [ -e /tmp/last ] || exit 0")
    pod = make_pod({"a": shell("exit 0", eventHandlers=both), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    assert pod.ask({"op": "ping"})["ok"]

    def kinds() -> dict[str, int]:
        counts: dict[str, int] = {}
        for target in descriptors_of(pod.pid).values():
            kind = re.sub(r"[\d\[\]]", "", target)
            counts[kind] = counts.get(kind, 0) + 1
        return counts

    wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["state"] == "exited", "a's end")
    # The pidfds of b with its sidecar, of a itself, of the spawner and of first processes; the pipes of b.
    wait_for(
        lambda: (kinds()["anon_inode:pidfd"], kinds()["pipe:"]) == (4 + len(pod.first_processes()), 2 + 2),
        "the end of the handlers' own",
    )
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_a_slow_reader_gets_all_of_a_post_stop_handlers_output(make_pod: MakePod) -> None:
    """Also when the pod is being stopped."""
    section = shell("touch /tmp/up; " + FOREVER, eventHandlers=scripts(post_stop="seq 20000"))
    pod = make_pod({"a": section})
    process = pod.start(bufsize=0)
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert pod.wait_status("a") == 0
    assert process.stdout is not None
    out = b""
    slow_until = time.monotonic() + 2
    while block := os.read(process.stdout.fileno(), 4096):
        out += block
        if time.monotonic() < slow_until:
            time.sleep(0.05)
    assert process.wait(90) == 0
    assert [line.rpartition(b" ")[2] for line in out.splitlines()] == [b"%d" % n for n in range(1, 20001)]


def test_an_unknown_handler_is_refused(make_pod: MakePod) -> None:
    """With the file and the place."""
    pod = make_pod({"a": shell("exit 0", eventHandlers=[{"name": "post-start", "exec": ["/bin/true"]}])})
    result = pod.run()
    assert result.returncode == 254
    assert "eventHandlers[0].name" in result.stderr and result.stderr.count("\n") == 1


def test_a_handler_without_an_absolute_path_is_refused(make_pod: MakePod) -> None:
    """Nothing is searched for it, and nothing is started."""
    pod = make_pod({"a": shell("touch /tmp/ran", eventHandlers=handlers(pre_start=("true",)))})
    result = pod.run()
    assert result.returncode == 254
    assert result.stderr == 'stage1: app "a": event handler pre-start: expected an absolute path, got "true"\n'
    assert not pod.file("a", "/tmp/ran").exists()


def test_a_killed_launcher_ends_a_pod_with_handlers_in_order(make_pod: MakePod) -> None:
    """The post-stop handler runs, and its output arrives."""
    section = shell("touch /tmp/up; " + FOREVER, eventHandlers=scripts(post_stop="echo cleaned up"))
    pod = make_pod({"a": section})
    process: subprocess.Popen[bytes] = pod.start()
    pod.wait_file("a", "/tmp/up")
    process.kill()
    out, _ = process.communicate(timeout=90)
    pod.wait_exited()
    assert lines_of(out.decode()) == [("a", "cleaned up")]
    assert pod.status("a") == 0
