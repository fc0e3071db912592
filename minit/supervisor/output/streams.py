"""
The output of one process of an app: the pipes that the process writes to, and the streams that clients attach to.

PID 1 keeps none of the app's ends, or nobody would ever see end of file. But PID 1 keeps a duplicate of everything in
the sidecar, for another sidecar.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Iterable
from contextlib import suppress
from functools import partial

from minit.base import jsontext
from minit.base.carried import Carried, Descriptor
from minit.iottymux.buffers import LineBuffer, buffered_bytes, make_buffer, passed_bytes, unlogged_bytes, unread_bytes
from minit.iottymux.logfile import LINE_BYTES, Log
from minit.iottymux.mux import COUNTERS, INPUT_ENDED, INTAKE, LEAVING, LISTENER, MASTER, RING, SCRATCH
from minit.iottymux.output import waiting_bytes
from minit.iottymux.protocol import STDERR, STDIN, STDOUT, TTY_OUT
from minit.iottymux.ring import (
    APP_PIPE_BYTES,
    enlarge_pipe,
    find_logged,
    make_counters,
    make_pipe,
    read_counters,
    read_flushes,
    read_intake,
    read_unlogged,
)
from minit.linux.loop import wait_events
from minit.linux.messages import Socket, receive_message
from minit.linux.terminal import read_size
from minit.plan.appspec import AppSpec
from minit.plan.streams import PIPE_STREAMS, STREAM_LOG_STREAM, STREAM_LOG_TTY
from minit.podfiles import paths
from minit.reaper.record import write_file
from minit.supervisor.exec.podconsole import PTMX, open_pty

_DROPPED_AT_ONCE_BYTES = 64 * 1024
_LONG_LIFE_SECONDS = 10.0

_BACKLOG = 128
# A sidecar never has more than one to send.
_MESSAGES_AT_ONCE = 16
_ENDPOINTS_VERSION = 1
_DEFAULT_SIZE = struct.pack("=HHHH", 24, 80, 0, 0)
_NO_SIZE = bytes(4)


class Streams(Carried):
    """
    The read ends of a process's output, kept so that a new sidecar can take over from a dead one.

    `ends` are (name, read end, buffer), `pid` is the writing process, `sidecar` the pidfd of the reader, `attachable`
    the streams for clients, None without. `noted` are the last reported numbers of clients and of bytes lost by
    clients. `is_leaving` says that the reader has been told to leave the streams to another reader. `log` is the
    largest size of a log file in bytes, the largest number of files, and the path of the log in the host's directory,
    None for a log in the pod.

    `failures` counts the sidecars that died soon, one after the other, without any work. The present one was started at
    `started_at` of the monotonic clock, or the next one is due at `renew_at`. When there will be no more, `abandoned`
    are the outputs. `lost_bytes` is how much nobody has read. `earlier` is how much output of the app that comes first
    was left at the last look, and how many looks found no change; None before the first look.
    """

    app: str
    log: tuple[int, int, str | None]
    pid: int | None
    ends: list[tuple[str, Descriptor, Descriptor]]
    attachable: Attachable | None
    sidecar: Descriptor | None
    is_leaving: bool = False
    noted: tuple[int, int]
    failures: int
    started_at: float
    renew_at: float
    earlier: tuple[int, int] | None
    abandoned: list[Descriptor]
    lost_bytes: int
    _last_counters: dict[str, int] | None
    _progress: int

    def __init__(self, app: str, log: tuple[int, int, str | None]) -> None:
        self.app = app
        self.log = log
        self.pid = None
        self.ends = []
        self.attachable = None
        self.sidecar = None
        self.is_leaving = False
        self.noted = (0, 0)
        self.failures = 0
        self.started_at = self.renew_at = 0.0
        self.earlier = None
        self.abandoned = []
        self.lost_bytes = 0
        self._last_counters = None
        self._progress = 0

    def open(self, names: Iterable[str], uid: int = 0, gid: int = 0) -> dict[str, int]:
        """Make a pipe for each stream and return the write ends, the caller's, by name."""
        writers: dict[str, int] = {}
        try:
            for name in names:
                reader, writers[name] = os.pipe2(os.O_CLOEXEC)
                try:
                    self.ends.append((name, reader, make_buffer()))
                except OSError:
                    os.close(reader)
                    raise
                # A process that is not root may open /dev/stdout, a name of the pipe, once more.
                os.fchown(writers[name], uid, gid)
        except OSError:
            for fd in writers.values():
                os.close(fd)
            self.close()
            raise
        return writers

    def open_attachable(self, spec: AppSpec) -> dict[str, int]:
        """Make streams for clients and return the app's ends, the caller's, by name."""
        attachable = Attachable(self.app)
        ends = attachable.open(spec)
        self.attachable = attachable
        return ends

    @property
    def need_sidecar(self) -> bool:
        """Tell whether there is anything to read or to attach to."""
        return bool(self.ends or self.abandoned) or self.attachable is not None

    @property
    def at_end(self) -> bool:
        """Tell whether every pipe is empty and has no writer left, and all output is passed on."""
        logged = all(_at_end(fd) and not buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged and not self.abandoned and (self.attachable is None or self.attachable.at_end)

    @property
    def is_logged(self) -> bool:
        """Tell whether any output goes into the log."""
        attachable = self.attachable
        return bool(self.ends) or (attachable is not None and bool(attachable.logged or attachable.plain_log))

    def left_bytes(self) -> int:
        """Return how much output is left to pass on once nobody can add any; 0 while somebody can."""
        others = [] if self.attachable is None else self.attachable.outputs
        sources = [*(reader for _, reader, _ in self.ends), *self.abandoned, *others]
        has_ended = all(wait_events({fd: 0}, 0) == {fd: select.POLLHUP} for fd in sources)
        return max(self.unread_bytes(), self.unkept_bytes()) if has_ended else 0

    @property
    def has_clients(self) -> bool:
        """Tell whether a dead sidecar has left clients behind, and not ended well."""
        return self.attachable is not None and self.attachable.counters()["clients"] > 0

    def unread_bytes(self) -> int:
        """Return how much has not been passed on."""
        logged = sum(unread_bytes(fd) + buffered_bytes(buffer) for _, fd, buffer in self.ends)
        return logged + self._unread_bytes()

    def unkept_bytes(self) -> int:
        """Return how much will be nowhere if nobody goes on, neither in a log nor with a client."""
        unlogged = 0 if self.attachable is None else self.attachable.unlogged_bytes()
        logged = sum(unread_bytes(fd) + unlogged_bytes(buffer) for _, fd, buffer in self.ends)
        return logged + unlogged + self._unread_bytes()

    def _unread_bytes(self) -> int:
        of_abandoned = sum(unread_bytes(fd) for fd in self.abandoned)
        return of_abandoned + (0 if self.attachable is None else self.attachable.unread_bytes())

    def note_failure(self, lived_seconds: float) -> None:
        """
        Count a sidecar that has died, or could not be started; a sidecar that lived long or did any work begins a new
        row.
        """
        before, self._progress = self._progress, self._passed()
        is_useless = lived_seconds < _LONG_LIFE_SECONDS and self._progress == before
        self.failures = self.failures + 1 if is_useless else 1

    def _passed(self) -> int:
        taken = 0 if self.attachable is None else self.attachable.counters()["bytes_out"] + self.attachable.flushes()
        return taken + sum(passed_bytes(buffer) for _, _, buffer in self.ends)

    def find_logged(self, log: Log) -> None:
        """Take in how much the killed sidecar has logged without a note; there will be no other sidecar."""
        for name, _, buffer in self.ends:
            LineBuffer(buffer, LINE_BYTES).find_logged(partial(log.written_bytes, name))
        if self.attachable is not None:
            self.attachable.find_logged(log)

    def abandon(self) -> None:
        """Give up everything but the read ends, without which the app would wait for ever in a write."""
        self.lost_bytes = sum(unlogged_bytes(buffer) for _, _, buffer in self.ends)
        if self.attachable is not None:
            self.lost_bytes += self.attachable.taken_bytes() + self.attachable.unlogged_bytes()
        outputs = [os.dup(reader) for _, reader, _ in self.ends]
        outputs += [] if self.attachable is None else [os.dup(fd) for fd in self.attachable.outputs]
        self.close()
        for fd in outputs:
            os.set_blocking(fd, False)
        self.abandoned = outputs

    def drop(self, fd: int) -> bool:
        """Read some of an abandoned output for nobody; False at the end."""
        try:
            size_bytes = len(os.read(fd, _DROPPED_AT_ONCE_BYTES))
        except BlockingIOError:
            return True
        except OSError:
            size_bytes = 0  # EIO: nobody has the terminal open any more
        self.lost_bytes += size_bytes
        return size_bytes > 0

    def counters(self) -> dict[str, int] | None:
        """Return the counters about clients, None for a process without attachable streams."""
        return self._last_counters if self.attachable is None else self.attachable.counters()

    def flushes(self) -> int:
        """Return a growing number while output is still being sent to clients."""
        return 0 if self.attachable is None else self.attachable.flushes()

    def supersede(self) -> None:
        """Leave the names to the streams of the app's next process: those of the sockets for clients."""
        if self.attachable is not None:
            self.attachable.supersede()

    def close(self) -> None:
        """Give up everything."""
        while self.ends:
            _, reader, buffer = self.ends.pop()
            os.close(reader)
            os.close(buffer)
        while self.abandoned:
            os.close(self.abandoned.pop())
        if self.attachable is not None:
            self._last_counters = self.attachable.counters()
            attachable, self.attachable = self.attachable, None
            attachable.close()


def _at_end(fd: int) -> bool:
    return wait_events({fd: select.POLLIN}, 0) == {fd: select.POLLHUP}


class Attachable(Carried):
    """
    The attachable streams of `app`: `held` are the descriptors shared by the sidecars and PID 1, by the names in
    minit.iottymux.mux. `supervisor` is PID 1's non-blocking end of the link to the present sidecar, `predecessor` the
    end of the link to a sidecar that has left, with its clients in messages to the next sidecar. `logged` are the
    outputs also in the app's log, `plain_log` is the name of the file in the log mode k8s-plain.
    """

    app: str
    held: dict[str, Descriptor]
    supervisor: Socket | None
    predecessor: Socket | None = None
    logged: tuple[str, ...]
    plain_log: str | None
    _directory: str
    _is_superseded: bool

    def __init__(self, app: str) -> None:
        self.app = app
        self.held = {}
        self.supervisor = self.predecessor = None
        self.logged = ()
        self.plain_log = None
        self._directory = paths.iottymux_directory(app)
        self._is_superseded = False

    def open(self, spec: AppSpec) -> dict[str, int]:
        """Make everything, and return the app's ends, the caller's, by `stdin`, `stdout`, `stderr` and `tty`."""
        modes = {STDOUT: spec.streams.stdout, STDERR: spec.streams.stderr}
        self.logged = tuple(name for name, mode in modes.items() if mode == STREAM_LOG_STREAM)
        self.logged += (TTY_OUT,) if STREAM_LOG_TTY in modes.values() else ()
        self.plain_log = spec.streams.kubernetes_log
        ends: dict[str, int] = {}
        try:
            if spec.streams.stdin in PIPE_STREAMS:
                ends[STDIN], self.held[STDIN] = _pipe(spec)
                os.set_blocking(self.held[STDIN], False)
            for name, mode in modes.items():
                if mode in PIPE_STREAMS:
                    self.held[name], ends[name] = _pipe(spec)
                    enlarge_pipe(ends[name], APP_PIPE_BYTES)
                    self.held[RING + name] = make_pipe()
            if spec.streams.has_tty:
                self.held[MASTER], ends[MASTER] = open_pty(PTMX)
                os.fchown(ends[MASTER], spec.confinement.uid, -1)
                fcntl.ioctl(ends[MASTER], termios.TIOCSWINSZ, _first_size())
                self.held[RING + TTY_OUT] = make_pipe()
                self.held[INTAKE] = make_pipe()
            self.held[SCRATCH] = make_pipe()
            self.held[COUNTERS] = make_counters()
            self._listen([name for name in (STDIN, STDOUT, STDERR, MASTER) if name in self.held])
        except OSError:
            for fd in ends.values():
                os.close(fd)
            self.close()
            raise
        return ends

    def hear(self, *, is_leaving: bool = False) -> bool:
        """
        Carry out a few requests of the sidecar; False if the sidecar is gone, or talks nonsense.

        A sidecar that `is_leaving`, and says that it reads nothing any more, becomes the predecessor of the next.
        """
        assert self.supervisor is not None
        for _ in range(_MESSAGES_AT_ONCE):
            try:
                message, descriptors = receive_message(self.supervisor)
            except BlockingIOError:
                return True
            except (OSError, ValueError):
                return False
            for fd in descriptors:
                os.close(fd)
            if message is None:
                return False
            if LEAVING in message and is_leaving:
                self.predecessor, self.supervisor = self.supervisor, None
                return False
            if INPUT_ENDED in message and STDIN in self.held:
                os.close(self.held.pop(STDIN))
        return True

    @property
    def outputs(self) -> list[int]:
        """The sources of the app's output."""
        return [self.held[name] for name in (STDOUT, STDERR, MASTER) if name in self.held]

    @property
    def at_end(self) -> bool:
        """Tell whether no output is left or can come; without any, whether nobody reads the input."""
        if outputs := self.outputs:
            return (
                not self.taken_bytes()
                and not self.unlogged_bytes()
                and all(wait_events({fd: select.POLLIN}, 0) == {fd: select.POLLHUP} for fd in outputs)
            )
        return STDIN not in self.held or wait_events({self.held[STDIN]: 0}, 0) == {self.held[STDIN]: select.POLLERR}

    def unread_bytes(self) -> int:
        """Return how much output the sidecar has not passed on yet."""
        return sum(unread_bytes(fd) for fd in self.outputs) + self.taken_bytes()

    def taken_bytes(self) -> int:
        """Return how much unread output the sidecar has taken from the terminal."""
        return waiting_bytes(self.held[INTAKE], *read_intake(self.held[COUNTERS])) if INTAKE in self.held else 0

    def unlogged_bytes(self) -> int:
        """Return how much output is in a ring and should be in the log, but is not."""
        return sum(read_unlogged(self.held[COUNTERS], name) for name in self.logged)

    def find_logged(self, log: Log) -> None:
        """Do as `Streams.find_logged`, and drop what is logged and was not taken away."""
        for name in self.logged:
            # A terminal has a single output in the log.
            written_bytes = partial(log.written_bytes, STDOUT if name == TTY_OUT else name)
            ahead_bytes = find_logged(self.held[COUNTERS], name, written_bytes)
            source = self.held[INTAKE if name == TTY_OUT else name]
            if ahead_bytes:
                os.set_blocking(source, False)
                with suppress(OSError):
                    os.read(source, min(ahead_bytes, APP_PIPE_BYTES))

    def counters(self) -> dict[str, int]:
        """Return the counters of the sidecars."""
        return read_counters(self.held[COUNTERS])

    def flushes(self) -> int:
        """Return a growing number while clients take waiting output."""
        return read_flushes(self.held[COUNTERS])

    def supersede(self) -> None:
        """Leave the names of the sockets to the next process of the app; the clients stay."""
        self._withdraw()
        self._is_superseded = True

    def close(self) -> None:
        """Give up everything, first the files by which clients attach."""
        if not self._is_superseded:
            self._withdraw()
        while self.held:
            os.close(self.held.popitem()[1])
        self.close_fields("supervisor", "predecessor")

    def _withdraw(self) -> None:
        for name in (paths.ENDPOINTS, *self.held):
            if name == paths.ENDPOINTS or name.startswith(LISTENER):
                _remove(f"{self._directory}/{name}")
        try:
            os.rmdir(self._directory)
        except OSError:
            pass  # it was never made, or somebody put something there

    def _listen(self, names: list[str]) -> None:
        """Make the sockets, and then the file that announces the sockets."""
        os.makedirs(self._directory, 0o755, exist_ok=True)
        directory = os.open(self._directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in (*(f"{paths.SOCKET_PREFIX}{name}" for name in names), paths.SESSION_SOCKET):
                kind = socket.SOCK_SEQPACKET if name == paths.SESSION_SOCKET else socket.SOCK_STREAM
                _remove(f"{self._directory}/{name}")
                # The path of an app with a long name does not fit into an address.
                self.held[name] = _listen(f"/proc/self/fd/{directory}/{name}", kind)
        finally:
            os.close(directory)
        targets = [
            {"name": name, "domain": "unix", "address": f"{self._directory}/{paths.SOCKET_PREFIX}{name}"}
            for name in names
        ]
        endpoints = {"version": _ENDPOINTS_VERSION, "targets": targets}
        # Whole or absent, since the file announces all sockets; not durable, like the sockets.
        write_file(f"{self._directory}/.{paths.ENDPOINTS}", jsontext.dump(endpoints) + b"\n")
        os.rename(f"{self._directory}/.{paths.ENDPOINTS}", f"{self._directory}/{paths.ENDPOINTS}")


def _first_size() -> bytes:
    """Return the struct winsize of the pod's terminal at the start, so that a client there changes nothing."""
    size = read_size()
    return _DEFAULT_SIZE if size is None or size.startswith(_NO_SIZE) else size


def _pipe(spec: AppSpec) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    # An app other than root may open /dev/stdout, a name of the pipe, once more.
    os.fchown(writer, spec.confinement.uid, spec.confinement.gid)
    return reader, writer


def _listen(path: str, kind: int) -> int:
    sock = socket.socket(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    mask = os.umask(0o177)
    try:
        sock.bind(path)
    finally:
        os.umask(mask)
    sock.listen(_BACKLOG)
    return sock.detach()


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass  # it is not there, or cannot be helped
