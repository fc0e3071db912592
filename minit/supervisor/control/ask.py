"""Asking the supervisor of a pod from the host, with the pod directory as the working directory."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

from minit.base.errors import ControlError, MinitError, NoAnswerError, describe
from minit.base.jsontext import MAX_SIZE_BYTES, parse
from minit.linux.messages import IN_FILE, receive_message, send_message
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded
from minit.podfiles.controlmessages import Answer, AskState, LivePod, Request

_TIMEOUT_SECONDS = 10.0


def ask(
    request: Request, timeout_seconds: float = _TIMEOUT_SECONDS, descriptors: Sequence[int] = ()
) -> tuple[Answer, list[int]]:
    """
    Send a request with `descriptors` and return the answer with its own, which are now the caller's.

    ControlError if there is no supervisor or it refuses, NoAnswerError if it has the request but does not answer.
    """
    fields, received = exchange(request.to_json(), timeout_seconds, descriptors)
    try:
        return request.read_answer(fields), received
    except ControlError as error:
        for fd in received:
            os.close(fd)
        raise ControlError(f"supervisor of this pod: {error}") from error


def ask_state() -> LivePod:
    """Return the state of the pod; otherwise as `ask`."""
    state, _ = ask(AskState())
    assert isinstance(state, LivePod)
    return state


def exchange(
    request: dict[str, object], timeout_seconds: float = _TIMEOUT_SECONDS, descriptors: Sequence[int] = ()
) -> tuple[dict[str, object], list[int]]:
    """
    Send a JSON object and return the answer to it, which may be a refusal; otherwise as `ask`.

    The relative path keeps the address within sun_path's 108 bytes wherever pods lie.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sent = False
    try:
        _limit_time(sock, timeout_seconds)
        sock.connect(paths.POD_CONTROL)
        send_message(sock, request, descriptors)
        sent = True
        reply, received = receive_message(sock)
    except BlockingIOError as error:
        kind = NoAnswerError if sent else ControlError
        raise kind(f"supervisor of this pod: no answer within {timeout_seconds} s") from error
    except OSError as error:
        kind = NoAnswerError if sent else ControlError
        raise kind(f"supervisor of this pod: {describe(error)}") from error
    except ValueError as error:
        raise ControlError(f"supervisor of this pod: {describe(error)}") from error
    finally:
        sock.close()
    if reply is None:
        raise NoAnswerError("supervisor of this pod: closed the connection without an answer")
    if reply.get(IN_FILE) is True:
        reply, received = _read_reply(received), []
    return reply, received


def _read_reply(received: list[int]) -> dict[str, object]:
    try:
        [fd] = received
        reply = parse(read_bounded(fd, "reply", MAX_SIZE_BYTES), "reply")
    except (MinitError, OSError, ValueError) as error:
        raise ControlError(f"supervisor of this pod: {describe(error)}") from error
    assert isinstance(reply, dict)
    return reply


def _limit_time(sock: socket.socket, timeout_seconds: float) -> None:
    # The kernel's own timeouts: with settimeout() connect(2) would not wait while the supervisor's backlog is full.
    seconds, rest = divmod(round(timeout_seconds * 1_000_000), 1_000_000)
    timeval = seconds.to_bytes(8, "little") + rest.to_bytes(8, "little")
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, timeval)
