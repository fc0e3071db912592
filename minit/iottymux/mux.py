"""
The attachable streams of an app in its sidecar: who connects, what clients get, and when everything ends.

PID 1 makes every descriptor and keeps a duplicate, so that another sidecar can go on: the app's pipes and the master of
its pty, the rings, the counters, and the listening sockets.
"""

from __future__ import annotations

import fcntl
import os
import resource
import socket
import struct
import termios
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from minit.base.errors import describe
from minit.iottymux.clients import Client, RawClient, Session, go_on
from minit.iottymux.input import Input, PipeInput, TtyInput
from minit.iottymux.output import Intake, Output, PipeOutput, TtyOutput
from minit.iottymux.peer import PATIENCE_SECONDS
from minit.iottymux.protocol import STDERR, STDIN, STDOUT, TTY_IN, TTY_OUT, ProtocolError
from minit.iottymux.ring import (
    BYTES_IN,
    CLIENTS,
    COLUMNS,
    DROPPED_BYTES,
    FLUSHES,
    ROWS,
    Counters,
    LineLog,
    OutputLog,
    Ring,
    Scratch,
)
from minit.linux.loop import Loop
from minit.linux.messages import Socket, encode_message, receive_message, send_message
from minit.linux.stdio import complain

# The descriptors from PID 1, by their names in the request to the spawner.
RING = "ring-"
SCRATCH = "scratch"
LISTENER = "sock-"
SESSIONS = "sock-minit"
MASTER = "tty"
INTAKE = "intake"
COUNTERS = "counters"
SUPERVISOR = "supervisor"
# PID 1's end of the link to the sidecar before, which has left and tells of its clients.
PREDECESSOR = "predecessor"
# Messages to PID 1; after LEAVING all is for the next sidecar, and LEFT is the last.
INPUT_ENDED = "input-ended"
COUNTED = "counted"
LEAVING = "leaving"
LEFT = "left"

# The sidecar raises its limit of descriptors to so many, as far as allowed.
_OPEN_FILES = 4096
_SPARE_FILES = 64
_FILES_PER_SESSION = 5
_ACCEPTS_PER_TURN = 64
# The time for clients of a killed sidecar to come back; quick clients wait in the backlog already.
_AWAIT_SECONDS = 1.0
# Of a predecessor, in a turn of the loop.
_MESSAGES_PER_TURN = 64


class Mux:
    """
    The streams of `app` for clients, with all their descriptors by name, and `null`, /dev/null.

    `logs` has the logs of an output by its name. `renewed` says that another sidecar had the descriptors before. If
    PREDECESSOR is among them, that sidecar has left in order, and hands its clients over.
    """

    def __init__(
        self,
        loop: Loop,
        app: str,
        descriptors: Mapping[str, int],
        null: int,
        logs: Mapping[str, Sequence[LineLog]],
        *,
        renewed: bool,
    ) -> None:
        self.loop = loop
        self._app = app
        self._descriptors = descriptors
        self._clients: list[Client] = []
        self._counters = Counters(descriptors[COUNTERS])
        self._predecessor = Socket(fileno=descriptors[PREDECESSOR]) if PREDECESSOR in descriptors else None
        if self._predecessor is None:
            self._counters[CLIENTS] = 0
        self._has_told_of_loss = False
        self._supervisor = Socket(fileno=descriptors[SUPERVISOR])
        self._stalled_at: float | None = None
        self._await_until = time.monotonic() + _AWAIT_SECONDS if renewed else None
        self._most_files = _raise_open_files() - _SPARE_FILES
        scratch = Scratch(descriptors[SCRATCH], null)

        def ring(name: str) -> Ring:
            return Ring(name, descriptors[RING + name], null, scratch, self._counters)

        def output_logs(stream: str, ring: Ring) -> list[OutputLog]:
            return [OutputLog(stream, log, ring, self._counters) for log in logs.get(ring.name, ())]

        self._outputs: dict[str, Output] = {}
        for name in (STDOUT, STDERR):
            if name in descriptors:
                kept = ring(name)
                own = output_logs(name, kept)
                self._outputs[name] = PipeOutput(
                    name, descriptors[name], loop, kept, scratch, own, was_interrupted=renewed
                )
        self._inputs: dict[str, Input] = {}
        if STDIN in descriptors:
            self._inputs[STDIN] = PipeInput(STDIN, descriptors[STDIN], loop, self._count_input, self._on_stdin_ended)
        if MASTER in descriptors:
            master = descriptors[MASTER]
            kept = ring(TTY_OUT)
            intake = Intake(descriptors[INTAKE], kept, null, scratch, self._counters)
            # A terminal has a single output, whatever is written there.
            own = output_logs(STDOUT, kept)
            self._outputs[TTY_OUT] = TtyOutput(TTY_OUT, master, loop, kept, intake, own, was_interrupted=renewed)
            # A duplicate, since a descriptor cannot be watched twice.
            self._inputs[TTY_IN] = TtyInput(TTY_IN, os.dup(master), loop, self._count_input, lambda: None)
            size = struct.unpack("=HHHH", fcntl.ioctl(master, termios.TIOCGWINSZ, bytes(8)))
            self._counters[ROWS], self._counters[COLUMNS] = size[:2]
        self._listeners: dict[str, Socket] = {}
        if self._predecessor is None:
            self._listen()
        else:
            loop.watch(self._predecessor.fileno(), lambda _: self._hear_predecessor())

    def check(self) -> bool:
        """
        Do the due work; return whether all streams have ended and no client that reads, or soon reads, has waiting
        output.
        """
        now = time.monotonic()
        if self._await_until is not None and now >= self._await_until:
            self._await_until = None
            self._listen()
            for output in self._outputs.values():
                output.stop_awaiting()
        ended = [stream.ended for stream in self._outputs.values() or self._inputs.values()]
        if not all(ended):
            return False
        if self._stalled_at is None:
            self._stalled_at = now + PATIENCE_SECONDS
        # Clients that have connected by now get the kept output.
        for name in self._listeners:
            self._accept(name)
        return now >= self._stalled_at or not any(client.is_flushing for client in self._clients)

    @property
    def patience_seconds(self) -> float | None:
        """The time that the loop may wait before the next `check`; None for ever."""
        moments = [moment for moment in (self._await_until, self._stalled_at) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) if moments else None

    @property
    def may_leave(self) -> bool:
        """Tell whether all clients of a sidecar before are here."""
        return self._predecessor is None

    def leave(self) -> None:
        """
        Hand all clients over to the next sidecar, which PID 1 starts now; nothing is read here any more.

        A client that cannot be handed over is disconnected by the end of this process.
        """
        typed = self._inputs.get(TTY_IN)
        rest, last = typed.typed() if isinstance(typed, TtyInput) else (b"", b"")
        with suppress(OSError):
            send_message(self._supervisor, {LEAVING: True})
            for client in sorted(self._clients, key=Client.turn):
                send_message(self._supervisor, client.state(), client.descriptors())
            send_message(self._supervisor, {LEFT: True, "typed": [rest.decode("latin-1"), last.decode("latin-1")]})

    def _hear_predecessor(self) -> None:
        """Go on with some clients of the sidecar before."""
        predecessor = self._predecessor
        assert predecessor is not None
        try:
            for _ in range(_MESSAGES_PER_TURN):
                if not self._take_client(predecessor):
                    break
            else:
                return
        except BlockingIOError:
            return
        except Exception as error:
            # An app may have taken over the sidecar before, which then says anything.
            complain(f"iottymux: app {self._app}: sidecar before: {describe(error)}")
        self.loop.unwatch(predecessor.fileno())
        self._predecessor = None
        predecessor.close()
        self._listen()
        self._note_clients()

    def _take_client(self, predecessor: Socket) -> bool:
        """Go on with a client of the sidecar before; return whether there may be more."""
        message, descriptors = receive_message(predecessor)
        try:
            if message is None:
                return False
            told: dict[str, Any] = message
            if LEFT in told:
                self._heal(*told["typed"])
                return False
            go_on(self, told, descriptors)
            return True
        finally:
            for fd in descriptors:
                os.close(fd)

    def _heal(self, rest: str, last: str) -> None:
        """Go on as if there was one sidecar only."""
        self._await_until = None
        for output in self._outputs.values():
            output.heal()
            output.stop_awaiting()
        typed = self._inputs.get(TTY_IN)
        if isinstance(typed, TtyInput):
            typed.type_on(rest.encode("latin-1"), last.encode("latin-1"))

    def close(self) -> None:
        """Tell the remaining clients about the end."""
        for client in [*self._clients]:
            if isinstance(client, Session):
                client.end()
            else:
                client.close()

    # For clients.

    def find(self, names: Sequence[str]) -> tuple[dict[str, Output], dict[str, Input]]:
        """Return the outputs and inputs of these names; ProtocolError if the app lacks a stream."""
        for name in names:
            if name not in self._outputs and name not in self._inputs:
                raise ProtocolError(f'app "{self._app}" has no {name} that can be attached to')
        outputs = {name: self._outputs[name] for name in names if name in self._outputs}
        return outputs, {name: self._inputs[name] for name in names if name in self._inputs}

    def output(self, name: str | None) -> Output | None:
        """Return the output of a name, if there is one."""
        return None if name is None else self._outputs.get(name)

    def input(self, name: str | None) -> Input | None:
        """Return the input of a name, if there is one."""
        return None if name is None else self._inputs.get(name)

    def enter(self, client: Client) -> None:
        """Note a new client."""
        self._clients.append(client)
        self._note_clients()

    def forget(self, client: Client) -> None:
        """Note the end of a client."""
        self._clients.remove(client)
        self._has_told_of_loss = False
        self._note_clients()

    def _note_clients(self) -> None:
        # Clients on their way from the sidecar before have not left.
        if self._predecessor is None or self._await_until is None:
            self._counters[CLIENTS] = len(self._clients)
            self._tell_counted()

    def resize(self, size: tuple[int, int], *, redraw: bool = False) -> None:
        """
        Give the app's terminal another size, in rows and columns; nothing happens without a terminal.

        With `redraw` the app is told of a change (SIGWINCH) even if there is none.
        """
        if MASTER not in self._descriptors:
            return
        if redraw:
            # Any difference counts as a change, even of the pixels, which nobody reads.
            _set_size(self._descriptors[MASTER], size, pixels=1)
        _set_size(self._descriptors[MASTER], size)
        self._counters[ROWS], self._counters[COLUMNS] = size

    def status(self) -> dict[str, int]:
        """Return the counters."""
        return self._counters.read()

    def count_dropped(self, size_bytes: int) -> None:
        """Count output lost by a client."""
        self._counters[DROPPED_BYTES] += size_bytes
        # Only the first time: later losses are reported when the next client leaves.
        if not self._has_told_of_loss:
            self._has_told_of_loss = True
            self._tell_counted()

    def note_progress(self) -> None:
        """Note that a client reads, here and for PID 1."""
        self._counters[FLUSHES] += 1
        if self._stalled_at is not None:
            self._stalled_at = time.monotonic() + PATIENCE_SECONDS

    # Streams.

    def _count_input(self, size_bytes: int) -> None:
        self._counters[BYTES_IN] += size_bytes

    def _on_stdin_ended(self) -> None:
        # PID 1 has the same end open: the app would never see that the sidecar has closed it.
        try:
            send_message(self._supervisor, {INPUT_ENDED: True})
        except OSError as error:
            complain(f"iottymux: app {self._app}: end of stdin: {describe(error)}")

    def _tell_counted(self) -> None:
        """Have PID 1 look at the counters; a full socket already makes PID 1 look."""
        try:
            flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
            self._supervisor.sendmsg(*encode_message({COUNTED: True}, []), flags)
        except OSError:
            pass

    # Connections.

    def _listen(self) -> None:
        """Let clients in, after all clients of the sidecar before, which come first in every row."""
        for name, fd in self._descriptors.items():
            if name.startswith(LISTENER) and name not in self._listeners:
                self._listeners[name] = Socket(fileno=fd)
                self.loop.watch(fd, lambda _, name=name: self._accept(name))  # type: ignore[misc]

    def _accept(self, name: str) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                connection, _ = self._listeners[name].accept()
            except OSError:
                return  # nobody is left, or gave up meanwhile
            self._welcome(name, connection.detach())

    def _welcome(self, name: str, fd: int) -> None:
        if len(self.loop) + _FILES_PER_SESSION > self._most_files:
            # A refusal is better than a wait, or than sessions that fail half-way.
            os.close(fd)
            return
        os.set_blocking(fd, False)
        if name == SESSIONS:
            Session(self, Socket(fileno=fd))
        elif name == LISTENER + MASTER:
            RawClient(self).attach(fd, self._outputs[TTY_OUT], self._inputs[TTY_IN])
        else:
            stream = name.removeprefix(LISTENER)
            RawClient(self).attach(fd, self._outputs.get(stream), self._inputs.get(stream))


def _set_size(terminal: int, size: tuple[int, int], pixels: int = 0) -> None:
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("=HHHH", *size, 0, pixels))


def _raise_open_files() -> int:
    """Return how many descriptors this process may have, after raising the limit towards _OPEN_FILES."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(_OPEN_FILES, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        return _OPEN_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most
