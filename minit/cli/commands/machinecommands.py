"""The commands that a host has not, or in another form: enter, app start, app stop, shell, poweroff, …"""

from __future__ import annotations

import glob
import os
import shlex
import signal
import termios
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

import click

from minit.base.errors import PodError
from minit.cli.flags.sharedoptions import privileged_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.main import run
from minit.linux import syscalls
from minit.linux.forks import PROMPT_COMMAND, fork
from minit.linux.loop import wait_readable
from minit.linux.stdio import flush_output, write_all
from minit.machine.requests import request_ending
from minit.manifest.machineconfig import POWEROFF, REBOOT
from minit.podfiles import paths
from minit.stage0.apps.enter import enter_pod
from minit.stage0.pods.mutablepods import require_app
from minit.stage0.pods.poddirectory import Pod, PodState, open_pod
from minit.stage0.pods.podstatus import read_pod_manifest
from minit.stage0.stage1 import entrypoints
from minit.stage0.stage1.calls import call_crossing

_SHELL = "/bin/sh"
_MACHINES_OWN = ("/proc", "/sys", "/dev", "/run")

_INTERRUPTS = (signal.SIGINT, signal.SIGQUIT)


@click.command(cls=MinitCommand, stop_at_operand=True)
@click.option("--app", metavar="NAME", help="App to enter; all operands are the command then.")
@privileged_option
@click.argument("words", nargs=-1, metavar="APP [COMMAND [ARG]...]", type=click.UNPROCESSED)
@click.pass_obj
def enter(invocation: Invocation, app: str | None, privileged: bool, words: tuple[str, ...]) -> None:
    """
    It is root there, and as confined as the app. A terminal in front of it is one of the pod.

    The exit code is the command's, 127 if it is not found, 126 if it cannot be executed.

    \b
      minit enter web
      minit enter web ps aux

    """
    if app is None:
        if not words:
            raise click.UsageError("must provide the app to enter")
        app, words = words[0], words[1:]
    with open_pod(invocation.data, paths.MACHINE_UUID) as pod:
        enter_pod(pod, None, app, words or (_SHELL,), flush_output, privileged=privileged)


@click.command(cls=MinitCommand)
@click.argument("app", metavar="APP")
@click.pass_obj
def start(invocation: Invocation, app: str) -> None:
    """
    \b
      minit app start web

    """
    with _running_pod(invocation, app) as pod:
        call_crossing(pod, "app/start", entrypoints.app_arguments(app, debug=invocation.debug))


@click.command(cls=MinitCommand)
@click.argument("app", metavar="APP")
@click.pass_obj
def stop(invocation: Invocation, app: str) -> None:
    """
    It is not started again by itself, and the machine stays even if no app is left that runs.

    \b
      minit app stop web

    """
    with _running_pod(invocation, app) as pod:
        call_crossing(pod, "app/stop", entrypoints.app_arguments(app, debug=invocation.debug))


@contextmanager
def _running_pod(invocation: Invocation, app: str) -> Iterator[Pod]:
    with open_pod(invocation.data, paths.MACHINE_UUID) as pod:
        if pod.state is not PodState.RUNNING:
            raise PodError(f'pod "{pod.uuid}" isn\'t currently running: its state is "{pod.state}"')
        require_app(read_pod_manifest(pod), app)
        yield pod


@click.command(cls=MinitCommand)
@click.pass_obj
def shell(invocation: Invocation) -> None:
    """
    Its root is that of the machine. If there is no shell, it is the root of the first app that has one, with the
    machine's processes, devices and /run; all else of the machine is below /proc/1/root.

    \b
      minit shell

    """
    invocation.require_root()
    of_apps = glob.glob(f"{paths.MACHINE_POD}/{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs('*')}")
    root = next((root for root in ("/", *sorted(of_apps)) if os.path.lexists(root + _SHELL)), None)
    if root is None:
        raise PodError("neither the machine nor an app has /bin/sh")
    if root != "/":
        _enter_image(root)
    os.execv(_SHELL, (_SHELL,))


def _enter_image(root: str) -> None:
    """Make the root of an app's image that of this process, with the file systems that tell of the machine."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_SLAVE)
    for name in _MACHINES_OWN:
        with suppress(OSError):  # a read-only image without that directory
            os.makedirs(root + name, exist_ok=True)
            syscalls.mount(name, root + name, None, syscalls.MS_BIND | syscalls.MS_REC)
    os.chroot(root)
    os.chdir("/")


@click.command(cls=MinitCommand)
@click.pass_obj
def poweroff(invocation: Invocation) -> None:
    """
    \b
      minit poweroff

    """
    invocation.require_root()
    request_ending(POWEROFF)


@click.command(cls=MinitCommand)
@click.pass_obj
def reboot(invocation: Invocation) -> None:
    """
    \b
      minit reboot

    """
    invocation.require_root()
    request_ending(REBOOT)


@click.command(cls=MinitCommand)
@click.pass_context
def console(ctx: click.Context) -> None:
    """
    A line is split into words as a shell does it, without anything else of a shell. `minit` before them may be left
    out.

    \b
      minit console

    """
    commands = ctx.find_root().command
    assert isinstance(commands, click.Group)
    _run_lines(commands)


def _run_lines(root: click.Group) -> None:
    """Run command lines of `root` until the end of input, which Ctrl-D at the prompt makes."""
    settings = termios.tcgetattr(0) if os.isatty(0) else None
    # Unbuffered, as what follows a line is for the command in it.
    lines = open(0, "rb", buffering=0, closefd=False)
    while True:
        for number in _INTERRUPTS:
            signal.signal(number, _forget_line)
        try:
            if settings is not None:
                # A killed command may have left it raw.
                termios.tcsetattr(0, termios.TCSADRAIN, settings)
                if not _is_typed():
                    write_all(1, f"{os.uname().nodename}> ".encode())
            line = lines.readline()
            if not line:
                return
            # A break on a serial line comes as NUL.
            words = shlex.split(line.replace(b"\0", b"").decode(errors="replace"), comments=True)
            # Meant for the command from now on, to which the terminal sends them as well.
            for number in _INTERRUPTS:
                signal.signal(number, signal.SIG_IGN)
        except _ForgottenLine:
            write_all(1, b"\n")
        except ValueError as error:
            os.write(2, f"minit: {str(error).lower()}\n".encode())
        else:
            # Users of a shell type it.
            if words[:1] == [root.name]:
                words = words[1:]
            if words:
                _run(words, root)


def _is_typed() -> bool:
    """Return whether there is a line already, under which no prompt belongs."""
    return bool(wait_readable([0], 0))


class _ForgottenLine(Exception):
    """Somebody has typed Ctrl-C."""


def _forget_line(*_: object) -> NoReturn:
    raise _ForgottenLine


def _run(words: Sequence[str], root: click.Group) -> None:
    os.waitpid(fork(PROMPT_COMMAND, lambda: _run_interruptibly(words, root)), 0)


def _run_interruptibly(words: Sequence[str], root: click.Group) -> int:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    return run(words, root)
