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
from contextlib import suppress

import structlog
import trio

import minit
from minit.base.carried import Carried, Descriptor
from minit.base.errors import ControlError, ManifestError, describe
from minit.base.jsontext import dump, parse
from minit.linux.loop import wait_readable
from minit.linux.messages import IN_FILE, MAXIMUM_MESSAGE_BYTES, Socket, encode_message, memory_file
from minit.linux.ownprogram import Program, program_in
from minit.linux.stdio import complain_at_once
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog
from minit.podfiles.controlmessages import MAXIMUM_DESCRIPTORS, Answer, AppRequest, Refusal, Upgrade, read_request
from minit.supervisor.control.answers import AppRequests, Pending, Reply, answer
from minit.supervisor.journal import Journal
from minit.supervisor.supervisor import Supervisor

ACCEPT_PAUSE_SECONDS = 0.1
"""How long clients wait at least when there was no descriptor or memory for one."""

_MAXIMUM_CLIENTS = 64
_CLIENT_TIMEOUT_SECONDS = 5.0
_LEAST_SECONDS = 1.0
_PEER_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid

# Of each of the two files of the log.
_FILE_BYTES = 1 << 19


class Client(Carried):
    """
    A client of the control socket, who has until `talks_until`, of the monotonic clock, for requests.

    A client with an answer still to come is `pending`.
    """

    socket: Socket
    talks_until: float
    pending: Pending | None

    # Not carried: an error leaves the mark for who deals with the error.
    is_at_work = False

    def __init__(self, connection: Socket) -> None:
        self.socket = connection
        self.talks_until = time.monotonic() + _CLIENT_TIMEOUT_SECONDS
        self.pending = None


class Offer(Carried):
    """
    Another version of minit, by a mount of its image, and the connection to the client who offers the version.

    The client is answered by the program of the other version. `version` is that of the program before.
    """

    client: Socket
    image: Descriptor
    program: Program
    version: str

    def __init__(self, client: Socket, image: int) -> None:
        self.client = client
        self.image = image
        self.program = program_in(image)
        self.version = minit.__version__

    def close(self) -> None:
        """Let go of the client and of the image."""
        self.client.close()
        os.close(self.image)


class Clients(Carried):
    """The present clients of the control socket, and the offer of another version for which PID 1 has to begin anew."""

    present: list[Client]
    offer: Offer | None

    def __init__(self) -> None:
        self.present = []
        self.offer = None

    def refuse_offer(self, reason: str) -> None:
        """Tell the client, if one has offered another version, why PID 1 goes on in the program."""
        offer, self.offer = self.offer, None
        if offer is not None:
            with suppress(OSError):
                offer.client.sendmsg(*encode_message(Refusal(error=reason).to_json(), []), socket.MSG_DONTWAIT)
            offer.program.close()
            offer.close()

    def admit(self, connection: Socket) -> Client:
        """Take in a client."""
        client = Client(connection)
        self.present.append(client)
        return client

    def at_work(self) -> Client | None:
        """Return the client for whom PID 1 works at the moment, if any."""
        for client in self.present:
            if client.is_at_work or (client.pending is not None and client.pending.is_at_work):
                return client
        return None

    def dismiss(self, client: Client) -> None:
        """Close the connection to a client."""
        self.present.remove(client)
        client.socket.close()


class _OwnClock(trio.abc.Clock):
    """
    The monotonic clock, which ends a run of trio that waits for nobody.

    At the end of a run trio waits for a task of trio's own that reads a socket, and for ever once a read has failed.
    """

    def start_clock(self) -> None:
        """Do nothing: the clock goes on."""

    def current_time(self) -> float:
        """Return the moment."""
        return time.monotonic()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Return how long to wait, when no task has anything to do; RuntimeError if there is none but trio's first."""
        first = trio.lowlevel.current_root_task()
        if first is not None and not any(nursery.child_tasks for nursery in first.child_nurseries):
            raise RuntimeError("trio waits for a task that has failed")
        return deadline - self.current_time()


def accept(offer: Offer) -> None:
    """Tell the client that the offered version is at work, by the way of all answers."""

    async def answer_client() -> None:
        with suppress(OSError), trio.move_on_after(_CLIENT_TIMEOUT_SECONDS):
            await _send(offer.client, Answer(), [])

    trio.run(answer_client, clock=_OwnClock())


def serve(supervisor: Supervisor, clients: Clients) -> None:
    """Run until nothing of any app is left."""
    gc.freeze()
    gc.enable()
    attach_log(supervisor.journal)
    try:
        trio.run(serve_until_finished, supervisor, clients, clock=_OwnClock())
    except BaseExceptionGroup as group:
        raise _only(group) from None


def attach_log(journal: Journal) -> None:
    """Have the journal written to its file from now on."""
    try:
        journal.attach(open_journal())
    except OSError as error:
        # A disk that is full, or has failed: the apps can do without.
        complain_at_once(f"stage1: the supervisor has no log: {describe(error)}")


def _only(error: BaseException) -> BaseException:
    """Return what a nursery wrapped, if it is one failure."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


async def serve_until_finished(supervisor: Supervisor, clients: Clients) -> None:
    """
    Wait for events, deadlines and clients, and do what they ask for.

    The end is when nothing of any app is left, or when PID 1 is to execute its program anew, which leaves the `clients`
    connected, as does an error.
    """
    waiting = trio.CancelScope()
    async with trio.open_nursery() as nursery:
        # A client's request may set a deadline earlier than the one that is waited for.
        nursery.start_soon(_serve_control, supervisor, clients, lambda: waiting.cancel())
        while not (supervisor.pod.finished or supervisor.is_to_execute):
            if not supervisor.journal.events.flush():
                supervisor.context.retry_soon()
            deadline = supervisor.next_deadline()
            wait_seconds = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
            waiting = trio.CancelScope(deadline=trio.current_time() + wait_seconds)
            with waiting:
                await trio.lowlevel.wait_readable(supervisor.event_fd)
            if supervisor.defect is not None:
                # Before a turn, which forgets for which app there was work.
                raise supervisor.defect
            supervisor.turn()
        nursery.cancel_scope.cancel()
    if supervisor.pod.finished:
        for client in [*clients.present]:
            clients.dismiss(client)


async def _serve_control(supervisor: Supervisor, clients: Clients, wake: Callable[[], None]) -> None:
    supervisor.control.setblocking(False)
    server = _Server(supervisor, clients, wake)
    async with trio.open_nursery() as nursery:
        for client in clients.present:
            # PID 1 may have taken all of the client's time to begin anew.
            client.talks_until = max(client.talks_until, time.monotonic() + _LEAST_SECONDS)
            nursery.start_soon(server.serve, client)
        while True:
            await server.room.acquire()
            nursery.start_soon(server.serve, clients.admit(await _accept(supervisor)))


async def _accept(supervisor: Supervisor) -> Socket:
    """Return the next client; while there is no descriptor or memory for one, clients wait in the backlog."""
    failed = False
    while True:
        await trio.lowlevel.wait_readable(supervisor.control)
        try:
            connection, _ = supervisor.control.accept()
        except BlockingIOError:
            pass  # it went away
        except OSError as error:
            if not failed:
                supervisor.journal.info("client.not-accepted", reason=describe(error))
            failed = True
            supervisor.context.limits.hold()
            # The listener stays readable, and accept(2) would fail over and over.
            await trio.sleep(ACCEPT_PAUSE_SECONDS)
        else:
            return connection


class _Server:
    """
    Answers clients of the control socket; `room` bounds those that are served without waiting for an app.

    From a request to the answer no other code of PID 1 runs, so an error there leaves no request without an answer.
    """

    def __init__(self, supervisor: Supervisor, clients: Clients, wake: Callable[[], None]) -> None:
        pending = [client.pending for client in clients.present if client.pending is not None]
        self.room = trio.Semaphore(_MAXIMUM_CLIENTS - len(clients.present) + len(pending))
        self._supervisor = supervisor
        self._clients = clients
        self._wake = wake
        self._requests = AppRequests(supervisor, pending)

    async def serve(self, client: Client) -> None:
        """
        Answer one client's requests; whatever it does, or is done for it, ends with its connection.

        A client who is served when PID 1 begins anew is served on.
        """
        try:
            if client.pending is None:
                try:
                    await self._talk(client)
                finally:
                    # Others take its place while it waits for an app.
                    self.room.release()
            if client.pending is not None:
                await self._wait(client, client.pending)
        except OSError:
            pass  # the client went away
        except Exception as error:
            self._note_defect(error)
        self._clients.dismiss(client)

    async def _talk(self, client: Client) -> None:
        """Answer until the client has no more to ask, or waits for an app."""
        with trio.CancelScope(deadline=_by_trio(client.talks_until)):
            if not self._supervisor.outside.admits(*_peer_of(client.socket)):
                return
            while client.pending is None:
                await trio.lowlevel.wait_readable(client.socket)
                if self._supervisor.defect is not None:
                    # The next program reads on.
                    await trio.sleep_forever()
                data, descriptors = _receive(client.socket)
                if data == b"":
                    return
                if data is None:
                    continue
                client.is_at_work = True
                reply = self._answer(client, data, descriptors)
                client.is_at_work = self._supervisor.defect is not None
                self._wake()
                if reply is None:
                    return
                if isinstance(reply, Pending) and reply.reply is None:
                    client.pending = reply
                    return
                if isinstance(reply, Pending):
                    self._requests.forget(reply)
                    assert reply.reply is not None
                    reply = reply.reply, []
                await _send(client.socket, *reply)

    async def _wait(self, client: Client, pending: Pending) -> None:
        answered = trio.Event()
        pending.wake = answered.set

        async def watch(scope: trio.CancelScope) -> None:
            # Nothing more is read from it; readable means that it went away. A wait may end for nothing, as may any.
            await trio.lowlevel.wait_readable(client.socket)
            while not wait_readable([client.socket.fileno()], 0):
                await trio.lowlevel.wait_readable(client.socket)
            scope.cancel()

        try:
            if pending.reply is None:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(watch, nursery.cancel_scope)
                    with trio.CancelScope(deadline=_by_trio(pending.ends_at)):
                        await answered.wait()
                    if pending.reply is None:
                        pending.expire()
                        self._wake()
                    nursery.cancel_scope.cancel()
        finally:
            self._requests.forget(pending)
        if pending.reply is not None:
            with trio.move_on_after(_CLIENT_TIMEOUT_SECONDS):
                await _send_message(client.socket, *encode_message(pending.reply.to_json(), []))

    def _answer(self, client: Client, data: bytes, descriptors: list[int]) -> Pending | Reply | None:
        """Carry out a request; None if the client is answered later, by another connection."""
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
            if isinstance(request, Upgrade):
                reason = self._take_offer(client, descriptors)
                return None if reason is None else (Refusal(error=reason), [])
            if not isinstance(request, AppRequest):
                return answer(self._supervisor, request)
            reply = self._requests.answer(request, descriptors)
            return reply if isinstance(reply, Pending) else (reply, [])
        except OSError as error:
            # Not the client's, which would be taken for its end.
            self._note_unfinished(error)
            return Refusal(error=describe(error)), []
        except Exception as error:
            # The apps must not end with PID 1 because of what somebody asked.
            self._note_defect(error)
            self._note_unfinished(error)
            return Refusal(error=f"request: {type(error).__name__}: {error} (a bug in minit)"), []
        finally:
            for fd in descriptors:
                os.close(fd)

    def _take_offer(self, client: Client, descriptors: list[int]) -> str | None:
        """Have PID 1 execute an offered version; a reason if not."""
        if self._supervisor.pod.exit_code is not None:
            return "the pod is ending"
        if self._clients.offer is not None:
            return "another upgrade is under way"
        if (obstacle := self._supervisor.outside.obstacle()) is not None:
            return obstacle
        if len(descriptors) != 1 or not os.fstatvfs(descriptors[0]).f_flag & os.ST_RDONLY:
            return "expected a descriptor of a read-only mount of a stage1 image"
        self._clients.offer = Offer(client.socket.dup(), descriptors[0])
        descriptors.clear()
        self._supervisor.is_to_execute = True
        return None

    def _note_unfinished(self, error: Exception) -> None:
        """Have PID 1 begin anew if an error has left work for an app undone, which the new program does."""
        if any(app.due for app in self._supervisor.apps.values()):
            self._supervisor.defect = error

    def _note_defect(self, error: Exception) -> None:
        self._supervisor.journal.info("request.crashed", traceback="".join(traceback.format_exception(error)))


def _by_trio(moment: float | None) -> float:
    """Return a moment of the monotonic clock by trio's clock; None is never."""
    return math.inf if moment is None else trio.current_time() + moment - time.monotonic()


def _receive(client: Socket) -> tuple[bytes | None, list[int]]:
    """
    Return the next message and its descriptors, empty at the end; what was cut is a message that is too large.

    None without a message: a wait may end for nothing.
    """
    # One byte more than is accepted tells a larger message, which the kernel cuts, from the largest one.
    size = socket.CMSG_SPACE(MAXIMUM_DESCRIPTORS * 4)
    flags = socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT
    try:
        data, ancillary, _, _ = client.recvmsg(MAXIMUM_MESSAGE_BYTES + 1, size, flags)
    except BlockingIOError:
        return None, []
    rights = b"".join(
        text for level, kind, text in ancillary if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
    )
    return data, [int.from_bytes(rights[at : at + 4], sys.byteorder) for at in range(0, len(rights) - 3, 4)]


async def _send(client: Socket, reply: Answer, descriptors: list[int]) -> None:
    buffers, rights = encode_message(reply.to_json(), descriptors)
    if sum(map(len, buffers)) <= MAXIMUM_MESSAGE_BYTES:
        await _send_message(client, buffers, rights)
        return
    try:
        fd = memory_file("reply", b"".join(buffers))
    except OSError as error:
        await _send_message(client, *encode_message(Refusal(error=describe(error)).to_json(), []))
        return
    try:
        await _send_message(client, *encode_message({"ok": True, IN_FILE: True}, [fd]))
    finally:
        os.close(fd)


async def _send_message(client: Socket, buffers: list[bytes], rights: list[tuple[int, int, bytes]]) -> None:
    while True:
        try:
            client.sendmsg(buffers, rights, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        except BlockingIOError:
            await trio.lowlevel.wait_writable(client)
        else:
            return


def _peer_of(client: Socket) -> tuple[int, int]:
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
