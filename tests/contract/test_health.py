"""Health checks of apps: commands, HTTP and TCP, and what follows when they fail."""

from __future__ import annotations

import json
import subprocess

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import children_of, named
from tests.support.waiting import wait_for

QUICK = {"interval": "100ms", "timeout": "5s", "failures": 2}


def annotated(script: str, **checks: object) -> dict[str, object]:
    """Return an app with checks, each every tenth of a second unless it says otherwise."""
    value = {kind: {**QUICK, **check} for kind, check in checks.items()}  # type: ignore[dict-item]
    return shell(script, annotations=[{"name": "minit/health", "value": json.dumps(value)}])


def health(pod: PodDirectory, app: str = "web") -> dict[str, dict[str, object]]:
    """Return what PID 1 knows of an app's health."""
    [entry] = [entry for entry in pod.ask({"op": "state"})["apps"] if entry["name"] == app]
    found: dict[str, dict[str, object]] = entry.get("health", {})
    return found


def is_healthy(pod: PodDirectory, check: str) -> object:
    """Return what is known of one check."""
    return health(pod).get(check, {}).get("healthy")


@pytest.mark.private_users
def test_a_command(make_pod: MakePod) -> None:
    """It runs in the app, good results and bad ones are known, and without an action nothing follows."""
    exec_check = {"exec": ["/bin/sh", "-c", "cat /tmp/works; [ -e /tmp/works ]"], "action": "none"}
    pod = make_pod({"web": annotated("exec sleep 1000", liveness=exec_check)})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    wait_for(lambda: is_healthy(pod, "liveness") is False, "a bad result")
    assert "No such file" in str(health(pod)["liveness"]["text"])
    subprocess.run([*pod_enter(pod), "touch", "/tmp/works"], cwd=pod.path, check=True)
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a good result")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_a_command_of_the_apps_user(make_pod: MakePod) -> None:
    """With asApp a command has the user of the app, who may have less than root."""
    check = {"exec": ["/bin/sh", "-c", "id -u; false"], "action": "none", "asApp": True}
    app = {**annotated("exec sleep 1000", liveness=check), "user": "1000", "group": "7"}
    pod = make_pod({"web": app})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    wait_for(lambda: health(pod).get("liveness", {}).get("text") == "1000", "the user's number")


@pytest.mark.parametrize(("command", "healthy", "said"), [("seq 20000", True, "20000"), ("yes", False, "in time: y")])
def test_a_command_with_much_to_say(make_pod: MakePod, command: str, healthy: bool, said: str) -> None:
    """It need not wait for a reader, and the last line is known; one that never stops takes too long."""
    # On a busy machine the command may say nothing in half a second; then it is asked again.
    times = {"interval": "100ms", "timeout": "1m" if healthy else "500ms"}
    check = {"exec": ["/bin/sh", "-c", command], "action": "none", "failures": 1, **times}
    pod = make_pod({"web": annotated("exec sleep 1000", liveness=check)})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    wait_for(lambda: said in str(health(pod).get("liveness", {}).get("text")), "what it says")
    assert is_healthy(pod, "liveness") is healthy
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def pod_enter(pod: PodDirectory) -> list[str]:
    """Return the words that run a command in the app."""
    return [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=web", "--"]


def test_http_and_tcp(make_pod: MakePod) -> None:
    """They are asked in the network of the pod; the start is waited for before anything else is checked."""
    server = "mkdir /tmp/www; echo fine > /tmp/www/ok; touch /tmp/begun; exec busybox httpd -f -p 8080 -h /tmp/www"
    checks = {
        "startup": {"exec": ["/bin/sh", "-c", "[ -e /tmp/go ]"], "failures": 1000},
        "liveness": {"http": {"port": 8080, "path": "/ok"}},
        "readiness": {"tcp": {"port": 8081}},
    }
    pod = make_pod({"web": annotated(server, **checks)})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/begun")
    pod.file("web", "/tmp/go").touch()
    wait_for(lambda: is_healthy(pod, "liveness") is True, "an answer")
    wait_for(lambda: is_healthy(pod, "readiness") is False, "no connection")
    assert health(pod)["startup"]["healthy"] is True
    assert "connect to port 8081: connection refused" in str(health(pod)["readiness"]["text"])
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


@pytest.mark.parametrize(
    ("server", "said"),
    [
        ("sleep 1000", "no result in time"),
        ("yes", "expected an answer of HTTP"),
        ("printf 'HTTP/1.1 200'", ""),
        (r"printf 'HTTP/1.1 503 no\r\n'", "HTTP status 503"),
    ],
    ids=["silent", "noisy", "good", "bad"],
)
def test_servers_that_do_not_answer(make_pod: MakePod, server: str, said: str) -> None:
    """A check of any server ends in its time, with the reason, and takes little memory."""
    check = {"http": {"port": 8080}, "timeout": "2s", "action": "none", "failures": 1}
    pod = make_pod({"web": annotated(f"exec busybox nc -ll -p 8080 -e {server}", liveness=check)})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()

    def look() -> bool:
        found = health(pod).get("liveness", {})
        return said in str(found.get("text")) if said else found.get("healthy") is True

    wait_for(look, said or "a good result")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_a_failure_ends_the_app(make_pod: MakePod) -> None:
    """An app that is not started again has failed, with what the check said as the reason, and its pod with it."""
    check = {"exec": ["/bin/sh", "-c", "echo out of order; exit 1"], "delay": "100ms"}
    pod = make_pod({"web": annotated("trap 'exit 0' TERM; while :; do sleep 0.1; done", liveness=check)})
    result = pod.run()
    assert result.returncode == 254
    assert 'app "web": liveness check: out of order' in result.stderr
    record = pod.record("web")
    assert (record["end"], record["reason"]) == ("liveness check: out of order", "unhealthy")
    events = (pod.status_root / "rkt/minit/events.log").read_text()
    assert '"event":"app.health"' in events


def test_a_check_that_takes_too_long(make_pod: MakePod) -> None:
    """It is killed with its command and counts as failed; `stop-pod` ends all apps."""
    check = {"exec": ["/bin/sleep", "1234"], "timeout": "300ms", "action": "stop-pod", "failures": 2}
    pod = make_pod({"web": annotated("exec sleep 1000", liveness=check), "other": shell("exec sleep 1000")})
    result = pod.run()
    assert result.returncode == 254
    assert pod.record("web")["end"] == "liveness check: no result in time"
    assert pod.status("other") == 0
    assert pod.members() == []


def test_readiness_and_restarts(make_pod: MakePod) -> None:
    """Apps that wait for an app wait for its checks; an app that fails one is started again by its policy."""
    flag = {"exec": ["/bin/sh", "-c", "[ -e /tmp/up ]"]}
    web = annotated(
        "touch /tmp/begun; exec sleep 1000", readiness=flag, liveness={"exec": ["/bin/sh", "-c", "[ ! -e /tmp/bad ]"]}
    )
    web["annotations"] += [{"name": "minit/restart", "value": "always"}]  # type: ignore[operator]
    after = shell("touch /tmp/begun; exec sleep 1000", annotations=[{"name": "minit/after", "value": "web"}])
    pod = make_pod({"web": web, "after": after})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/begun")
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a result")
    assert not pod.is_ready() and not pod.file("after", "/tmp/begun").exists()
    pod.file("web", "/tmp/up").touch()
    pod.wait_file("after", "/tmp/begun")
    pod.wait_ready()
    pod.file("web", "/tmp/bad").touch()
    wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["restarts"] == 1, "a restart")
    pod.file("web", "/tmp/bad").unlink()
    wait_for(lambda: is_healthy(pod, "liveness") is True, "a good result of the new process")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_the_helper_ends_with_its_pod(make_pod: MakePod) -> None:
    """Only a pod with checks has one, and nothing of it is left."""
    check = {"exec": ["/bin/sleep", "1234"], "timeout": "1m"}
    pod = make_pod({"web": annotated("exec sleep 1000", liveness=check)})
    process = pod.start(stdout=subprocess.DEVNULL)
    pod.wait_ready()
    [helper] = wait_for(lambda: named(children_of(process.pid), "minit-health"), "the helper")
    [maker] = wait_for(lambda: children_of(helper), "a check")
    wait_for(lambda: children_of(maker), "its command")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()
    wait_for(lambda: not named([helper, maker], "minit-health"), "the end of the helper")
