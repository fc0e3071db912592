"""Updates from a server of HTTP, which may say anything, or nothing more."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.base.errors import UpdateError
from minit.machine.updatesource import open_source, read_fully

_BODY = bytes(range(256)) * 1000


@contextmanager
def _server(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the URL of a server that says `answer` to whoever asks, and the questions so far."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                question = b""
                while b"\r\n\r\n" not in question:
                    question += client.recv(1000)
                asked.append(question)
                try:
                    client.sendall(answer)
                except OSError:
                    pass  # whoever asked has heard enough

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/a/b?c", asked
        finally:
            thread.join()


def _download(answer: bytes) -> bytes:
    with _server(answer) as (url, _), open_source(url) as read:
        return read_fully(read, 2 * len(_BODY))


def test_a_question() -> None:
    """One file is asked for, in words that any server understands."""
    with _server(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nxy") as (url, asked), open_source(url) as read:
        assert read_fully(read, 10) == b"xy"
    lines = asked[0].decode().split("\r\n")
    host = url.removeprefix("http://").partition("/")[0]
    assert lines == ["GET /a/b?c HTTP/1.0", f"Host: {host}", "User-Agent: minit", "", ""]


@pytest.mark.parametrize(
    "answer",
    [b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(_BODY), _BODY), b"HTTP/1.0 200 OK\r\n\r\n" + _BODY],
)
def test_a_file(answer: bytes) -> None:
    """A file comes with its size, and without."""
    assert _download(answer) == _BODY


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        (b"", "the server has no answer of HTTP"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "the server answers 404 Not Found, not 200"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://x/\r\n\r\n", "the server answers 302 Found, not 200"),
        (b"HTTP/1.1 404 \x1b[2J\r\n\r\n", "the server answers 404 [^\x1b]*, not 200"),
        (
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nshort\r\n",
            r"the server answers in pieces \(Transfer-Encoding\)",
        ),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000, "the server has no answer of HTTP"),
        (b"SSH-2.0-x\r\n\r\n", "the server has no answer of HTTP"),
    ],
)
def test_what_is_no_file(answer: bytes, line: str) -> None:
    """Any other answer is one line with the URL."""
    with pytest.raises(UpdateError, match=rf"^http://127.0.0.1:\d+/a/b\?c: {line}[^\n]*$"):
        _download(answer)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(answer=st.binary(max_size=200), start=st.sampled_from([b"", b"HTTP/1.1 ", b"HTTP/1.1 200 OK\r\n"]))
def test_any_answer(answer: bytes, start: bytes) -> None:
    """Whatever a server says, it is bytes or one line."""
    try:
        assert isinstance(_download(start + answer), bytes)
    except UpdateError as error:
        assert "\n" not in str(error)


def test_nobody_answers() -> None:
    """A server that is not there is one line."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
    with pytest.raises(UpdateError, match=f"^{url}: connection refused$"), open_source(url):
        pass
