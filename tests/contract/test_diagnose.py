"""`minit diagnose` of pods that run, have ended, and could not be started."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.stage0_world import REPOSITORY
from tests.support.usersession import NO_GROUPS, SURROUNDING
from tests.support.waiting import wait_for


def report(pod: PodDirectory, *words: str) -> dict[str, Any]:
    """Return the report in JSON."""
    value: dict[str, Any] = json.loads(diagnose(pod, "--format=json", *words))
    return value


def diagnose(pod: PodDirectory, *words: str) -> str:
    """Return what the command prints."""
    command = [sys.executable, "-m", "minit", f"--dir={pod.data}", "diagnose", *words, pod.uuid]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=90, check=False)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def test_a_running_pod(make_pod: MakePod) -> None:
    """Its plan, processes, mounts, limits and last output are there, and its secrets are not."""
    environment = [{"name": "API_TOKEN", "value": "tiger-lily"}]
    memory = {"name": "resource/memory", "value": {"limit": "64Mi"}}
    script = "echo with tiger-lily; exec sleep 1000"
    has_groups = SURROUNDING != NO_GROUPS
    pod = make_pod({"web": shell(script, environment=environment, isolators=[memory] if has_groups else [])})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    log = pod.stage1 / "rkt/minit/log/web.log"
    wait_for(lambda: log.exists() and b"tiger" in log.read_bytes(), "output")
    wait_for((pod.stage1 / "rkt/minit/plan").exists, "the plan")
    found = report(pod)
    assert found["conclusions"] == ["The pod is running and ready; nothing is wrong that can be seen from here."]
    assert found["pod"]["ready"] and found["pod"]["pid"] == pod.pid
    assert "app web: exec /bin/sh" in "\n".join(found["plan"])
    assert f"{pod.pid} S minit" in found["processes"]
    assert any(line.startswith("/proc proc") for line in found["mounts"]["pod"])
    limits = [text for group in found["control_groups"].values() for text in group.values()]
    assert (str(64 << 20) in limits) == has_groups
    assert found["apps"][0]["log"][-1].endswith("stdout with ********")
    assert "tiger-lily" not in json.dumps(found)
    assert "tiger-lily" in json.dumps(report(pod, "--show-secrets"))
    text = diagnose(pod, "--lines=0")
    assert "PLAN OF STAGE1" in text and "stdout with" not in text
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_an_app_that_failed(make_pod: MakePod) -> None:
    """Its status is told with the end of its output; an app that could not be executed, with the reason."""
    failing = "until [ -e /tmp/go ]; do sleep 0.01; done; echo no database >&2; exit 3"
    pod = make_pod({"web": shell(failing), "other": shell("touch /tmp/up; exec sleep 1000")})
    process = pod.start()
    # An app that has not been executed has no status.
    pod.wait_file("other", "/tmp/up")
    pod.file("web", "/tmp/go").touch()
    pod.finish(process)
    assert report(pod)["conclusions"] == [
        'App "web" ended with status 3 (exited with 3); the last line of its log: no database'
    ]
    pod = make_pod({"web": app_section("/missing")})
    pod.run()
    [conclusion] = report(pod)["conclusions"]
    assert conclusion.startswith('App "web" ended with status 203 (') and "no such file" in conclusion


def test_an_app_without_a_status(make_pod: MakePod) -> None:
    """If its pod was killed, it may have run; in a pod that ended in order it was never executed."""
    for is_killed, told in ((True, "has no status, since its pod was killed"), (False, "was never executed")):
        pod = make_pod({"web": shell("touch /tmp/up; exec sleep 1000")})
        process = pod.start()
        pod.wait_file("web", "/tmp/up")
        if is_killed:
            os.kill(pod.pid, signal.SIGKILL)
        else:
            assert pod.stop().returncode == 0
        pod.finish(process)
        (pod.stage1 / "rkt/status/web").unlink(missing_ok=is_killed)
        assert f'App "web" {told}.' in report(pod)["conclusions"]


def test_a_pod_that_could_not_be_started(make_pod: MakePod) -> None:
    """Stage1's message was kept: by the launcher before there is a PID 1, and by PID 1 itself."""
    volume = {"name": "data", "kind": "host", "source": "/nonexistent"}
    pod = make_pod({"web": shell("true", mounts=[{"volume": "data", "path": "/data"}])}, volumes=[volume])
    result = pod.run()
    said = result.stderr.removeprefix("stage1: ").strip()
    assert "/nonexistent" in said
    assert report(pod)["conclusions"] == [f"The pod could not be started: {said}"]
    pod = make_pod({"web": shell("true")})
    (pod.stage1 / "rkt/env").rmdir()
    said = pod.run().stderr.removeprefix("stage1: ").strip()
    assert "rkt/env" in said
    assert report(pod)["conclusions"][0] == f"The pod could not be started: {said}"
