"""Runs a command in an app of a running pod, and attaches to the streams of an app, both through the pod's stage1."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from minit.base.errors import PodError, describe
from minit.base.value import Value
from minit.linux.messages import receive_message, socket_pair
from minit.linux.process import ending_with_caller
from minit.manifest.image import parse_image_manifest
from minit.manifest.names import is_ac_name
from minit.podfiles import paths
from minit.podfiles.enterchanges import NO_CHANGES, EnterChanges
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.pods.podstatus import read_pod_manifest, read_stage1_tree_id
from minit.stage0.pods.waiting import wait_for_pid
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import crossing_environment

# Signals of the terminal reach stage1 anyway, and a second signal would mean nothing more.
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


def enter_pod(
    pod: Pod,
    tree_path: Callable[[str], Path] | None,
    app: str | None,
    command: Sequence[str],
    before_exec: Callable[[], None],
    *,
    privileged: bool = False,
    as_app: bool = False,
    timeout_seconds: float | None = None,
    changes: EnterChanges = NO_CHANGES,
) -> NoReturn:
    """
    Become stage1's `enter`, which runs `command` in an app (None: the only app), not confined as the app if
    `privileged`, as its user if `as_app`, with `changes`, and killed after a time; `before_exec` is called last.
    `tree_path` finds a tree of the tree store by its id; without it, on a machine that minit boots, `enter` is the
    pod's.
    """
    _refuse_ended(pod)
    name = choose_app(pod, app)
    program = _program(pod, tree_path)
    pid = wait_for_pid(pod)
    os.chdir(pod.path)
    before_exec()
    arguments = entrypoints.enter_arguments(
        pid, name, command, privileged=privileged, as_app=as_app, timeout_seconds=timeout_seconds, changes=changes
    )
    entrypoints.execute(program, arguments, dict(os.environ))


def enter_as_app(
    pod: Pod,
    tree_path: Callable[[str], Path],
    app: str,
    command: Sequence[str],
    timeout_seconds: float | None,
    failure_fd: int | None,
) -> list[str]:
    """
    Return the words of a process that runs `command` as an app's user, to be executed in the pod's directory.

    If entering fails, and not the command, the reason is written to `failure_fd`, which the process has to inherit.

    PodError if the pod does not run.
    """
    _refuse_ended(pod)
    program, pid = _program(pod, tree_path), wait_for_pid(pod)
    arguments = entrypoints.enter_arguments(
        pid,
        app,
        command,
        privileged=False,
        as_app=True,
        timeout_seconds=timeout_seconds,
        failure_fd=failure_fd,
    )
    return [str(program), *arguments]


def open_app_root(pod: Pod, tree_path: Callable[[str], Path], app: str) -> list[int]:
    """
    Return descriptors of the root of an app of a running pod, and of what keeps the app's mounts in it.

    None are returned if stage1 cannot tell the descriptors: the app does not run, or stage1 is not minit's.
    """
    options = entrypoints.read_stage1_manifest(pod).annotation(paths.ANNOTATION_ENTER_OPTIONS) or ""
    if paths.ENTER_ROOT_FD not in options.split(","):
        return []
    program, pid = _program(pod, tree_path), wait_for_pid(pod)
    ours, theirs = socket_pair()
    with ours:
        with theirs:
            try:
                subprocess.run(
                    [program, f"--pid={pid}", f"--appname={app}", f"--root-fd={theirs.fileno()}"],
                    cwd=pod.path,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    preexec_fn=ending_with_caller(),
                    check=False,
                )
            except OSError as error:
                raise PodError(f"cannot execute stage1's entrypoint {program}: {describe(error)}") from error
        return receive_message(ours)[1]


def _program(pod: Pod, tree_path: Callable[[str], Path] | None) -> Path:
    """Return the path of stage1's `enter`, from the tree store if there is one, where no pod can have changed it."""
    manifest = entrypoints.read_stage1_manifest(pod)
    root = pod.path / paths.POD_STAGE1 if tree_path is None else tree_path(read_stage1_tree_id(pod))
    later = manifest.annotation(paths.ANNOTATION_TREE)
    # rkt's `image gc` knows only the tree that a pod was prepared with.
    if tree_path is not None and later is not None and (tree_path(later) / "manifest").exists():
        root = tree_path(later)
        manifest = parse_image_manifest((root / "manifest").read_bytes(), str(root / "manifest"))
    return root / "rootfs" / entrypoints.require_path(manifest, "enter")


def _refuse_ended(pod: Pod) -> None:
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')


def choose_app(pod: Pod, app: str | None) -> str:
    """Return the app named by the user, or else the only app of the pod; PodError without one."""
    if app is not None:
        if not is_ac_name(app):
            raise PodError(f'"{app}" is no app name: expected lower-case letters, digits and inner dashes')
        return app
    names = [app.name for app in read_pod_manifest(pod).apps]
    if len(names) != 1:
        listing = ", ".join(names) or "none"
        raise PodError(f'pod "{pod.uuid}" has {len(names)} apps: choose one with --app (apps: {listing})')
    return names[0]


class _AttachCommand(Value):
    """A process that attaches, to be executed in the pod's directory: words, and environment."""

    words: list[str]
    environment: dict[str, str]


def attach_command(
    pod: Pod, app: str | None, mode: str, options: Mapping[str, str], *, debug: bool = False
) -> _AttachCommand:
    """
    Return the process that connects its standard streams to a running app's (None: the only app), until a side ends.

    `mode` is rkt's --mode. `options` are flags with values, which the stage1 image must declare.
    PodError if attaching is not possible.
    """
    if pod.state is not PodState.RUNNING:
        raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
    name = choose_app(pod, app)
    manifest = entrypoints.read_stage1_manifest(pod)
    known = (manifest.annotation(paths.ANNOTATION_ATTACH_OPTIONS) or "").split(",")
    for option in options:
        if option not in known:
            raise PodError(
                f'--{option}: stage1 image "{manifest.name}" does not know it '
                f"(annotation {paths.ANNOTATION_ATTACH_OPTIONS})"
            )
    flags = [f"--{option}={value}" for option, value in options.items()]
    program = pod.path / paths.POD_STAGE1_ROOTFS / entrypoints.require_path(manifest, "attach")
    return _AttachCommand(
        words=[str(program), *entrypoints.attach_arguments(mode, name, flags, debug=debug)],
        environment=crossing_environment(pod, manifest),
    )


def attach(
    pod: Pod, app: str | None, mode: str, options: Mapping[str, str], before_call: Callable[[], None], *, debug: bool
) -> None:
    """
    Connect this process's streams to those of an app, as `attach_command` has it; `before_call` is called last.

    PodError if stage1 fails; a signal that ends stage1 ends this process as well.
    """
    command = attach_command(pod, app, mode, options, debug=debug)
    before_call()
    settings = _terminal_settings()
    status = _run(command.words, pod.path, command.environment)
    if not os.WIFSIGNALED(status):
        code = os.waitstatus_to_exitcode(status)
        if code != 0:
            raise PodError(f"attach failed: error executing stage1 entrypoint: exit status {code}")
        return
    if settings is not None:
        # A killed client left the terminal raw.
        termios.tcsetattr(0, termios.TCSADRAIN, settings)
    number = os.WTERMSIG(status)
    if number in _FORWARDED:
        raise SystemExit(128 + number)
    raise PodError(f"attach failed: stage1 was killed by signal {number}")


def _terminal_settings() -> list[Any] | None:
    try:
        return termios.tcgetattr(0)
    except termios.error:
        return None


def _run(command: Sequence[str], directory: Path, environment: Mapping[str, str]) -> int:
    """Return the wait status of a command that gets this process's signals; its stops stop this process too."""
    process: int | None = None
    early: list[int] = []

    def forward(number: int, frame: FrameType | None = None) -> None:
        if process is None:
            early.append(number)
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(process, number)

    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, forward)
    try:
        # Not SIGKILL: the client restores the terminal first.
        child = subprocess.Popen(command, cwd=directory, env=environment, preexec_fn=ending_with_caller(signal.SIGTERM))
    except OSError as error:
        raise PodError(f"cannot execute stage1's entrypoint {command[0]}: {describe(error)}") from error
    process = os.pidfd_open(child.pid)
    for missed in early:
        forward(missed)
    while True:
        # Not by this class's own wait, which would not see that the process is stopped.
        _, status = os.waitpid(child.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            child.returncode = os.waitstatus_to_exitcode(status)
            return status
        os.kill(os.getpid(), signal.SIGSTOP)
        signal.pidfd_send_signal(process, signal.SIGCONT)
