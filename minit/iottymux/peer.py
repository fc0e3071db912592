"""A connected descriptor of a client for an output of the app, for its input, or for both."""

from __future__ import annotations

import fcntl
import os
import select
import socket
import termios
import time
from typing import Protocol

from minit.base.value import Value
from minit.iottymux.buffers import Piece, Queue, unread_bytes
from minit.iottymux.protocol import POLICY_DISCONNECT, POLICY_DROP, POLICY_WAIT
from minit.iottymux.ring import CHUNK_BYTES
from minit.linux.loop import Loop
from minit.linux.messages import Socket

PATIENCE_SECONDS = 5.0
"""The patience with a client that takes nothing: as long as PID 1 waits at the pod's end."""

_SPLICE_NONBLOCK = 2


class PeerState(Value):
    """
    A peer as the next sidecar goes on with it, by the names of its output and input, None without.

    `turn` is the place among the peers of the input, None for a peer that waits for no turn. `position` is that of the
    next byte of the output. Of the output from there on `counted_bytes` count as lost so far. `marker` is the unwritten
    rest of a marker.
    """

    output: str | None
    input: str | None
    turn: int | None
    policy: str
    queue_bytes: int
    is_marked: bool
    is_given_up: bool
    position: int
    counted_bytes: int
    marker: str


class PeerOwner(Protocol):
    """The client of a peer, called by the peer and by the streams of the peer."""

    def on_gone(self, peer: Peer) -> None:
        """Act on a descriptor closed by the client."""

    def on_finished(self, peer: Peer) -> None:
        """Act on the end of the peer's output, after all of it is sent."""

    def on_too_slow(self, peer: Peer) -> None:
        """Disconnect the client, which asked for this."""

    def on_stalled(self, peer: Peer) -> None:
        """Act on output that is not read at all, after the app has waited long enough."""

    def on_dropped(self, size_bytes: int) -> None:
        """Count output that the client will not get."""

    def on_progress(self) -> None:
        """Note that the client reads."""

    def on_marked(self, peer: Peer, size_bytes: int, marker_bytes: int) -> None:
        """Act on a marker sent in place of dropped output."""

    def on_stdin_taken(self) -> None:
        """Act on the loss of the app's input to another client."""

    def on_stdin_given(self) -> None:
        """Act on having become the owner of the app's input, in turn."""

    def on_stdin_ended(self, peer: Peer) -> None:
        """Act on the end of the app's input."""


class PeerOutput(Protocol):
    """The output `name` of the app, as a peer needs it."""

    name: str
    line_end: bytes

    def hold(self) -> None:
        """Read no more until `release` has been called as often."""

    def release(self) -> None:
        """Take back a `hold`."""

    def leave_behind(self, peer: Peer, waiting_bytes: int, missing_bytes: int) -> None:
        """Send nothing to a peer until the peer catches up."""

    def left_bytes(self, peer: Peer) -> int:
        """Return how many bytes a peer that was left behind lacks."""

    def catch_up(self, peer: Peer) -> None:
        """Send a peer that was left behind the output in the ring."""

    def note_waiting(self, peer: Peer) -> None:
        """Note whether output waits for a peer."""

    def detach(self, peer: Peer) -> None:
        """Forget a peer."""

    def place(self, peer: Peer) -> tuple[int, int]:
        """Return the position of the next byte for a peer, and how many of the bytes from there on count as lost."""


class PeerInput(Protocol):
    """The input of the app, as a peer and its client need it."""

    name: str
    ended: bool

    def turn(self, peer: Peer) -> int | None:
        """Return how many peers come before a peer; None for a peer that waits for no turn."""

    def take(self, peer: Peer) -> None:
        """Make a peer the owner of the input, in place of any other owner."""

    def pump(self, peer: Peer) -> None:
        """Move the input sent by a peer."""

    def remove(self, peer: Peer) -> None:
        """Forget a peer."""


class Peer:
    """
    A stream socket of `client`, which does not block, for `output`, `input` or both.

    `skip` is the number of the next bytes that the peer has had already. Once `finished` the peer gets its waiting
    output, and ends. If the peer `is_marked`, a line in the output stands for missing output. If it `is_given_up`, the
    app waits no more for the peer. `marker` is the rest of a marker that a sidecar before has not written.
    """

    def __init__(
        self,
        loop: Loop,
        client: PeerOwner,
        fd: int,
        output: PeerOutput | None,
        input: PeerInput | None,
        policy: str = POLICY_WAIT,
        queue_bytes: int = 0,
        is_marked: bool = True,
        is_given_up: bool = False,
        marker: bytes = b"",
    ) -> None:
        self.client = client
        self.fd = fd
        self.output = output
        self.input = input
        self.skip = 0
        self.finished = False
        self.is_closed = False
        self.is_behind = False
        self.is_heard = False
        self.is_marked = is_marked
        self._loop = loop
        self._policy = policy
        self._queue = Queue(queue_bytes, output.line_end if output is not None and is_marked else None, marker)
        self._dropped_in_vain = 0
        self._is_blocking = False
        self._is_given_up = is_given_up
        self._patience = loop.deadline(self._on_patience_end)
        self._unread_bytes = 0
        self._is_watched = True
        self._events = 0
        loop.watch(fd, self._on_event, 0)

    @property
    def is_idle(self) -> bool:
        """Tell whether no output waits for the peer, so that output can be sent directly."""
        return not self._queue and not self.skip

    @property
    def is_waiting(self) -> bool:
        """Tell whether there is output to send when the peer takes more."""
        return bool(self._queue) or self.is_behind

    @property
    def waiting_bytes(self) -> int:
        """The number of bytes that wait for the peer."""
        return self._queue.size

    @property
    def unsent_bytes(self) -> int:
        """The number of bytes not sent to the peer, waiting or missing, without those announced to the peer."""
        left = self.output.left_bytes(self) if self.is_behind and self.output is not None else 0
        return left + self._queue.size + self._queue.missing_bytes

    @property
    def missing_bytes(self) -> int:
        """The number of bytes dropped before the waiting output, and not reported yet."""
        return self._queue.missing_bytes

    def state(self) -> PeerState:
        """Return what the next sidecar goes on with."""
        output, input = self.output, self.input
        position, counted_bytes = (0, 0) if output is None else output.place(self)
        return PeerState(
            output=None if output is None else output.name,
            input=None if input is None else input.name,
            turn=None if input is None else input.turn(self),
            policy=self._policy,
            queue_bytes=self._queue.limit_bytes,
            is_marked=self.is_marked,
            is_given_up=self._is_given_up,
            position=position,
            counted_bytes=counted_bytes,
            marker=self._queue.marker.decode(),
        )

    # Output.

    def make_room(self) -> None:
        """Let the socket take a whole chunk: the rest would have to be copied."""
        sock = Socket(fileno=self.fd)
        # wmem_max, 208 KiB on most machines, bounds the size, and the kernel doubles it then (socket(7)).
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, CHUNK_BYTES)
        sock.detach()

    def offer(self, data: Piece) -> None:
        """Send output, or keep unsent output as the client's policy says."""
        if self.skip:
            skipped = min(self.skip, len(data))
            self.skip -= skipped
            data = memoryview(data)[skipped:]
        if not data:
            return
        if not self._queue:
            try:
                sent = os.write(self.fd, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                self.client.on_gone(self)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
        self.keep(data)

    def replay(self, data: bytes) -> None:
        """Send or keep the output in the ring, which is not too much, whatever the policy says about the rest."""
        if data:
            self._queue.put(data)
        if self._write():
            self._update()

    def splice_from(self, pipe: int, size_bytes: int) -> int:
        """Send up to so much output from a pipe, unseen; return the number of bytes taken."""
        sent = 0
        try:
            while sent < size_bytes:
                sent += os.splice(pipe, self.fd, size_bytes - sent, flags=_SPLICE_NONBLOCK)
        except BlockingIOError:
            pass
        except OSError:
            self.client.on_gone(self)
        return sent

    def keep(self, data: Piece) -> None:
        """Put output behind the waiting output."""
        self._queue.put(data)
        if self._queue.is_over_limit:
            if self._policy == POLICY_DISCONNECT:
                self.client.on_too_slow(self)
                return
            assert self.output is not None
            if self._policy == POLICY_DROP or self._is_given_up:
                self._drop()
            elif not self._is_blocking:
                self._is_blocking = True
                self.output.hold()
                if self._policy == POLICY_WAIT:
                    self._unread_bytes = self._sent_unread_bytes()
                    self._patience.set(time.monotonic() + PATIENCE_SECONDS)
        self._update()

    def note_reading(self) -> None:
        """Wait for the peer as long again, since it takes output."""
        self.client.on_progress()
        if self._patience.moment is not None:
            self._patience.set(time.monotonic() + PATIENCE_SECONDS)

    def give_up(self) -> None:
        """Stop waiting until the peer has read its waiting output: the peer loses the oldest output."""
        self._is_given_up = True
        self._release()
        if self._queue.is_over_limit:
            self._drop()
        self._update()

    def _on_patience_end(self) -> None:
        unread_bytes = self._sent_unread_bytes()
        if unread_bytes < self._unread_bytes:
            # A socket only takes more after a large part is read.
            self._unread_bytes = unread_bytes
            self._patience.set(time.monotonic() + PATIENCE_SECONDS)
        else:
            self.client.on_stalled(self)

    def _sent_unread_bytes(self) -> int:
        return int.from_bytes(fcntl.ioctl(self.fd, termios.TIOCOUTQ, bytes(4)), "little")

    def _drop(self) -> None:
        assert self.output is not None
        dropped = self._queue.drop_to_fit()
        self.client.on_dropped(dropped)
        self._dropped_in_vain += dropped
        if self._dropped_in_vain > self._queue.limit_bytes:
            # The peer does not read at all. The ring has the output for a later return.
            self.is_behind = True
            self.output.leave_behind(self, *self._queue.give_up())

    def note_gap(self, size_bytes: int) -> None:
        """Have a marker for so many missing bytes sent before any output."""
        self._queue.note_gap(size_bytes)

    def finish(self) -> None:
        """End the output for the client after all waiting output is sent."""
        self.finished = True
        if not self.is_waiting:
            self.client.on_finished(self)

    def close(self) -> None:
        """Close the descriptor, and forget the peer everywhere."""
        self.is_closed = True
        self._loop.unwatch(self.fd)
        if self.input is not None:
            self.input.remove(self)
        if self.output is not None:
            self.output.detach(self)
            self._release()
        os.close(self.fd)

    def listen(self, heard: bool) -> None:
        """Wait for input of the client, or do not."""
        self.is_heard = heard
        self._update()

    # Events.

    def _on_event(self, events: int) -> None:
        if events & select.EPOLLOUT and not self._flush():
            return
        if self.is_heard and events & (select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLHUP):
            assert self.input is not None
            self.input.pump(self)
        elif events & (select.EPOLLHUP | select.EPOLLERR):
            if self.output is None and unread_bytes(self.fd):
                # The client left before its turn: its input goes to the app nevertheless, in its turn.
                self._loop.unwatch(self.fd)
                self._is_watched = False
            else:
                self.client.on_gone(self)

    def _flush(self) -> bool:
        """Write as much waiting output as fits; False if the client is gone, or has all its output."""
        if not self._write():
            return False
        if self.is_behind and not self._queue:
            assert self.output is not None
            self.is_behind = False
            self.output.catch_up(self)
            if self.is_closed:
                return False
        if self._queue.size <= self._queue.limit_bytes // 2:
            self._release()
            self._is_given_up = False
        self._update()
        if self.finished and not self.is_waiting:
            self.client.on_finished(self)
            return False
        return True

    def _write(self) -> bool:
        while self._queue:
            pieces, noted = self._queue.next_pieces()
            if noted:
                self.client.on_marked(self, noted, len(self._queue.marker))
            if not pieces:
                continue
            try:
                sent = os.writev(self.fd, pieces)
            except BlockingIOError:
                break
            except OSError:
                self.client.on_gone(self)
                return False
            self._queue.taken(sent)
            self._dropped_in_vain = 0
            self.note_reading()
        return True

    def _release(self) -> None:
        if self._is_blocking and self.output is not None:
            self._is_blocking = False
            self._patience.clear()
            self.output.release()

    def _update(self) -> None:
        events = (select.EPOLLIN | select.EPOLLRDHUP) if self.is_heard else 0
        events |= select.EPOLLOUT if self.is_waiting else 0
        if self.output is not None:
            self.output.note_waiting(self)
        if not self._is_watched:
            if events:
                self._loop.watch(self.fd, self._on_event, events)
                self._is_watched = True
        elif events != self._events:
            self._loop.change(self.fd, events)
        self._events = events
