"""
One check of an app's health, in a process of its own that is killed when it takes too long.

A command is entered into the app as `enter` does it, so it is as confined as the app; HTTP and TCP are spoken from the
network namespace of the pod, in which this process is.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket

from minit.base.errors import describe
from minit.base.value import Value
from minit.launcher.enter.enterpod import enter_pod
from minit.linux.forks import HEALTH_CHECK, fork
from minit.plan.life.health import HealthCheck, Target

_STATUS_BYTES = 4096
_OUTPUT_BYTES = 4096
# Of one check. Reading costs the host processor time, so one that writes without end waits until it is too late.
_MOST_OUTPUT_BYTES = 1 << 20
_SPARE_SECONDS = 1.0
_GOOD_STATUSES = range(200, 400)


class Output:
    """The output of a check, of which only the end is kept: its process must not wait for somebody to read it."""

    def __init__(self, fd: int) -> None:
        self.fd: int | None = fd
        self._end = b""
        self._taken_bytes = 0

    @property
    def is_wanted(self) -> bool:
        """Tell whether more of it is to be read while the check runs."""
        return self.fd is not None and self._taken_bytes < _MOST_OUTPUT_BYTES

    def read(self) -> None:
        """Take what is there; who holds the other end still is not waited for."""
        if self.fd is None:
            return
        try:
            # No more than the pipe held, which may be filled as fast as it is read.
            for _ in range(fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ) // _OUTPUT_BYTES):
                block = os.read(self.fd, _OUTPUT_BYTES)
                if not block:
                    # A loop that waits for it would be woken over and over.
                    self.close()
                    break
                self._taken_bytes += len(block)
                self._end = (self._end + block)[-_OUTPUT_BYTES:]
        except BlockingIOError:
            pass

    def last_line(self) -> str:
        """Return the last line so far, at most 200 characters."""
        lines = self._end.decode("utf-8", "backslashreplace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def close(self) -> None:
        """Read no more."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class RunningCheck(Value):
    """A check that is being made: the process, as a pid and a pidfd, its output, and when it has taken too long."""

    pid: int
    pidfd: int
    output: Output
    deadline: float


def start_check(check: HealthCheck, pod: int, app: str, deadline: float) -> RunningCheck:
    """Fork the process that makes a check of an app in the pod whose PID 1 is `pod` on the host."""
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    pid = fork(HEALTH_CHECK, lambda: _make(check, pod, app), {"output": theirs}, tell=_fail)
    os.close(theirs)
    os.set_blocking(ours, False)
    return RunningCheck(pid=pid, pidfd=os.pidfd_open(pid), output=Output(ours), deadline=deadline)


def finish_check(running: RunningCheck) -> tuple[bool, str]:
    """Return whether a check whose process has ended was good, and the end of what it said."""
    _, status = os.waitpid(running.pid, 0)
    text = _close(running)
    code = os.waitstatus_to_exitcode(status)
    if code == 0:
        return True, text
    return False, text or (f"exit code {code}" if code > 0 else f"killed by signal {-code}")


def give_up_check(running: RunningCheck) -> str:
    """Kill a check that took too long, and so the command that it runs, and return the end of what it said."""
    os.kill(running.pid, signal.SIGKILL)
    os.waitpid(running.pid, 0)
    return _close(running)


def _close(running: RunningCheck) -> str:
    """Return the last line that the check has said."""
    running.output.read()
    running.output.close()
    os.close(running.pidfd)
    return running.output.last_line()


def _make(check: HealthCheck, pod: int, app: str) -> int:
    # A second line: the helper ends this process in time.
    timeout_seconds = check.timeout_seconds + _SPARE_SECONDS
    if check.target is None:
        return enter_pod(pod, app, check.command or (), timeout_seconds=timeout_seconds)
    _reach(check.target, timeout_seconds)
    return 0


def _fail(error: BaseException) -> int:
    os.write(2, f"{describe(error)}\n".encode(errors="backslashreplace"))
    return 1


def _reach(target: Target, timeout_seconds: float) -> None:
    """Return if the target does what it should; OSError or ValueError says what is wrong."""
    family = socket.AF_INET6 if ":" in target.host else socket.AF_INET
    connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    connection.settimeout(timeout_seconds)
    try:
        connection.connect((target.host, target.port))
    except OSError as error:
        raise ValueError(f"connect to port {target.port}: {describe(error)}") from error
    if target.path is not None:
        _ask(connection, target, target.path)


def _ask(connection: socket.socket, target: Target, path: str) -> None:
    host = f"[{target.host}]" if ":" in target.host else target.host
    headers = {"Host": f"{host}:{target.port}", "User-Agent": "minit-health", "Connection": "close"}
    headers.update(target.headers)
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    connection.sendall("".join(f"{line}\r\n" for line in [*lines, ""]).encode("ascii"))
    answer = b""
    while b"\n" not in answer and len(answer) < _STATUS_BYTES and (block := connection.recv(_STATUS_BYTES)):
        answer += block
    words = answer.split(b"\n", 1)[0].split()
    if len(words) < 2 or not words[0].startswith(b"HTTP/") or not words[1].isdigit():
        raise ValueError(f"port {target.port}: expected an answer of HTTP")
    if int(words[1]) not in _GOOD_STATUSES:
        raise ValueError(f"{path}: HTTP status {int(words[1])}")
