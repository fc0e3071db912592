"""`minit events`: what happened in a pod, numbered, while it runs and after its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.support.attach import STREAMS, attach, start_app
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.stage0_world import REPOSITORY

FOREVER = "while :; do sleep 1; done"


def start_events(pod: PodDirectory, *arguments: str) -> subprocess.Popen[bytes]:
    """Start `minit events`."""
    command = [sys.executable, "-m", "minit", f"--dir={pod.data}", "events", pod.uuid, *arguments]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)


def events(pod: PodDirectory, *arguments: str) -> list[dict[str, Any]]:
    """Return the events that `minit events` prints."""
    with start_events(pod, *arguments) as process:
        assert process.stdout is not None
        lines = process.stdout.read().splitlines()
    assert process.returncode == 0
    return [json.loads(line) for line in lines]


@pytest.mark.private_users
def test_events_of_a_short_pod_are_there_after_its_end(make_pod: MakePod) -> None:
    """A pod too short for its supervisor to load has its events too, numbered from 1 on, the last one its end."""
    pod = make_pod({"a": shell("exit 3")})
    assert pod.run().returncode == 3
    shown = events(pod)
    assert [event["seq"] for event in shown] == [*range(1, len(shown) + 1)]
    assert [event["state"] for event in shown if event["event"] == "app.state"][:2] == ["prepared", "running"]
    [exited] = [event for event in shown if event["event"] == "app.exited"]
    assert (exited["app"], exited["status"], exited["end"]) == ("a", 3, "exited with 3")
    assert (shown[-1]["event"], shown[-1]["status"]) == ("pod.ended", 3)


def test_following_ends_with_the_pod(make_pod: MakePod) -> None:
    """--follow shows what happens when it happens, and stops when the pod has ended."""
    pod = make_pod({"a": shell(FOREVER), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    with start_events(pod, "--follow", "--app=b") as following:
        assert following.stdout is not None
        assert json.loads(following.stdout.readline())["app"] == "b"
        pod.stop()
        shown = [json.loads(line) for line in following.stdout]
    assert following.returncode == 0
    assert {event["app"] for event in shown} == {"b"}
    assert shown[-1]["state"] == "exited"
    assert pod.finish(process).returncode == 0


def test_events_of_all_pods(make_pod: MakePod) -> None:
    """Without a UUID the events of all pods are shown by their times, each with its pod."""
    pods = [make_pod({"a": shell("exit 0")}) for _ in range(2)]
    for pod in pods:
        assert pod.run().returncode == 0
    command = [sys.executable, "-m", "minit", f"--dir={pods[0].data}", "events"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    shown = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["time"] for event in shown] == sorted(event["time"] for event in shown)
    for pod in pods:
        assert [event for event in shown if event["pod"] == pod.uuid] == [
            {**one, "pod": pod.uuid} for one in events(pod)
        ]
    refused = subprocess.run([*command, "--follow"], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 254 and "give the UUID" in refused.stderr


def test_going_on_after_a_number(make_pod: MakePod) -> None:
    """--since and the control socket's `events` leave out what was there before."""
    pod = make_pod({"a": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    every = pod.ask({"op": "events"})
    assert [event["seq"] for event in every["events"]] == [*range(1, every["last"] + 1)]
    rest = pod.ask({"op": "events", "since": every["last"] - 1})
    assert (rest["events"], rest["last"]) == (every["events"][-1:], every["last"])
    for wrong in (-1, "1", True, None):
        assert not pod.ask({"op": "events", "since": wrong})["ok"]
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert events(pod, f"--since={every['last']}")[0]["seq"] == every["last"] + 1


@pytest.mark.private_users
def test_clients_that_come_and_go(make_pod: MakePod) -> None:
    """Attaching and detaching are events with the number of clients."""
    pod = start_app(make_pod, "echo begun; read x", STREAMS)
    # Not its input, which would end the app when it ends.
    client = attach(pod, "--stdout=true", action="custom-attach", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"begun\n"
    assert pod.wait_event("app.attached", "web")["clients"] == 1
    client.kill()
    client.communicate()
    assert pod.wait_event("app.detached", "web")["clients"] == 0
    pod.stop()
