"""The attachable streams of an app, from the outside: rkt's files and sockets, and minit's sessions."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.attached import connect, read_all, read_until
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for


def modes(**streams: str) -> list[dict[str, str]]:
    """Return the annotations of an app for the modes of its streams."""
    return [{"name": f"coreos.com/rkt/stage2/{name}", "value": mode} for name, mode in streams.items()]


def directory_of(pod: PodDirectory, app: str = "web") -> Path:
    """Return where the sockets of an app are, once it can be attached to."""
    path = pod.stage1 / "rkt/iottymux" / app
    wait_for((path / "endpoints").exists, "the endpoints")
    return path


def start(make_pod: MakePod, script: str, **streams: str) -> tuple[PodDirectory, Path]:
    """Start a pod of one app with these modes and return where its sockets are."""
    pod = make_pod({"web": shell(script, annotations=modes(**streams))})
    pod.start()
    return pod, directory_of(pod)


def test_rkts_files(make_pod: MakePod):
    """The endpoints are rkt's JSON, and each target is a socket that root alone can connect to."""
    pod, directory = start(make_pod, "read x", stdin="stream", stdout="stream", stderr="stream")
    assert (directory / "endpoints").read_text() == json.dumps(
        {
            "version": 1,
            "targets": [
                {"name": name, "domain": "unix", "address": f"/rkt/iottymux/web/sock-{name}"}
                for name in ("stdin", "stdout", "stderr")
            ],
        },
        separators=(",", ":"),
    ) + "\n"
    names = {"endpoints", "sock-stdin", "sock-stdout", "sock-stderr", "sock-minit"}
    assert {path.name for path in directory.iterdir()} == names
    assert {path.stat().st_mode & 0o7777 for path in directory.glob("sock-*")} == {0o600}
    with connect(directory, "sock-stdin") as stdin:
        stdin.sendall(b"\n")
        pod.wait_exited()
    assert not directory.exists()


def test_input_and_outputs_over_plain_sockets(make_pod: MakePod):
    """What a client writes to rkt's socket of stdin reaches the app, whose outputs come from theirs."""
    pod, directory = start(
        make_pod,
        'while read x; do echo "o:$x"; echo "e:$x" >&2; done',
        stdin="stream",
        stdout="stream",
        stderr="stream",
    )
    with connect(directory, "sock-stdout") as out, connect(directory, "sock-stderr") as err:
        with connect(directory, "sock-stdin") as stdin:
            stdin.sendall(b"one\ntwo\n")
            assert read_until(out, b"o:two\n") == b"o:one\no:two\n"
            assert read_until(err, b"e:two\n") == b"e:one\ne:two\n"
        with connect(directory, "sock-stdin") as stdin:
            # A client that leaves has not ended the input.
            stdin.sendall(b"three\n")
            read_until(out, b"o:three\n")
            stdin.shutdown(1)
            assert read_all(out) == b""
        assert read_all(err) == b"e:three\n"
    pod.wait_exited()
    assert pod.status("web") == 0


def test_a_terminal_over_rkts_socket(make_pod: MakePod):
    """An app with tty streams has a controlling terminal of its own; every client sees all it shows."""
    pod, directory = start(make_pod, "tty; stty size; exec sh -i", stdin="tty", stdout="tty", stderr="tty")
    with connect(directory, "sock-tty") as first, connect(directory, "sock-tty") as second:
        for client in (first, second):
            assert b"/dev/pts/" in read_until(client, b"# ")
        first.sendall(b"echo $((6*7))\n")
        for client in (first, second):
            read_until(client, b"\r\n42\r\n")
        first.sendall(b"exit 3\n")
        read_all(first)
        read_all(second)
    pod.wait_exited()
    assert pod.status("web") == 3
