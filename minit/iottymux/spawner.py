"""
The process that forks sidecars.

PID 1 forks it before starting trio, so that a sidecar's private memory is a fraction of a megabyte. It answers each
request with the sidecar's pidfd. It never waits: its children are reaped by the kernel. If it fails, the last thing
it sends is why.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from minit import paths, syscalls
from minit.errors import LaunchError, Step, describe, step_of
from minit.forks import SIDECAR, SPAWNER, clone
from minit.iottymux.logfile import Log
from minit.iottymux.plainlog import PlainLog
from minit.iottymux.sidecar import Stream, run_sidecar
from minit.loop import wait_readable
from minit.manifest.capabilities import capability_mask
from minit.messages import Socket, receive_message, send_message, socket_pair
from minit.stdio import complain
from minit.value import Value

_MOST_LOOKS = 100  # which take five seconds
# An app that is root may stop the spawner again and again: PID 1 does not wait for that longer than a moment.
_LOOK_SECONDS = 0.05
_MOST_STOPS = 5
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONSOLE = {"stdout": 1, "stderr": 2}


class Spawner:
    """
    PID 1's side of the spawner; `pid` is reaped by PID 1 like any other child.

    `filter` is the filter of system calls that every sidecar gets, empty for none.
    """

    def __init__(self, filter: bytes = b"") -> None:
        ours, theirs = socket_pair()
        self.pid, self._pidfd = clone(
            SPAWNER,
            lambda: _run_as_spawner(theirs, filter),
            {"socket": theirs.fileno()},
            tell=lambda error: send_message(theirs, {"error": f"{step_of(error)}: {describe(error)}"}),
        )
        theirs.close()
        self._socket = ours

    def close(self) -> None:
        """Let the spawner end."""
        self._socket.close()
        os.close(self._pidfd)

    def request(
        self,
        app: str,
        pid: int,
        streams: Sequence[tuple[str, int, int]],
        log: tuple[int, int, str | None],
        renewed: bool = False,
        attachable: Sequence[tuple[str, int]] = (),
        logged: Sequence[str] = (),
        plain_log: str | None = None,
    ) -> None:
        """
        Ask for a sidecar for process `pid` of `app`, `renewed` if it takes over from another.

        The streams are (name, read end, buffer), which stay the caller's, as does what is `attachable`; `log` bounds
        size and number of the log files, and is the path of the log if it is in the host's directory. `logged` are the
        attachable outputs that are in the log too, `plain_log` is the file of the log mode k8s-plain.
        """
        message: dict[str, object] = {"app": app, "pid": pid, "log": list(log), "renewed": renewed}
        message |= {"logged": list(logged), "plain_log": plain_log}
        message["streams"] = [name for name, _, _ in streams]
        message["attachable"] = [name for name, _ in attachable]
        try:
            own = [fd for _, reader, buffer in streams for fd in (reader, buffer)]
            send_message(self._socket, message, [*own, *(fd for _, fd in attachable)])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is gone, and the reply is why
        except OSError as error:
            raise LaunchError(f"start log sidecar: {describe(error)}") from error

    def reply(self) -> int:
        """
        Return the pidfd of the sidecar asked for first of those not yet answered; LaunchError without one.

        A spawner that does not answer in time, or is stopped whenever it is looked at, is killed.
        """
        try:
            if not self._is_answered():
                # Its answer would be taken for that to the next request.
                syscalls.pidfd_send_signal(self._pidfd, signal.SIGKILL)
                raise LaunchError("start log sidecar: no answer from the spawner")
            message, descriptors = receive_message(self._socket)
        except (OSError, ValueError) as error:
            raise LaunchError(f"start log sidecar: {describe(error)}") from error
        for fd in descriptors[1:]:
            os.close(fd)
        if not descriptors:
            raise LaunchError(f"start log sidecar: {message.get('error') if message else 'the spawner is gone'}")
        return descriptors[0]

    def _is_answered(self) -> bool:
        stops = 0
        for _ in range(_MOST_LOOKS):
            if self._is_readable(_LOOK_SECONDS):
                return True
            if self._is_stopped():
                stops += 1
                if stops > _MOST_STOPS:
                    return False
                syscalls.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        return False

    def _is_stopped(self) -> bool:
        # Not by /proc, which need not be there; the stop stays to be seen, the end to be reaped.
        stopped = os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return stopped is not None

    def last_words(self) -> str:
        """Return why the spawner ended, empty if it could not say it; never waits."""
        try:
            while self._is_readable(0):
                message, descriptors = receive_message(self._socket)
                # Of sidecars that it had no time to tell of.
                for fd in descriptors:
                    os.close(fd)
                if message is None:
                    return ""
                if "error" in message:
                    return str(message["error"])
        except (OSError, ValueError) as error:
            return describe(error)
        return ""

    def _is_readable(self, timeout_seconds: float) -> bool:
        return bool(wait_readable([self._socket.fileno()], timeout_seconds))


class _Belongings(Value):
    """
    Things that a sidecar gets from the spawner: the open directories of the logs, /dev/null, a filter of system calls.

    `kubernetes_log` is None if no log is in a directory of the host.
    """

    log_directory: int
    kubernetes_log: int | None
    null: int
    filter: bytes


def _run_as_spawner(socket: Socket, filter: bytes) -> None:
    with Step("set up the spawner"):
        belongings = _set_up(filter)
    with Step("answer PID 1"):
        while _answer_request(socket, belongings):
            pass


def _set_up(filter: bytes) -> _Belongings:
    """Give up all that neither the spawner nor a sidecar needs, and return what these get."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    belongings = _Belongings(
        log_directory=os.open(paths.STAGE1_LOG, _DIRECTORY),
        kubernetes_log=_open_if_there(paths.STAGE1_KUBERNETES_LOG),
        null=os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC),
        filter=filter,
    )
    # Here and so in every sidecar: they only touch what they hold already, and files of their own user in the one
    # directory where they make some.
    os.fchdir(belongings.log_directory)
    os.chroot(".")
    # Not effective, and a sidecar's filter keeps that so. Who lacks it may not change how its holders are scheduled,
    # root of an app for one (cap_safe_nice of the kernel).
    _, permitted, _ = syscalls.get_capabilities()
    syscalls.set_capabilities(0, permitted & capability_mask("CAP_SYS_NICE"), 0)
    syscalls.set_no_new_privileges()
    return belongings


def _open_if_there(path: str) -> int | None:
    try:
        return os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None


def _answer_request(socket: Socket, belongings: _Belongings) -> bool:
    """Fork the sidecar that PID 1 asks for next; False once PID 1 is gone."""
    message, descriptors = receive_message(socket)
    if message is None:
        return False
    logs = belongings.log_directory, belongings.kubernetes_log
    try:
        _, pidfd = clone(
            SIDECAR,
            lambda: _run_as_sidecar(message, descriptors, belongings),
            {"log directories": logs, "null": belongings.null, "streams": descriptors},
            of=str(message["app"]),
            tell=lambda error: complain(f"iottymux: app {message['app']}: {describe(error)}"),
        )
    except OSError as error:
        send_message(socket, {"error": describe(error)})
    else:
        send_message(socket, {}, [pidfd])
        os.close(pidfd)
    for fd in descriptors:
        os.close(fd)
    return True


def _run_as_sidecar(message: dict[str, object], descriptors: list[int], belongings: _Belongings) -> None:
    app, pid, names, limits = message["app"], message["pid"], message["streams"], message["log"]
    assert isinstance(app, str) and isinstance(pid, int) and isinstance(names, list) and isinstance(limits, list)
    others, logged = message["attachable"], message["logged"]
    assert isinstance(others, list) and isinstance(logged, list)
    own = zip(names, descriptors[::2], descriptors[1::2])
    streams = [Stream(name=name, fd=fd, buffer=buffer, console=_CONSOLE[name]) for name, fd, buffer in own]
    size_bytes, files, path = limits
    place = None
    if path is not None:
        assert belongings.kubernetes_log is not None
        place = belongings.kubernetes_log, path
    log = Log(app, belongings.log_directory, size_bytes, files, place)
    attachable = dict(zip(others, descriptors[2 * len(names) :]))
    renewed = message["renewed"] is True
    plain_log = None
    if isinstance(message["plain_log"], str):
        assert belongings.kubernetes_log is not None
        plain_log = PlainLog(message["plain_log"], belongings.kubernetes_log, renewed)
    run_sidecar(
        app,
        pid,
        streams,
        log,
        renewed,
        attachable,
        logged=logged,
        plain_log=plain_log,
        null=belongings.null,
        filter=belongings.filter,
    )
