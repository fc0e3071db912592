"""An output of an app for attached clients: a pipe or the master of its pty."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from minit.iottymux.buffers import interrupted_marker, unread_bytes
from minit.iottymux.peer import Peer
from minit.iottymux.ring import CHUNK_BYTES, INTAKE_FROM, RING_BYTES, Counters, OutputLog, Ring, Scratch
from minit.linux.loop import Loop

# To at most so many clients large output is sent without a copy; otherwise a single copy for all is cheaper.
_MOST_SPLICED = 8
_LEAST_SPLICED_BYTES = 16 * 1024
# Copies are made in pieces that stay in the caches, and for which memory is not mapped anew each time; but for many
# clients more turns for each of them are dearer.
_COPIED_BYTES = 64 * 1024

# The most bytes of a turn of the loop, so that a stream cannot keep others waiting.
_BURST_BYTES = 64 * 1024
# A read of a full terminal returns a byte less (n_tty); much less means the end of the present output.
_READ_BYTES = 4096
_SPLICE_NONBLOCK = 2


class Output:
    """
    The output `name` of the protocol: goes into each of `logs`, to every peer, and into the ring.

    `was_interrupted` says that another sidecar read the output before. Then nothing is read until as many clients as
    before are back, or `stop_awaiting` is called: clients would miss output that does not fit into the ring.
    """

    line_end = b"\n"

    def __init__(
        self, name: str, fd: int, loop: Loop, ring: Ring, logs: Sequence[OutputLog] = (), *, was_interrupted: bool
    ) -> None:
        self.name = name
        self.logs = logs
        self.ring = ring
        self.ended = False
        self.awaited = ring.peers if was_interrupted else 0
        self._fd = fd
        self._loop = loop
        self._holds = 0
        self._peers: list[Peer] = []
        self._queued: set[Peer] = set()
        self._behind: dict[Peer, tuple[int, int]] = {}
        self._sent_to = 0
        self._interrupted_at = ring.position if was_interrupted else None
        loop.watch(fd, self._on_event)
        if self.awaited:
            self.hold()

    def attach(self, peer: Peer, *, replay: bool, resume: int | None) -> int:
        """
        Send a peer the last output, and from now on all new output; return the peer's position before.

        The peer knows its later position: it adds all received bytes, and the lost bytes that markers announce. With
        `resume` the peer gets the output after that position instead, without a marker for an interruption, which it
        knows. Lost output is marked then, and also if no client was there before.
        """
        seen = self.ring.see()
        kept = self.ring.read()
        end = self.ring.position
        begin = end - len(kept)
        unseen = 0
        if resume is not None:
            start = resume
            # The peer may have received output that the killed sidecar had not recorded.
            peer.skip = max(0, resume - end)
        elif not replay:
            start = end
        else:
            start = max(begin, end - RING_BYTES)
            if start:
                # Not from the middle of a line, if there is a whole line.
                start += kept[start - begin :].find(b"\n") + 1
            if not seen:
                unseen = start
                peer.note_gap(unseen)
        mark_at = None if resume is not None else self._interrupted_at
        is_shown = peer.is_marked and mark_at is not None and mark_at >= start
        marker = interrupted_marker(self.line_end) if is_shown else b""
        self._send_from(peer, start, marker, mark_at or 0)
        return start - unseen - len(marker)

    def _send_from(self, peer: Peer, start: int, marker: bytes = b"", mark_at: int = 0) -> None:
        """Send a peer the output from a position on, with a marker at another position, and all new output."""
        kept = self.ring.read()
        end = self.ring.position
        begin = end - len(kept)
        if start < begin:
            self._lose(peer, begin - start)
            start = begin
        data = kept[start - begin :]
        if marker:
            data = data[: mark_at - start] + marker + data[mark_at - start :]
        peer.replay(data)
        if peer.is_closed:
            return
        if self.ended:
            peer.finish()
        else:
            self._peers.append(peer)
            self._note_peers()

    def _lose(self, peer: Peer, size_bytes: int) -> None:
        peer.note_gap(size_bytes)
        peer.client.on_dropped(size_bytes)

    def leave_behind(self, peer: Peer, waiting_bytes: int, missing_bytes: int) -> None:
        """
        Send nothing to a peer until the peer takes bytes again: the peer costs nothing, and loses the oldest output.

        `waiting_bytes` waited for the peer, and `missing_bytes` were missing before, which are counted already.
        """
        self._behind[peer] = self._sent_to - waiting_bytes - missing_bytes, missing_bytes
        if peer in self._peers:
            self._peers.remove(peer)

    def left_bytes(self, peer: Peer) -> int:
        """Return how many bytes a peer that was left behind lacks."""
        return self.ring.position - self._behind[peer][0]

    def catch_up(self, peer: Peer) -> None:
        """Send a peer that was left behind the last output, and a marker for the missing bytes before."""
        since, counted = self._behind.pop(peer)
        start = max(since, self.ring.position - RING_BYTES)
        peer.client.on_dropped(-counted)
        if start > since:
            self._lose(peer, start - since)
        self._send_from(peer, start)

    def place(self, peer: Peer) -> tuple[int, int]:
        """Return the position of the next byte for a peer, and how many of the bytes from there on count as lost."""
        if peer in self._behind:
            return self._behind[peer]
        missing_bytes = peer.missing_bytes
        return self.ring.position + peer.skip - peer.waiting_bytes - missing_bytes, missing_bytes

    def go_on(self, peer: Peer, position: int, counted_bytes: int) -> None:
        """Attach a peer of the sidecar before at its place."""
        peer.skip = max(0, position - self.ring.position)
        peer.client.on_dropped(-counted_bytes)
        self._send_from(peer, position)

    def heal(self) -> None:
        """Have no later client told of an interruption: the sidecar before has left in order."""
        self._interrupted_at = None

    def _note_peers(self) -> None:
        count = len(self._peers) + len(self._behind)
        self.ring.note_peers(count)
        if self.awaited and count >= self.awaited:
            self.stop_awaiting()

    def note_waiting(self, peer: Peer) -> None:
        """Note whether output waits for a peer."""
        if peer.waiting_bytes:
            self._queued.add(peer)
        else:
            self._queued.discard(peer)

    def detach(self, peer: Peer) -> None:
        """Forget a peer."""
        self._queued.discard(peer)
        if peer in self._behind:
            since, counted = self._behind.pop(peer)
            peer.client.on_dropped(self.ring.position - since - counted)
        if peer in self._peers:
            self._peers.remove(peer)
        self._note_peers()

    def stop_awaiting(self) -> None:
        """Go on without the missing clients of the sidecar before."""
        if self.awaited:
            self.awaited = 0
            self.release()

    def hold(self) -> None:
        """Read no more until `release` has been called as often."""
        self._holds += 1
        self._loop.unwatch(self._fd)

    def release(self) -> None:
        """Take back a `hold`."""
        self._holds -= 1
        if not self._holds and not self.ended:
            self._loop.watch(self._fd, self._on_event)

    def end(self) -> None:
        """Note the end of the output."""
        for log in self.logs:
            log.put(b"", ended=True)
        self.ended = True
        self._loop.unwatch(self._fd)
        peers, self._peers = [*self._peers, *self._behind], []
        for peer in peers:
            peer.finish()

    def _keep_what_waits(self) -> None:
        # After a kill of this sidecar clients get their unsent output from the next sidecar.
        self.ring.keep_bytes = max(RING_BYTES, max((peer.waiting_bytes for peer in self._queued), default=0))

    def _log(self, data: bytes) -> None:
        for log in self.logs:
            log.put(data)

    def _deliver(self, data: bytes) -> None:
        for peer in [*self._peers]:
            peer.offer(data)

    def _on_event(self, events: int) -> None:
        raise NotImplementedError


class PipeOutput(Output):
    """
    The app's stdout or stderr.

    The output is tee'd, sent or queued, and only then moved into the ring: a killed sidecar has passed on all output
    that it has taken.
    """

    def __init__(
        self,
        name: str,
        fd: int,
        loop: Loop,
        ring: Ring,
        scratch: Scratch,
        logs: Sequence[OutputLog],
        *,
        was_interrupted: bool,
    ) -> None:
        super().__init__(name, fd, loop, ring, logs, was_interrupted=was_interrupted)
        self._scratch = scratch

    def attach(self, peer: Peer, *, replay: bool, resume: int | None) -> int:
        """Attach as for any output; but many clients' sockets could hold too many bytes."""
        if len(self._peers) < _MOST_SPLICED:
            peer.make_room()
        return super().attach(peer, replay=replay, resume=resume)

    def _on_event(self, events: int) -> None:
        is_looked_at = bool(self.logs or self._peers)
        is_spliced = not self.logs and len(self._peers) <= _MOST_SPLICED and not self._queued
        is_large = is_spliced or (not self.logs and len(self._peers) > _MOST_SPLICED)
        most = CHUNK_BYTES if is_large else _COPIED_BYTES
        try:
            size = self._scratch.tee(self._fd, most) if is_looked_at else unread_bytes(self._fd)
        except BlockingIOError:
            size = 0
        if not size:
            if events & select.EPOLLHUP:
                self.end()
            return
        size = min(size, most)
        self._sent_to = self.ring.position + size
        if is_looked_at and is_spliced and (len(self._peers) == 1 or size >= _LEAST_SPLICED_BYTES):
            self._splice(size)
        elif is_looked_at:
            data = self._scratch.take(size)
            self._log(data)
            self._deliver(data)
        self._keep_what_waits()
        self.ring.move_from(self._fd, size)
        if size < most:
            self.ring.trim()

    def _splice(self, size_bytes: int) -> None:
        """Give every peer the bytes in the scratch, which are the first bytes in the app's pipe."""
        for number, peer in enumerate([*self._peers]):
            left = self._scratch.tee(self._fd, size_bytes) if number else size_bytes
            if peer.is_idle:
                left -= peer.splice_from(self._scratch.fd, left)
            if left:
                rest = self._scratch.take(left)
                if not peer.is_closed:
                    peer.offer(rest)


class TtyOutput(Output):
    """Output of the app to its terminal: taken until nothing is left, then sent as a single piece."""

    line_end = b"\r\n"

    def __init__(
        self,
        name: str,
        fd: int,
        loop: Loop,
        ring: Ring,
        intake: Intake,
        logs: Sequence[OutputLog],
        *,
        was_interrupted: bool,
    ) -> None:
        super().__init__(name, fd, loop, ring, logs, was_interrupted=was_interrupted)
        self._intake = intake
        if not self._holds:
            self._pass_on()

    def release(self) -> None:
        """Take back a `hold`; the rest of a killed sidecar comes first, even if nothing more comes."""
        super().release()
        if not self._holds:
            self._pass_on()

    def _on_event(self, events: int) -> None:
        ended = self._intake.fill(self._fd)
        self._pass_on()
        if ended:
            self.end()

    def _pass_on(self) -> None:
        while self._intake.size:
            data = self._intake.read()
            self._log(data)
            self.ring.write(data)
            self._intake.let_go()
            self._sent_to = self.ring.position
            self._deliver(data)
            self._keep_what_waits()
        self.ring.trim()


class Intake:
    """
    The pipe `fd` on the way from a terminal to `ring`, emptied when all its bytes are in the ring. PID 1 holds the pipe
    and the ring: bytes read from a terminal are nowhere else, and so outlive the sidecar.

    A sidecar killed in between leaves a pipe with a part already in the ring: the counters have the position of the
    pipe's first byte.
    """

    def __init__(self, fd: int, ring: Ring, null: int, scratch: Scratch, counters: Counters) -> None:
        self._fd = fd
        self._ring = ring
        self._null = null
        self._scratch = scratch
        self._counters = counters
        self._teed = 0
        self.size = unread_bytes(fd)

    def fill(self, terminal: int) -> bool:
        """Fill the empty pipe from the master of a terminal; return whether the terminal is at its end."""
        self._counters[INTAKE_FROM] = self._ring.position
        most = self.size + _BURST_BYTES
        try:
            while self.size < most:
                moved = os.splice(terminal, self._fd, _READ_BYTES, flags=_SPLICE_NONBLOCK)
                self.size += moved
                if moved < _READ_BYTES // 2:
                    break
        except BlockingIOError:
            pass
        except OSError:
            return True  # EIO: nobody has the terminal open any more
        return False

    def read(self) -> bytes:
        """Return the pipe's first bytes, all if the scratch is large enough, without the bytes already in the ring."""
        self._teed = self._scratch.tee(self._fd, self.size)
        return self._scratch.take(self._teed)[self._ring.position - self._counters[INTAKE_FROM] :]

    def let_go(self) -> None:
        """Remove the read bytes, which are in the ring, from the pipe."""
        while self._teed:
            gone = os.splice(self._fd, self._null, self._teed)
            self._teed -= gone
            self.size -= gone
        self._counters[INTAKE_FROM] = self._ring.position


def waiting_bytes(fd: int, begin: int, position: int) -> int:
    """Return how many bytes of the pipe `fd`, which begins at `begin`, are not in a ring whose end is at `position`."""
    return max(0, unread_bytes(fd) - (position - begin))
