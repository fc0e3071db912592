"""The trio half of PID 1: waits for events and deadlines, and serves the control socket."""

from __future__ import annotations

import gc
import math
import socket
import struct
import time

import trio

from minit import paths
from minit.errors import ManifestError
from minit.jsontext import parse
from minit.log import open_journal
from minit.messages import MAXIMUM_MESSAGE_BYTES, encode_message
from minit.reaper.record import write_file
from minit.supervisor.protocol import answer
from minit.supervisor.supervisor import Supervisor

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from minit.plan.pod import PodPlan

_MAXIMUM_CLIENTS = 64
_CLIENT_TIMEOUT_SECONDS = 5.0
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid


def serve(supervisor: Supervisor) -> None:
    """Run until nothing of any app is left."""
    gc.freeze()
    gc.enable()
    supervisor.journal.attach(open_journal())
    _keep_plan(supervisor.plan)
    try:
        trio.run(_serve, supervisor)
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _keep_plan(plan: PodPlan) -> None:
    """Write the plan down for whoever diagnoses the pod; what ran for a moment only has none."""
    text = "".join(f"{line}\n" for line in plan.describe())
    try:
        write_file(paths.STAGE1_PLAN, text.encode(errors="backslashreplace"))
    except OSError:
        pass  # a full disk, say


def _only(error: BaseException) -> BaseException:
    """Return what a nursery wrapped, if it is one failure."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def _serve(supervisor: Supervisor) -> None:
    waiting = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        # What a client asks for may set a deadline earlier than the one that is waited for.
        nursery.start_soon(_serve_control, supervisor, lambda: waiting.cancel())
        while not supervisor.finished:
            supervisor.journal.events.flush()
            deadline = supervisor.next_deadline()
            wait_seconds = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            waiting = trio.CancelScope(deadline=trio.current_time() + wait_seconds)
            with waiting:
                await trio.lowlevel.wait_readable(supervisor.event_fd)
            supervisor.turn()
        nursery.cancel_scope.cancel()


async def _serve_control(supervisor: Supervisor, wake: Callable[[], None]) -> None:
    listener = trio.socket.from_stdlib_socket(socket.socket(fileno=supervisor.control.detach()))
    clients = trio.Semaphore(_MAXIMUM_CLIENTS)
    async with trio.open_nursery() as nursery:
        while True:
            await clients.acquire()
            client, _ = await listener.accept()
            nursery.start_soon(_serve_client, supervisor, client, clients, wake)


async def _serve_client(
    supervisor: Supervisor, client: trio.socket.SocketType, clients: trio.Semaphore, wake: Callable[[], None]
) -> None:
    """Answer one client's requests; whatever it does ends with its connection."""
    try:
        with client, trio.move_on_after(_CLIENT_TIMEOUT_SECONDS):
            if not _is_outside(client):
                return
            # One byte more than is accepted tells a larger message, which the kernel cuts, from the largest one.
            while data := await client.recv(MAXIMUM_MESSAGE_BYTES + 1):
                reply = _answer(supervisor, data)
                wake()
                await client.sendmsg(*encode_message(*reply))
    except OSError:
        pass  # the client went away
    finally:
        clients.release()


def _answer(supervisor: Supervisor, data: bytes) -> tuple[dict[str, object], list[int]]:
    if len(data) > MAXIMUM_MESSAGE_BYTES:
        return {"ok": False, "error": f"request: expected at most {MAXIMUM_MESSAGE_BYTES} bytes"}, []
    try:
        request = parse(data, "request")
    except ManifestError as error:
        return {"ok": False, "error": str(error)}, []
    if not isinstance(request, dict):
        return {"ok": False, "error": "request: expected an object"}, []
    return answer(supervisor, request)


def _is_outside(client: trio.socket.SocketType) -> bool:
    """Return whether the peer is outside the pod: a process PID 1 cannot see has pid 0 here."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, _, _ = _PEER_CREDENTIALS.unpack(credentials)
    return bool(pid == 0)
