"""Pods that may run for so long only."""

from __future__ import annotations

import pytest

from tests.support.pods import MakePod, app_section, shell


@pytest.mark.private_users
def test_a_pod_that_runs_for_too_long(make_pod: MakePod) -> None:
    """Its apps are stopped in order, it has failed, and an event tells why; no restart comes after."""
    again = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "1h"}]
    script = "trap 'echo stopped; exit 3' TERM; exec 2> /dev/null; while :; do sleep 0.05; done"
    apps = {"a": shell(script), "b": shell("exit 0", annotations=again)}
    pod = make_pod(apps, annotations={"minit/deadline": "2s"})
    result = pod.run()
    assert (result.returncode, pod.status("a"), pod.status("b")) == (254, 3, 0)
    assert result.stdout.endswith("]: stopped\n")
    assert [event["seconds"] for event in pod.events() if event["event"] == "pod.deadline-exceeded"] == [2]


def test_a_pod_that_ends_before(make_pod: MakePod) -> None:
    """Nothing comes of its deadline."""
    pod = make_pod({"a": shell("exit 4")}, annotations={"minit/deadline": "1h"})
    assert pod.run().returncode == 4


def test_a_deadline_while_a_pod_is_stopped(make_pod: MakePod) -> None:
    """The stop was first, and its code counts."""
    script = "trap 'sleep 3; exit 5' TERM; touch /tmp/up; exec 2> /dev/null; while :; do sleep 0.05; done"
    pod = make_pod({"a": shell(script)}, annotations={"minit/deadline": "3s", "minit/stop-grace": "1h"})
    process = pod.start()
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    result = pod.finish(process)
    # On a busy machine the deadline may be first.
    exceeded = [event for event in pod.events() if event["event"] == "pod.deadline-exceeded"]
    assert result.returncode == (254 if exceeded else 0)
    assert pod.status("a") == 5


@pytest.mark.parametrize("value", ["", "0s", "10ms", "soon", "9000h"])
def test_what_is_no_deadline(make_pod: MakePod, value: str) -> None:
    """It is refused before anything runs."""
    result = make_pod({"a": app_section("/bin/true")}, annotations={"minit/deadline": value}).run()
    assert result.returncode == 254
    reason = f'expected a duration from 100ms to a year, such as "1h", got "{value}"'
    assert f"annotation minit/deadline: {reason}" in result.stderr
