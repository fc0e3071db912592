"""The `enter` entrypoint's work: running a command inside an app, or in the stage1 root."""

from __future__ import annotations

import _signal
import errno
import os

from minit import syscalls
from minit.errors import describe
from minit.launcher.stop import open_supervisor
from minit.plan.environment import DEFAULT_PATH, DEFAULT_TERM
from minit.process import forget_imports, reset_signals
from minit.reaper.diagnose import diagnose_exec
from minit.stdio import complain
from minit.supervisor.client import ask
from minit.supervisor.credentials import become_user, drop_bounding_set, give_up_capabilities, leave_keyring
from minit.supervisor.protocol import OP_NAMESPACE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import NoReturn

EXIT_NOT_EXECUTED = 1  # what rkt's enter answers when the command cannot be executed
_IGNORED_WHILE_WAITING = (_signal.SIGINT, _signal.SIGQUIT)
_FORWARDED = (_signal.SIGTERM, _signal.SIGHUP)


def enter_pod(pid: int, app: str | None, command: Sequence[str]) -> int:
    """
    Run `command` in the pod whose PID 1 is `pid` on the host and return its exit code.

    With an app it sees that app's root and environment, without one the stage1 root and the caller's environment.
    A command that dies of a signal makes this process die of it too. The working directory is the pod directory.
    """
    pidfd, status = open_supervisor(pid)
    syscalls.set_dumpable(False)
    environment = dict(os.environ)
    namespace = None
    if app is not None:
        _, [namespace, variables] = ask({"op": OP_NAMESPACE, "app": app})
        environment = {**_read_environment(variables), "TERM": os.environ.get("TERM", DEFAULT_TERM)}
    bounding = int(status["CapBnd"], 16)
    # The pid namespace takes effect for the next child only, so the mount namespace waits for that child too.
    syscalls.setns(pidfd, syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWPID)
    child = os.fork()
    if child == 0:
        _run_command(pidfd, namespace, bounding, command, environment)
    return _wait(child)


def _read_environment(fd: int) -> dict[str, str]:
    # By position: whoever else enters the app reads the same open file.
    data = os.pread(fd, os.fstat(fd).st_size, 0)
    pairs = [os.fsdecode(variable).partition("=") for variable in data.split(b"\0")[:-1]]
    return {name: value for name, _, value in pairs}


def _run_command(
    pidfd: int, namespace: int | None, bounding: int, command: Sequence[str], environment: Mapping[str, str]
) -> NoReturn:
    step = "encode"
    try:
        arguments = [os.fsencode(word) for word in command]
        variables = {os.fsencode(name): os.fsencode(value) for name, value in environment.items()}
        candidates = _candidates(command[0], environment.get("PATH", DEFAULT_PATH))
        forget_imports()
        step = "join mount namespace"
        syscalls.setns(pidfd if namespace is None else namespace, syscalls.CLONE_NEWNS)
        os.chdir("/")
        step = "drop capabilities"
        drop_bounding_set(bounding)
        give_up_capabilities()
        step = "join a session keyring"
        leave_keyring()
        become_user(0, 0, ())
        reset_signals()
        syscalls.close_range(3)
        step = f"exec {command[0]}"
        failure: OSError | None = None
        for candidate in candidates:
            try:
                os.execve(candidate, arguments, variables)
            except OSError as error:
                if failure is None or error.errno != errno.ENOENT:
                    failure = error
                    found = candidate
        assert failure is not None
        if "/" in command[0]:
            complain(f"Error: {diagnose_exec(found, failure.errno or errno.ENOENT)}")
        else:
            complain(f'Error: Unable to find "{command[0]}" in the PATH of the app')
    except BaseException as error:
        # The last frame of a forked process: returning would run the caller's code twice.
        complain(f"enter: {step}: {describe(error)}")
    os._exit(EXIT_NOT_EXECUTED)


def _candidates(command: str, path: str) -> list[str]:
    if "/" in command:
        return [command]
    return [f"{directory or '.'}/{command}" for directory in path.split(":")]


def _wait(child: int) -> int:
    """Return the child's exit code, stopping when it stops and dying as it dies."""
    for number in _IGNORED_WHILE_WAITING:
        # A terminal sends these to both; the command decides what they mean.
        _signal.signal(number, _signal.SIG_IGN)
    for number in _FORWARDED:
        _signal.signal(number, lambda number, _: os.kill(child, number))
    while True:
        _, status = os.waitpid(child, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            break
        os.kill(os.getpid(), _signal.SIGSTOP)
        os.kill(child, _signal.SIGCONT)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number != _signal.SIGKILL:
            _signal.signal(number, _signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return os.waitstatus_to_exitcode(status) & 0xFF
