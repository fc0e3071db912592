"""`minit events`: what happened in a pod, numbered, while it runs and after its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

from tests.support.attach import STREAMS, attach, start_app
from tests.support.commands import Stage0
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
    refused = subprocess.run([*command, "--since=3"], env=environment, capture_output=True, text=True, check=False)
    assert refused.returncode == 254 and "give the UUID" in refused.stderr
    chosen = subprocess.run(
        [*command, "--filter=event=exited", f"--filter=pod={pods[0].uuid[:8]}"], env=environment, capture_output=True
    )
    [exited] = [json.loads(line) for line in chosen.stdout.splitlines()]
    assert (exited["event"], exited["pod"]) == ("app.exited", pods[0].uuid)


class Follower:
    """`minit events --follow` of all pods."""

    def __init__(self, minit: Stage0, *words: str) -> None:
        self.process = minit.start("events", "--follow", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.shown: list[dict[str, Any]] = []

    def read_until(self, uuid: str, event: str) -> None:
        """Read up to an event of a pod."""
        assert self.process.stdout is not None
        while not any((each["pod"], each["event"]) == (uuid, event) for each in self.shown):
            self.shown.append(json.loads(self.process.stdout.readline()))

    def of(self, uuid: str) -> list[dict[str, Any]]:
        """Return the events shown of a pod, as `events UUID` shows them."""
        return [{name: each[name] for name in each if name != "pod"} for each in self.shown if each["pod"] == uuid]

    def interrupt(self) -> None:
        """End the command as a user does, who gets nothing more to read."""
        self.process.send_signal(signal.SIGINT)
        rest, errors = self.process.communicate()
        assert (self.process.returncode, errors) == (130, b"\n")
        self.shown += map(json.loads, rest.splitlines())


def run_in_background(minit: Stage0, *words: object) -> str:
    """Run a pod that stays, and return its UUID."""
    sleep = ("--exec=/bin/sh", "--", "-c", "exec busybox sleep 1000")
    started = minit.call("run", minit.stage1_flag, "--net=none", "--detach", *words, minit.image(), *sleep)
    assert started.returncode == 0, started.stderr
    return started.stdout.strip()


def events_of(minit: Stage0, uuid: str) -> list[dict[str, Any]]:
    """Return the events of a pod."""
    return [json.loads(line) for line in minit.call("events", uuid).stdout.splitlines()]


def test_following_all_pods(minit: Stage0) -> None:
    """Pods that start, end and are removed are followed in one stream, from a data directory without pods on."""
    follower = Follower(minit)
    first = run_in_background(minit)
    follower.read_until(first, "pod.ready")
    second = run_in_background(minit, "--rm")
    follower.read_until(second, "pod.ready")
    # The follower stands still while the pods end and vanish.
    follower.process.send_signal(signal.SIGSTOP)
    assert minit.call("stop", first, second).returncode == 0
    written = events_of(minit, first)
    assert minit.call("rm", first).returncode == 0
    follower.process.send_signal(signal.SIGCONT)
    for uuid in (first, second):
        follower.read_until(uuid, "pod.ended")
    follower.interrupt()
    assert follower.of(first) == written
    assert [event["seq"] for event in follower.of(second)] == [*range(1, len(follower.of(second)) + 1)]
    assert written[-1]["event"] == follower.of(second)[-1]["event"] == "pod.ended"


def test_following_a_pod_that_is_started_again(minit: Stage0) -> None:
    """All events of both runs are shown, and nothing of a pod that the filters leave out."""
    follower = Follower(minit, "--filter=label=tier=back")
    uuid = run_in_background(minit, "--user-label=tier=back")
    run_in_background(minit, "--user-label=tier=front")
    runs = []
    for _ in range(2):
        assert minit.call("stop", uuid).returncode == 0
        runs.append(events_of(minit, uuid))
        assert minit.call("start", uuid).returncode == 0
    assert minit.call("stop", "--all").returncode == 0
    runs.append(events_of(minit, uuid))
    while follower.of(uuid) != [event for run in runs for event in run]:
        assert follower.process.stdout is not None
        follower.shown.append(json.loads(follower.process.stdout.readline()))
    follower.interrupt()
    assert {event["pod"] for event in follower.shown} == {uuid}


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
