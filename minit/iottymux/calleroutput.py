"""An app's output on the caller's standard output and error, with the waiting bytes and the positions."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import termios
from collections.abc import Mapping

from minit.base.errors import AttachError, describe
from minit.iottymux.buffers import unread_bytes
from minit.iottymux.callerterminal import RawTerminal, ScreenModes, without_queries
from minit.iottymux.protocol import INPUTS, STDERR, TTY_OUT
from minit.linux.stdio import complain, reopen_without_blocking

_CHUNK_BYTES = 128 * 1024
# A write of so many bytes does not block where epoll(7) reports room, PIPE_BUF of pipe(7).
_BLOCKING_BYTES = 4096
# The number of reads from a stream before other streams get their turn.
_ROUNDS = 16


class CallerOutput:
    """
    Descriptors 1 and 2 of the caller, for the app's outputs among `streams`.

    A stream is not read while earlier bytes wait for room. With `is_quiet` only a person is told of anything else.
    """

    def __init__(self, streams: tuple[str, ...], terminal: RawTerminal, *, is_quiet: bool) -> None:
        self._terminal = terminal
        self._is_silent = is_quiet and not os.isatty(2)
        self._screen_modes = ScreenModes()
        self._output = _Descriptor(1, "standard output")
        error = _Descriptor(2, "standard error") if STDERR in streams else None
        self._descriptors = [self._output] if error is None else [self._output, error]
        self._sources = {
            name: _Source(name, error if error is not None and name == STDERR else self._output)
            for name in streams
            if name not in INPUTS
        }
        self._sources_by_fd: dict[int, _Source] = {}
        self._positions: dict[str, int] = {}

    @property
    def is_wanted(self) -> bool:
        """Tell whether any stream is an output."""
        return bool(self._sources)

    @property
    def is_waiting(self) -> bool:
        """Tell whether something waits for room."""
        return any(descriptor.waiting for descriptor in self._descriptors)

    @property
    def has_ended(self) -> bool:
        """Tell whether every output is at its end."""
        return all(source.has_ended for source in self._sources.values())

    @property
    def unmarked(self) -> tuple[str, ...]:
        """The outputs that no person looks at: a reader would take the sidecar's line for a line of the app."""
        return tuple(name for name, source in self._sources.items() if not source.descriptor.is_terminal)

    def lost_bytes(self) -> dict[str, int]:
        """Return the missing bytes of each output, without those that have a marker."""
        return {name: source.lost_bytes for name, source in self._sources.items() if source.lost_bytes}

    def taken_bytes(self) -> int:
        """Return a number that grows whenever a reader takes written bytes."""
        return sum(descriptor.taken_bytes() for descriptor in self._descriptors)

    def positions(self) -> tuple[tuple[str, int], ...]:
        """Return each output's position before the next bytes; empty before the first session."""
        # Kept for another kill of the sidecar before its answer.
        self._positions.update(
            (source.name, source.position) for source in self._sources.values() if source.position is not None
        )
        return tuple(self._positions.items())

    def use(self, outputs: Mapping[str, int]) -> None:
        """Read the outputs from these descriptors of another session from now on."""
        self._sources_by_fd = {outputs[name]: source for name, source in self._sources.items()}
        for source in self._sources.values():
            source.begin()

    def start(self, positions: object) -> None:
        """Take the sidecar's answer into account: the `positions` of the next bytes, and a replay the first time."""
        for source in self._sources.values():
            start = positions.get(source.name) if isinstance(positions, dict) else None
            source.start = start if isinstance(start, int) else None
        if not self._positions:
            for fd, source in self._sources_by_fd.items():
                if source.name == TTY_OUT and source.descriptor.is_terminal:
                    self._show_replay(fd, source)

    def note_dropped(self, name: object, size_bytes: object, marker_bytes: object) -> None:
        """Count missing bytes of an output, perhaps with a marker; nonsense is ignored."""
        source = self._sources.get(str(name))
        if source is not None and isinstance(size_bytes, int) and isinstance(marker_bytes, int):
            source.received += size_bytes - marker_bytes
            source.lost_bytes += 0 if marker_bytes else size_bytes

    def interest(self, *, is_read: bool) -> dict[int, int]:
        """Return the events of epoll(7) to wait for, by descriptor; with `is_read` the outputs are included."""
        interest = {descriptor.fd: select.POLLOUT for descriptor in self._descriptors if descriptor.waiting}
        for fd, source in self._sources_by_fd.items() if is_read else ():
            if not source.has_ended and not source.descriptor.waiting:
                interest[fd] = select.POLLIN
        return interest

    def handle(self, fd: int) -> None:
        """Pass on output at a ready descriptor; nothing for an unknown descriptor."""
        if fd in self._sources_by_fd:
            source = self._sources_by_fd[fd]
            for _ in range(_ROUNDS):
                if source.descriptor.waiting or not self._read_once(fd, source):
                    return
        for descriptor in self._descriptors:
            if descriptor.fd == fd and descriptor.waiting:
                descriptor.flush()

    def drain(self, *, is_read: bool) -> None:
        """Pass on the received output, if `is_read`, and forget the descriptors, which a session closes next."""
        for fd, source in self._sources_by_fd.items() if is_read else ():
            while self._read_once(fd, source):
                pass
        self._sources_by_fd = {}

    def restore_screen(self) -> None:
        """
        Switch back the modes that the app has set on the caller's terminal: after detaching from an editor a user wants
        a shell.
        """
        restoring = self._screen_modes.restore()
        if restoring:
            try:
                os.write(self._output.fd, restoring)
            except OSError:
                pass  # it is gone, or takes nothing

    def say(self, text: str) -> None:
        """Write a line of minit to standard error, but not at the end of an app's line."""
        if self._is_silent:
            return
        unfinished = any(each.is_terminal and each.last_byte != b"\n" for each in self._descriptors)
        for descriptor in self._descriptors:
            descriptor.last_byte = b"\n"
        complain(f"attach: {text}", ends_another=unfinished and os.isatty(2))

    def _show_replay(self, fd: int, source: _Source) -> None:
        size = int.from_bytes(fcntl.ioctl(fd, termios.FIONREAD, bytes(4)), "little")
        data = os.read(fd, size)
        source.received += len(data)
        self._screen_modes.feed(data)
        source.descriptor.put(without_queries(data))

    def _read_once(self, fd: int, source: _Source) -> bool:
        """Pass on a single read; False if there was nothing."""
        if source.has_ended:
            return False
        try:
            data = os.read(fd, _CHUNK_BYTES)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""  # it left unread what was sent to it
        if not data:
            source.has_ended = True
            return False
        source.received += len(data)
        if self._terminal.is_raw and source.descriptor.is_terminal:
            if source.name == TTY_OUT:
                self._screen_modes.feed(data)
            else:
                # The output did not come through a terminal, and the caller's terminal adds no carriage returns now.
                data = data.replace(b"\n", b"\r\n")
        source.descriptor.put(data)
        return True


class _Descriptor:
    """A descriptor of the caller, with its unwritten bytes."""

    def __init__(self, fd: int, name: str) -> None:
        self.fd = reopen_without_blocking(fd, os.O_WRONLY)
        self.is_terminal = os.isatty(fd)
        self.last_byte = b"\n"
        self.waiting = b""
        self._name = name
        self._is_pipe = stat.S_ISFIFO(os.fstat(fd).st_mode)
        self._written_bytes = 0
        may_block = self.fd == fd and not stat.S_ISREG(os.fstat(fd).st_mode)
        self._most_bytes = _BLOCKING_BYTES if may_block else _CHUNK_BYTES

    def put(self, data: bytes) -> None:
        """Write, and keep the rest; AttachError after a final failure."""
        self.last_byte = data[-1:] or self.last_byte
        self.waiting += data
        self.flush()

    def flush(self) -> None:
        """Write the kept bytes once."""
        try:
            size = os.write(self.fd, self.waiting[: self._most_bytes])
        except BlockingIOError:
            return
        except OSError as error:
            raise AttachError(f"write {self._name}: {describe(error)}") from error
        self.waiting = self.waiting[size:]
        self._written_bytes += size

    def taken_bytes(self) -> int:
        """Return how many written bytes a reader has taken, as far as known."""
        return self._written_bytes - (unread_bytes(self.fd) if self._is_pipe else 0)


class _Source:
    """
    An output of the app.

    `start` is the position of the first byte in this session, once known, and `received` the number of bytes since,
    including missing ones.
    """

    def __init__(self, name: str, descriptor: _Descriptor) -> None:
        self.name = name
        self.descriptor = descriptor
        self.lost_bytes = 0
        self.begin()

    def begin(self) -> None:
        """Forget the session before."""
        self.start: int | None = None
        self.received = 0
        self.has_ended = False

    @property
    def position(self) -> int | None:
        """The position of the next byte, None while unknown."""
        return None if self.start is None else max(0, self.start + self.received)
