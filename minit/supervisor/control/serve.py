"""
The trio half of PID 1: waits for events and deadlines, and serves the control socket.

Here the log gets its file, one JSON object a line, by the only configuration of structlog. The module of the log knows
no structlog: the command of a machine imports that module.
"""

from __future__ import annotations

import gc
import math
import os
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable

import structlog
import trio

from minit.base.errors import ControlError, ManifestError, describe
from minit.base.harmless import harmless
from minit.base.jsontext import dump, parse
from minit.linux.loop import wait_readable
from minit.linux.messages import IN_FILE, MAXIMUM_MESSAGE_BYTES, encode_message
from minit.linux.stdio import complain_at_once
from minit.plan.podplan import PodPlan
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog
from minit.podfiles.controlmessages import MAXIMUM_DESCRIPTORS, Answer, AppRequest, Refusal, read_request
from minit.reaper.record import write_file
from minit.supervisor.control.answers import AppRequests, Pending, Reply, answer
from minit.supervisor.journal import Journal
from minit.supervisor.supervisor import Supervisor

ACCEPT_PAUSE_SECONDS = 0.1
"""How long clients wait at least when there was no descriptor or memory for one."""

_MAXIMUM_CLIENTS = 64
_CLIENT_TIMEOUT_SECONDS = 5.0
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

# Of each of the two files of the log.
_FILE_BYTES = 1 << 19


def serve(supervisor: Supervisor) -> None:
    """Run until nothing of any app is left."""
    gc.freeze()
    gc.enable()
    _attach_log(supervisor.journal)
    _keep_plan(supervisor.plan)
    try:
        trio.run(serve_until_finished, supervisor)
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _attach_log(journal: Journal) -> None:
    try:
        journal.attach(open_journal())
    except OSError as error:
        # A disk that is full, or has failed: the apps can do without.
        complain_at_once(f"stage1: the supervisor has no log: {describe(error)}")


def _keep_plan(plan: PodPlan) -> None:
    """Write the plan down for whoever diagnoses the pod; what ran for a moment only has none."""
    text = "".join(f"{harmless(line)}\n" for line in plan.describe())
    try:
        write_file(paths.STAGE1_PLAN, text.encode())
    except OSError:
        pass  # a full disk, say


def _only(error: BaseException) -> BaseException:
    """Return what a nursery wrapped, if it is one failure."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def serve_until_finished(supervisor: Supervisor) -> None:
    """Wait for events, deadlines and clients, and do what they ask for, until nothing of any app is left."""
    waiting = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        # A client's request may set a deadline earlier than the one that is waited for.
        nursery.start_soon(_serve_control, supervisor, lambda: waiting.cancel())
        while not supervisor.pod.finished:
            if not supervisor.journal.events.flush():
                supervisor.context.retry_soon()
            deadline = supervisor.next_deadline()
            wait_seconds = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            waiting = trio.CancelScope(deadline=trio.current_time() + wait_seconds)
            with waiting:
                await trio.lowlevel.wait_readable(supervisor.event_fd)
            supervisor.turn()
        nursery.cancel_scope.cancel()


async def _serve_control(supervisor: Supervisor, wake: Callable[[], None]) -> None:
    listener = trio.socket.from_stdlib_socket(socket.socket(fileno=supervisor.control.detach()))
    server = _Server(supervisor, wake)
    async with trio.open_nursery() as nursery:
        while True:
            await server.clients.acquire()
            client = await _accept(listener, supervisor)
            nursery.start_soon(server.serve, client)


async def _accept(listener: trio.socket.SocketType, supervisor: Supervisor) -> trio.socket.SocketType:
    """Return the next client; while there is no descriptor or memory for one, clients wait in the backlog."""
    failed = False
    while True:
        try:
            client, _ = await listener.accept()
        except OSError as error:
            if not failed:
                supervisor.journal.info("client.not-accepted", reason=describe(error))
            failed = True
            supervisor.context.limits.hold()
            # The listener stays readable, and accept(2) would fail over and over.
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
        else:
            return client


class _Server:
    """Answers clients of the control socket; `clients` bounds those that are served without waiting for an app."""

    def __init__(self, supervisor: Supervisor, wake: Callable[[], None]) -> None:
        self.clients = trio.Semaphore(_MAXIMUM_CLIENTS)
        self._supervisor = supervisor
        self._wake = wake
        self._requests = AppRequests(supervisor)

    async def serve(self, client: trio.socket.SocketType) -> None:
        """Answer one client's requests; whatever it does, or is done for it, ends with its connection."""
        try:
            with client:
                waiting: Pending | None = None
                try:
                    with trio.move_on_after(_CLIENT_TIMEOUT_SECONDS):
                        if self._supervisor.outside.admits(*_peer_of(client)):
                            waiting = await self._talk(client)
                finally:
                    # Others take its place while it waits for an app.
                    self.clients.release()
                if waiting is not None:
                    await self._wait(client, waiting)
        except OSError:
            pass  # the client went away
        except Exception as error:
            self._note_defect(error)

    async def _talk(self, client: trio.socket.SocketType) -> Pending | None:
        """Answer until the client has no more to ask; return an answer that is still to come."""
        while True:
            data, descriptors = await _receive(client)
            if not data:
                return None
            reply = self._answer(data, descriptors)
            self._wake()
            if isinstance(reply, Pending) and reply.reply is None:
                return reply
            if isinstance(reply, Pending):
                self._requests.forget(reply)
                assert reply.reply is not None
                reply = reply.reply, []
            await _send(client, *reply)

    async def _wait(self, client: trio.socket.SocketType, pending: Pending) -> None:
        answered = trio.Event()
        pending.wake = answered.set

        async def watch(scope: trio.CancelScope) -> None:
            # Nothing more is read from it; readable means that it went away. A wait may end for nothing, as may any.
            await trio.lowlevel.wait_readable(client)
            while not wait_readable([client.fileno()], 0):
                await trio.lowlevel.wait_readable(client)
            scope.cancel()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch, nursery.cancel_scope)
                with trio.move_on_after(math.inf if pending.deadline_seconds is None else pending.deadline_seconds):
                    await answered.wait()
                if pending.reply is None:
                    pending.expire()
                    self._wake()
                nursery.cancel_scope.cancel()
        finally:
            self._requests.forget(pending)
        if pending.reply is not None:
            with trio.move_on_after(_CLIENT_TIMEOUT_SECONDS):
                await client.sendmsg(*encode_message(pending.reply.to_json(), []))

    def _answer(self, data: bytes, descriptors: list[int]) -> Pending | Reply:
        self._supervisor.context.limits.hold()
        try:
            if len(data) > MAXIMUM_MESSAGE_BYTES:
                return Refusal(error=f"request: expected at most {MAXIMUM_MESSAGE_BYTES} bytes"), []
            try:
                fields = parse(data, "request")
                if not isinstance(fields, dict):
                    raise ControlError("request: expected an object")
                request = read_request(fields)
            except (ControlError, ManifestError) as error:
                return Refusal(error=str(error)), []
            if not isinstance(request, AppRequest):
                return answer(self._supervisor, request)
            reply = self._requests.answer(request, descriptors)
            return reply if isinstance(reply, Pending) else (reply, [])
        except OSError as error:
            # Not the client's, which would be taken for its end.
            return Refusal(error=describe(error)), []
        except Exception as error:
            # The apps must not end with PID 1 because of what somebody asked.
            self._note_defect(error)
            return Refusal(error=f"request: {type(error).__name__}: {error} (a bug in minit)"), []
        finally:
            for fd in descriptors:
                os.close(fd)

    def _note_defect(self, error: Exception) -> None:
        self._supervisor.journal.info("request.crashed", traceback="".join(traceback.format_exception(error)))


async def _receive(client: trio.socket.SocketType) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors, empty at the end; what was cut is a message that is too large."""
    # One byte more than is accepted tells a larger message, which the kernel cuts, from the largest one.
    size = socket.CMSG_SPACE(MAXIMUM_DESCRIPTORS * 4)
    data, ancillary, _, _ = await client.recvmsg(MAXIMUM_MESSAGE_BYTES + 1, size, socket.MSG_CMSG_CLOEXEC)
    rights = b"".join(
        text for level, kind, text in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    )
    return data, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights) - 3, 4)]


async def _send(client: trio.socket.SocketType, reply: Answer, descriptors: list[int]) -> None:
    buffers, rights = encode_message(reply.to_json(), descriptors)
    if sum(map(len, buffers)) <= MAXIMUM_MESSAGE_BYTES:
        await client.sendmsg(buffers, rights)
        return
    try:
        fd = _write_file(b"".join(buffers))
    except OSError as error:
        await client.sendmsg(*encode_message(Refusal(error=describe(error)).to_json(), []))
        return
    try:
        await client.sendmsg(*encode_message({"ok": True, IN_FILE: True}, [fd]))
    finally:
        os.close(fd)


def _write_file(data: bytes) -> int:
    """Return a file in memory with this, at its start."""
    fd = os.memfd_create("reply", os.MFD_CLOEXEC)
    try:
        with os.fdopen(os.dup(fd), "wb") as file:
            file.write(data)
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def _peer_of(client: trio.socket.SocketType) -> tuple[int, int]:
    """Return pid and uid of the process on the other side, as PID 1 sees them."""
    credentials = client.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, _ = _PEER_CREDENTIALS.unpack(credentials)
    return pid, uid


class _Lines:
    """The writer of structlog's lines."""

    def __init__(self, file: BoundedLog) -> None:
        self._file = file

    def msg(self, line: bytes) -> None:
        self._file.append(line + b"\n")


def open_journal() -> Callable[[str, dict[str, object]], None]:
    """Return a function that appends an event with its fields to the pod's supervisor log."""
    logger = structlog.wrap_logger(
        _Lines(BoundedLog(paths.STAGE1_SUPERVISOR_LOG, _FILE_BYTES)),
        processors=[
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(serializer=lambda event, **_: dump(event)),
        ],
        wrapper_class=structlog.BoundLogger,
    )
    # Once: otherwise each event makes a logger of its own, which only the collector can remove.
    logger = logger.bind()

    def write(event: str, fields: dict[str, object]) -> None:
        try:
            logger.msg(event, **fields)
        except OSError:
            pass  # a full disk must not stop PID 1, and there is no other place to say so

    return write
