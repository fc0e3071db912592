"""
The process that forks sidecars.

PID 1 forks it before importing trio, so that a sidecar's private memory is a fraction of a megabyte. It answers each
request with the sidecar's pidfd. It never waits: its children are reaped by the kernel. If it fails, the last thing
it sends is why.
"""

from __future__ import annotations

import _signal
import os
import select

from minit import paths, syscalls
from minit.errors import EXIT_FAILURE, LaunchError, describe
from minit.iottymux.logfile import Log
from minit.iottymux.sidecar import Stream, run_sidecar
from minit.messages import Socket, receive_message, send_message, socket_pair
from minit.stdio import complain

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

_REPLY_TIMEOUT_MILLISECONDS = 5000
_CONSOLE = {"stdout": 1, "stderr": 2}


class Spawner:
    """PID 1's side of the spawner; `pid` is reaped by PID 1 like any other child."""

    def __init__(self) -> None:
        ours, theirs = socket_pair()
        self.pid, self._pidfd = syscalls.clone3()
        if self.pid == 0:
            _run_as_spawner(theirs)
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
        streams: Sequence[tuple[str, int]],
        log: tuple[int, int],
        renewed: bool = False,
        attachable: Sequence[tuple[str, int]] = (),
        plain_log: str | None = None,
    ) -> None:
        """
        Ask for a sidecar for process `pid` of `app`, `renewed` if it takes over from another.

        The streams are (name, read end), which stay the caller's, as does what is `attachable`; `log` bounds size and
        number of the log files. `plain_log` is the file of the log mode k8s-plain.
        """
        message: dict[str, object] = {"app": app, "pid": pid, "log": list(log), "renewed": renewed}
        message["plain_log"] = plain_log
        message["streams"] = [name for name, _ in streams]
        message["attachable"] = [name for name, _ in attachable]
        try:
            send_message(self._socket, message, [fd for _, fd in (*streams, *attachable)])
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is gone, and the reply is why
        except OSError as error:
            raise LaunchError(f"start log sidecar: {describe(error)}") from error

    def reply(self) -> int:
        """Return the pidfd of the sidecar asked for first of those not yet answered; LaunchError without one."""
        try:
            message, descriptors = self._receive(_REPLY_TIMEOUT_MILLISECONDS)
        except OSError as error:
            raise LaunchError(f"start log sidecar: {describe(error)}") from error
        if not descriptors:
            raise LaunchError(f"start log sidecar: {message['error'] if message else 'the spawner is gone'}")
        return descriptors[0]

    def last_words(self) -> str:
        """Return why the spawner ended, empty if it could not say it; never waits."""
        try:
            message, _ = self._receive(0)
        except OSError as error:
            return describe(error)
        return str((message or {}).get("error", ""))

    def _receive(self, timeout_milliseconds: int) -> tuple[dict[str, object] | None, list[int]]:
        poller = select.poll()
        poller.register(self._socket.fileno(), select.POLLIN)
        if not poller.poll(timeout_milliseconds):
            return {"error": "no answer from the spawner"}, []
        return receive_message(self._socket)


def _run_as_spawner(socket: Socket) -> NoReturn:
    step = "set up the spawner"
    try:
        syscalls.set_process_name("minit-spawner")
        syscalls.set_dumpable(False)
        _signal.signal(_signal.SIGCHLD, _signal.SIG_IGN)
        log_directory = os.open(paths.STAGE1_LOG, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        syscalls.close_all_but((0, 1, 2, socket.fileno(), log_directory))
        # Here and so in every sidecar: they only touch what they hold already, and files of their own user.
        syscalls.set_capabilities(0, 0, 0)
        syscalls.set_no_new_privileges()
        step = "answer PID 1"
        while _answer_request(socket, log_directory):
            pass
        os._exit(0)
    except BaseException as error:
        # The last frame of a forked process: returning would run PID 1's code twice.
        try:
            send_message(socket, {"error": f"{step}: {describe(error)}"})
        finally:
            os._exit(EXIT_FAILURE)


def _answer_request(socket: Socket, log_directory: int) -> bool:
    """Fork the sidecar that PID 1 asks for next; False once PID 1 is gone."""
    message, descriptors = receive_message(socket)
    if message is None:
        return False
    try:
        pid, pidfd = syscalls.clone3()
    except OSError as error:
        send_message(socket, {"error": describe(error)})
    else:
        if pid == 0:
            _run_as_sidecar(message, descriptors, log_directory)
        send_message(socket, {}, [pidfd])
        os.close(pidfd)
    for fd in descriptors:
        os.close(fd)
    return True


def _run_as_sidecar(message: dict[str, object], descriptors: list[int], log_directory: int) -> NoReturn:
    try:
        app, pid, names, limits = message["app"], message["pid"], message["streams"], message["log"]
        assert isinstance(app, str) and isinstance(pid, int) and isinstance(names, list) and isinstance(limits, list)
        others = message["attachable"]
        assert isinstance(others, list)
        syscalls.set_process_name(f"iottymux-{app}")
        syscalls.close_all_but((0, 1, 2, log_directory, *descriptors))
        streams = [Stream(name=name, fd=fd, console=_CONSOLE[name]) for name, fd in zip(names, descriptors)]
        log = Log(app, log_directory, *limits)
        attachable = dict(zip(others, descriptors[len(names) :]))
        renewed = message["renewed"] is True
        plain_log = None
        if isinstance(message["plain_log"], str):
            from minit.iottymux.plainlog import PlainLog  # loaded by the launcher

            directory = os.open(paths.STAGE1_KUBERNETES_LOG, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            plain_log = PlainLog(message["plain_log"], directory, renewed)
        run_sidecar(app, pid, streams, log, renewed, attachable, plain_log)
        os._exit(0)
    except BaseException as error:
        # The last frame of a forked process: returning would run the spawner's loop twice.
        complain(f"iottymux: app {message['app']}: {describe(error)}")
        os._exit(EXIT_FAILURE)
