"""
A hand: a process that carries out one request to the service of pods after the other, for a daemon.

Each request saves the start of a program. No request leaves anything to the next request: a hand
ends, and says so, when the hand has another descriptor than before or a child, or when a signal ended the request.

A hand has a socket of messages as standard input. A message has a file with the caller and the request, and
perhaps a descriptor to hold until the request is carried out. The answer has the result, or the kind and the text
of a failure, and whether the hand ends now.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minit.base.errors import FailureKind, MinitError, describe, kind_of, told_reason
from minit.base.progress import silent
from minit.base.value import Value
from minit.base.valuecodec import ValueCodec
from minit.linux.messages import Socket, read_memory_file, receive_message, send_message
from minit.pods import apps, ending, images, preparing, running, stopping
from minit.pods.caller import DEFAULT_SYSTEM_CONFIG, Caller
from minit.pods.requests import (
    AddRequest,
    AppRemoval,
    AppStart,
    AppStop,
    ImagePull,
    ImageRemoval,
    LogReopening,
    PodRelease,
    PodRemoval,
    PodStop,
    SandboxRequest,
    StartRequest,
)
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import find_pod, open_pod
from minit.stage0.reports.logreader import reopen_logs

WORD = "__hand"
"""The only word of a command line that makes a process of the command a hand."""
RESULT, KIND, ERROR, IS_LAST = "result", "kind", "error", "is_last"


class HandRequest(Value):
    """A request, and the pods of the request; a hand tells the caller nothing beside the answer."""

    data: Path
    local_config: str
    system_config: str = DEFAULT_SYSTEM_CONFIG
    request: (
        SandboxRequest
        | AddRequest
        | AppStart
        | AppStop
        | AppRemoval
        | LogReopening
        | PodStop
        | PodRelease
        | PodRemoval
        | ImagePull
        | ImageRemoval
    )


CODEC = ValueCodec(HandRequest)

CarryOut = Callable[[HandRequest], str]
"""Carries out a request, and returns what it results in: the id of what was made, or nothing."""


def serve(act: CarryOut) -> None:
    """Carry out requests from the standard input, until the end."""
    link = socket.socket(fileno=os.dup(0))
    os.set_inheritable(link.fileno(), False)
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for number in (0, 1):
        os.dup2(null, number)
    os.close(null)
    try:
        while _serve_one(link, act):
            pass
    except (BrokenPipeError, ConnectionResetError, KeyboardInterrupt):
        pass  # the daemon is gone, and what it had asked for is done


def carry_out(asked: HandRequest) -> str:
    """Carry out a request; MinitError or OSError after a failure."""
    request = asked.request
    caller = Caller(
        data=asked.data, note=lambda text: None, local_config=asked.local_config, system_config=asked.system_config
    )
    if isinstance(request, AddRequest):
        with find_pod(caller.data, request.uuid, caller.note) as pod, Store(caller.data) as store:
            apps.add(caller, pod, store, request.app, request.environment, silent)
    elif isinstance(request, (AppStart, AppStop, AppRemoval, LogReopening)):
        with find_pod(caller.data, request.uuid, caller.note) as pod:
            if isinstance(request, AppStart):
                apps.start(caller, pod, request.app)
            elif isinstance(request, AppStop):
                apps.stop(caller, pod, request.app, request.grace_seconds)
            elif isinstance(request, AppRemoval):
                apps.remove(caller, pod, request.app)
            else:
                reopen_logs(pod, (request.app,))
    elif isinstance(request, PodStop):
        with open_pod(caller.data, request.uuid) as pod:
            stopping.stop(pod, force=request.force)
    elif isinstance(request, (PodRelease, PodRemoval)):
        end = ending.release if isinstance(request, PodRelease) else ending.remove
        with Store(caller.data) as store, ending.cleanup_of(caller, store) as cleanup:
            end(caller, cleanup, request.uuid, force=True)
    else:
        with Store(caller.data) as store:
            if isinstance(request, SandboxRequest):
                return _run_sandbox(caller, store, request)
            if isinstance(request, ImagePull):
                return images.fetch(caller, store, request.reference, silent, authfile=request.credentials)
            images.remove_all(caller, store, request.ids)
    return ""


def _run_sandbox(caller: Caller, store: Store, request: SandboxRequest) -> str:
    def announce(uuid: str) -> None:
        request.uuid_file.write_text(uuid)

    start = StartRequest(options=running.options_for(caller, request.options), is_detached=True)
    pod = preparing.prepare(caller, store, request.pod, silent, announce)
    return running.start(caller, store, pod, start)


def _serve_one(link: Socket, act: CarryOut) -> bool:
    """Carry out one request, and return whether another one may follow."""
    message, descriptors = receive_message(link)
    if message is None:
        return False
    before = _descriptors()
    answer: dict[str, object] = {RESULT: "", KIND: None, ERROR: None}
    is_last = False
    try:
        asked = CODEC.decode(read_memory_file(descriptors[0]), "request")
        answer[RESULT] = act(asked)
    except (MinitError, OSError) as error:
        answer |= {KIND: kind_of(error), ERROR: _text(error)}
    except SystemExit:
        answer[ERROR], is_last = "ended by a signal", True
    except Exception as error:
        sys.excepthook(*sys.exc_info())
        answer[ERROR] = f"{type(error).__name__}: {describe(error)} (a bug in minit)"
    is_last = is_last or _descriptors() != before or _has_children()
    for fd in descriptors:
        os.close(fd)
    send_message(link, answer | {IS_LAST: is_last})
    return not is_last


def read_answer(answer: dict[str, Any]) -> tuple[str, str | None, FailureKind | None]:
    """Return result, error and kind of an answer."""
    kind = answer[KIND]
    return str(answer[RESULT]), answer[ERROR], None if kind is None else FailureKind(kind)


def _text(error: BaseException) -> str:
    reason = told_reason(error)
    return describe(error) if reason is None else f"{describe(error)}: {reason}"


def _descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def _has_children() -> bool:
    """Tell whether a process is left, which somebody else has to wait for, or one that nobody has waited for."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
