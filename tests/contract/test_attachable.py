"""The attachable streams of an app, from the outside: rkt's files and sockets, and minit's sessions."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress
from pathlib import Path

import pytest

from minit.manifest.capabilities import capability_mask
from minit.podfiles import paths
from tests.support.attached import Session, connect, read_all, read_until
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import status_of
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


def test_rkts_files(make_pod: MakePod) -> None:
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


def test_input_and_outputs_over_plain_sockets(make_pod: MakePod) -> None:
    """Bytes of a client on rkt's socket of stdin reach the app, whose outputs come from theirs."""
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


def test_other_apps_have_no_way_to_the_sockets(make_pod: MakePod) -> None:
    """Root of another app sees the processes of the pod, and follows none to the directory with the sockets."""
    look = "for root in /proc/[0-9]*/root; do echo $root; if [ -e $root/rkt ]; then echo found; fi; done > /tmp/seen"
    web = shell("read x", annotations=modes(stdin="stream", stdout="stream"))
    pod = make_pod({"web": web, "other": shell(f"{look}; touch /tmp/done; read x")})
    pod.start()
    directory_of(pod)
    pod.wait_file("other", "/tmp/done")
    seen = pod.file("other", "/tmp/seen").read_text().split()
    assert "/proc/1/root" in seen and "found" not in seen


def test_a_terminal_over_rkts_socket(make_pod: MakePod) -> None:
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


def test_an_app_that_is_not_root_may_open_its_streams_again(make_pod: MakePod) -> None:
    """/dev/stdin and /dev/stdout are the app's own, as pipes and as a terminal."""
    for mode in ("stream", "tty"):
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), mode)
        script = "read x < /dev/stdin; echo got $x > /dev/stdout"
        pod = make_pod({"web": shell(script, user="1000", group="1000", annotations=modes(**streams))})
        pod.start()
        directory = directory_of(pod)
        with Session(directory, ["stdin", "stdout"] if mode == "stream" else ["tty-in", "tty-out"]) as client:
            source, sink = client.streams.values()
            source.sendall(b"it\n")
            read_until(sink, b"got it")
            client.wait_ended()
        pod.wait_exited()
        assert pod.status("web") == 0


def test_job_control_in_a_terminal_of_the_apps_own(make_pod: MakePod) -> None:
    """The terminal is the app's controlling one: Ctrl-C reaches what runs in front, and a new size is told."""
    script = 'trap "echo interrupted" INT; trap "busybox stty size" WINCH; echo ready; while :; do read x; done'
    _, directory = start(make_pod, script, stdin="tty", stdout="tty", stderr="tty")
    with Session(directory, ["tty-in", "tty-out"]) as client:
        read_until(client.streams["tty-out"], b"ready")
        client.streams["tty-in"].sendall(b"\x03")
        read_until(client.streams["tty-out"], b"interrupted")
        assert client.ask(op="resize", size=[33, 99])["ok"]
        client.streams["tty-in"].sendall(b"\n")
        read_until(client.streams["tty-out"], b"33 99")


def test_logged_and_attachable_streams_of_one_app(make_pod: MakePod) -> None:
    """A logged stream is logged and shown, any other is neither."""
    pod = make_pod(
        {"web": shell("read x; echo out $x; echo err $x >&2", annotations=modes(stdin="stream", stdout="stream"))}
    )
    process = pod.start()
    directory = directory_of(pod)
    with Session(directory, ["stdin", "stdout"]) as client:
        client.streams["stdin"].sendall(b"it\n")
        assert read_all(client.streams["stdout"]) == b"out it\n"
    result = pod.finish(process)
    assert "err it" in result.stderr
    assert "out it" not in result.stdout + result.stderr
    assert b"err it" in pod.log("web")
    assert b"out it" not in pod.log("web")


def test_killed_sidecars_and_spawners(make_pod: MakePod) -> None:
    """Another sidecar serves the same sockets; a session goes on at the very byte."""
    script = "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done; read x"
    pod, directory = start(make_pod, script, stdin="stream", stdout="stream")
    expected = b"".join(b"line %d\n" % number for number in range(3000))
    got = b""
    stdin = connect(directory, "sock-stdin")
    for names in (("iottymux-web",), ("minit-spawner", "iottymux-web")):
        with Session(directory, ["stdout"], resume={"stdout": len(got)}) as client:
            if len(got) < len(expected):
                got += client.streams["stdout"].recv(100)
            children = pod.children()
            for name in names:
                os.kill(children[name], signal.SIGKILL)
            got += read_all(client.streams["stdout"])
            assert client.receive() == {}
    with Session(directory, ["stdin", "stdout"], resume={"stdout": len(got)}) as client:
        while len(got) < len(expected):
            got += client.streams["stdout"].recv(1 << 16)
        assert got == expected
        client.streams["stdin"].sendall(b"\n")
        client.wait_ended()
    stdin.close()
    pod.wait_exited()
    assert pod.status("web") == 0


def test_the_end_of_input_reaches_the_app_through_pid_1(make_pod: MakePod) -> None:
    """A client that half-closes its stdin ends the app's, which PID 1 had open too; what it wrote is sent first."""
    pod, directory = start(make_pod, "wc -c", stdin="stream", stdout="stream")
    with Session(directory, ["stdin", "stdout"]) as client:
        client.streams["stdin"].sendall(b"x" * 100_000)
        client.streams["stdin"].shutdown(1)
        assert read_all(client.streams["stdout"]).strip() == b"100000"
    pod.wait_exited()


def test_a_terminal_that_is_kept_open_after_the_apps_end(make_pod: MakePod) -> None:
    """A process that the app leaves behind goes on writing to it until it is ended with the rest of the app's group."""
    script = "(trap '' HUP; trap 'echo last words; exit' TERM; echo started; while :; do sleep 0.1; done) & sleep 0.3"
    pod, directory = start(make_pod, script, stdin="tty", stdout="tty", stderr="tty")
    with Session(directory, ["tty-out"]) as client:
        assert b"last words" in read_all(client.streams["tty-out"])
        client.wait_ended()
    pod.wait_exited()
    assert not directory.exists()


def test_a_slow_client_gets_the_rest_of_a_pod_that_has_ended(make_pod: MakePod) -> None:
    """PID 1 waits while the client takes what the app left."""
    pod, directory = start(make_pod, "read x; seq 20000", stdin="stream", stdout="stream")
    expected = b"".join(b"%d\n" % number for number in range(1, 20_001))
    with Session(directory, ["stdin", "stdout"], queue_bytes=1 << 20) as client:
        client.streams["stdout"].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.streams["stdin"].sendall(b"\n")
        pod.wait_status("web")
        assert read_all(client.streams["stdout"]) == expected
    pod.wait_exited()


def test_a_sidecar_that_is_killed_when_all_is_written(make_pod: MakePod) -> None:
    """Its client gets the rest from the next one, though the app has ended."""
    pod, directory = start(make_pod, "read x; seq 120000; exec sleep 1000", stdin="stream", stdout="stream")
    expected = b"".join(b"%d\n" % number for number in range(1, 120_001))
    with Session(directory, ["stdin", "stdout"], queue_bytes=1 << 20) as client:
        client.streams["stdin"].sendall(b"\n")
        wait_for(
            lambda: pod.ask({"op": "state"})["apps"][0]["attached"]["bytes_out"] == len(expected), "all of the output"
        )
        os.kill(wait_for(lambda: pod.children().get("sleep"), "what the shell executes"), signal.SIGKILL)
        pod.wait_status("web")
        os.kill(pod.children()["iottymux-web"], signal.SIGKILL)
        got = read_all(client.streams["stdout"])
        assert len(got) < len(expected)
    with Session(directory, ["stdout"], resume={"stdout": len(got)}) as client:
        assert got + read_all(client.streams["stdout"]) == expected
    pod.wait_exited()
    assert not directory.exists()


def test_what_the_control_socket_tells(make_pod: MakePod) -> None:
    """The state of an app has the modes of its streams, and what its clients did."""
    pod, directory = start(make_pod, "read x; echo $x; read x", stdin="tty", stdout="tty", stderr="null")
    with Session(directory, ["tty-in", "tty-out"], size=[40, 100]) as client:
        client.streams["tty-in"].sendall(b"hello\n")
        read_until(client.streams["tty-out"], b"hello\r\nhello\r\n")
        [app] = pod.ask({"op": "state"})["apps"]
        assert app["streams"] == {"stdin": "tty", "stdout": "tty", "stderr": "null"}
        attached = app["attached"]
        assert (attached["clients"], attached["rows"], attached["columns"]) == (1, 40, 100)
        assert (attached["bytes_in"], attached["bytes_out"], attached["dropped_bytes"]) == (6, 14, 0)


def test_a_long_name(make_pod: MakePod) -> None:
    """The sockets of an app are there though their paths do not fit into an address."""
    name = "web-" + "x" * 150
    pod = make_pod({name: shell("read x", annotations=modes(stdin="stream"))})
    pod.start()
    with connect(directory_of(pod, name), "sock-stdin") as stdin:
        stdin.sendall(b"\n")
        pod.wait_exited()
    assert pod.status(name) == 0


def test_privileges_of_a_sidecar_with_clients(make_pod: MakePod) -> None:
    """It can use no capability, nor gain one, has a filter of system calls, and sees no files but the logs."""
    pod, directory = start(make_pod, "read x", stdin="stream", stdout="stream")
    with Session(directory, ["stdout"]):
        status = status_of(pod.children()["iottymux-web"])
        assert {status[key] for key in ("CapEff", "CapInh", "CapAmb")} == {"0" * 16}
        own = int(status_of(os.getpid())["CapPrm"], 16)
        assert int(status["CapPrm"], 16) == own & capability_mask("CAP_SYS_NICE")
        assert (status["NoNewPrivs"], status["Seccomp"], status["Seccomp_filters"]) == ("1", "2", "1")
        assert os.readlink(f"/proc/{pod.children()['iottymux-web']}/root").endswith(paths.STAGE1_LOG)


def _lines_in(pod: PodDirectory) -> int:
    with suppress(FileNotFoundError):
        return pod.log("web").count(b"\n")
    return 0


def test_a_paused_console_holds_up_no_client(make_pod: MakePod) -> None:
    """A reader that does not read an app's log keeps nobody from its other streams, and has every line later."""
    script = "seq 20000 >&2 & read x; echo got $x; wait"
    pod = make_pod({"web": shell(script, annotations=modes(stdin="stream", stdout="stream"))})
    process = pod.start()
    with Session(directory_of(pod), ["stdin", "stdout"]) as client:
        # More than what the pipe and the app's own hold: it is full, and will be until the end of this.
        wait_for(lambda: _lines_in(pod) > 4000, "some lines in the log")
        client.streams["stdin"].sendall(b"a word\n")
        read_until(client.streams["stdout"], b"got a word\n")
    lines = [line.partition("]: ") for line in pod.finish(process).stderr.splitlines()]
    assert [text for prefix, _, text in lines if prefix.startswith("web[")] == [f"{n}" for n in range(1, 20_001)]


@pytest.mark.private_users
def test_the_log_of_kubernetes(make_pod: MakePod, tmp_path: Path) -> None:
    """In the log mode k8s-plain streams are written to a file of the host as well, and clients get them as they are."""
    experiment = "coreos.com/rkt/experiment/"
    annotations = [*modes(stdin="stream", stdout="stream", stderr="stream")]
    annotations.append({"name": f"{experiment}kubernetes-log-path", "value": "web_0.log"})
    pod = make_pod(
        {"web": shell("echo before; read x; printf 'unfinished ' ; echo line; echo e >&2", annotations=annotations)},
        annotations={f"{experiment}logmode": "k8s-plain", f"{experiment}kubernetes-log-dir": str(tmp_path)},
    )
    pod.start()
    with Session(directory_of(pod), ["stdin", "stdout", "stderr"]) as client:
        read_until(client.streams["stdout"], b"before\n")
        wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["attached"]["bytes_out"] == 7, "the ring")
        os.kill(pod.children()["iottymux-web"], signal.SIGKILL)
        read_all(client.streams["stdout"])
    with Session(directory_of(pod), ["stdin", "stdout"]) as client:
        client.streams["stdin"].sendall(b"\n")
        assert read_all(client.streams["stdout"]).endswith(b"unfinished line\n")
    pod.wait_exited()
    lines = [line.split(" ", 1)[1] for line in (tmp_path / "web_0.log").read_text().splitlines()]
    assert [line for line in lines if "stdout" in line] == ["stdout before", "stdout unfinished line"]
    assert "stderr e" in lines
