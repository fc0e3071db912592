"""Apps, spawner and sidecars that are alive and do nothing: what becomes of the other apps, and of the pod's end."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.processes import status_of
from tests.support.stuckfs import StuckFilesystem
from tests.support.waiting import wait_for

CHATTER = "trap 'exit 0' TERM; while :; do echo tick; sleep 0.05; done"
# PID 1 gives up on one that does nothing after 5 seconds; the rest is for a loaded machine.
BOUND_SECONDS = 60.0


def lines(pod: PodDirectory, app: str) -> int:
    """Return how many lines of an app are logged."""
    with suppress(FileNotFoundError):
        return pod.log(app).count(b"\n")
    return 0


def wait_for_more(pod: PodDirectory, app: str) -> None:
    """Wait until more of an app is logged than there is now."""
    before = lines(pod, app)
    wait_for(lambda: lines(pod, app) > before + 2, f"lines of {app}")


@pytest.mark.host_root("it needs /dev/fuse")
def test_an_exec_that_hangs(make_pod: MakePod, tmp_path: Path) -> None:
    """It holds up no other app's output."""
    with StuckFilesystem(tmp_path):
        volume = {"name": "v", "kind": "host", "source": str(tmp_path)}
        stuck = app_section("/v/program", mounts=[{"volume": "v", "path": "/v"}])
        pod = make_pod({"a": shell(CHATTER), "b": stuck}, volumes=[volume])
        process = pod.start()
        wait_for(lambda: lines(pod, "a"), "a line of a")
    assert pod.finish(process).returncode == 203
    assert pod.status("a") == 0


def test_a_stopped_sidecar(make_pod: MakePod) -> None:
    """Other apps and PID 1 go on; a stop of the pod waits for it no longer than for anybody who reads nothing."""
    pod = make_pod({name: shell(CHATTER) for name in ("a", "b")})
    process = pod.start()
    pod.wait_ready()
    wait_for_more(pod, "a")
    os.kill(pod.children()["iottymux-a"], signal.SIGSTOP)
    wait_for_more(pod, "b")
    assert [app["state"] for app in pod.ask({"op": "state"})["apps"]] == ["running", "running"]
    begun = time.monotonic()
    pod.ask({"op": "stop"})
    pod.finish(process)
    assert time.monotonic() - begun < BOUND_SECONDS
    assert (pod.status("a"), pod.status("b")) == (0, 0)


def test_a_stopped_spawner(make_pod: MakePod) -> None:
    """It is continued when a sidecar is wanted of it; nothing that an app wrote is lost."""
    pod = make_pod({"a": shell("i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done"), "b": shell(CHATTER)})
    process = pod.start()
    pod.wait_ready()
    wait_for_more(pod, "a")
    children = pod.children()
    os.kill(children["minit-spawner"], signal.SIGSTOP)
    wait_for_more(pod, "b")
    os.kill(children["iottymux-a"], signal.SIGKILL)
    wait_for(lambda: pod.children().get("iottymux-a") not in (None, children["iottymux-a"]), "another sidecar")
    assert pod.children()["minit-spawner"] == children["minit-spawner"]
    wait_for_more(pod, "a")
    wait_for_more(pod, "b")
    pod.ask({"op": "stop", "force": True})
    pod.finish(process)
    numbers = [int(line.split(b" ", 3)[3]) for line in pod.log("a").splitlines()]
    assert sorted(set(numbers)) == list(range(len(set(numbers))))


def test_a_spawner_that_is_stopped_without_end(make_pod: MakePod) -> None:
    """It comes to answering now and then, or another takes its place; PID 1 waits for a moment only."""
    pod = make_pod({"a": shell(CHATTER)})
    process = pod.start()
    pod.wait_ready()
    wait_for_more(pod, "a")
    children = pod.children()
    spawner = children["minit-spawner"]
    stop = f"while kill -STOP {spawner}; do :; done"
    with subprocess.Popen(["sh", "-c", stop], stderr=subprocess.DEVNULL) as attacker:
        wait_for(lambda: status_of(spawner)["State"].startswith("T"), "the stop")
        os.kill(children["iottymux-a"], signal.SIGKILL)
        wait_for(lambda: pod.children().get("iottymux-a") not in (None, children["iottymux-a"]), "another sidecar")
        attacker.kill()
    wait_for_more(pod, "a")
    pod.ask({"op": "stop", "force": True})
    pod.finish(process)
