"""`minit logs`: what apps wrote, of running and ended pods, followed across rotation to the end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.attached import connect, read_all, read_until
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.stage0_world import REPOSITORY
from tests.support.waiting import wait_for

SMALL_FILES = {"minit/log-max-size": "64Ki", "minit/log-max-files": "100"}
UNTIL_TOLD = "until [ -e /tmp/end ]; do sleep 0.02; done"


def words(pod: PodDirectory, *arguments: str) -> list[str]:
    """Return the command line of `minit logs`."""
    return [sys.executable, "-m", "minit", f"--dir={pod.data}", "logs", pod.uuid, *arguments]


def try_logs(pod: PodDirectory, *arguments: str, timeout: float = 60) -> subprocess.CompletedProcess[bytes]:
    """Run `minit logs` to its end."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(words(pod, *arguments), env=environment, capture_output=True, timeout=timeout, check=False)


def logs(pod: PodDirectory, *arguments: str) -> bytes:
    """Return what `minit logs` prints when nothing is wrong."""
    result = try_logs(pod, *arguments)
    assert (result.returncode, result.stderr) == (0, b"")
    return result.stdout


@contextmanager
def following(pod: PodDirectory, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Follow a log while the block runs."""
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = words(pod, "--follow", *arguments)
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def tell_to_end(pod: PodDirectory, app: str) -> None:
    """Let an app that waits until it is told go on."""
    pod.file(app, "/tmp/end").touch()


def renew_sidecar(pod: PodDirectory) -> None:
    """Kill the sidecar and wait for the next one."""
    sidecar = pod.children()["iottymux-web"]
    os.kill(sidecar, signal.SIGKILL)
    wait_for(lambda: pod.children().get("iottymux-web", sidecar) != sidecar, "another sidecar")


@pytest.mark.host_users("a pod without overlays has no mounts")
def test_what_an_app_wrote(make_pod: MakePod) -> None:
    """The log of a pod that ended is its output, byte for byte, with and without the pod's mounts."""
    pod = make_pod({"web": shell(r"printf 'one\n\033[1mtwo\n\ntail'; echo error >&2")})
    assert pod.run().returncode == 0
    assert sorted(logs(pod).splitlines()) == sorted(b"one\n\x1b[1mtwo\n\nerror\ntail".splitlines())
    assert logs(pod, "--stream=stdout") == b"one\n\x1b[1mtwo\n\ntail"
    assert logs(pod, "--stream=stderr") == b"error\n"
    # As after a reboot.
    unmount = ["unshare", "-m", "/bin/sh", "-c", 'umount -R -l "$0" && exec "$@"', str(pod.stage1)]
    assert subprocess.check_output([*unmount, *words(pod, "--stream=stderr")]) == b"error\n"


@pytest.mark.private_users
@pytest.mark.parametrize(
    ("modes", "end", "endpoint"),
    [
        ({"stdout": "log+stream"}, b"\n", "stdout"),
        ({"stdin": "tty", "stdout": "log+tty", "stderr": "log+tty"}, b"\r\n", "tty"),
    ],
)
def test_what_can_be_attached_to(make_pod: MakePod, modes: dict[str, str], end: bytes, endpoint: str) -> None:
    """It is logged as well, once, though files are rotated, sidecars killed and clients attached meanwhile."""
    streams = {f"coreos.com/rkt/stage2/{name}": mode for name, mode in modes.items()}
    annotations = [{"name": name, "value": value} for name, value in (SMALL_FILES | streams).items()]
    script = f"i=0; while [ $i -lt 9000 ]; do echo line $i; i=$((i+1)); done; {UNTIL_TOLD}; printf 'no end'"
    pod = make_pod({"web": shell(script, annotations=annotations)})
    process = pod.start()
    pod.wait_ready()
    with connect(pod.stage1 / "rkt/iottymux/web", f"sock-{endpoint}") as client:
        # What it said first may be kept no more.
        read_until(client, end)
    for _ in range(3):
        renew_sidecar(pod)
    with connect(pod.stage1 / "rkt/iottymux/web", f"sock-{endpoint}") as client:
        read_until(client, b"line 8999" + end)
        tell_to_end(pod, "web")
        assert read_all(client) == b"no end"
    result = pod.finish(process)
    assert result.returncode == 0
    assert "line" not in result.stdout + result.stderr
    assert logs(pod) == b"".join(b"line %d%b" % (number, end) for number in range(9000)) + b"no end"
    assert len(list((pod.stage1 / "rkt/minit/log").glob("web.log*"))) > 2


def test_forms(make_pod: MakePod) -> None:
    """Lines can have their time before them, or be objects of JSON."""
    pod = make_pod({"web": shell(r"printf 'a\377b\n'; printf 'x'")})
    assert pod.run().returncode == 0
    time_and_text = [line.split(b" ", 1) for line in logs(pod, "-t").splitlines()]
    assert [text for _, text in time_and_text] == [b"a\xffb", b"x"]
    times = [moment.decode() for moment, _ in time_and_text]
    assert all(re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z", moment) for moment in times)
    assert [json.loads(line) for line in logs(pod, "--format=json").splitlines()] == [
        {"app": "web", "time": times[0], "stream": "stdout", "text": "a\ufffdb"},
        {"app": "web", "time": times[1], "stream": "stdout", "text": "x", "partial": True},
    ]
    assert logs(pod, f"--since={times[1]}") == b"x"
    assert logs(pod, f"--until={times[0]}") == b"a\xffb\n"
    assert logs(pod, "--since=1h", "--until=now", "--tail=1", "--app=web") == b"x"
    assert logs(pod, "--since=2999-01-01") == b""


def test_apps_are_merged_by_time(make_pod: MakePod) -> None:
    """Each line has its app's name before it, and they are in the order of their times."""
    count = "for number in 0 1 2 3 4 5 6 7 8 9; do echo $number; sleep 0.01; done"
    pod = make_pod({"a": shell(count), "b": shell(count)})
    assert pod.run().returncode == 0
    merged = logs(pod).splitlines()
    for app in (b"a", b"b"):
        assert [line for line in merged if line.startswith(app)] == [b"%s: %d" % (app, number) for number in range(10)]
    timed = logs(pod, "--timestamps").splitlines()
    assert [line.split(b" ", 1)[1] for line in timed] == merged
    assert timed == sorted(timed)
    assert logs(pod, "--tail=3").splitlines() == merged[-3:]
    assert logs(pod, "--app=b") == b"".join(b"%d\n" % number for number in range(10))
    assert logs(pod, "--follow").splitlines() == merged


def test_following_to_the_end_of_the_pod(make_pod: MakePod) -> None:
    """A follower gets every line, once, across many files, and ends with the pod; what is left can be read after it."""
    count = 60_000
    script = f"echo early; echo first; {UNTIL_TOLD}; seq 1 {count}; printf end"
    pod = make_pod({"web": shell(script)}, annotations=SMALL_FILES)
    process = pod.start(stdout=subprocess.DEVNULL)
    log = pod.stage1 / "rkt/minit/log/web.log"
    wait_for(lambda: log.exists() and b"first" in log.read_bytes(), "the first lines")
    numbers = b"".join(b"%d\n" % number for number in range(1, count + 1)) + b"end"
    expected = b"early\nfirst\n" + numbers
    with following(pod) as everything, following(pod, "--tail=1") as new:
        assert new.stdout is not None
        assert new.stdout.readline() == b"first\n"
        tell_to_end(pod, "web")
        assert everything.communicate(timeout=90) == (expected, b"")
        assert new.communicate(timeout=90) == (numbers, b"")
    assert pod.finish(process).returncode == 0
    assert len([*(pod.status_root / "rkt/minit/log").glob("web.log.*")]) > 30
    assert logs(pod) == expected
    assert logs(pod, "--tail=30000") == b"".join(expected.splitlines(keepends=True)[-30000:])


def test_files_are_limited(make_pod: MakePod) -> None:
    """An app's own annotations win; old files are deleted, and what is left begins with a whole line."""
    own = [{"name": "minit/log-max-files", "value": "2"}]
    pod = make_pod({"web": shell("seq 1 20000", annotations=own)}, annotations=SMALL_FILES)
    assert pod.run().returncode == 0
    files = {path.name: path.stat().st_size for path in (pod.status_root / "rkt/minit/log").glob("web.log*")}
    assert sorted(files) == ["web.log", "web.log.1"]
    assert max(files.values()) <= 65536
    lines = logs(pod).splitlines()
    assert lines == [b"%d" % number for number in range(20001 - len(lines), 20001)]


def test_an_app_that_ends_before_its_pod(make_pod: MakePod) -> None:
    """Following one app ends when that and its handler have written everything, though others run on."""
    late = handlers(post_stop=["/bin/sh", "-c", "echo late"])
    pod = make_pod({"web": shell(f"echo early; {UNTIL_TOLD}", eventHandlers=late), "other": shell(UNTIL_TOLD)})
    process = pod.start()
    pod.wait_ready()
    with following(pod, "--app=web") as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"early\n"
        tell_to_end(pod, "web")
        assert follower.communicate(timeout=90) == (b"late\n", b"")
        assert follower.returncode == 0
    assert pod.is_running()
    tell_to_end(pod, "other")
    assert pod.finish(process).returncode == 0


def test_a_killed_pod_ends_its_followers(make_pod: MakePod) -> None:
    """Without a word from PID 1 the lock says that nothing is written any more."""
    pod = make_pod({"web": shell(f"echo early; {UNTIL_TOLD}")})
    process = pod.start()
    pod.wait_ready()
    with following(pod) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"early\n"
        os.kill(pod.pid, signal.SIGKILL)
        assert follower.communicate(timeout=90) == (b"", b"")
        assert follower.returncode == 0
    pod.finish(process)


def test_a_follower_whose_reader_is_gone(make_pod: MakePod) -> None:
    """It ends at once, though the app writes nothing."""
    pod = make_pod({"web": shell(f"echo early; {UNTIL_TOLD}")})
    process = pod.start()
    pod.wait_ready()
    with following(pod) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"early\n"
        follower.stdout.close()
        follower.wait(timeout=90)
    tell_to_end(pod, "web")
    assert pod.finish(process).returncode == 0


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [(), ("--timestamps",), ("--format=json",), ("--tail=30000",)])
def test_an_output_that_does_not_block(make_pod: MakePod, arguments: tuple[str, ...], unbuffered: str) -> None:
    """No line is lost in front of a reader that is slow, nor is its loss to a full disk silent."""
    pod = make_pod({"web": shell("seq 40000")})
    assert pod.finish(pod.start()).returncode == 0
    expected = logs(pod, *arguments)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(words(pod, *arguments), env=environment, stdout=writer)
    os.close(writer)
    wait_for(lambda: "poll" in Path(f"/proc/{process.pid}/wchan").read_text(), "room to be waited for")
    with open(reader, "rb") as file:
        assert file.read() == expected
    assert process.wait() == 0
    with open("/dev/full", "w") as full:
        result = subprocess.run(
            words(pod, *arguments), env=environment, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert (result.returncode, result.stderr) == (254, b"logs: standard output: no space left on device\n")


def test_the_order_of_runs(make_pod: MakePod) -> None:
    """What an app has left when it is started again comes before the lines of its next run, though nobody read it."""
    first = "echo begin; until [ -e /go ]; do sleep 0.01; done; seq 1000; exit 1"
    script = f"[ -e /go ] || {{ {first}; }}; echo again; until [ -e /end ]; do sleep 0.01; done"
    annotations = [
        {"name": f"minit/{name}", "value": value}
        for name, value in (("restart", "on-failure"), ("restart-delay", "10ms"))
    ]
    pod = make_pod({"a": shell(script, annotations=annotations)})
    process = pod.start()
    wait_for(lambda: b"begin" in pod.log("a"), "the first line")
    sidecar = pod.children()["iottymux-a"]
    os.kill(sidecar, signal.SIGSTOP)
    pod.file("a", "/go").touch()
    pod.wait_event("app.started-again", "a")
    os.kill(sidecar, signal.SIGKILL)
    wait_for(lambda: b"again" in pod.log("a"), "a line of the second run")
    pod.file("a", "/end").touch()
    assert pod.finish(process).returncode == 0
    times, texts = zip(*(line.split(b" stdout F ") for line in pod.log("a").splitlines()))
    assert texts == (b"begin", *(b"%d" % number for number in range(1, 1001)), b"again")
    assert [*times] == sorted(times)


@pytest.mark.parametrize("way", ["command", "control", "signal"])
def test_reopening(make_pod: MakePod, way: str) -> None:
    """Files that a program of the host renamed are let go of on request, and the follower misses nothing."""
    pod = make_pod({"web": shell(f"echo one; {UNTIL_TOLD}; echo two")})
    process = pod.start()
    pod.wait_ready()
    log = pod.stage1 / "rkt/minit/log/web.log"
    wait_for(lambda: log.exists() and b"one" in log.read_bytes(), "the first line")
    with following(pod) as follower:
        assert follower.stdout is not None
        assert follower.stdout.readline() == b"one\n"
        log.rename(log.with_name("web.log.1"))
        if way == "command":
            assert logs(pod, "--reopen") == b""
        elif way == "control":
            assert pod.ask({"op": "reopen-logs", "app": "web"}) == {"ok": True}
        else:
            os.kill(pod.pid, signal.SIGHUP)
        wait_for(log.exists, "the new file")
        tell_to_end(pod, "web")
        assert follower.communicate(timeout=90) == (b"two\n", b"")
    assert pod.finish(process).returncode == 0
    assert logs(pod) == b"one\ntwo\n"


def test_reopening_for_an_app_that_is_not_there(make_pod: MakePod) -> None:
    """The refusal names it."""
    pod = make_pod({"web": shell(UNTIL_TOLD)})
    process = pod.start()
    pod.wait_ready()
    assert pod.ask({"op": "reopen-logs", "app": "wep"}) == {"ok": False, "error": 'no app "wep" in this pod'}
    tell_to_end(pod, "web")
    assert pod.finish(process).returncode == 0


def test_what_cannot_be_shown(make_pod: MakePod) -> None:
    """Each reason is one line of what, where and why."""
    pod = make_pod({"web": shell("true")})
    assert pod.run().returncode == 0
    for arguments, text in (
        (["--app=wep"], f'logs: no app "wep" in pod "{pod.uuid}": it has web'),
        (["--reopen"], f'logs: pod "{pod.uuid}" is not running: its state is "exited"'),
        (["--since=soon"], "logs: invalid value for '--since': expected how long ago (10m, "),
        (["--tail=-1"], 'logs: invalid value for \'--tail\': expected a number of lines or "all", got "-1"'),
    ):
        result = try_logs(pod, *arguments)
        assert result.returncode == 254
        assert result.stderr.decode().startswith(text), result.stderr


def test_a_log_that_somebody_spoilt(make_pod: MakePod) -> None:
    """Lines that are no records are left out and counted; a last line without end is shown as far as it goes."""
    pod = make_pod({"web": shell("echo one; echo two")})
    assert pod.run().returncode == 0
    path = pod.status_root / "rkt/minit/log/web.log"
    records = path.read_bytes().splitlines(keepends=True)
    spoilt = b"".join([records[0], b"\0\xff\n", b"\n", b"x" * 2_000_000 + b"\n", records[1], records[1][:-2]])
    path.write_bytes(spoilt)
    result = try_logs(pod)
    assert (result.returncode, result.stdout) == (0, b"one\ntwo\ntw")
    assert b'logs: app "web": lines of the log that are no records: ' in result.stderr
    (path.parent / "web.log.1").symlink_to("/etc/passwd")
    os.mkfifo(path.parent / "web.log.2")
    assert try_logs(pod).stdout == b"one\ntwo\ntw"


def test_a_following_is_limited_in_time(make_pod: MakePod) -> None:
    """A follower stops at --until."""
    pod = make_pod({"web": shell(f"echo early; {UNTIL_TOLD}")})
    process = pod.start()
    pod.wait_ready()
    until = f"--until={time.time() + 1.5:f}"
    with following(pod, until) as follower:
        assert follower.communicate(timeout=90) == (b"early\n", b"")
    assert pod.is_running()
    tell_to_end(pod, "web")
    assert pod.finish(process).returncode == 0
    assert Path(pod.path).exists()
