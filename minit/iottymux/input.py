"""
The input of an app that clients attach to: its stdin, a pipe, or its terminal.

It has one owner at a time, whose bytes the app gets. Others wait their turn, in the order in which they came, unless
one takes over.
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
# The most that a terminal in line mode takes before a reader has taken it (n_tty).
_TTY_CHUNK_BYTES = 2048


class Input:
    """
    The write end `fd` of what the app reads, which does not block.

    `count` is told how many bytes went there, `on_end` that the app reads no more or has been told of the end.
    """

    def __init__(self, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]) -> None:
        self.owner: Peer | None = None
        self.ended = False
        self._fd = fd
        self._loop = loop
        self._count = count
        self._on_end = on_end
        self._waiting: list[Peer] = []
        self._is_full = False

    def add(self, peer: Peer, *, take: bool) -> str:
        """Let a peer be the owner, or wait for that; returns which, one of STDIN_STATES."""
        if self.ended:
            return STDIN_NONE
        if self.owner is None or take:
            self.take(peer)
            return STDIN_OWNER
        self._waiting.append(peer)
        self._make_wait(peer)
        return STDIN_OTHER

    def take(self, peer: Peer) -> None:
        """Make a peer the owner; the one before it is the next to follow."""
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
        """Forget a peer; if it was the owner, the next one in turn is."""
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
        """Pass on what a peer has sent."""
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
    """The app's stdin: what a client sends moves there without being copied, or waits in the client's socket."""

    def __init__(self, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]) -> None:
        super().__init__(fd, loop, count, on_end)
        # Without events: EPOLLERR, that nobody has the other end any more, is told all the same.
        loop.watch(fd, self._on_event, 0)

    def pump(self, peer: Peer) -> None:
        """Pass on what a peer has sent; its end of file is the app's if it stays connected."""
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
        """Close the app's stdin, as far as it is here."""
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
    The app's terminal, by the descriptor of the master that nobody else waits for.

    Keys of others than the owner are not kept: a terminal that comes to life with old input would do harm.
    """

    def __init__(self, fd: int, loop: Loop, count: Callable[[int], None], on_end: Callable[[], None]) -> None:
        super().__init__(fd, loop, count, on_end)
        self._rest = b""
        self._last = b"\n"

    def pump(self, peer: Peer) -> None:
        """Pass on what a peer has typed; at its end of file the app is told as a terminal does it, by a key."""
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
        # The first one only ends a line that has been begun.
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
                # EIO: the terminal is gone, which the output says too.
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
