"""
The process that forks sidecars.

PID 1 forks the spawner before starting trio, so that a sidecar's private memory is a fraction of a megabyte. The
spawner never waits: the kernel reaps its children. After a failure its last message is the reason.

Each request brings a socket, the sidecar's link to PID 1. By the link the spawner tells the sidecar's pidfd, and then
PID 1 hands over the streams. So no sidecar unknown to PID 1 reads a stream: a sidecar that the spawner had no time to
report, or that PID 1 waits for no more, sees the end of its link and ends.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence

from minit.base.carried import Carried, Descriptor
from minit.base.errors import LaunchError, Step, describe, step_of
from minit.base.value import Value
from minit.iottymux.logfile import Log, PlainLog
from minit.iottymux.mux import SUPERVISOR
from minit.iottymux.sidecar import SIGNALS, Stream, run_sidecar
from minit.linux import syscalls
from minit.linux.forks import SIDECAR, SPAWNER, clone
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.stdio import complain
from minit.manifest.capabilities import capability_mask
from minit.podfiles import paths

_MOST_LOOKS = 100  # which take five seconds
# An app that is root may stop the spawner again and again: PID 1 waits only a moment.
_LOOK_SECONDS = 0.05
_MOST_STOPS = 5
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CONSOLE = {"stdout": 1, "stderr": 2}


class Spawner(Carried):
    """
    PID 1's side of the spawner; `pid` is reaped by PID 1 like any other child.

    `filter` is the filter of system calls of every sidecar, empty for none.
    """

    pid: int
    _pidfd: Descriptor
    _socket: Socket
    _is_given_up: bool

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
        self._is_given_up = False

    def close(self) -> None:
        """Let the spawner end."""
        self._socket.close()
        os.close(self._pidfd)

    def request(self, app: str) -> Socket:
        """
        Ask for a sidecar for `app`; return the link to the sidecar, which the caller owns and which does not block.
        """
        ours, theirs = socket_pair()
        ours.setblocking(False)
        try:
            send_message(self._socket, {"app": app}, [theirs.fileno()])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is gone, as the reply will say
        except OSError as error:
            ours.close()
            raise LaunchError(f"start log sidecar: {describe(error)}") from error
        finally:
            theirs.close()
        return ours

    def reply(self, link: Socket) -> int:
        """
        Return the pidfd of the sidecar with this link, which waits for its streams; LaunchError without one.

        A spawner that does not answer in time, or is found stopped at every look, is killed.
        """
        try:
            if not self._has_answered(link):
                raise LaunchError(f"start log sidecar: {self._give_up()}")
            message, descriptors = receive_message(link)
        except (OSError, ValueError) as error:
            raise LaunchError(f"start log sidecar: {describe(error)}") from error
        for fd in descriptors[1:]:
            os.close(fd)
        if not descriptors:
            raise LaunchError(f"start log sidecar: {message['error'] if message else 'the spawner is gone'}")
        return descriptors[0]

    def _give_up(self) -> str:
        """Wait for no more answers, and return why."""
        self._is_given_up = True
        try:
            syscalls.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        except ProcessLookupError:
            return "the spawner is gone"
        return "no answer from the spawner"

    def _has_answered(self, link: Socket) -> bool:
        if self._is_given_up:
            return bool(wait_readable([link.fileno()], 0))
        stops = 0
        for _ in range(_MOST_LOOKS):
            if ready := wait_readable([link.fileno(), self._pidfd], _LOOK_SECONDS):
                return link.fileno() in ready
            if self._is_stopped():
                stops += 1
                if stops > _MOST_STOPS:
                    return False
                syscalls.pidfd_send_signal(self._pidfd, signal.SIGCONT)
        return False

    def _is_stopped(self) -> bool:
        # Not by /proc, which may be missing; the stop stays visible, the end stays to be reaped.
        stopped = os.waitid(os.P_PIDFD, self._pidfd, os.WSTOPPED | os.WNOHANG | os.WNOWAIT)
        return stopped is not None

    def last_words(self) -> str:
        """Return why the spawner ended, empty if it could not say so; never waits."""
        try:
            if wait_readable([self._socket.fileno()], 0):
                message, _ = receive_message(self._socket)
                return "" if message is None else str(message["error"])
        except (OSError, ValueError) as error:
            return describe(error)
        return ""


def hand_over(
    link: Socket,
    pid: int,
    streams: Sequence[tuple[str, int, int]],
    log: tuple[int, int, str | None],
    renewed: bool = False,
    attachable: Sequence[tuple[str, int]] = (),
    logged: Sequence[str] = (),
    plain_log: str | None = None,
) -> None:
    """
    Give a sidecar the streams of process `pid` of its app, `renewed` if the sidecar takes over from another.

    The streams are (name, read end, buffer) and stay the caller's, as do the `attachable` descriptors; `log` bounds
    size and number of the log files, and has the path of a log in the host's directory. `logged` are the attachable
    outputs that are in the log too, `plain_log` is the file of the log mode k8s-plain.
    """
    message: dict[str, object] = {"pid": pid, "log": list(log), "renewed": renewed}
    message |= {"logged": list(logged), "plain_log": plain_log}
    message["streams"] = [name for name, _, _ in streams]
    message["attachable"] = [name for name, _ in attachable]
    own = [fd for _, reader, buffer in streams for fd in (reader, buffer)]
    send_message(link, message, [*own, *(fd for _, fd in attachable)])


class Belongings(Value):
    """
    Things for a sidecar from the spawner: the open directories of the logs, /dev/null, a filter of system calls.

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
        while answer_request(socket, belongings):
            pass


def _set_up(filter: bytes) -> Belongings:
    """Give up everything that neither the spawner nor a sidecar needs; return the belongings."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    belongings = Belongings(
        log_directory=os.open(paths.STAGE1_LOG, _DIRECTORY),
        kubernetes_log=_open_if_there(paths.STAGE1_KUBERNETES_LOG),
        null=os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC),
        filter=filter,
    )
    # Here and so in every sidecar: they only touch what they hold already, and files of their own user in the only
    # directory where they make some.
    os.fchdir(belongings.log_directory)
    os.chroot(".")
    # Not effective, and a sidecar's filter keeps the capability so. A process without it may not change how its holders
    # are scheduled, for example root of an app (cap_safe_nice of the kernel).
    _, permitted, _ = syscalls.get_capabilities()
    syscalls.set_capabilities(0, permitted & capability_mask("CAP_SYS_NICE"), 0)
    syscalls.set_no_new_privileges()
    return belongings


def _open_if_there(path: str) -> int | None:
    try:
        return os.open(path, _DIRECTORY)
    except FileNotFoundError:
        return None


def answer_request(socket: Socket, belongings: Belongings) -> bool:
    """Fork the next sidecar on request of PID 1; False once PID 1 is gone."""
    message, descriptors = receive_message(socket)
    if message is None:
        return False
    app, [fd] = str(message["app"]), descriptors
    logs = belongings.log_directory, belongings.kubernetes_log
    with Socket(fileno=fd) as link:
        try:
            _, pidfd = clone(
                SIDECAR,
                lambda: run_as_sidecar(app, link, belongings),
                {"log directories": logs, "null": belongings.null, "link": fd},
                of=app,
                tell=lambda error: complain(f"iottymux: app {app}: {describe(error)}"),
            )
        except OSError as error:
            _answer(link, {"error": describe(error)})
        else:
            _answer(link, {}, [pidfd])
            os.close(pidfd)
    return True


def _answer(link: Socket, message: dict[str, object], descriptors: Sequence[int] = ()) -> None:
    try:
        send_message(link, message, descriptors)
    except (BrokenPipeError, ConnectionResetError):
        pass  # PID 1 waits for this sidecar no more


def run_as_sidecar(app: str, link: Socket, belongings: Belongings) -> None:
    """Wait for the streams of a process of `app` at the link, and serve the streams; return if PID 1 sends none."""
    message, descriptors = receive_message(link)
    if message is None:
        return  # PID 1 does not know this sidecar
    pid, names, limits = message["pid"], message["streams"], message["log"]
    assert isinstance(pid, int) and isinstance(names, list) and isinstance(limits, list)
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
    if attachable:
        attachable[SUPERVISOR] = link.fileno()
    else:
        link.close()
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
