"""
The last output of a stream, for whoever attaches later.

It is kept in a pipe, into which output moves without being copied, and which PID 1 holds: it outlives the sidecar.
"""

from __future__ import annotations

import fcntl
import os

from minit.iottymux.linebuffer import unread_bytes
from minit.iottymux.streams.counters import Counters
from minit.linux import syscalls

RING_BYTES = 64 * 1024
# As much again as is moved at a time, or a stream at full speed would be moved in small steps.
CHUNK_BYTES = 256 * 1024
# Of an app's pipe, and of those in which its output is kept.
APP_PIPE_BYTES = 256 * 1024
_PIPE_BYTES = 1 << 20
_FULL_BYTES = 768 * 1024
_SPLICE_NONBLOCK = 2


class Scratch:
    """The pipe `fd`, of any size, through which others are read without being consumed; what `null` is may go there."""

    def __init__(self, fd: int, null: int) -> None:
        self.fd = fd
        # A sidecar that was killed may have left something.
        while size_bytes := unread_bytes(fd):
            os.splice(fd, null, size_bytes)

    def tee(self, fd: int, size_bytes: int) -> int:
        """Fill the empty scratch with what the pipe `fd` holds first, and return how much that is; 0 at its end."""
        return syscalls.tee(fd, self.fd, size_bytes)

    def take(self, size_bytes: int) -> bytes:
        """Return so much of what the scratch holds."""
        data = os.read(self.fd, size_bytes)
        if len(data) == size_bytes:
            return data
        # Packets (O_DIRECT) come one by one.
        parts, size = [data], len(data)
        while size < size_bytes:
            parts.append(os.read(self.fd, size_bytes - size))
            size += len(parts[-1])
        return b"".join(parts)


class Ring:
    """
    The last RING_BYTES of the output `name` of an app, or `keep_bytes` if that is more, and for a moment some more.

    `position` is how much ever went in.

    The counters have position and size as they were after each change, and a change either adds or takes away: a
    sidecar that was killed in between leaves no doubt about how far it came.
    """

    def __init__(self, name: str, fd: int, null: int, scratch: Scratch, counters: Counters) -> None:
        self.name = name
        self._fd = fd
        self._null = null
        self._scratch = scratch
        self._counters = counters
        self.keep_bytes = RING_BYTES
        self.size = unread_bytes(fd)
        self.position, noted = counters.ring(name)
        self.position += max(0, self.size - noted)
        self._note()

    @property
    def peers(self) -> int:
        """The number of the output's clients; it outlives the sidecar, as the ring does."""
        return self._counters.peers(self.name)

    def note_peers(self, count: int) -> None:
        """Note how many clients the output has."""
        self._counters.set_peers(self.name, count)

    @property
    def is_seen(self) -> bool:
        """Tell whether the output ever had a client."""
        return self._counters.is_seen(self.name)

    def see(self) -> bool:
        """Note that the output has a client, and return whether it had one before."""
        return self._counters.see(self.name)

    def move_from(self, pipe: int, size_bytes: int) -> None:
        """Consume so much of what `pipe` holds."""
        self._make_room(size_bytes)
        while size_bytes:
            try:
                moved = os.splice(pipe, self._fd, size_bytes, flags=_SPLICE_NONBLOCK)
            except BlockingIOError:
                if not unread_bytes(pipe):
                    return  # the app has read its own output
                self._free_slots()
                continue
            size_bytes -= moved
            self._grow(moved)

    def write(self, data: bytes) -> None:
        """Add what was read elsewhere."""
        self._make_room(len(data))
        rest = memoryview(data)
        while rest:
            try:
                written = os.write(self._fd, rest)
            except BlockingIOError:
                self._free_slots()
                continue
            rest = rest[written:]
            self._grow(written)

    def trim(self) -> None:
        """Let go of what need not be kept, once that is worth the while."""
        if self.size > self.keep_bytes + RING_BYTES:
            self._discard(self.size - self.keep_bytes)

    def read(self) -> bytes:
        """Return all that it holds."""
        if not self.size:
            return b""
        teed = self._scratch.tee(self._fd, self.size)
        data = self._scratch.take(teed)
        if teed < self.size:
            # This machine did not let the scratch be as large.
            data = os.read(self._fd, self.size)
            while len(data) < self.size:
                data += os.read(self._fd, self.size - len(data))
            os.write(self._fd, data)
        return data

    def _make_room(self, size_bytes: int) -> None:
        # Pages that are let go of while they are in the caches make the app's next writes cheaper.
        most = min(_FULL_BYTES, self.keep_bytes + CHUNK_BYTES)
        if self.size + size_bytes > most:
            kept = min(self.keep_bytes, _FULL_BYTES)
            self._discard(min(self.size, self.size + size_bytes - kept))

    def _free_slots(self) -> None:
        """Let go of something, as small writes have filled all slots of the pipe, or it has but a few."""
        self._discard(max(self.size // 8 + 1, min((self.size + 1) // 2, self.size - self.keep_bytes)))

    def _grow(self, size_bytes: int) -> None:
        self.size += size_bytes
        self.position += size_bytes
        self._note()

    def _discard(self, size_bytes: int) -> None:
        while size_bytes:
            gone = os.splice(self._fd, self._null, size_bytes)
            size_bytes -= gone
            self.size -= gone
            self._note()

    def _note(self) -> None:
        self._counters.set_ring(self.name, self.position, self.size)


def make_pipe() -> int:
    """
    Return one descriptor for both ends of a new pipe, which does not block: a ring or a scratch, to be kept by PID 1.

    A sidecar could have a small one only, or none, where its user has used up what all pipes may hold together
    (pipe(7), pipe-user-pages-soft).
    """
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        fd = os.open(f"/proc/self/fd/{reader}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(reader)
        os.close(writer)
    enlarge_pipe(fd, _PIPE_BYTES)
    return fd


def enlarge_pipe(fd: int, size_bytes: int) -> None:
    """Let a pipe hold so much, if the machine allows it (pipe(7), pipe-user-pages-soft)."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)
    except OSError:
        pass  # in smaller steps it works as well
