"""
The input of an app for attached clients: its stdin, a pipe, or its terminal.

The input has a single owner at a time, whose bytes the app gets. Other clients wait their turn, in the order of
arrival, unless a client takes the input over.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

from minit.iottymux.peer import Peer
from minit.iottymux.protocol import STDIN_NONE, STDIN_OTHER, STDIN_OWNER
from minit.linux.loop import Loop, wait_events
from minit.linux.terminal import end_of_file_key

_SPLICE_NONBLOCK = 2
_CHUNK_BYTES = 64 * 1024
# The most bytes that a terminal in line mode takes before a read (n_tty).
_TTY_CHUNK_BYTES = 2048


class Input:
    """
    The input `name` of the protocol, and the write end `fd`, which does not block.

    `count` is called with the number of bytes, `on_end` when the app reads no more or knows the end of the input.
    """

    def __init__(
        self, name: str, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]
    ) -> None:
        self.name = name
        self.owner: Peer | None = None
        self.ended = False
        self._fd = fd
        self._loop = loop
        self._count = count
        self._on_end = on_end
        self._waiting: list[Peer] = []
        self._is_full = False

    def add(self, peer: Peer, *, take: bool) -> str:
        """Let a peer own the input, or wait for its turn; return the state, of STDIN_STATES."""
        if self.ended:
            return STDIN_NONE
        if self.owner is None or take:
            self.take(peer)
            return STDIN_OWNER
        self._waiting.append(peer)
        self._make_wait(peer)
        return STDIN_OTHER

    def turn(self, peer: Peer) -> int | None:
        """Return how many peers come before a peer, 0 for the owner; None for a peer that waits for no turn."""
        peers = [self.owner, *self._waiting]
        return peers.index(peer) if peer in peers else None

    def take(self, peer: Peer) -> None:
        """Make a peer the owner; the owner before is the next in turn."""
        if peer is self.owner:
            return
        if peer in self._waiting:
            self._waiting.remove(peer)
        before, self.owner = self.owner, peer
        if before is not None:
            self._waiting.insert(0, before)
            self._make_wait(before)
            before.client.on_stdin_taken()
        peer.listen(not self._is_full)

    def remove(self, peer: Peer) -> None:
        """Forget a peer; after the owner the next in turn owns the input."""
        if peer in self._waiting:
            self._waiting.remove(peer)
        elif peer is self.owner:
            self.owner = None
            if self._waiting:
                self.take(self._waiting[0])
                self._given()

    def _given(self) -> None:
        assert self.owner is not None
        self.owner.client.on_stdin_given()

    def pump(self, peer: Peer) -> None:
        """Pass on the input of a peer."""
        raise NotImplementedError

    def end(self) -> None:
        """Take no more."""
        if self.ended:
            return
        self.ended = True
        peers = [*([] if self.owner is None else [self.owner]), *self._waiting]
        self.owner, self._waiting = None, []
        self._on_end()
        for peer in peers:
            peer.listen(False)
            peer.client.on_stdin_ended(peer)

    def _make_wait(self, peer: Peer) -> None:
        peer.listen(False)

    def _set_full(self, full: bool) -> None:
        self._is_full = full
        if self.owner is not None:
            self.owner.listen(not full)


class PipeInput(Input):
    """The app's stdin: a client's bytes move there without a copy, or wait in the client's socket."""

    def __init__(
        self, name: str, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(name, fd, loop, count, on_end)
        # No events: EPOLLERR, when nobody has the other end any more, is reported nevertheless.
        loop.watch(fd, self._on_event, 0)

    def pump(self, peer: Peer) -> None:
        """Pass on the input of a peer; its end of file ends the app's input if the peer stays connected."""
        try:
            moved = os.splice(peer.fd, self._fd, _CHUNK_BYTES, flags=_SPLICE_NONBLOCK)
        except BlockingIOError:
            if not _is_ready(self._fd, select.POLLOUT):
                self._set_full(True)
                self._loop.change(self._fd, select.EPOLLOUT)
            return
        except BrokenPipeError:
            self.end()
            return
        except OSError:
            peer.client.on_gone(peer)
            return
        if moved:
            self._count(moved)
        elif _is_ready(peer.fd, select.POLLHUP):
            peer.client.on_gone(peer)
        else:
            self.end()

    def end(self) -> None:
        """Close the sidecar's descriptor of the app's stdin."""
        if not self.ended:
            self._loop.unwatch(self._fd)
            super().end()
            os.close(self._fd)

    def _on_event(self, events: int) -> None:
        if events & select.EPOLLERR:
            self.end()
        elif events & select.EPOLLOUT:
            self._loop.change(self._fd, 0)
            self._set_full(False)


class TtyInput(Input):
    """
    The app's terminal, by a descriptor of the master that only this object waits for.

    Keys of clients other than the owner are dropped: a terminal that comes to life with old input would do harm.
    """

    def __init__(
        self, name: str, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]
    ) -> None:
        super().__init__(name, fd, loop, count, on_end)
        self._rest = b""
        self._last = b"\n"

    def typed(self) -> tuple[bytes, bytes]:
        """Return the keys that the terminal has not taken yet, and the last key, for `type_on`."""
        return self._rest, self._last

    def type_on(self, rest: bytes, last: bytes) -> None:
        """Go on with the keys of a sidecar before."""
        self._rest, self._last = rest, last
        self._write()

    def pump(self, peer: Peer) -> None:
        """Pass on typed keys of a peer; at its end of file the app is told by a key, as a terminal does."""
        try:
            data = os.read(peer.fd, _TTY_CHUNK_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data and peer is self.owner:
            self._type(data)
        elif not data:
            if _is_ready(peer.fd, select.POLLHUP):
                peer.client.on_gone(peer)
                return
            if peer is self.owner:
                self._type(self._end_of_file())
            self.remove(peer)
            peer.listen(False)
            peer.client.on_stdin_ended(peer)

    def end(self) -> None:
        """Type no more."""
        self._loop.unwatch(self._fd)
        super().end()

    def _make_wait(self, peer: Peer) -> None:
        peer.listen(True)

    def _end_of_file(self) -> bytes:
        key = end_of_file_key(self._fd)
        # The first key only ends an unfinished line.
        return key if self._last == b"\n" else key * 2

    def _type(self, data: bytes) -> None:
        self._rest += data
        self._last = data[-1:] or self._last
        self._count(len(data))
        self._write()

    def _write(self) -> None:
        while self._rest:
            try:
                written = os.write(self._fd, self._rest)
            except BlockingIOError:
                written = 0
            except OSError:
                # EIO: the terminal is gone, which the output reports too.
                self._rest, written = b"", 1
            if not written:
                self._loop.unwatch(self._fd)
                self._loop.watch(self._fd, self._on_event, select.EPOLLOUT)
                self._set_full(True)
                return
            self._rest = self._rest[written:]
        if self._is_full:
            self._loop.unwatch(self._fd)
            self._set_full(False)

    def _on_event(self, events: int) -> None:
        self._write()


def _is_ready(fd: int, event: int) -> bool:
    return bool(wait_events({fd: event}, 0).get(fd, 0) & event)
