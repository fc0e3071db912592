"""A client's session with the sidecar of an app, and the sockets of its streams."""

from __future__ import annotations

import os
import socket
import stat

from minit.base.errors import AttachError, describe
from minit.iottymux.protocol import Attach
from minit.linux import syscalls
from minit.linux.messages import Socket, receive_message, send_message
from minit.podfiles import paths

_TIMEOUT_SECONDS = 15


class Session:
    """
    A connection with a request to attach; no method blocks.

    `outputs` has the descriptor of each output, `input` the input's or None without an input.
    """

    def __init__(self, sock: Socket, request: Attach) -> None:
        self._socket = sock
        self._streams: dict[str, Socket] = {}
        theirs = []
        for name in request.streams:
            self._streams[name], end = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            # Not by a flag of socketpair(2), which would hold for both ends.
            self._streams[name].setblocking(False)
            theirs.append(end)
        try:
            send_message(sock, request.request(), [end.fileno() for end in theirs])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it has refused the connection, and `receive` says so
        for end in theirs:
            end.close()
        sock.setblocking(False)
        self.fd = sock.fileno()
        self._input = None if request.input is None else self._streams[request.input]
        self.input = None if self._input is None else self._input.fileno()
        self.outputs = {name: ours.fileno() for name, ours in self._streams.items() if name != request.input}

    def send(self, message: dict[str, object]) -> bool:
        """Send a message unless that would block or the sidecar is gone; return whether the message is sent."""
        try:
            send_message(self._socket, message)
        except (BlockingIOError, BrokenPipeError, ConnectionResetError):
            return False
        return True

    def receive(self) -> dict[str, object] | None:
        """Return the next message, None at the session's end; BlockingIOError if there is none yet."""
        try:
            message, descriptors = receive_message(self._socket)
        except ValueError as error:
            raise AttachError(f"sidecar: {error}") from error
        for fd in descriptors:
            os.close(fd)
        return message

    def end_input(self) -> None:
        """Tell the app about the end of the input."""
        if self._input is not None:
            try:
                self._input.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # nobody is there, as the session says

    def close_input(self) -> None:
        """Send no more input, as nobody takes any."""
        if self._input is not None:
            try:
                self._input.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # nobody is there
        self._input = self.input = None

    def close(self) -> None:
        """Detach."""
        for ours in self._streams.values():
            ours.close()
        self._socket.close()


def connect(directory: int, app: str, request: Attach) -> Session:
    """
    Ask to attach to `app`, by the session socket in its `directory`, a descriptor.

    FileNotFoundError if nobody listens there any more, AttachError for any other failure.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    try:
        # By descriptor: a path may be longer than an address, and may lead through a link.
        fd = syscalls.openat2(
            directory, paths.SESSION_SOCKET, os.O_PATH, 0, syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
        )
        try:
            if not stat.S_ISSOCK(os.fstat(fd).st_mode):
                raise AttachError(f'app "{app}": {paths.SESSION_SOCKET} is no socket')
            # Not settimeout(): connect(2) would then not wait while the backlog is full.
            timeval = _TIMEOUT_SECONDS.to_bytes(8, "little") + bytes(8)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
            sock.connect(f"/proc/self/fd/{fd}")
        finally:
            os.close(fd)
        return Session(sock, request)
    except ConnectionRefusedError as error:
        raise FileNotFoundError(error.errno, error.strerror, paths.SESSION_SOCKET) from error
    except FileNotFoundError:
        raise
    except OSError as error:
        raise AttachError(f'app "{app}": cannot reach its sidecar: {describe(error)}') from error
