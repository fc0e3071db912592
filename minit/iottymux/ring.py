"""
The last output of a stream for later clients, its counters, and its log.

The ring is a pipe, into which output moves without a copy. PID 1 holds the ring and the counters, which therefore
outlive the sidecar.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
from collections.abc import Callable
from functools import partial
from typing import Protocol

from minit.iottymux.buffers import unread_bytes
from minit.iottymux.logfile import LINE_BYTES, LOG, PLAIN_LOG
from minit.linux import syscalls

RING_BYTES = 64 * 1024
# As much again as is moved at a time, or a stream at full speed would be moved in small steps.
CHUNK_BYTES = 256 * 1024
# The size of an app's pipe, and of the pipes for its output.
APP_PIPE_BYTES = 256 * 1024
_PIPE_BYTES = 1 << 20
_FULL_BYTES = 768 * 1024
_SPLICE_NONBLOCK = 2

_NUMBER = struct.Struct("<Q")
_PAIR = struct.Struct("<QQ")
_BYTES = 4096
_MOST = 2**64 - 1

CLIENTS = "clients"
ROWS = "rows"
COLUMNS = "columns"
BYTES_IN = "bytes_in"
DROPPED_BYTES = "dropped_bytes"
FLUSHES = "flushes"
INTAKE_FROM = "intake-from"
_RING = ("stdout", "stderr", "tty-out")
# The position at which the intake of the terminal begins; and of each output how much has gone into its ring, how much
# was in there then, whether the output ever had a client, the number of its clients, and how much is in each log, with
# the time of the write in progress, since 1970.
_FIELDS = (
    CLIENTS,
    ROWS,
    COLUMNS,
    BYTES_IN,
    DROPPED_BYTES,
    FLUSHES,
    INTAKE_FROM,
    *(f"{n}:{x}" for n in _RING for x in ("at", "in", "seen", "peers")),
    *(f"{n}:{log}{x}" for n in _RING for log in (LOG, PLAIN_LOG) for x in ("", ":ns")),
)
OFFSETS = {name: number * _NUMBER.size for number, name in enumerate(_FIELDS)}


class Scratch:
    """The pipe `fd`, of any size, for reading other pipes without consuming their bytes; leftovers go to `null`."""

    def __init__(self, fd: int, null: int) -> None:
        self.fd = fd
        # A killed sidecar may have left bytes there.
        while size_bytes := unread_bytes(fd):
            os.splice(fd, null, size_bytes)

    def tee(self, fd: int, size_bytes: int) -> int:
        """
        Fill the empty scratch with the first bytes of the pipe `fd`, and return their number; 0 at the pipe's end.
        """
        return syscalls.tee(fd, self.fd, size_bytes)

    def take(self, size_bytes: int) -> bytes:
        """Return so many bytes of the scratch."""
        data = os.read(self.fd, size_bytes)
        if len(data) == size_bytes:
            return data
        # Packets (O_DIRECT) come separately.
        parts, size = [data], len(data)
        while size < size_bytes:
            parts.append(os.read(self.fd, size_bytes - size))
            size += len(parts[-1])
        return b"".join(parts)


class Ring:
    """
    The last RING_BYTES of the output `name` of an app, or `keep_bytes` if larger, and for a moment some more.

    `position` is how much ever went in.

    The counters have position and size after each change, and a change either adds or takes away: a sidecar killed in
    between leaves no doubt about its progress.
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
        """The number of the output's clients; like the ring it outlives the sidecar."""
        return self._counters.peers(self.name)

    def note_peers(self, count: int) -> None:
        """Note how many clients the output has."""
        self._counters.set_peers(self.name, count)

    @property
    def is_seen(self) -> bool:
        """Tell whether the output ever had a client."""
        return self._counters.is_seen(self.name)

    def see(self) -> bool:
        """Note that the output has a client; return whether there was a client before."""
        return self._counters.see(self.name)

    def move_from(self, pipe: int, size_bytes: int) -> None:
        """Consume so many bytes of `pipe`."""
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
        """Add bytes read elsewhere."""
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
        """Discard surplus bytes, once the saving is worth the work."""
        if self.size > self.keep_bytes + RING_BYTES:
            self._discard(self.size - self.keep_bytes)

    def read(self) -> bytes:
        """Return all bytes of the ring."""
        if not self.size:
            return b""
        teed = self._scratch.tee(self._fd, self.size)
        data = self._scratch.take(teed)
        if teed < self.size:
            # This machine did not allow a large enough scratch.
            data = os.read(self._fd, self.size)
            while len(data) < self.size:
                data += os.read(self._fd, self.size - len(data))
            os.write(self._fd, data)
        return data

    def _make_room(self, size_bytes: int) -> None:
        # Pages discarded while in the caches make the app's next writes cheaper.
        most = min(_FULL_BYTES, self.keep_bytes + CHUNK_BYTES)
        if self.size + size_bytes > most:
            kept = min(self.keep_bytes, _FULL_BYTES)
            self._discard(min(self.size, self.size + size_bytes - kept))

    def _free_slots(self) -> None:
        """Discard some bytes, as small writes have filled all slots of the pipe, or the pipe has few slots."""
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
    Return a single descriptor for both ends of a new pipe, which does not block: a ring or a scratch, to be kept by PID
    1.

    A sidecar could have only a small pipe, or none, after its user has exhausted the limit for all pipes (pipe(7),
    pipe-user-pages-soft).
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
    """Let a pipe hold so many bytes, if the machine allows that (pipe(7), pipe-user-pages-soft)."""
    try:
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size_bytes)
    except OSError:
        pass  # in smaller steps it works as well


def make_counters() -> int:
    """Return the descriptor of a new file, all zero."""
    fd = os.memfd_create("counters", os.MFD_CLOEXEC)
    os.ftruncate(fd, _BYTES)
    return fd


def read_counters(fd: int) -> dict[str, int]:
    """
    Return the present numbers: attached `clients`, `rows` and `columns` of the terminal (0 without one), `bytes_in` to
    the app's input, `bytes_out` written by the app, and `dropped_bytes` lost by slow clients.
    """
    data = os.pread(fd, _BYTES, 0)
    numbers = {name: _number(data, name) for name in (CLIENTS, ROWS, COLUMNS, BYTES_IN, DROPPED_BYTES)}
    return {**numbers, "bytes_out": sum(_number(data, f"{name}:at") for name in _RING)}


def read_flushes(fd: int) -> int:
    """Return a number that grows whenever a client takes waiting output."""
    return _number(os.pread(fd, _BYTES, 0), FLUSHES)


def read_intake(fd: int) -> tuple[int, int]:
    """Return the position at which the intake of the terminal begins, and the position of the ring's end."""
    data = os.pread(fd, _BYTES, 0)
    return _number(data, INTAKE_FROM), _number(data, "tty-out:at")


def read_unlogged(fd: int, name: str) -> int:
    """Return how many bytes of an output are in its ring and not in the log."""
    data = os.pread(fd, _BYTES, 0)
    return max(0, _number(data, f"{name}:at") - _number(data, f"{name}:{LOG}"))


def find_logged(fd: int, name: str, written_bytes: Callable[[int], int]) -> int:
    """
    Note what a killed sidecar has logged of an output, and return how much of that is not in the ring yet.

    `written_bytes` returns how much of the output of a time since 1970 is in the log. An OutputLog does the same by a
    mapping, which PID 1 must not have: a file cut short by a hostile sidecar would end PID 1 by SIGBUS.
    """
    data = os.pread(fd, _BYTES, 0)
    position, tried_ns = _number(data, f"{name}:{LOG}"), _number(data, f"{name}:{LOG}:ns")
    if tried_ns:
        position = min(position + written_bytes(tried_ns), _MOST)
        os.pwrite(fd, _PAIR.pack(position, 0), OFFSETS[f"{name}:{LOG}"])
    return max(0, position - _number(data, f"{name}:at"))


def _number(data: bytes, name: str) -> int:
    # An app that has taken over a sidecar could have cut the file short.
    return int.from_bytes(data[OFFSETS[name] :][: _NUMBER.size], "little")


class Counters:
    """
    The numbers by name, 64 bits each, in a file in memory made and kept by PID 1 (memfd_create(2)): a sidecar that
    takes over from a killed sidecar goes on with them.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._memory = mmap.mmap(fd, _BYTES)

    def __getitem__(self, name: str) -> int:
        number: int = _NUMBER.unpack_from(self._memory, OFFSETS[name])[0]
        return number

    def __setitem__(self, name: str, number: int) -> None:
        _NUMBER.pack_into(self._memory, OFFSETS[name], number)

    def set_ring(self, name: str, position: int, size_bytes: int) -> None:
        """Note the two numbers about the ring of an output together."""
        _PAIR.pack_into(self._memory, OFFSETS[f"{name}:at"], position, size_bytes)

    def ring(self, name: str) -> tuple[int, int]:
        """Return the last arguments of `set_ring`."""
        position, size_bytes = _PAIR.unpack_from(self._memory, OFFSETS[f"{name}:at"])
        return position, size_bytes

    def set_logged(self, name: str, log: str, position: int, now_ns: int = 0) -> None:
        """Note how much of an output is in a log, and that more is being written at `now_ns`."""
        _PAIR.pack_into(self._memory, OFFSETS[f"{name}:{log}"], position, now_ns)

    def logged(self, name: str, log: str) -> tuple[int, int]:
        """Return the last arguments of `set_logged`."""
        position, now_ns = _PAIR.unpack_from(self._memory, OFFSETS[f"{name}:{log}"])
        return position, now_ns

    def is_seen(self, name: str) -> bool:
        """Return whether an output ever had a client."""
        return bool(self[f"{name}:seen"])

    def see(self, name: str) -> bool:
        """Note that an output has a client; return whether there was a client before."""
        seen = self.is_seen(name)
        self[f"{name}:seen"] = 1
        return seen

    def peers(self, name: str) -> int:
        """Return how many clients an output has, or had when the sidecar before was killed."""
        return self[f"{name}:peers"]

    def set_peers(self, name: str, count: int) -> None:
        """Note how many clients an output has."""
        self[f"{name}:peers"] = count

    def read(self) -> dict[str, int]:
        """Return the numbers as `read_counters` does."""
        return read_counters(self._fd)


class LineLog(Protocol):
    """A log for whole lines of a stream; `kind` is its name among the counters."""

    kind: str

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object]) -> None:
        """Append output, and report its time, in nanoseconds since 1970, before any of the output is written."""

    def written_bytes(self, stream: str, now_ns: int) -> int:
        """Return how much of the output of `now_ns` is there, if anybody can tell."""

    def note_lost(self, size_bytes: int) -> None:
        """Report so many missing bytes before the next output."""

    def reopen(self) -> None:
        """Close a file that was moved."""


class OutputLog:
    """
    The whole lines of an output in `log`, as `stream`, and parts of lines too long to be kept.

    The output goes to `ring` too, after logging; the beginning of a line is only there. The counters have the logged
    position and the time of a write in progress, and so outlive the sidecar: the records of that time are the written
    part.
    """

    def __init__(self, stream: str, log: LineLog, ring: Ring, counters: Counters) -> None:
        self._stream = stream
        self._log = log
        self._ring = ring
        self._counters = counters
        position, tried_ns = counters.logged(ring.name, log.kind)
        if tried_ns:
            position += log.written_bytes(stream, tried_ns)
            counters.set_logged(ring.name, log.kind, position)
        self._position = position
        self._skip = max(0, position - ring.position)
        kept = ring.read()
        missing = ring.position - len(kept) - position
        if missing > 0:
            log.note_lost(missing)
        self._unfinished = kept[max(0, -missing) :]

    def put(self, data: bytes, *, ended: bool = False) -> None:
        """Log the ring's next output up to the last line feed, or with `ended` all of it."""
        end = self._ring.position + len(data)
        skipped = min(self._skip, len(data))
        self._skip -= skipped
        lines, line_feed, rest = (self._unfinished + data[skipped:]).rpartition(b"\n")
        if len(rest) >= LINE_BYTES or ended:
            lines, line_feed, rest = lines + line_feed + rest, b"", b""
        self._unfinished = rest
        if lines or line_feed:
            note_time = partial(self._counters.set_logged, self._ring.name, self._log.kind, self._position)
            self._log.write(self._stream, lines + line_feed, note_time)
            self._position = end - len(rest)
            self._counters.set_logged(self._ring.name, self._log.kind, self._position)
