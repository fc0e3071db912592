"""
The word of an app to PID 1 that the app is ready: sd_notify(3) on a socket, or a line feed on a descriptor, as for s6.

Messages there are an app's and untrusted: messages are bounded, and descriptors in messages are closed where a close
can hold up nobody.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence

from minit.base.carried import Carried, Descriptor
from minit.base.value import Value, replace
from minit.linux import syscalls
from minit.linux.forks import CLOSER, clone
from minit.linux.messages import Socket
from minit.plan.appspec import AppSpec
from minit.podfiles import paths
from minit.supervisor.apps.controlgroup import Group
from minit.supervisor.exec.notifyends import NotifyEnds

# systemd's bound for a message, PIPE_BUF.
_MESSAGE_BYTES = 4096
_STATUS_CHARACTERS = 256
# Messages read at a time, and bytes before the line feed; the rest of the pod has its turn in between.
_BATCH = 16
# A message costs PID 1 more than the sender, whose processor time may be limited.
_MOST_A_SECOND = 200
_LINE_BYTES = 4096
_MOST_QUEUED = 1024
_INT_BYTES = 4
_UCRED_BYTES = 12
_MOST_DESCRIPTORS = 253  # SCM_MAX_FD
_ANCILLARY_BYTES = socket.CMSG_SPACE(_UCRED_BYTES) + socket.CMSG_SPACE(_MOST_DESCRIPTORS * _INT_BYTES)


class Notification(Value):
    """The variables of a message with an effect in minit."""

    ready: bool = False
    stopping: bool = False
    status: str | None = None


def parse_notification(data: bytes) -> Notification:
    """Return the content of a message of sd_notify(3), without variables unused by or unknown to minit."""
    fields = dict(line.partition(b"=")[::2] for line in data.split(b"\n"))
    status = fields.get(b"STATUS")
    return Notification(
        ready=fields.get(b"READY") == b"1",
        stopping=fields.get(b"STOPPING") == b"1",
        status=None if status is None else status.decode(errors="replace")[:_STATUS_CHARACTERS],
    )


class Readiness(Carried):
    """
    The readiness of one app; the socket lives as long as the app's root, all else as long as the process.

    `refused` has the reason why the last message counted for nothing, None if there was none.
    """

    socket: Socket | None
    pipe: Descriptor | None
    is_ready: bool
    is_stopping: bool
    status: str | None
    refused: str | None
    _path: str
    _line_bytes: int
    _heard: int
    _heard_since: float

    def __init__(self) -> None:
        self.socket = None
        self.pipe = None
        self._path = ""
        self._line_bytes = 0
        self._heard = 0
        self._heard_since = 0.0
        self._forget()

    def _forget(self) -> None:
        self.is_ready = False
        self.is_stopping = False
        self.status = None
        self.refused = None

    def descriptors(self) -> list[int]:
        """Return the descriptors for PID 1 to listen to."""
        ours = [] if self.socket is None else [self.socket.fileno()]
        return ours if self.pipe is None else [*ours, self.pipe]

    def open_root(self, spec: AppSpec) -> NotifyEnds:
        """Make the socket for the app's root, for the process that only builds the root."""
        return self._open_socket() if spec.life.notifies else NotifyEnds()

    def open(self, spec: AppSpec) -> NotifyEnds:
        """
        Make the ends for a new process of the app and return them to the caller; words of an old process are over.
        """
        self.close_pipe()
        self._discard()
        self._forget()
        ends = self._open_socket() if spec.life.notifies and self.socket is None else NotifyEnds()
        if spec.life.notify_fd is None:
            return ends
        self.pipe, writer = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.pipe, False)
        # An app other than root may open the pipe once more by /proc/self/fd.
        os.fchown(writer, spec.confinement.uid, spec.confinement.gid)
        self._line_bytes = 0
        return replace(ends, pipe=writer)

    def read_socket(self, pid: int | None, group: Group) -> bool:
        """
        Take in some of the messages; messages from outside of the app's `group` count for nothing.

        False if there are too many: the next ones should wait for a second.
        """
        now = time.monotonic()
        if now - self._heard_since >= 1:
            self._heard, self._heard_since = 0, now
        for _ in range(_BATCH):
            message = self._receive()
            if message is None:
                break
            self._heard += 1
            data, sender = message
            if data is None:
                self.refused = f"a message of more than {_MESSAGE_BYTES} bytes"
            elif not sender or not (sender == pid or sender in group.processes() or _is_gone(sender)):
                self.refused = f"a message of process {sender}, which is not the app's"
            else:
                self._note(parse_notification(data))
        return self._heard < _MOST_A_SECOND

    def read_pipe(self) -> bool:
        """Take in the bytes on the descriptor; False after a line feed, or the end, when nothing more counts."""
        assert self.pipe is not None
        try:
            data = os.read(self.pipe, _LINE_BYTES)
        except BlockingIOError:
            return True
        self._line_bytes += len(data)
        self.is_ready = self.is_ready or b"\n" in data
        return bool(data) and b"\n" not in data and self._line_bytes < _LINE_BYTES

    def close_pipe(self) -> None:
        """Listen to the descriptor no more."""
        self.close_fields("pipe")

    def close(self) -> None:
        """Give up everything."""
        self.close_pipe()
        if self.socket is not None:
            self._discard()
            # Still there if the app's root could not be made; the next socket may get the same number.
            _remove(self._path)
            self.close_fields("socket")

    def _note(self, said: Notification) -> None:
        self.is_ready = self.is_ready or said.ready
        self.is_stopping = self.is_stopping or said.stopping
        self.status = self.status if said.status is None else said.status

    def _open_socket(self) -> NotifyEnds:
        """Make the socket and return a detached mount: so the app alone can reach the socket, in its root."""
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
        sock = socket.socket(socket.AF_UNIX, kind)
        # No app's name, which could be too long for an address.
        path = f"{paths.STAGE1_NOTIFY}{sock.fileno()}"
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            sock.bind(path)
            # For any of the app's users.
            os.chmod(path, 0o666)
            tree = syscalls.open_tree(syscalls.AT_FDCWD, path, syscalls.OPEN_TREE_CLONE)
        except OSError:
            _remove(path)
            sock.close()
            raise
        self.socket, self._path = sock, path
        return NotifyEnds(tree=tree, path=path)

    def _receive(self) -> tuple[bytes | None, int] | None:
        """Return the next message, with None for a message too long, and the sender's pid; None without a message."""
        assert self.socket is not None
        taken: list[int] = []
        try:
            data, ancillary, flags, _ = self.socket.recvmsg(
                _MESSAGE_BYTES, _ANCILLARY_BYTES, socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return None
        sender = 0
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
                sender = int.from_bytes(content[:_INT_BYTES], "little")
            elif (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                ends = range(0, len(content) - _INT_BYTES + 1, _INT_BYTES)
                taken += [int.from_bytes(content[at : at + _INT_BYTES], "little") for at in ends]
        # Before the next message: the kernel closes descriptors without room, in PID 1.
        close_elsewhere(taken)
        return None if flags & socket.MSG_TRUNC else data, sender

    def _discard(self) -> None:
        for _ in range(_MOST_QUEUED if self.socket is not None else 0):
            if self._receive() is None:
                break


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass


def _is_gone(pid: int) -> bool:
    """Return whether a process has ended: all processes able to reach the socket are the app's."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] in ([b"Z"], [b"X"])
    except OSError:
        return True


def close_elsewhere(fds: Sequence[int], fork: Callable[..., tuple[int, int]] = clone) -> None:
    """
    Close descriptors sent by an app, the last time in another process.

    The last close can wait for as long as the sender likes, as the close of a lingering socket does.
    """
    if not fds:
        return
    ends: tuple[int, ...] = ()
    try:
        ends = reader, _ = os.pipe2(os.O_CLOEXEC)
        _, pidfd = fork(CLOSER, lambda: _wait(reader), {"pipe": reader, "descriptors": fds})
        os.close(pidfd)
    except OSError:
        # Without a process, or a descriptor for one, there is no other way.
        for fd in fds:
            _stop_lingering(fd)
    for fd in (*fds, *ends):
        try:
            os.close(fd)
        except OSError:
            pass  # it is closed all the same, close(2)


def _stop_lingering(fd: int) -> None:
    """Have a socket's close return at once; nothing else lingers."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        return  # no socket
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes(2 * _INT_BYTES))
    except OSError:
        pass
    finally:
        sock.detach()


def _wait(reader: int) -> None:
    os.read(reader, 1)
