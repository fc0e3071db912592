"""Output that nobody reads: it is counted and told, no app waits for ever, and the pod has failed."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.stage0_world import REPOSITORY
from tests.support.waiting import wait_for

LINES = 30_000
WRITER = f"seq {LINES}"
WRITTEN_BYTES = sum(len(f"{number}\n") for number in range(1, LINES + 1))


def logged_bytes(pod: PodDirectory, app: str) -> int:
    """Return how much of what an app wrote is in its log, which is whole lines, but what is there twice."""
    log = pod.log(app).decode()
    texts = re.findall(r"^\S+Z stdout F (\d+)\n", log, re.MULTILINE)
    assert len(texts) == log.count("\n") and log.endswith("\n"), log[-200:]
    return sum(len(f"{text}\n") for text in dict.fromkeys(texts))


def tear(pod: PodDirectory, app: str) -> None:
    """Have the log end as one does whose sidecar is killed while it writes."""
    directory = pod.stage1 / "rkt/minit/log"
    with (directory / f"{app}.lock").open("w") as lock, (directory / f"{app}.log").open("ab") as log:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log.write(b"2026-11-22T18:00:00.000000000Z stdout F 1")
        log.flush()


def events(pod: PodDirectory, name: str) -> list[tuple[str, int]]:
    """Return apps and numbers of bytes in the events of a kind."""
    return [(event["app"], event.get("bytes", 0)) for event in pod.events() if event["event"] == name]


def kill_sidecars(pod: PodDirectory, app: str) -> None:
    """Kill each sidecar of an app, in the middle of a line, until there are no more."""
    killed: set[int] = set()

    def kill_the_next() -> bool:
        sidecar = pod.children().get(f"iottymux-{app}")
        if sidecar is not None and sidecar not in killed:
            if (pod.stage1 / f"rkt/minit/log/{app}.log").exists():
                tear(pod, app)
            os.kill(sidecar, signal.SIGKILL)
            killed.add(sidecar)
        return bool(events(pod, "sidecar.given-up"))

    wait_for(kill_the_next, "the end of all attempts")


def start_unread(pod: PodDirectory) -> subprocess.Popen[bytes]:
    """Start a pod whose output nobody reads: its sidecars cannot pass on more than fits into a pipe."""
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: (pod.stage1 / "rkt/minit/log/a.log").exists(), "the log")
    return process


@pytest.mark.parametrize(
    ("annotation", "code"),
    [(None, 254), ("ignore", 0), pytest.param("fail", 254, marks=pytest.mark.long)],
)
def test_sidecars_that_cannot_live(make_pod: MakePod, annotation: str | None, code: int) -> None:
    """After some attempts there are no more, the app goes on to its end, and what is lost is told to the byte."""
    annotations = {} if annotation is None else {"minit/lost-output": annotation}
    pod = make_pod({"a": shell(f"{WRITER}; exec sleep 1000")}, annotations=annotations)
    process = start_unread(pod)
    kill_sidecars(pod, "a")
    lost_bytes = WRITTEN_BYTES - logged_bytes(pod, "a")
    assert lost_bytes > 0
    wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["lost_output_bytes"] == lost_bytes, "the count")
    pod.stop()
    result = pod.finish(process)
    assert result.returncode == code
    assert result.stderr == (
        'stage1: app "a": output is lost, as nobody can read it any more\n'
        f'stage1: app "a": {lost_bytes} bytes of output were lost\n'
    )
    assert events(pod, "app.output-lost") == [("a", lost_bytes)]
    assert pod.record("a")["lost_output_bytes"] == lost_bytes
    assert pod.status("a") == 0


def test_a_pod_that_ends_before_its_output_is_read(make_pod: MakePod) -> None:
    """Output that a stopped sidecar left is counted when the pod gives up waiting for it."""
    pod = make_pod({"a": shell("while ! [ -e /go ]; do sleep 0.01; done; printf 'one\\ntwo\\n'"), "b": shell("echo b")})
    process = pod.start()
    pod.wait_ready()
    sidecar = wait_for(lambda: pod.children().get("iottymux-a"), "the sidecar")
    os.kill(sidecar, signal.SIGSTOP)
    tear(pod, "a")
    pod.file("a", "/go").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (254, 0, 0)
    assert result.stderr == 'stage1: app "a": 8 bytes of output were lost\n'
    assert re.fullmatch(r"b\[\d+\]: b\n", result.stdout)
    assert pod.log("a") == b""
    assert events(pod, "app.output-lost") == [("a", 8)]
    assert "lost-output-a=8\n" in minit(pod, "status")
    assert json.loads(minit(pod, "status", "--format=json"))["apps"][0]["lost_output_bytes"] == 8
    conclusions = json.loads(minit(pod, "diagnose", "--format=json"))["conclusions"]
    assert conclusions == ['App "a": 8 bytes of its output were lost, since nobody could read them.']


def minit(pod: PodDirectory, *words: str) -> str:
    """Return what a command about the pod prints."""
    command = [sys.executable, "-m", "minit", f"--dir={pod.data}", *words, pod.uuid]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=90, check=True).stdout


def test_streams_of_clients(make_pod: MakePod) -> None:
    """An app that can be attached to goes on too: its input is at its end, and nobody can attach any more."""
    streams = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "stream"} for name in ("stdin", "stdout")]
    pod = make_pod({"a": shell(f"cat; {WRITER} >&2; {WRITER}", annotations=streams)})
    pod.start(stdout=subprocess.DEVNULL)
    directory = pod.stage1 / "rkt/iottymux/a"
    wait_for((directory / "endpoints").exists, "the endpoints")
    kill_sidecars(pod, "a")
    assert pod.wait_status("a") == 0
    assert not directory.exists()
    wait_for(lambda: events(pod, "app.output-lost") == [("a", 2 * WRITTEN_BYTES)], "the loss")
