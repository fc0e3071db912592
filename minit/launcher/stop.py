"""The `stop` entrypoint's work: asking the supervisor to end the pod, or killing both, and telling the outcome."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from minit.base.errors import ControlError, LaunchError, NoAnswerError, describe
from minit.linux import syscalls
from minit.linux.loop import wait_readable
from minit.podfiles import paths
from minit.podfiles.controlmessages import StopPod
from minit.podfiles.podfile import is_locked
from minit.supervisor.control.ask import ask

# The supervisor's time in a forced stop for killing and recording the apps, before the supervisor is killed itself.
_FORCE_SECONDS = 3.0
# On a busy machine an answer, or the end of killed processes, takes part of the time.
_REQUEST_SECONDS = 10.0
# How long a starting pod has to get a PID 1, and a pod without a PID 1 any more has to end.
_PID_SECONDS = 10.0
_PAUSE_SECONDS = 0.02
# The directories of pods after a run.
_PLACES_OF_ENDED_PODS = ("run", "exited-garbage")


def stop_pod(force: bool) -> None:
    """
    Have the pod in the working directory stopped; does not wait for the end unless forced.

    A pod that has ended is stopped. A forced stop kills the apps at once and, if the supervisor does not end then, the
    supervisor. LaunchError if the pod was never started, shows no sign of a stop, or did not end by force.
    """
    was_running = _wait_for_pid()
    if _has_pod_ended(was_running):
        return
    try:
        pidfd, _ = open_supervisor(read_pid())
    except LaunchError:
        if os.path.exists(paths.POD_PID):
            # PID 1 has ended, and the launcher will in a moment; or the number was never right.
            _wait_until(lambda: not is_locked("."))
        if _has_pod_ended(was_running):
            return
        raise
    if force:
        _kill(pidfd)
    else:
        _ask(pidfd)
    os.close(pidfd)


def _ask(pidfd: int) -> None:
    try:
        ask(StopPod(), timeout_seconds=_REQUEST_SECONDS)
    except NoAnswerError as error:
        # Not the signal on top: a second request would kill. A dying PID 1 closes its sockets before the end.
        if not has_ended(pidfd, _FORCE_SECONDS):
            raise LaunchError(f"{describe(error)}; it may never stop the pod, --force does") from error
    except ControlError as error:
        # There is no control socket yet, or too many clients: the signal means the same.
        _send(pidfd, signal.SIGTERM)
        if not _wait_until(lambda: has_ended(pidfd) or not _is_pending(pidfd, signal.SIGTERM)):
            raise LaunchError(f"{describe(error)}, nor does it take a signal; --force stops the pod") from error


def _kill(pidfd: int) -> None:
    try:
        ask(StopPod(force=True), timeout_seconds=_FORCE_SECONDS)
    except ControlError:
        pass  # whatever it says, it is killed
    if not has_ended(pidfd, _FORCE_SECONDS):
        _send(pidfd, signal.SIGKILL)
        if not has_ended(pidfd, _REQUEST_SECONDS):
            raise LaunchError("PID 1 is killed, but a freezer, a tracer or a call to the kernel keeps it from ending")


def _wait_for_pid() -> bool:
    """
    Wait until a running pod has a pid file, perhaps later than ready; not for ever.

    Returns whether the pod ran at the first look.
    """
    was_running = is_locked(".")
    if was_running:
        _wait_until(lambda: os.path.exists(paths.POD_PID) or not is_locked("."))
    return was_running


def _has_pod_ended(was_running: bool) -> bool:
    """Return whether the pod has run and nobody holds the lock any more."""
    if is_locked("."):
        return False
    try:
        place = os.path.basename(os.path.dirname(os.getcwd()))
    except FileNotFoundError:
        return True  # somebody has removed it since
    return was_running or place in _PLACES_OF_ENDED_PODS


def _wait_until(condition: Callable[[], bool]) -> bool:
    until = time.monotonic() + _PID_SECONDS
    while not (is_so := condition()) and time.monotonic() < until:
        time.sleep(_PAUSE_SECONDS)
    return is_so


def _is_pending(pidfd: int, number: int) -> bool:
    """
    Return whether a process has not taken a signal yet, with the pid by the pidfd and the signals by
    proc_pid_status(5).
    """
    try:
        pid = _fields(f"/proc/self/fdinfo/{pidfd}")["Pid"]
        return bool(int(_fields(f"/proc/{pid.strip()}/status")["ShdPnd"], 16) >> (number - 1) & 1)
    except (OSError, LookupError):
        return False  # it has ended


def read_pid() -> int:
    """Return the host pid of the pod's PID 1."""
    try:
        with open(paths.POD_PID, encoding="utf-8") as file:
            return int(file.read().split()[0])
    except (OSError, ValueError, IndexError) as error:
        raise LaunchError(f"error reading pid: {describe(error)}") from error


def open_supervisor(pid: int) -> tuple[int, dict[str, str]]:
    """Return a pidfd of the pod's PID 1 and /proc/PID/status; LaunchError if the pid is now somebody else's."""
    try:
        pidfd = os.pidfd_open(pid)
        fields = _fields(f"/proc/{pid}/status")
        root = os.stat(f"/proc/{pid}/root")
        stage1 = os.stat(paths.POD_STAGE1_ROOTFS)
    except (OSError, OverflowError) as error:
        raise LaunchError(f"pod is not running any more: process {pid}: {describe(error)}") from error
    # A stale number may well be PID 1 of another pod or container by now; PID 1 of this pod has the stage1 root. Within
    # a pod, where a program may have made a PID 1 of its own, numbers are one level deeper; on a machine booted by
    # minit numbers are one less, and without a PID namespace of the pod's there is no other number. Only while the
    # process of the pidfd lives are all answers certain to be about that process.
    numbers = fields.get("NSpid", "").split()
    expected = [[str(pid)]] if os.path.exists(paths.POD_HOST_PIDS) else [[str(pid), "1"], ["1"]]
    is_pid_1 = numbers in expected and os.path.samestat(root, stage1)
    if not is_pid_1 or has_ended(pidfd):
        os.close(pidfd)
        raise LaunchError(f"pod is not running any more: process {pid} is not its PID 1")
    if not is_locked("."):
        os.close(pidfd)
        raise LaunchError("pod is not running any more: nobody holds the lock of its directory")
    return pidfd, fields


def has_ended(pidfd: int, timeout_seconds: float = 0.0) -> bool:
    """Return whether the process of a pidfd has ended, or does so in time."""
    return bool(wait_readable([pidfd], timeout_seconds))


def _fields(path: str) -> dict[str, str]:
    with open(path, encoding="utf-8", errors="surrogateescape") as file:
        return dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)


def _send(pidfd: int, number: int) -> None:
    try:
        syscalls.pidfd_send_signal(pidfd, number)
    except ProcessLookupError:
        pass  # it ended by itself, which is what was wanted
