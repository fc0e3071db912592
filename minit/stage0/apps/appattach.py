"""Attaching to the streams of an app through the pod's stage1."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from minit.base.errors import PodError, describe
from minit.base.value import Value
from minit.linux.process import ending_with_caller
from minit.podfiles import paths
from minit.stage0.apps.enter import choose_app
from minit.stage0.pods.poddirectory import Pod, PodState
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import crossing_environment

# Signals of the terminal reach stage1 without that, too, and a second time means nothing more to it.
_FORWARDED = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)


class AttachCommand(Value):
    """A process that attaches, to be executed in the pod's directory: its words, and its environment."""

    words: list[str]
    environment: dict[str, str]


def attach_command(
    pod: Pod, app: str | None, mode: str, options: Mapping[str, str], *, debug: bool = False
) -> AttachCommand:
    """
    Return what connects its standard streams to those of a running app (None: the only one), until either side ends.

    `mode` is rkt's --mode. `options` are flags with their values, which the stage1 image must declare to know.
    PodError if that is not possible.
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
    return AttachCommand(
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
        # A killed client left it raw.
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
    """Return the wait status of a command that gets the signals of this process, and has it stop when it stops."""
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
        # Not SIGKILL: the terminal is to be as it was.
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
