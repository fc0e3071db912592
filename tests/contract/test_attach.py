"""The `attach` entrypoint, executed on running pods as rkt does."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess

import pytest

from tests.support.attach import APP, STREAMS, TERMINAL, attach, attach_words, sidecar_of, start_app
from tests.support.pods import MakePod, shell
from tests.support.processes import status_of
from tests.support.waiting import wait_for

MARKER = re.compile(rb"\n\[minit: (?:(\d+) bytes dropped|output was interrupted)\]\n")
ECHO = 'while read x; do echo "o:$x"; echo "e:$x" >&2; done; echo over'
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


def numbers(first: int, last: int) -> bytes:
    """Return the lines that seq(1) writes."""
    return b"".join(b"%d\n" % number for number in range(first, last + 1))


def test_listing(make_pod: MakePod) -> None:
    """rkt's document, indented by four spaces, without a line feed at its end."""
    pod = start_app(make_pod, "read x", {"stdin": "stream", "stdout": "stream"})
    result = pod.call("attach", "--action=list", f"--app={APP}", "--debug=false")
    assert (result.returncode, result.stderr) == (0, "")
    document = json.loads((pod.stage1 / "rkt/iottymux" / APP / "endpoints").read_text())
    assert [target["name"] for target in document["targets"]] == ["stdin", "stdout"]
    assert result.stdout == json.dumps(document, indent=4)


def test_streams(make_pod: MakePod) -> None:
    """What is piped in reaches the app with its end, and both outputs come out where they should."""
    pod = start_app(make_pod, ECHO, STREAMS)
    result = pod.call("attach", *attach_words(pod)[1:], input="one\ntwo\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "o:one\no:two\nover\n", "e:one\ne:two\n")


def test_dev_null_is_no_input(make_pod: MakePod) -> None:
    """A caller without input does not end the app's, unless it asks for just that."""
    pod = start_app(make_pod, "echo begun; " + ECHO, STREAMS)
    client = attach(pod, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert client.stdout is not None
    assert client.stdout.readline() == b"begun\n"
    result = pod.call("attach", *attach_words(pod, "--stdin=true", action="custom-attach")[1:], input="one\n")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert client.communicate()[0] == b"o:one\nover\n"
    assert client.returncode == 0


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
    """The client attaches to the next one and goes on where it was: all bytes come, or are counted in a marker."""
    count = 400_000
    pod = start_app(make_pod, f"read x; seq 1 {count}; read x", {"stdin": "stream", "stdout": "stream"})
    client = attach(pod, "--on-slow=block", **PIPES)
    assert client.stdin is not None and client.stdout is not None
    client.stdin.write(b"go\n")
    client.stdin.flush()
    got = b""
    size = len(numbers(1, count))
    for share in (8, 4):
        while len(got) < size // share:
            got += os.read(client.stdout.fileno(), 1 << 16)
        os.kill(sidecar_of(pod), signal.SIGKILL)
    rest, errors = client.communicate(b"end\n")
    assert client.returncode == 0
    assert errors.count(b"was killed; attaching again\n") == 2
    assert check_numbers(got + rest) == size


def check_numbers(output: bytes) -> int:
    """Check that the output consists of pieces of numbers' lines in order, and return its size with all that is lost."""
    parts = MARKER.split(output)
    position, whole = 0, numbers(1, 400_000)
    for piece, lost in zip(parts[::2], [*parts[1::2], None]):
        assert whole.startswith(piece, position), f"at {position}: {piece[:80]!r}"
        position += len(piece) + int(lost or 0)
    return position
