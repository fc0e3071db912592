"""The `stop` entrypoint's work: asking the supervisor to end the pod, or making it."""

from __future__ import annotations

import _signal
import os
import select
import time

from minit import paths, syscalls
from minit.errors import ControlError, LaunchError, NoAnswerError, describe
from minit.podlock import is_locked
from minit.stdio import complain
from minit.supervisor.client import ask
from minit.supervisor.protocol import OP_STOP

# What a forced stop leaves the supervisor for killing the apps and recording it, before it is killed itself.
_FORCE_SECONDS = 3.0
_REQUEST_SECONDS = 5.0
# How long a pod that is being started has to get a PID 1 that can be stopped.
_PID_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


def stop_pod(force: bool) -> None:
    """
    Ask the supervisor of the pod in the working directory to stop; does not wait for its end unless forced.

    A forced stop kills the apps at once and the supervisor too if it does not end then.
    """
    _wait_for_pid()
    pidfd, _ = open_supervisor(read_pid())
    try:
        ask({"op": OP_STOP, "force": force}, timeout_seconds=_FORCE_SECONDS if force else _REQUEST_SECONDS)
    except NoAnswerError as error:
        # Not the signal on top: two requests are a second stop, which kills.
        if not force:
            complain(f"stage1 stop: {describe(error)}; the pod stops as soon as it can")
    except ControlError:
        if not force:
            # It has no control socket yet, or too many clients: the signal means the same.
            _send(pidfd, _signal.SIGTERM)
    if force:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if not poller.poll(_FORCE_SECONDS * 1000):
            _send(pidfd, _signal.SIGKILL)
    os.close(pidfd)


def _wait_for_pid() -> None:
    """Wait until a pod that runs has its pid file, which may come after it is ready; not for ever."""
    until = time.monotonic() + _PID_SECONDS
    while not os.path.exists(paths.POD_PID) and is_locked(".") and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)


def read_pid() -> int:
    """Return the host pid of the pod's PID 1."""
    try:
        with open(paths.POD_PID, encoding="utf-8") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise LaunchError(f"error reading pid: {describe(error)}") from error


def open_supervisor(pid: int) -> tuple[int, dict[str, str]]:
    """Return a pidfd of the pod's PID 1 and its /proc/PID/status; LaunchError if the pid is now somebody else's."""
    try:
        pidfd = os.pidfd_open(pid)
        with open(f"/proc/{pid}/status", encoding="utf-8", errors="surrogateescape") as file:
            fields = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
        root = os.stat(f"/proc/{pid}/root")
        stage1 = os.stat(paths.POD_STAGE1_ROOTFS)
    except (OSError, OverflowError) as error:
        raise LaunchError(f"pod is not running any more: process {pid}: {describe(error)}") from error
    # A stale number may well be PID 1 of another pod or container by now; this pod's has the stage1 root. Within a pod,
    # where a program may have made a PID 1 of its own, numbers are one level deeper; on a machine that minit boots they
    # are one less. And only while the process of the pidfd lives is it certain that all of this was about it.
    numbers = fields.get("NSpid", "").split()
    is_pid_1 = numbers in ([str(pid), "1"], ["1"]) and os.path.samestat(root, stage1)
    if not is_pid_1 or has_ended(pidfd):
        os.close(pidfd)
        raise LaunchError(f"pod is not running any more: process {pid} is not its PID 1")
    if not is_locked("."):
        os.close(pidfd)
        raise LaunchError("pod is not running any more: nobody holds the lock of its directory")
    return pidfd, fields


def has_ended(pidfd: int) -> bool:
    """Return whether the process of a pidfd has ended."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def _send(pidfd: int, number: int) -> None:
    try:
        syscalls.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass  # it ended by itself, which is what was wanted
