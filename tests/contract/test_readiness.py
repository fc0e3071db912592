"""Readiness as apps tell it, the order that follows from it, and what the host's service manager is told."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest import build_program
from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.processes import descriptors_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

NOTIFY = "appc.io/executor/supports-systemd-notify"
TELLING = {NOTIFY: "true"}
FOREVER = "while :; do sleep 1; done"
SOCKET = "run/systemd/notify"


@pytest.fixture(scope="module")
def notifying_rootfs(work_directory: Path, app_rootfs: Path) -> Path:
    """The root of an image with the notifier."""
    rootfs = work_directory / "data/cas/tree/notifying/rootfs"
    shutil.copytree(app_rootfs, rootfs, symlinks=True)
    build_program("notifier", rootfs / "bin/notifier")
    return rootfs


def notifier(*words: str, **annotations: str) -> dict[str, Any]:
    """Return the `app` object that runs the notifier; `restart_limit` stands for the annotation minit/restart-limit."""
    named = [{"name": f"minit/{name.replace('_', '-')}", "value": text} for name, text in annotations.items()]
    return app_section("/bin/notifier", *words, annotations=named)


def state_of(pod: PodDirectory, app: str) -> dict[str, Any]:
    """Return what the supervisor tells of an app."""
    assert pod.pid  # from then on there is somebody to ask
    reply = pod.ask({"op": "state"})
    [state] = [each for each in reply["apps"] if each["name"] == app]
    assert isinstance(state, dict)
    return state


def end(pod: PodDirectory, process: Any) -> None:
    """Stop a pod, which has to end well."""
    pod.stop()
    assert pod.finish(process).returncode == 0


@pytest.mark.private_users
def test_a_pod_is_ready_when_its_apps_say_so(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """READY=1 on NOTIFY_SOCKET, which is there for an app whose image says so; STATUS= is shown."""
    words = ("STATUS=warming up,X=y", "file", "/tmp/here", "wait", "/tmp/go", "READY=1,STATUS=serving", "forever")
    pod = make_pod({"a": notifier(*words)}, notifying_rootfs, image_annotations=TELLING)
    process = pod.start()
    pod.wait_file("a", "/tmp/here")
    wait_for(lambda: state_of(pod, "a").get("says") == "warming up", "its status")
    assert (pod.is_ready(), state_of(pod, "a")["ready"]) == (False, False)
    pod.file("a", "/tmp/go").touch()
    pod.wait_ready()
    state = state_of(pod, "a")
    assert (state["ready"], state["says"]) == (True, "serving")
    assert pod.wait_event("app.ready", "a")
    assert pod.file("a", SOCKET).exists()
    end(pod, process)


def test_the_socket_is_for_apps_that_want_it(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """Without the annotation there is no variable, whatever the caller's is; with it on the app, but false, as well."""
    off = shell("env; ls -d /run/systemd/notify", annotations=[{"name": NOTIFY, "value": "false"}])
    pod = make_pod({"a": off}, notifying_rootfs, image_annotations=TELLING)
    result = pod.run(env={"NOTIFY_SOCKET": "/nowhere"})
    assert "NOTIFY_SOCKET" not in result.stdout
    assert "READY" not in result.stderr


def test_any_process_of_the_app_may_tell(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """A child may, and one that has ended before its message is read; another uid than root, too."""
    apps = {
        "a": notifier("fork", "READY=1", "barrier", "file", "/tmp/passed", "forever"),
        "b": shell(f"notifier READY=1; {FOREVER}"),
        "c": {**notifier("READY=1", "forever"), "user": "1000", "group": "1000"},
    }
    pod = make_pod(apps, notifying_rootfs, image_annotations=TELLING)
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "/tmp/passed")
    end(pod, process)


def test_a_stranger_is_not_listened_to(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """A message of a process outside of the pod makes no app ready, and is told once."""
    pod = make_pod(
        {"a": notifier("file", "/tmp/here", "wait", "/tmp/go", "READY=1", "forever")},
        notifying_rootfs,
        image_annotations=TELLING,
    )
    process = pod.start()
    pod.wait_file("a", "/tmp/here")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        for root in app_roots(pod):
            stranger.sendto(b"READY=1", f"{root}/{SOCKET}")
            stranger.sendto(b"READY=1", f"{root}/{SOCKET}")
    refused = pod.wait_event("app.message-refused", "a")
    assert "process 0" in refused["reason"]
    assert not pod.is_ready()
    pod.file("a", "/tmp/go").touch()
    pod.wait_ready()
    assert [event["event"] for event in pod.events()].count("app.message-refused") == 1
    end(pod, process)


def app_roots(pod: PodDirectory) -> Iterator[str]:
    """Yield the roots of the processes of a pod that have a notify socket."""
    for pid in Path(f"/proc/{pod.pid}/task/{pod.pid}/children").read_text().split():
        if (Path(f"/proc/{pid}/root") / SOCKET).is_socket():
            yield f"/proc/{pid}/root"


def tcp_sockets_of(pid: int) -> set[str]:
    """Return the connections that a process holds, in its network."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    connections = {f"socket:[{line.split()[9]}]" for line in lines}
    return connections & set(descriptors_of(pid).values())


def test_what_an_app_sends_can_hold_up_nobody(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """Messages that are too long or make no sense, many of them, and descriptors whose close takes an hour."""
    apps = {"a": notifier("huge", "linger", "linger", "flood", "linger", "file", "/tmp/here", "READY=1", "forever")}
    pod = make_pod(apps, notifying_rootfs, image_annotations=TELLING)
    process = pod.start()
    pod.wait_ready()
    assert pod.ask({"op": "ping"})["ok"]
    assert state_of(pod, "a")["says"] == "lingering"
    assert "more than 4096 bytes" in pod.wait_event("app.message-refused", "a")["reason"]
    wait_for(lambda: not tcp_sockets_of(pod.pid), "the end of what the app has sent")
    end(pod, process)


def test_more_descriptors_than_there_is_room_for(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """All that is sent while PID 1 does something else does not fill it: what had no room it would have to close."""
    apps = {"a": notifier("file", "/tmp/begun", "wait", "/tmp/go", "crowd", "file", "/tmp/sent", "READY=1", "forever")}
    pod = make_pod(apps, notifying_rootfs, image_annotations=TELLING)
    process = pod.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (512, 512)))
    # Not its marker, which is there before the app is told to be executed.
    pod.wait_file("a", "/tmp/begun")
    assert pod.pid
    os.kill(pod.pid, signal.SIGSTOP)
    pod.file("a", "/tmp/go").touch()
    pod.wait_file("a", "/tmp/sent")
    os.kill(pod.pid, signal.SIGCONT)
    pod.wait_ready()
    assert state_of(pod, "a")["says"] == "crowd"
    end(pod, process)


@pytest.mark.parametrize(("text", "ready"), [("ready,more", True), ("no line feed", False)])
def test_a_line_feed_on_a_descriptor(make_pod: MakePod, notifying_rootfs: Path, text: str, ready: bool) -> None:
    """minit/notify-fd: ready with a line feed, as for s6; its end without one says nothing."""
    apps = {"a": notifier("fd", "9", text, "file", "/tmp/said", "forever", notify_fd="9")}
    pod = make_pod(apps, notifying_rootfs)
    process = pod.start()
    pod.wait_file("a", "/tmp/said")
    if ready:
        pod.wait_ready()
    else:
        pod.ask({"op": "ping"})
        assert not pod.is_ready()
    end(pod, process)


def test_an_app_that_is_never_ready_ends_as_any(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """Its status counts, and the pod was never ready; one that tells it and ends at once was."""
    pod = make_pod({"a": notifier("STATUS=x", "exit", "0")}, notifying_rootfs, image_annotations=TELLING)
    assert pod.run().returncode == 0
    assert "pod.ready" not in [event["event"] for event in pod.events()]
    pod = make_pod({"a": notifier("READY=1", "exit", "0")}, notifying_rootfs, image_annotations=TELLING)
    assert pod.run().returncode == 0
    assert "pod.ready" in [event["event"] for event in pod.events()]


# Start order.


@pytest.mark.private_users
def test_an_app_is_started_after_those_that_it_needs(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """minit/after: not before they are ready, or with :completed have ended with 0, and at once then."""
    apps = {
        "web": notifier("forever", after="db, init:completed"),
        "db": notifier("wait", "/tmp/go", "fd", "5", ",", "forever", notify_fd="5"),
        "init": notifier("wait", "/tmp/go"),
    }
    pod = make_pod(apps, notifying_rootfs)
    process = pod.start()
    wait_for(lambda: state_of(pod, "init")["state"] == "running", "init")
    assert state_of(pod, "web")["state"] == "prepared"
    pod.file("db", "/tmp/go").touch()
    pod.wait_event("app.ready", "db")
    assert state_of(pod, "web")["state"] == "prepared"
    pod.file("init", "/tmp/go").touch()
    pod.wait_ready()
    assert state_of(pod, "web")["state"] == "running"
    end(pod, process)
    assert (pod.status("web"), pod.status("db"), pod.status("init")) == (0, 0, 0)


def test_an_app_that_would_wait_for_ever(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """An app whose predecessor ended before it was ready fails, which ends the pod."""
    apps = {"a": notifier("forever", after="b"), "b": notifier("exit", "0", notify_fd="3"), "c": notifier("forever")}
    pod = make_pod(apps, notifying_rootfs)
    result = pod.run()
    assert (result.returncode, pod.status("a"), pod.status("b")) == (254, 254, 0)
    assert 'stage1: app "a": wait for other apps: "b" ended before it was ready' in result.stderr


def test_a_pod_that_is_stopped_while_apps_wait(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """They are not started any more, and have no status."""
    apps = {"a": notifier("forever", after="b"), "b": notifier("forever", notify_fd="3")}
    pod = make_pod(apps, notifying_rootfs)
    process = pod.start()
    wait_for(lambda: state_of(pod, "b")["state"] == "running", "b")
    end(pod, process)
    assert (pod.status("a"), pod.status("b")) == (None, 0)


@pytest.mark.private_users
def test_apps_that_are_added_to_a_pod(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """They tell as others do, each time they run; one that needs another which is not ready cannot be started."""
    sandbox = Sandbox(make_pod, rootfs=notifying_rootfs)
    told = notifier("wait", "/go", "READY=1,STATUS=up", "fd", "7", ",", "forever", notify_fd="7")
    told["annotations"] += [{"name": NOTIFY, "value": "true"}]
    assert sandbox.add("db", told).returncode == 0
    assert sandbox.add("web", notifier("forever", after="db")).returncode == 0
    assert sandbox.add("lost", notifier("forever", after="nobody")).returncode == 0
    assert sandbox.start("db").returncode == 0
    for app, reason in (("web", '"db" is not ready'), ("lost", '"nobody" is not in this pod')):
        result = sandbox.start(app)
        assert (result.returncode, sandbox.pod.status(app)) == (254, 254)
        assert f"wait for other apps: {reason}" in result.stdout
    sandbox.pod.file("db", "go").touch()
    for starts in (1, 2):
        wait_for(lambda: state_of(sandbox.pod, "db")["ready"], "db")
        assert state_of(sandbox.pod, "db")["says"] == "up"
        if starts == 1:
            assert sandbox.stop("db").returncode == 0
            assert sandbox.start("db").returncode == 0
    assert sandbox.start("web").returncode == 0
    assert sandbox.remove("db").returncode == 0
    assert sandbox.end().returncode == 0


def test_an_app_whose_root_cannot_be_made(make_pod: MakePod, notifying_rootfs: Path, tmp_path: Path) -> None:
    """Nothing is left of its socket, and the next app has its own at once."""
    sandbox = Sandbox(make_pod, rootfs=notifying_rootfs)
    told = notifier("READY=1", "forever")
    told["annotations"] += [{"name": NOTIFY, "value": "true"}]
    tmp_path.joinpath("file").touch()
    volume = {"name": "v", "kind": "host", "source": str(tmp_path / "file")}
    mount = {"volume": "v", "path": "/bin", "appVolume": volume}
    for name in ("bad", "worse"):
        result = sandbox.add(name, {**told, "mounts": [mount]})
        assert (result.returncode, "cannot mount a file on a directory" in result.stdout) == (254, True), result.stdout
        assert not [*(sandbox.pod.stage1 / "rkt/minit").glob("notify-*")]
    assert sandbox.add("good", told).returncode == 0
    assert sandbox.start("good").returncode == 0
    wait_for(lambda: state_of(sandbox.pod, "good")["ready"], "good")
    assert sandbox.end().returncode == 0


# The host.


@pytest.mark.parametrize("abstract", [False, True])
def test_the_hosts_manager_is_told(make_pod: MakePod, notifying_rootfs: Path, tmp_path: Path, abstract: bool) -> None:
    """READY=1 when the pod is ready, STOPPING=1 when it stops, on a path or an abstract address."""
    name = f"@minit-test-{os.getpid()}-{time.monotonic_ns()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(name.replace("@", "\0"))
        listener.settimeout(60)
        apps = {"a": notifier("file", "/tmp/here", "wait", "/tmp/go", "READY=1", "forever")}
        pod = make_pod(apps, notifying_rootfs, image_annotations=TELLING)
        process = pod.start(env={"NOTIFY_SOCKET": name})
        pod.wait_file("a", "/tmp/here")
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):
            listener.recv(100)
        listener.settimeout(60)
        pod.file("a", "/tmp/go").touch()
        assert listener.recv(100) == b"READY=1"
        pod.stop()
        assert listener.recv(100) == b"STOPPING=1"
        result = pod.finish(process)
        assert (result.returncode, result.stderr) == (0, "")


def test_the_hosts_supervisor_is_told_by_a_descriptor(make_pod: MakePod, notifying_rootfs: Path) -> None:
    """A line feed comes when the pod is ready, and then the end, as no process of the pod has the descriptor."""
    apps = {"a": notifier("file", "/tmp/here", "wait", "/tmp/go", "READY=1", "forever")}
    pod = make_pod(apps, notifying_rootfs, image_annotations=TELLING)
    reader, writer = os.pipe()
    process = pod.start(env={"MINIT_NOTIFY_FD": str(writer)}, pass_fds=(writer,))
    os.close(writer)
    pod.wait_file("a", "/tmp/here")
    os.set_blocking(reader, False)
    with pytest.raises(BlockingIOError):
        os.read(reader, 100)
    os.set_blocking(reader, True)
    pod.file("a", "/tmp/go").touch()
    assert (os.read(reader, 100), os.read(reader, 100)) == (b"\n", b"")
    os.close(reader)
    pod.stop()
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_manager_that_cannot_be_told(make_pod: MakePod, tmp_path: Path) -> None:
    """It is a warning, and the pod runs."""
    pod = make_pod({"a": shell("exit 0")})
    result = pod.run(env={"NOTIFY_SOCKET": str(tmp_path / "missing")})
    assert result.returncode == 0
    assert "stage1: warning: NOTIFY_SOCKET=" in result.stderr
    for number in ("x", "1", "999999999"):
        pod = make_pod({"a": shell("echo $MINIT_NOTIFY_FD-")})
        result = pod.run(env={"MINIT_NOTIFY_FD": number})
        assert f"ignoring MINIT_NOTIFY_FD={number}: no open descriptor from 3 on" in result.stderr
        assert result.stdout.endswith("]: -\n")
    pod = make_pod({"a": shell("exit 0")})
    assert (
        "ignoring NOTIFY_SOCKET=vsock:2:3: no socket of this machine"
        in pod.run(env={"NOTIFY_SOCKET": "vsock:2:3"}).stderr
    )
