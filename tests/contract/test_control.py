"""The control socket: what it answers, whom it refuses, and that no client can disturb the pod."""

from __future__ import annotations

import array
import json
import os
import random
import socket
import stat
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from minit.linux import syscalls
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
GARBAGE = (
    *(b"", b"\0", b"{", b"[]", b"null", b"\xff\xfe", b'{"op": 1}', b'{"op": ["ping"]}', b'{"op": "reboot"}', b"{}"),
    *(b'{"op": "namespace"}', b'{"op": "namespace", "app": {}}', b'{"op": "ping", "op": "stop"}', b"[" * 60000),
    *(b'{"op": "' + b"x" * 60000 + b'"}', random.Random(1).randbytes(4096), b'{"op": "stop", "force": "yes"'),
)


@pytest.fixture
def pod(make_pod: MakePod) -> Iterator[PodDirectory]:
    """A running pod of two apps that is stopped, and has to end well, after the test."""
    pod = make_pod({"a": shell(FOREVER), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    yield pod
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    assert (pod.status("a"), pod.status("b")) == (0, 0)


def test_ping(pod: PodDirectory) -> None:
    """The supervisor tells which pod it is, and that it is 1 there."""
    assert pod.ask({"op": "ping"}) == {"ok": True, "uuid": pod.uuid, "pid": 1}


@pytest.mark.private_users
def test_state(make_pod: MakePod) -> None:
    """The pod's state and each app's, with a pid as long as it runs and a status from then on."""
    pod = make_pod({"a": shell("exit 0"), "b": shell(FOREVER)})
    process = pod.start()
    assert pod.wait_status("a") == 0
    pod.wait_ready()
    state = wait_for(lambda: (state := pod.ask({"op": "state"}))["apps"][0]["state"] == "exited" and state, "a's end")
    assert (state["ok"], state["uuid"], state["state"], state["ready"]) == (True, pod.uuid, "running", True)
    first, second = state["apps"]
    modes = {"stdin": "null", "stdout": "log", "stderr": "log"}
    common = {"restarts": 0, "ready": True, "streams": modes}
    assert first == {"name": "a", "state": "exited", "lifecycle_state": "exited", "status": 0, **common}
    assert (second["name"], second["state"]) == ("b", "running")
    assert second["pid"] > 1
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_the_socket_is_roots_and_a_path(pod: PodDirectory) -> None:
    """Mode 0600 in a directory that only root may enter."""
    path = pod.stage1 / "rkt/minit/control"
    assert stat.S_ISSOCK(path.stat().st_mode)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) & 0o077 == 0


def test_several_requests_on_one_connection(pod: PodDirectory) -> None:
    """A connection serves as many as its client likes."""
    with pod.connect() as client:
        for _ in range(100):
            client.send(b'{"op": "ping"}')
            assert json.loads(client.recv(1 << 16))["ok"]


@pytest.mark.parametrize("garbage", GARBAGE, ids=lambda data: repr(data[:20]))
def test_garbage_is_answered_and_harmless(pod: PodDirectory, garbage: bytes) -> None:
    """It gets an error, or the end of the connection, and the next client does not notice."""
    with pod.connect() as client:
        client.send(garbage)
        answer = client.recv(1 << 16)
        if answer:
            reply = json.loads(answer)
            assert reply["ok"] is False and isinstance(reply["error"], str)
    assert pod.ask({"op": "ping"})["ok"]
    assert pod.is_ready()


def test_a_frame_beyond_the_bound_is_refused(pod: PodDirectory) -> None:
    """More than 64 KiB are not read as a request."""
    with pod.connect() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        client.send(b'{"op": "stop"}' + b" " * (100 * 1024))
        answer = json.loads(client.recv(1 << 16))
    assert (answer["ok"], answer["error"]) == (False, "request: expected at most 65536 bytes")
    assert pod.ask({"op": "state"})["state"] == "running"


def test_descriptors_that_a_client_sends_are_not_kept(pod: PodDirectory) -> None:
    """Otherwise a client could fill PID 1's table."""
    assert pod.ask({"op": "ping"})["ok"], "by now everything of PID 1's own is open"
    before = len(os.listdir(f"/proc/{pod.pid}/fd"))
    fds = array.array("i", [0, 1, 2] * 20)
    for _ in range(20):
        with pod.connect() as client:
            client.sendmsg([b'{"op": "ping"}'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            assert json.loads(client.recv(1 << 16))["ok"]
    wait_for(lambda: len(os.listdir(f"/proc/{pod.pid}/fd")) <= before, "the end of the connections")


def test_two_hundred_clients_at_once(pod: PodDirectory) -> None:
    """All are answered."""
    with ThreadPoolExecutor(200) as executor:
        replies = list(executor.map(lambda _: pod.ask({"op": "ping"})["ok"], range(200)))
    assert replies == [True] * 200


def test_clients_that_say_nothing_are_dropped(pod: PodDirectory) -> None:
    """They are given five seconds; even as many as are served at once only delay the others."""
    silent = [pod.connect() for _ in range(64)]
    before = time.monotonic()
    assert pod.ask({"op": "ping"})["ok"]
    assert time.monotonic() - before < 60
    for client in silent:
        assert client.recv(1) == b""
        client.close()


def test_a_client_that_does_not_read_is_dropped(pod: PodDirectory) -> None:
    """Its answers pile up in its own socket, not in PID 1."""
    with pod.connect() as client:
        client.settimeout(0.2)
        with pytest.raises((TimeoutError, ConnectionError)):
            while True:
                client.send(b'{"op": "state"}')
        assert pod.ask({"op": "ping"})["ok"]


def _ask_from_inside(pod: PodDirectory) -> int:
    """Connect from a process of the pod's pid namespace; return 0 if refused, 1 if answered."""
    child = os.fork()
    if child == 0:
        try:
            syscalls.setns(os.pidfd_open(pod.pid), syscalls.CLONE_NEWPID)
            inner = os.fork()
            if inner == 0:
                with pod.connect() as client:
                    try:
                        client.send(b'{"op": "stop"}')
                        os._exit(1 if client.recv(1 << 16) else 0)
                    except ConnectionError:
                        os._exit(0)
            os._exit(os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]))
        except BaseException:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.private_users
def test_a_process_of_the_pod_is_refused(pod: PodDirectory) -> None:
    """Even root that gets hold of the socket: whoever has a pid inside is no peer."""
    assert _ask_from_inside(pod) == 0
    assert pod.ask({"op": "state"})["state"] == "running"


@pytest.mark.private_users
@pytest.mark.rootless
def test_an_app_with_every_capability_is_refused(make_pod: MakePod) -> None:
    """It reaches the socket through PID 1's root and gets no answer."""
    pod = make_pod({"a": shell("ls /proc/1/root/rkt/minit/control && touch /tmp/up && " + FOREVER)})
    process = pod.start("--disable-capabilities-restriction")
    pod.wait_file("a", "/tmp/up")
    pod.wait_ready()
    assert _ask_from_inside(pod) == 0
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_the_credentials_the_kernel_gives_are_those_of_the_client(pod: PodDirectory) -> None:
    """The peer of a client on the host is PID 1, by its host pid: nobody can stand in for it."""
    with pod.connect() as client:
        pid, _, _ = struct.unpack("iII", client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        assert pid == pod.pid


def test_requests_on_standard_input(pod: PodDirectory) -> None:
    """The `control` entrypoint answers each line by a line, and what cannot be asked too."""
    lines = [b'{"op": "ping"}', b"{", b"[]", b'{"op": "reboot"}', b'{"op": "namespace", "app": "a"}', b'{"op": "ping"}']
    result = pod.call("control", pod.uuid, input="".join(f"{line.decode()}\n" for line in lines))
    replies = [json.loads(line) for line in result.stdout.splitlines()]
    assert [reply["ok"] for reply in replies] == [True, False, False, False, True, True]
    assert replies[0] == replies[-1] == {"ok": True, "uuid": pod.uuid, "pid": 1}
    assert replies[2]["error"] == "request: expected an object"
    assert replies[3]["error"] == 'supervisor of this pod: unknown op "reboot"'
    assert (result.returncode, result.stderr) == (0, "")


def test_a_line_that_is_too_long(pod: PodDirectory) -> None:
    """It is refused whole: nothing of it is taken for another request."""
    result = pod.call("control", pod.uuid, input=f'{" " * 65536}{{"op": "stop"}}\n')
    assert json.loads(result.stdout) == {"ok": False, "error": "request: expected at most 65536 bytes"}
    assert result.returncode == 0


def test_control_of_a_pod_that_is_gone(make_pod: MakePod) -> None:
    """There is an answer for each request, which says why."""
    pod = make_pod({"a": shell("true")})
    pod.run()
    result = pod.call("control", pod.uuid, input='{"op": "ping"}\n')
    assert json.loads(result.stdout)["error"].startswith("supervisor of this pod: ")
    usage = pod.call("control")
    assert (usage.returncode, usage.stderr.splitlines()[0]) == (2, "stage1 control: expected one UUID, got 0 arguments")
