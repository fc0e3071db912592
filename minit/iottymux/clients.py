"""The clients of an app's streams: on rkt's plain sockets, and sessions of minit's protocol."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from minit.iottymux.input import Input
from minit.iottymux.output import Output
from minit.iottymux.peer import Peer, PeerOwner, PeerState
from minit.iottymux.protocol import (
    DEFAULT_QUEUE_BYTES,
    EVENT_DROPPED,
    EVENT_ENDED,
    EVENT_STDIN_ENDED,
    EVENT_STDIN_GIVEN,
    EVENT_STDIN_TAKEN,
    EVENT_TOO_SLOW,
    STDIN_NONE,
    TTY_OUT,
    AskStatus,
    Attach,
    ProtocolError,
    Reading,
    Request,
    Resize,
    parse_request,
)
from minit.linux.loop import Loop
from minit.linux.messages import Socket, receive_message, send_message


class Streams(Protocol):
    """The streams of the app, as clients need them."""

    loop: Loop

    def find(self, names: Sequence[str]) -> tuple[dict[str, Output], dict[str, Input]]:
        """Return the outputs and inputs of these names; ProtocolError if the app lacks a stream."""

    def output(self, name: str | None) -> Output | None:
        """Return the output of a name, if there is one."""

    def input(self, name: str | None) -> Input | None:
        """Return the input of a name, if there is one."""

    def enter(self, client: Client) -> None:
        """Note a new client."""

    def forget(self, client: Client) -> None:
        """Note the end of a client."""

    def resize(self, size: tuple[int, int], *, redraw: bool = False) -> None:
        """Give the app's terminal another size, in rows and columns."""

    def status(self) -> Mapping[str, int]:
        """Return the counters."""

    def count_dropped(self, size_bytes: int) -> None:
        """Count output lost by a client."""

    def note_progress(self) -> None:
        """Note that a client reads."""


class Client(PeerOwner):
    """A client attached to streams of the app; `mux` forgets a closed client."""

    def __init__(self, mux: Streams) -> None:
        self._mux = mux
        self._peers: list[Peer] = []
        self._is_closed = False
        mux.enter(self)

    @property
    def is_flushing(self) -> bool:
        """Tell whether output waits for the client."""
        return any(peer.is_waiting for peer in self._peers)

    def close(self) -> None:
        """Close all descriptors of the client; once."""
        if not self._is_closed:
            self._is_closed = True
            for peer in self._peers:
                peer.close()
            self._peers = []
            self._mux.forget(self)

    def drop(self, peer: Peer) -> None:
        """Close a descriptor of the client."""
        if peer in self._peers:
            self._peers.remove(peer)
            peer.close()

    def state(self) -> dict[str, object]:
        """Return what the next sidecar goes on with, as JSON."""
        return {"peers": [vars(peer.state()) for peer in self._peers]}

    def descriptors(self) -> list[int]:
        """Return the descriptors for the next sidecar: first those of the client, then those of the peers."""
        return [peer.fd for peer in self._peers]

    def turn(self) -> int:
        """Return how many clients get the app's input before this client."""
        turns = [peer.input.turn(peer) for peer in self._peers if peer.input is not None]
        return min((turn for turn in turns if turn is not None), default=sys.maxsize)

    def go_on(self, states: Sequence[PeerState], descriptors: list[int]) -> None:
        """Attach the peers of a client of the sidecar before; used descriptors leave the list."""
        attached = []
        for state in states:
            output, input = self._mux.output(state.output), self._mux.input(state.input)
            peer = Peer(
                self._mux.loop,
                self,
                descriptors.pop(0),
                output,
                input,
                state.policy,
                state.queue_bytes,
                state.is_marked,
                state.is_given_up,
                state.marker.encode(),
            )
            self._peers.append(peer)
            attached.append((state, peer, output, input))
        for state, peer, output, input in attached:
            if state.turn is not None and input is not None and not peer.is_closed:
                input.add(peer, take=False)
            if output is not None and not peer.is_closed:
                output.go_on(peer, state.position, state.counted_bytes)

    # Reports of the client's peers.

    def on_dropped(self, size_bytes: int) -> None:
        """Count output that the client will not get."""
        self._mux.count_dropped(size_bytes)

    def on_progress(self) -> None:
        """Note that the client reads."""
        self._mux.note_progress()

    def on_marked(self, peer: Peer, size_bytes: int, marker_bytes: int) -> None:
        """Act on a marker sent in place of dropped output."""

    def on_stdin_taken(self) -> None:
        """Act on the loss of the app's input to another client."""

    def on_stdin_given(self) -> None:
        """Act on having become the owner of the app's input, in turn."""

    def on_stdin_ended(self, peer: Peer) -> None:
        """Act on the end of the app's input."""


class RawClient(Client):
    """A connection to a socket of rkt: nothing but bytes, attached from the first to the last moment."""

    def attach(self, fd: int, output: Output | None, input: Input | None) -> None:
        """Attach the connection."""
        is_marked = output is not None and output.name == TTY_OUT
        peer = Peer(self._mux.loop, self, fd, output, input, queue_bytes=DEFAULT_QUEUE_BYTES, is_marked=is_marked)
        self._peers.append(peer)
        if input is not None and input.add(peer, take=False) == STDIN_NONE and output is None:
            self.close()
        elif output is not None:
            output.attach(peer, replay=True, resume=None)

    def on_gone(self, peer: Peer) -> None:
        """Detach the client."""
        self.close()

    def on_finished(self, peer: Peer) -> None:
        """Tell of the end by closing."""
        self.close()

    def on_too_slow(self, peer: Peer) -> None:
        """Disconnect the client."""
        self.close()

    def on_stalled(self, peer: Peer) -> None:
        """Let a terminal lose output, which a marker shows; close any other client, which could not be told."""
        if peer.is_marked:
            peer.give_up()
        else:
            self.close()

    def on_stdin_ended(self, peer: Peer) -> None:
        """Tell of the end by closing, unless there is output to come."""
        if peer.output is None:
            self.close()


class Session(Client):
    """A client of the session protocol, attached by its first message."""

    def __init__(self, mux: Streams, socket: Socket) -> None:
        super().__init__(mux)
        self._socket = socket
        self._is_attached = self._has_asked = False
        # Events caused by a request, held until after the request's answer.
        self._held: list[dict[str, object]] | None = None
        self._has_output = False
        mux.loop.watch(socket.fileno(), self._on_event)

    def state(self) -> dict[str, object]:
        """Return what the next sidecar goes on with, as JSON."""
        return {"session": [self._is_attached, self._has_asked, self._has_output], **super().state()}

    def descriptors(self) -> list[int]:
        """Return the descriptors for the next sidecar: first those of the client, then those of the peers."""
        return [self._socket.fileno(), *super().descriptors()]

    def resume(self, is_attached: bool, has_asked: bool, has_output: bool) -> None:
        """Go on as in the sidecar before, apart from the peers."""
        self._is_attached, self._has_asked, self._has_output = is_attached, has_asked, has_output

    @property
    def is_flushing(self) -> bool:
        """Tell whether output waits for the client, or may wait, as the client has not sent its request yet."""
        return not self._has_asked or super().is_flushing

    def close(self) -> None:
        """Close all descriptors of the client; once."""
        if not self._is_closed:
            self._mux.loop.unwatch(self._socket.fileno())
            super().close()
            self._socket.close()

    def end(self) -> None:
        """Tell the client about the end of the app's output and the missing bytes, and close."""
        if not self._has_asked:
            self._refuse("its output has ended")
        elif not self._is_closed:
            for peer in self._peers:
                if peer.output is not None and peer.unsent_bytes:
                    self.on_marked(peer, peer.unsent_bytes, 0)
            self._tell({"event": EVENT_ENDED})
            self.close()

    # Reports of the client's peers.

    def on_gone(self, peer: Peer) -> None:
        """Detach a single stream; the others go on until the session's end."""
        self.drop(peer)
        if not self._peers and self._held is None:
            self.close()

    def on_finished(self, peer: Peer) -> None:
        """Close a stream at its end, and tell about the end of all streams by an event."""
        self.drop(peer)
        self._check_ended()

    def on_too_slow(self, peer: Peer) -> None:
        """Disconnect the client."""
        self._tell({"event": EVENT_TOO_SLOW})
        self.close()

    def on_stalled(self, peer: Peer) -> None:
        """Let the client lose output, and tell the client."""
        peer.give_up()

    def on_marked(self, peer: Peer, size_bytes: int, marker_bytes: int) -> None:
        """Tell how much is missing, and the size of the marker in its place."""
        assert peer.output is not None
        name = peer.output.name
        self._tell({"event": EVENT_DROPPED, "stream": name, "bytes": size_bytes, "marker_bytes": marker_bytes})

    def on_stdin_taken(self) -> None:
        """Tell that another client has the app's input now."""
        self._tell({"event": EVENT_STDIN_TAKEN})

    def on_stdin_given(self) -> None:
        """Tell that this client has the app's input now."""
        self._tell({"event": EVENT_STDIN_GIVEN})

    def on_stdin_ended(self, peer: Peer) -> None:
        """Tell that nothing more can be sent to the app."""
        self._tell({"event": EVENT_STDIN_ENDED})
        if peer.output is None:
            self.drop(peer)

    # Messages.

    def _on_event(self, events: int) -> None:
        descriptors: list[int] = []
        try:
            message, descriptors = receive_message(self._socket)
            self._has_asked = True
            if message is None:
                self.close()
                return
            reply = self._answer(parse_request(message), descriptors)
        except BlockingIOError:
            return
        except (ProtocolError, ValueError) as error:
            self._refuse(str(error))
        except OSError:
            self.close()
        else:
            held, self._held = self._held, None
            self._tell({"ok": True, **reply})
            for event in held or ():
                self._tell(event)
            self._check_ended()
        finally:
            for fd in descriptors:
                os.close(fd)

    def _answer(self, request: Request, descriptors: list[int]) -> dict[str, object]:
        """Carry out a request and return the rest of the reply; descriptors in use are removed from the list."""
        if isinstance(request, AskStatus):
            return dict(self._mux.status())
        if isinstance(request, Attach):
            return self._attach(request, descriptors)
        if not self._is_attached:
            raise ProtocolError("not attached")
        if isinstance(request, Resize):
            self._mux.resize(request.size)
            return {}
        if isinstance(request, Reading):
            for peer in self._peers:
                if peer.output is not None:
                    peer.note_reading()
            return {}
        for peer in self._peers:
            if peer.input is not None and not peer.input.ended:
                peer.input.take(peer)
                return {}
        raise ProtocolError("take-stdin: this client is not attached to an input of the app")

    def _attach(self, request: Attach, descriptors: list[int]) -> dict[str, object]:
        if self._is_attached:
            raise ProtocolError("attached already")
        outputs, inputs = self._mux.find(request.streams)
        if len(descriptors) != len(request.streams):
            raise ProtocolError(f"expected a descriptor for each stream, got {len(descriptors)}")
        for fd in descriptors:
            _check_stream_socket(fd)
        self._is_attached = True
        resume = dict(request.resume)
        stdin = STDIN_NONE
        positions = {}
        if request.size is not None:
            # Old output may be too little for a full-screen program to look right.
            returns = TTY_OUT in outputs and TTY_OUT not in resume and outputs[TTY_OUT].ring.is_seen
            self._mux.resize(request.size, redraw=returns)
        self._held = []
        for name in request.streams:
            fd = descriptors.pop(0)
            os.set_blocking(fd, False)
            output, input = outputs.get(name), inputs.get(name)
            is_marked = name not in request.unmarked
            peer = Peer(self._mux.loop, self, fd, output, input, request.policy, request.queue_bytes, is_marked)
            self._peers.append(peer)
            if input is not None:
                stdin = input.add(peer, take=request.take_stdin)
            if output is not None:
                self._has_output = True
                positions[name] = output.attach(peer, replay=request.replay, resume=resume.get(name))
        return {"stdin": stdin, "positions": positions}

    def _check_ended(self) -> None:
        """Tell about the end of all output, but not before the answer to a request."""
        if self._has_output and self._held is None and not any(each.output is not None for each in self._peers):
            self.end()

    def _refuse(self, reason: str) -> None:
        self._tell({"ok": False, "error": reason})
        if not self._is_attached:
            self.close()

    def _tell(self, message: dict[str, object]) -> None:
        if self._is_closed:
            return
        if self._held is not None:
            self._held.append(message)
            return
        try:
            send_message(self._socket, message)
        except OSError:
            pass  # it is gone, or does not even read what it is told


def go_on(mux: Streams, message: Mapping[str, Any], descriptors: list[int]) -> None:
    """Make a client of what the sidecar before has told about the client; used descriptors leave the list."""
    states = [PeerState(**state) for state in message["peers"]]
    client: Client
    if "session" in message:
        is_attached, has_asked, has_output = message["session"]
        client = Session(mux, Socket(fileno=descriptors.pop(0)))
        client.resume(is_attached, has_asked, has_output)
    else:
        client = RawClient(mux)
    try:
        client.go_on(states, descriptors)
    except BaseException:
        client.close()
        raise


def _check_stream_socket(fd: int) -> None:
    try:
        sock = Socket(fileno=fd)
    except OSError as error:
        raise ProtocolError("expected sockets as descriptors of the streams") from error
    kind = sock.type
    sock.detach()
    if kind != socket.SOCK_STREAM:
        raise ProtocolError("expected stream sockets as descriptors of the streams")
