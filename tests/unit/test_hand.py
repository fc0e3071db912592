"""A hand of the daemon: one request after the other in one process."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.base.errors import FailureKind, PodError
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.pods import hand
from minit.pods.hand import CODEC, HandRequest
from minit.pods.requests import AppStart


def echo(asked: HandRequest) -> str:
    """Return the app of the request."""
    assert isinstance(asked.request, AppStart)
    return asked.request.app


def fail(asked: HandRequest) -> str:
    """Fail as a start does whose reason another program has told."""
    error = PodError("it failed")
    error.kind = FailureKind.STATE
    error.reason = "no room"
    raise error


def leave_a_descriptor(asked: HandRequest) -> str:
    """Leave a descriptor open."""
    os.dup(0)
    return ""


def leave_a_child(asked: HandRequest) -> str:
    """Leave a process that nobody waits for."""
    if os.fork() == 0:
        os._exit(0)
    return ""


def be_ended(asked: HandRequest) -> str:
    """End as a request does that gets a SIGTERM."""
    raise SystemExit(143)


@contextmanager
def a_hand(run: hand.CarryOut) -> Iterator[Socket]:
    """Yield the daemon's end of a hand that runs this, and wait for the hand's end, which is without an error."""
    ours, theirs = socket_pair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.dup2(theirs.fileno(), 0)
            ours.close()
            theirs.close()
            hand.serve(run)
            code = 0
        finally:
            os._exit(code)
    theirs.close()
    with ours:
        yield ours
    assert os.waitpid(pid, 0)[1] == 0


def send(link: Socket, data: bytes) -> None:
    """Send a hand a request."""
    fd = os.memfd_create("request")
    os.pwrite(fd, data, 0)
    send_message(link, {}, [fd])
    os.close(fd)


def ask(link: Socket, app: str = "web") -> dict[str, object] | None:
    """Return the answer to a request."""
    request = AppStart(uuid="2d38", app=app)
    send(link, CODEC.encode(HandRequest(data=Path("/data"), local_config="/etc/rkt", request=request)))
    return receive_message(link)[0]


def answer(**fields: object) -> dict[str, object]:
    """Return an answer that differs in some fields from the usual one."""
    return {"result": "", "kind": None, "error": None, "is_last": False} | fields


def test_one_after_the_other() -> None:
    """Each request has its own result, and the next one may follow, also after a failure."""
    with a_hand(echo) as link:
        assert ask(link, "a") == answer(result="a")
        send(link, b"{}")
        told = receive_message(link)[0]
        assert told is not None and "not one of this version" in str(told["error"])
        assert ask(link, "c") == answer(result="c")
    with a_hand(fail) as link:
        assert ask(link) == ask(link) == answer(kind="state", error="it failed: no room")


@pytest.mark.parametrize(
    ("run", "error"),
    [(leave_a_descriptor, None), (leave_a_child, None), (be_ended, "ended by a signal")],
    ids=["descriptor", "child", "end"],
)
def test_the_last_one(run: hand.CarryOut, error: str | None) -> None:
    """A hand ends, and says so, with a request that leaves a descriptor or a child, or that is told to end."""
    with a_hand(run) as link:
        assert ask(link) == answer(error=error, is_last=True)
        assert receive_message(link) == (None, [])


def test_end_of_the_daemon() -> None:
    """A hand whose daemon has ended meanwhile ends after its request, with no error."""
    with a_hand(echo) as link:
        send(link, CODEC.encode(HandRequest(data=Path("/"), local_config="", request=AppStart(uuid="u", app="a"))))
        link.shutdown(socket.SHUT_RDWR)
