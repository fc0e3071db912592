"""The commands for the apps of a running pod: enter, and app exec, which is the same; app stats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from minit.cli.grammar import MinitCommand, MinitGroup
from minit.cli.invocation import Invocation, flush_output
from minit.cli.statscommand import stats
from minit.stage0.enter import enter_pod
from minit.stage0.pods import find_pod
from minit.stage0.store import Store
from minit.stage0.treestore import TreeStore

_SECTION = "Running pods"
_DEFAULT_COMMAND = "/bin/bash"


def _enter_options(function: Callable[..., Any]) -> Callable[..., Any]:
    for decorate in (
        click.argument("command", nargs=-1, metavar="[COMMAND [ARG]...]", type=click.UNPROCESSED),
        click.argument("uuid", metavar="UUID"),
        click.option(
            "--privileged",
            is_flag=True,
            help="With all capabilities that PID 1 has, and neither the app's filters of system calls nor its limits.",
        ),
        click.option("--app", metavar="NAME", help="App to enter, if the pod has several."),
    ):
        function = decorate(function)
    return function


@click.command(cls=MinitCommand, section=_SECTION, stop_at_operand=True)
@_enter_options
@click.pass_obj
def enter(invocation: Invocation, /, **options: Any) -> None:
    """
    Run a command, by default /bin/bash, in an app of a running pod.

    It is root there, and as confined as the app. A terminal in front of it is one of the pod.

    The exit code is the command's, 127 if it is not found, 126 if it cannot be executed. UUID may be shortened to any
    prefix that only one pod has.
    """
    _enter(invocation, **options)


@click.group("app", cls=MinitGroup, section=_SECTION)
def app_group() -> None:
    """Work with the apps of a running pod."""


@app_group.command("exec", stop_at_operand=True)
@_enter_options
@click.pass_obj
def execute(invocation: Invocation, /, **options: Any) -> None:
    """Run a command, by default /bin/bash, in an app of a running pod; the same as `minit enter`."""
    _enter(invocation, **options)


app_group.add_command(stats)

COMMANDS: tuple[click.Command, ...] = (enter, app_group)


def _enter(invocation: Invocation, app: str | None, privileged: bool, uuid: str, command: tuple[str, ...]) -> None:
    invocation.require_root()
    if not command:
        invocation.note(f'no command specified, assuming "{_DEFAULT_COMMAND}"')
        command = (_DEFAULT_COMMAND,)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        enter_pod(pod, TreeStore(invocation.data, store), app, command, flush_output, privileged=privileged)
