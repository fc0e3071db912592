"""The `attach` entrypoint, executed on running pods as rkt does."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from minit.linux.messages import receive_message, send_message
from minit.podfiles import paths
from tests.support.attach import APP, STREAMS, attach, attach_words, kill_sidecar, start_app
from tests.support.pods import TIMEOUT_SECONDS, MakePod, PodDirectory, shell
from tests.support.processes import descriptors_of
from tests.support.waiting import wait_for

ECHO = 'while read x; do echo "o:$x"; echo "e:$x" >&2; done; echo over'
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def numbers(first: int, last: int) -> bytes:
    """Return the lines that seq(1) writes."""
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


def lines_through(
    make_pod: MakePod, count: int, shares: Sequence[int], disturb: Callable[[PodDirectory], object]
) -> bytes:
    """
    Have a client get numbered lines, all of them, and return what the client complained about.

    `disturb` is called after each of the shares, 8 say for an eighth of the output.
    """
    pod = start_app(make_pod, f"read x; seq 1 {count}; read x", {"stdin": "stream", "stdout": "stream"})
    client = attach(pod, **PIPES)
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(b"go\n")
    client.stdin.flush()
    got, size = b"", len(numbers(1, count))
    for share in shares:
        while len(got) < size // share:
            got += os.read(client.stdout.fileno(), 1 << 16)
        disturb(pod)
    rest, errors = client.communicate(b"end\n")
    assert client.returncode == 0
    assert got + rest == numbers(1, count)
    return errors


def test_listing(make_pod: MakePod) -> None:
    """rkt's document, indented by four spaces, without a line feed at its end."""
    pod = start_app(make_pod, "read x", {"stdin": "stream", "stdout": "stream"})
    result = pod.call("attach", "--action=list", f"--app={APP}", "--debug=false")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads((pod.stage1 / "rkt/iottymux" / APP / "endpoints").read_text())
    assert [target["name"] for target in document["targets"]] == ["stdin", "stdout"]
    assert result.stdout == json.dumps(document, indent=4)


@pytest.mark.private_users
@pytest.mark.rootless
def test_streams(make_pod: MakePod) -> None:
    """A piped input reaches the app with its end, and both outputs come out where they should."""
    pod = start_app(make_pod, ECHO, STREAMS)
    result = pod.call("attach", *attach_words(pod)[1:], input="one\ntwo\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "o:one\no:two\nover\n", "e:one\ne:two\n")


def test_dev_null_is_no_input(make_pod: MakePod) -> None:
    """A caller without input does not end the app's, unless it asks for just that."""
    pod = start_app(make_pod, "echo begun; " + ECHO, STREAMS)
    client = attach(pod, "--debug", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"begun\n"
    result = pod.call("attach", *attach_words(pod, "--stdin=true", action="custom-attach")[1:], input="one\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    out, err = client.communicate()
    assert (client.returncode, out) == (0, b"o:one\nover\n")
    assert err == b'attach: app "web" has stdin, stdout, stderr; attaching to stdout, stderr\ne:one\n'


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_one_stream_alone(make_pod: MakePod, name: str) -> None:
    """A choice of streams gets these and no others; it ends with the app's output there."""
    closing = {"stdout": ">&-", "stderr": "2>&-"}[name]
    pod = start_app(make_pod, f"echo out; echo err >&2; exec {closing}; read x; exit 3", STREAMS)
    result = pod.call("attach", *attach_words(pod, f"--{name}=true", action="custom-attach")[1:])
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        *(("out\n", "") if name == "stdout" else ("", "err\n")),
    )
    # The app itself goes on.
    assert pod.status(APP) is None
    assert (
        pod.call("attach", *attach_words(pod, "--stdin=true", action="custom-attach")[1:], input="x\n").returncode == 0
    )
    assert pod.wait_status(APP) == 3


def test_a_killed_sidecar(make_pod: MakePod) -> None:
    """The client attaches to the next one and goes on where it was: all bytes come."""
    errors = lines_through(make_pod, 400_000, (8, 4), kill_sidecar)
    # The second one may have been killed before it answered.
    assert errors.count(b"was killed; attaching again\n") in (1, 2)


def test_a_sidecar_that_is_killed_before_its_answer(tmp_path: Path) -> None:
    """What it has sent by then is sent by the next one, too, and printed once."""
    program = (
        "import os; from minit.iottymux.attachclient import AttachOptions, attach;"
        f"attach(os.open({str(tmp_path)!r}, os.O_PATH), 'web', ('stdout',), AttachOptions(detach_keys=b''))"
    )
    asked = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / paths.SESSION_SOCKET))
        listener.listen()
        words = [sys.executable, "-c", program]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as client:
            for position, data, is_last in ((0, b"abc", False), (None, b"def", False), (3, b"def\n", True)):
                session, _ = listener.accept()
                with session:
                    message, [stdout] = receive_message(session)
                    assert message is not None
                    asked.append(message.get("resume"))
                    if position is not None:
                        send_message(session, {"ok": True, "stdin": "none", "positions": {"stdout": position}})
                    os.write(stdout, data)
                    os.close(stdout)
                    if is_last:
                        send_message(session, {"event": "ended"})
            assert client.stdout is not None
            assert client.stdout.read() == b"abcdef\n"
    assert asked == [{}, {"stdout": 3}, {"stdout": 3}]


def test_its_own_words_at_descriptors(make_pod: MakePod) -> None:
    """That it is attached, and why it fails, is told there: standard error has the words of the app alone."""
    pod = start_app(make_pod, ECHO, STREAMS)
    told, ready = os.pipe2(os.O_CLOEXEC)
    reasons, failures = os.pipe2(os.O_CLOEXEC)
    flags = (f"--ready-fd={ready}", f"--failure-fd={failures}")
    client = attach(pod, *flags, pass_fds=(ready, failures), **PIPES)
    os.close(ready)
    assert (os.read(told, 100), os.read(told, 100)) == (b"\n", b"")
    kill_sidecar(pod)
    out, errors = client.communicate(b"one\n")
    assert (client.returncode, out, errors) == (0, b"o:one\nover\n", b"e:one\n")
    client = attach(pod, f"--failure-fd={failures}", pass_fds=(failures,), **PIPES)
    os.close(failures)
    assert (client.communicate()[1], client.returncode) == (b"", 254)
    assert b'app "web" is not attachable' in os.read(reasons, 1000)
    os.close(told)
    os.close(reasons)


def test_a_lot_of_input(make_pod: MakePod) -> None:
    """Every byte arrives, in order, through a pipe that the app reads when it likes, and its end behind them."""
    pod = start_app(make_pod, "sleep 0.2; exec cat", {"stdin": "stream", "stdout": "stream"})
    data = os.urandom(8 << 20)
    client = attach(pod, **PIPES)
    assert client.communicate(data) == (data, b"")
    assert client.returncode == 0


def test_input_waits_for_its_turn(make_pod: MakePod) -> None:
    """Input that is piped in while another client has the input is not lost: it comes when that one leaves."""
    pod = start_app(make_pod, 'echo begun; while read x; do echo "$x"; done', {"stdin": "stream", "stdout": "stream"})
    first = attach(pod, **PIPES)
    assert first.stdin is not None and first.stdout is not None
    assert first.stdout.readline() == b"begun\n"
    second = attach(pod, "--stdin=true", action="custom-attach", **PIPES)
    assert second.stdin is not None and second.stderr is not None
    second.stdin.write(b"second\n")
    second.stdin.close()
    assert second.stderr.readline() == b"attach: another client has the input; --take-stdin takes it over\n"
    first.stdin.write(b"first\n")
    first.stdin.flush()
    assert first.stdout.readline() == b"first\n"
    third = attach(pod, **PIPES)
    assert third.stdout is not None and third.stdout.readline() == b"begun\n"
    first.send_signal(signal.SIGINT)
    assert first.wait(90) == 0
    assert second.stderr.read() == b"attach: the input is yours\n"
    assert second.wait(90) == 0
    assert third.stdout.read() == b"first\nsecond\n"
    assert third.wait(90) == 0


def test_input_that_the_app_does_not_read(make_pod: MakePod) -> None:
    """A client that has nothing but input fails; another says that the app has closed it, and shows the output."""
    script = "exec <&-; echo closed; until [ -e /tmp/end ]; do sleep 0.01; done; echo over"
    pod = start_app(make_pod, script, {"stdin": "stream", "stdout": "stream"})
    client = attach(pod, **PIPES)
    assert client.stdin is not None and client.stdout is not None and client.stderr is not None
    assert client.stdout.readline() == b"closed\n"
    result = pod.call("attach", *attach_words(pod, "--stdin=true", action="custom-attach")[1:], input="x")
    assert (result.returncode, result.stderr) == (254, 'attach: app "web" takes no more input\n')
    client.stdin.write(b"x")
    client.stdin.flush()
    assert client.stderr.readline() == b"attach: the app takes no more input\n"
    pod.file(APP, "/tmp/end").touch()
    assert client.communicate() == (b"over\n", b"")
    assert client.returncode == 0


def test_output_that_is_not_read(make_pod: MakePod) -> None:
    """The app goes on, and the client fails, at once with `disconnect`; what a pipe has is the app's output alone."""
    count = 400_000
    pod = start_app(make_pod, f"echo 0; read x; seq 1 {count}; echo done > /tmp/done; read x", STREAMS)
    clients = [attach(pod, f"--on-slow={policy}", **PIPES) for policy in ("drop", "disconnect")]
    for client in clients:
        assert client.stdout is not None
        assert client.stdout.readline() == b"0\n"
    result = pod.call(
        "attach", *attach_words(pod, "--stdin=true", "--take-stdin", action="custom-attach")[1:], input="x\n"
    )
    assert result.returncode == 0
    pod.wait_file(APP, "/tmp/done")
    dropping, disconnecting = clients
    out, err = disconnecting.communicate(timeout=90)
    assert (disconnecting.returncode, err.splitlines()[-1]) == (
        254,
        b"attach: disconnected: output was not read as fast as the app writes",
    )
    assert numbers(1, count).startswith(out)
    out, err = dropping.communicate()
    lost = len(numbers(1, count)) - len(out)
    message = b'attach: app "web": %d bytes of stdout are missing: nobody read them in time\n' % lost
    assert dropping.returncode == 254 and err.endswith(message)
    begin = next(at for at, pair in enumerate(zip(out, numbers(1, count))) if pair[0] != pair[1])
    assert numbers(1, count).endswith(out[begin:])


@pytest.mark.parametrize(("where", "message"), [("/dev/full", "no space left on device"), (None, "broken pipe")])
def test_output_that_cannot_be_written(make_pod: MakePod, where: str | None, message: str) -> None:
    """The client fails with the reason, and the app goes on."""
    pod = start_app(make_pod, "echo out; read x; exit 3", {"stdin": "stream", "stdout": "stream"})
    if where is None:
        reader, writer = os.pipe()
        os.close(reader)
    else:
        writer = os.open(where, os.O_WRONLY)
    client = attach(pod, stdin=subprocess.DEVNULL, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert client.communicate()[1].decode() == f"attach: write standard output: {message}\n"
    assert client.returncode == 254
    assert pod.status(APP) is None


def test_signals_that_were_ignored(make_pod: MakePod) -> None:
    """A client that was started by nohup(1) outlives a SIGHUP."""
    pod = start_app(make_pod, 'echo begun; while read x; do echo "$x"; done', {"stdin": "stream", "stdout": "stream"})
    ignore = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh"]
    client = subprocess.Popen([*ignore, *attach_words(pod)], cwd=pod.path, **PIPES)
    assert client.stdin is not None and client.stdout is not None
    assert client.stdout.readline() == b"begun\n"
    client.send_signal(signal.SIGHUP)
    assert client.communicate(b"still\n") == (b"still\n", b"")
    assert client.returncode == 0


# Refusals.


@pytest.fixture(scope="module")
def logging_pod(work_directory: Path, stage1_tree: Path, app_rootfs: Path) -> Iterator[PodDirectory]:
    """A running pod with an app that cannot be attached to, and one with two of three streams."""
    annotations = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "stream"} for name in ("stdin", "stdout")]
    apps = {"plain": shell("sleep 1000"), APP: shell("read x", annotations=annotations)}
    pod = PodDirectory(work_directory / "data", stage1_tree, app_rootfs, apps)
    pod.start()
    wait_for((pod.stage1 / "rkt/iottymux" / APP / "endpoints").exists, "the endpoints")
    pod.wait_ready()
    yield pod
    pod.remove()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--action=list", "--app=plain"), 254, 'app "plain" is not attachable: it is not running, or no stream of it'),
        (("--action=auto-attach", "--app=plain"), 254, 'app "plain" is not attachable'),
        (("--action=list", "--app=other"), 254, 'no app "other" in this pod'),
        (("--action=list", "--app=../web"), 254, '"../web" is no app name'),
        (("--action=list",), 254, '"" is no app name'),
        (("--action=erase", "--app=web"), 254, 'unknown action "erase"'),
        (
            ("--action=custom-attach", "--app=web"),
            254,
            'app "web": choose at least one of stdin, stdout, stderr, tty-in',
        ),
        (
            ("--action=custom-attach", "--stderr=true", "--app=web"),
            254,
            "has no stderr to attach to (it has: stdin, stdout)",
        ),
        (("--action=custom-attach", "--tty-in", "--app=web"), 254, "has no tty-in to attach to"),
        (("--action=custom-attach", "--tty-in", "--stdin", "--app=web"), 254, "at the same time"),
        (
            ("--action=auto-attach", "--on-slow=no", "--app=web"),
            254,
            "on-slow: expected one of wait, drop, disconnect, block",
        ),
        (("--action=auto-attach", "--detach-keys=no", "--app=web"), 254, "detach keys: expected a character or ctrl-"),
        (("--action=list", "--app=web", "--stdin=maybe"), 2, 'invalid boolean value "maybe" for -stdin'),
        (("--action=list", "--app=web", "--ready-fd=999"), 2, '--ready-fd: expected a descriptor, got "999"'),
        (("--action=list", "--app=web", "--colour"), 2, "flag provided but not defined: -colour"),
        (("--action=list", "--app=web", "uuid"), 2, "expected flags only"),
    ],
)
def test_refusals(logging_pod: PodDirectory, words: tuple[str, ...], code: int, message: str) -> None:
    """An impossible request is one line, with rkt's code."""
    result = logging_pod.call("attach", *words)
    assert (result.returncode, result.stdout) == (code, "")
    assert result.stderr.startswith("attach: ")
    assert message in result.stderr.splitlines()[0]
    assert code == 2 or result.stderr.count("\n") == 1


def test_a_client_that_comes_with_the_end_of_the_app(make_pod: MakePod) -> None:
    """It gets the output that is kept, though the app has ended before the sidecar knows of the client."""
    pod = start_app(make_pod, "echo kept; until [ -e /go ]; do sleep 0.01; done", {"stdout": "stream"})
    sidecar = wait_for(lambda: pod.children().get(f"iottymux-{APP}"), "the sidecar")
    os.kill(sidecar, signal.SIGSTOP)
    client = attach(pod, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # Its session, and the stream in that.
    wait_for(lambda: " ".join(descriptors_of(client.pid).values()).count("socket:") >= 2, "the connection")
    pod.file(APP, "/go").touch()
    pod.wait_status(APP)
    os.kill(sidecar, signal.SIGCONT)
    assert client.communicate(timeout=TIMEOUT_SECONDS) == (b"kept\n", b"")
    assert client.returncode == 0


def test_a_pod_that_has_ended(make_pod: MakePod) -> None:
    """Its apps cannot be attached to."""
    pod = make_pod({APP: shell("exit 0", annotations=[{"name": "coreos.com/rkt/stage2/stdout", "value": "stream"}])})
    pod.run()
    result = pod.call("attach", *attach_words(pod)[1:])
    assert (result.returncode, result.stderr.count("\n")) == (254, 1)
    assert 'app "web" is not attachable: it is not running' in result.stderr


@pytest.mark.parametrize("name", ["endpoints", "sock-minit", "directory"])
def test_links_in_the_pod(make_pod: MakePod, name: str) -> None:
    """A link in the place of what the pod has made is not followed."""
    pod = start_app(make_pod, "read x", {"stdin": "stream", "stdout": "stream"})
    directory = pod.stage1 / "rkt/iottymux" / APP
    path = directory if name == "directory" else directory / name
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")
    result = pod.call("attach", *attach_words(pod)[1:])
    assert result.returncode == 254
    assert "too many levels of symbolic links" in result.stderr


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a value"),
        ("[]", "is not a list of endpoints"),
        ('{"targets":null}', "is not a list of endpoints"),
        ('{"targets":[{"name":"x"}]}', "is not a list of endpoints"),
        (" " * 70_000, "larger than 65536 bytes"),
    ],
)
def test_broken_endpoints(make_pod: MakePod, text: str, message: str) -> None:
    """A file that is not what stage1 writes is named."""
    pod = start_app(make_pod, "read x", {"stdin": "stream", "stdout": "stream"})
    (pod.stage1 / "rkt/iottymux" / APP / "endpoints").write_text(text)
    result = pod.call("attach", *attach_words(pod)[1:])
    assert result.returncode == 254
    assert "endpoints" in result.stderr and message in result.stderr
