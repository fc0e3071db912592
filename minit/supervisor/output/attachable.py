"""
The streams of an app that clients attach to, as PID 1 makes and holds them.

PID 1 keeps no end that the app has, or nobody would ever see end of file; but it keeps a duplicate of everything that
the sidecar has, for another one.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import struct
import termios

from minit.base import jsontext
from minit.iottymux.linebuffer import unread_bytes
from minit.iottymux.protocol import STDERR, STDIN, STDOUT, TTY_OUT
from minit.iottymux.streams.counters import make_counters, read_counters, read_flushes, read_intake, read_unlogged
from minit.iottymux.streams.intake import waiting_bytes
from minit.iottymux.streams.mux import COUNTERS, INPUT_ENDED, INTAKE, LISTENER, MASTER, RING, SCRATCH
from minit.iottymux.streams.ring import APP_PIPE_BYTES, enlarge_pipe, make_pipe
from minit.linux.loop import wait_events
from minit.linux.messages import Socket, receive_message
from minit.linux.terminal import read_size
from minit.plan.appplan import PIPE_STREAMS, STREAM_LOG_STREAM, STREAM_LOG_TTY, AppSpec
from minit.plan.root.mountoperations import TTY_GID
from minit.podfiles import paths
from minit.reaper.record import write_file
from minit.supervisor.exec.podconsole import PTMX, open_pty

_BACKLOG = 128
# One is all that a sidecar ever has to say.
_MESSAGES_AT_ONCE = 16
_ENDPOINTS_VERSION = 1
_DEFAULT_SIZE = struct.pack("=HHHH", 24, 80, 0, 0)
_NO_SIZE = bytes(4)


class Attachable:
    """
    The attachable streams of `app`: `held` are the descriptors that the sidecars share with PID 1, by the names that
    minit.iottymux.streams.mux has for them. `supervisor` is PID 1's end of the link to the present sidecar; it does not
    block. `logged` are the outputs that are in the app's log too, `plain_log` is the name of its file in the log mode
    k8s-plain.
    """

    def __init__(self, app: str) -> None:
        self.app = app
        self.held: dict[str, int] = {}
        self.supervisor: Socket | None = None
        self.logged: tuple[str, ...] = ()
        self.plain_log: str | None = None
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
                os.fchown(ends[MASTER], spec.process.uid, TTY_GID)
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

    def hear(self) -> bool:
        """Do what the sidecar has asked for so far, if that is not much; False if it is gone, or talks nonsense."""
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
        """Return how much of that it has taken from the terminal."""
        return waiting_bytes(self.held[INTAKE], *read_intake(self.held[COUNTERS])) if INTAKE in self.held else 0

    def unlogged_bytes(self) -> int:
        """Return how much output is in a ring and should be in the log, but is not."""
        return sum(read_unlogged(self.held[COUNTERS], name) for name in self.logged)

    def counters(self) -> dict[str, int]:
        """Return what the sidecars have counted."""
        return read_counters(self.held[COUNTERS])

    def flushes(self) -> int:
        """Return a number that grows while clients take what waits for them."""
        return read_flushes(self.held[COUNTERS])

    def supersede(self) -> None:
        """Leave the names of the sockets to the next process of the app; their clients stay."""
        self._withdraw()
        self._is_superseded = True

    def close(self) -> None:
        """Give up everything, and what shows that it can be attached to first."""
        if not self._is_superseded:
            self._withdraw()
        for fd in self.held.values():
            os.close(fd)
        self.held.clear()
        if self.supervisor is not None:
            self.supervisor.close()
            self.supervisor = None

    def _withdraw(self) -> None:
        for name in (paths.ENDPOINTS, *self.held):
            if name == paths.ENDPOINTS or name.startswith(LISTENER):
                _remove(f"{self._directory}/{name}")
        try:
            os.rmdir(self._directory)
        except OSError:
            pass  # it was never made, or somebody put something there

    def _listen(self, names: list[str]) -> None:
        """Make the sockets, and then the file that says so."""
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
        # Whole or not there, since it says that all can be attached to; not durable, since the sockets are not either.
        write_file(f"{self._directory}/.{paths.ENDPOINTS}", jsontext.dump(endpoints) + b"\n")
        os.rename(f"{self._directory}/.{paths.ENDPOINTS}", f"{self._directory}/{paths.ENDPOINTS}")


def _first_size() -> bytes:
    """Return the struct winsize of the terminal that the pod is started at, so that a client there changes nothing."""
    size = read_size()
    return _DEFAULT_SIZE if size is None or size.startswith(_NO_SIZE) else size


def _pipe(spec: AppSpec) -> tuple[int, int]:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    # An app that is not root may open /dev/stdout, which is this pipe, once more.
    os.fchown(writer, spec.process.uid, spec.process.gid)
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
