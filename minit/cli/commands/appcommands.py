"""The commands on one app of a pod: enter, app exec (the same), app start, stop, pause, resume, rm and update."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from minit.base.errors import ManifestError
from minit.cli.flags.appoptions import Variables, parse_cpu, parse_memory, parse_variables
from minit.cli.flags.sharedoptions import Decorator, in_order, privileged_option, read_duration
from minit.cli.flagwords import FlagError, parse_number
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import uuid_file_first_option
from minit.linux.stdio import flush_output
from minit.manifest.app import MAX_ID
from minit.manifest.limits import (
    BILLION,
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    MIN_MICROSECONDS,
    PERIOD_MICROSECONDS,
    CpuQuota,
    Limits,
    docker_quantity,
    parse_quantity,
    with_annotation,
)
from minit.manifest.names import is_ac_name
from minit.podfiles.enterchanges import EnterChanges
from minit.pods import apps
from minit.stage0.apps.enter import enter_pod
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Pod, find_pod

_DEFAULT_COMMAND = "/bin/bash"


def _read_grace(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    seconds = None if value is None else read_duration(ctx, parameter, value)
    if seconds is not None and seconds < 0:
        raise click.BadParameter(f'expected 0 or more, got "{value}"', ctx, parameter)
    return seconds


def _read_timeout(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    seconds = None if value is None else read_duration(ctx, parameter, value)
    if seconds is not None and seconds <= 0:
        raise click.BadParameter(f'expected more than 0, got "{value}"', ctx, parameter)
    return seconds


def read_user(ctx: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int | None, int | None]:
    """Return the numbers of user and group, None without them; a callback of options."""
    if value is None:
        return None, None
    user, _, group = value.partition(":")
    try:
        uid = parse_number("--user", user, 0, MAX_ID)
        return uid, parse_number("--user", group, 0, MAX_ID) if group else None
    except FlagError as error:
        raise click.UsageError(f"{error}: --as-app is the app's own user", ctx) from error


def read_environment(ctx: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> Variables:
    """Return variables; a callback of options."""
    try:
        return parse_variables("--environment", value)
    except FlagError as error:
        raise click.UsageError(str(error), ctx) from error


def read_directory(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return an absolute path; a callback of options."""
    if value is not None and not value.startswith("/"):
        raise click.UsageError(f'--working-dir: expected an absolute path, got "{value}"', ctx)
    return value


_enter_options = in_order(
    click.option("--app", metavar="NAME", help="App to enter, if the pod has several."),
    click.option(
        "--timeout",
        metavar="DURATION",
        callback=_read_timeout,
        help="Kill the command with all that it has started after so long, and exit with 124. Nothing of it is left"
        " when it ends by itself, too.",
    ),
    click.option("--as-app", is_flag=True, help="As the app's user and groups, not as root."),
    click.option("--user", "-u", metavar="UID[:GID]", callback=read_user, help="As this user, by number, not as root."),
    click.option(
        "--environment",
        "--env",
        "-e",
        metavar="NAME=VALUE",
        multiple=True,
        callback=read_environment,
        help="Environment variable beside the app's; repeatable.",
    ),
    click.option(
        "--working-dir",
        "--workdir",
        "-w",
        metavar="DIR",
        callback=read_directory,
        help="Working directory instead of the app's.",
    ),
    click.option(
        "-i",
        "-t",
        "-it",
        "-ti",
        "--interactive",
        "--tty",
        is_flag=True,
        expose_value=False,
        help="Accepted for docker's sake: the command has the caller's streams, and a terminal where they are one.",
    ),
    privileged_option,
    uuid_file_first_option,
    click.argument("uuid", metavar="UUID"),
    click.argument("command", nargs=-1, metavar="[COMMAND [ARG]...]", type=click.UNPROCESSED),
)


@click.command(cls=MinitCommand, stop_at_operand=True)
@_enter_options
@click.pass_obj
def enter(invocation: Invocation, /, **options: Any) -> None:
    """
    It is root there, or with --as-app the app's user, and as confined as the app. A terminal in front of it is one
    of the pod.

    The exit code is the command's, 127 if it is not found, 126 if it cannot be executed. UUID may be shortened to any
    prefix that only one pod has, or be the pod's name.

    \b
      minit enter 2d381b2a /bin/sh
      minit enter --app=web 2d381b2a ps aux
      minit enter -u 1000 -w /srv -e LANG=C web ls

    """
    _enter(invocation, **options)


@click.command("exec", cls=MinitCommand, stop_at_operand=True)
@_enter_options
@click.pass_obj
def execute(invocation: Invocation, /, **options: Any) -> None:
    """
    \b
      minit app exec --app=web 2d381b2a nginx -s reload

    """
    _enter(invocation, **options)


def _of_one_app(help_text: str, *more: Decorator) -> Decorator:
    """Return the options and the operand of a command for one app of a pod, with `more` options after --app."""
    return in_order(
        click.option("--app", metavar="NAME", help=help_text),
        *more,
        uuid_file_first_option,
        click.argument("uuid", metavar="UUID", required=False),
    )


@click.command(cls=MinitCommand)
@_of_one_app("App to start.")
@click.pass_obj
def start(invocation: Invocation, uuid: str | None, app: str | None) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app start --app=web 2d381b2a

    """
    with app_of_pod(invocation, uuid, app, "start") as (pod, name):
        apps.start(invocation.caller, pod, name)


@click.command(cls=MinitCommand)
@_of_one_app(
    "App to stop.",
    click.option(
        "--timeout",
        metavar="DURATION",
        callback=_read_grace,
        help="Kill the app after so long, in place of its own grace period; 0s at once.",
    ),
)
@click.pass_obj
def stop(invocation: Invocation, uuid: str | None, app: str | None, timeout: float | None) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app stop --app=web 2d381b2a
      minit app stop --app=web --timeout=30s 2d381b2a

    """
    with app_of_pod(invocation, uuid, app, "stop") as (pod, name):
        if not apps.stop(invocation.caller, pod, name, timeout):
            invocation.say(f'pod "{pod.uuid}" is already stopped')


@click.command(cls=MinitCommand)
@_of_one_app("App to pause.")
@click.pass_obj
def pause(invocation: Invocation, uuid: str | None, app: str | None) -> None:
    """
    The health checks of the app wait. A stop of the app or of the pod ends the pause first.

    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app pause --app=web 2d381b2a

    """
    with app_of_pod(invocation, uuid, app, "pause") as (pod, name):
        apps.pause(pod, name)


@click.command(cls=MinitCommand)
@_of_one_app("App to resume.")
@click.pass_obj
def resume(invocation: Invocation, uuid: str | None, app: str | None) -> None:
    """

    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app resume --app=web 2d381b2a

    """
    with app_of_pod(invocation, uuid, app, "resume") as (pod, name):
        apps.resume(pod, name)


@click.command("rm", cls=MinitCommand)
@_of_one_app("App to remove.")
@click.pass_obj
def remove(invocation: Invocation, uuid: str | None, app: str | None) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app rm --app=web 2d381b2a

    """
    with app_of_pod(invocation, uuid, app, "remove") as (pod, name):
        apps.remove(invocation.caller, pod, name)


@contextmanager
def app_of_pod(invocation: Invocation, uuid: str | None, app: str | None, verb: str) -> Iterator[tuple[Pod, str]]:
    """Open the pod of a command for one app, and look at the app's name."""
    invocation.become_root()
    if not uuid:
        raise click.UsageError("must provide the pod UUID")
    if not app:
        raise click.UsageError(f"must provide the app to {verb}, with --app=NAME")
    if not is_ac_name(app):
        raise click.UsageError(f'--app: expected lower-case letters, digits and inner dashes, got "{app}"')
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        yield pod, app


def _enter(
    invocation: Invocation,
    app: str | None,
    privileged: bool,
    as_app: bool,
    user: tuple[int | None, int | None],
    environment: Variables,
    working_dir: str | None,
    timeout: float | None,
    uuid: str,
    command: tuple[str, ...],
) -> None:
    invocation.become_root(in_scope=True)
    if privileged and as_app:
        raise click.UsageError("--as-app: a command with --privileged is root")
    if user[0] is not None and (as_app or privileged):
        raise click.UsageError("--user: a command with --as-app is the app's user, and with --privileged root")
    if privileged and timeout is not None:
        raise click.UsageError("--timeout: a command with --privileged has no time limit")
    if not command:
        invocation.note(f'no command specified, assuming "{_DEFAULT_COMMAND}"')
        command = (_DEFAULT_COMMAND,)
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
    ):
        tree_path = TreeStore(invocation.data, store).path
        enter_pod(
            pod,
            tree_path,
            app,
            command,
            flush_output,
            privileged=privileged,
            as_app=as_app,
            timeout_seconds=timeout,
            changes=EnterChanges(environment=environment, working_directory=working_dir, uid=user[0], gid=user[1]),
        )


@click.command(cls=MinitCommand)
@_of_one_app(
    "App whose limits are changed.",
    click.option("--memory", metavar="BYTES", help="The most memory, as in 64M."),
    click.option("--cpu", metavar="N", help="The most processor time, in processors, as in 1.5 or 500m."),
    click.option(
        "--cpu-shares", metavar="SHARES", help="The weight against other apps, 2 to 262144; 1024 without one."
    ),
    click.option("--limits", metavar="JSON", help="Further limits, in the words of the annotation minit/limits."),
)
@click.pass_obj
def update(
    invocation: Invocation,
    uuid: str | None,
    app: str | None,
    memory: str | None,
    cpu: str | None,
    cpu_shares: str | None,
    limits: str | None,
) -> None:
    """
    Limits that are not given stay. If one cannot be set, all stay as they were. They count as long as the pod runs.

    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app update --app=web --memory=256M --cpu=1.5 2d381b2a
      minit app update --app=web --limits='{"cpus": "0-1"}' 2d381b2a

    """
    try:
        wanted = _read_limits(memory, cpu, cpu_shares, limits)
    except (FlagError, ManifestError) as error:
        raise click.UsageError(str(error)) from error
    if wanted == Limits():
        raise click.UsageError("must provide a limit, as with --memory=256M")
    with app_of_pod(invocation, uuid, app, "update") as (pod, name):
        apps.update(pod, name, wanted)


def _read_limits(memory: str | None, cpu: str | None, cpu_shares: str | None, further: str | None) -> Limits:
    quota = shares = memory_bytes = None
    if memory is not None:
        parse_memory("--memory", memory)
        memory_bytes = -(-parse_quantity(docker_quantity(memory)) // BILLION)
    if cpu is not None:
        parse_cpu("--cpu", cpu)
        microseconds = -(-parse_quantity(cpu) * PERIOD_MICROSECONDS // BILLION)
        quota = CpuQuota(quota=max(microseconds, MIN_MICROSECONDS))
    if cpu_shares is not None:
        shares = parse_number("--cpu-shares", cpu_shares, MIN_CPU_SHARES, MAX_CPU_SHARES)
    return with_annotation(Limits(memory_bytes=memory_bytes, cpu_quota=quota, cpu_shares=shares), further, "--limits")
