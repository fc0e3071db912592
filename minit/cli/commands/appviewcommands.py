"""The commands that look at the apps of a pod: app list and app status."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from minit.base.errors import MinitError, describe
from minit.base.harmless import harmless
from minit.cli.flags.sharedoptions import no_legend_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_exact_time, format_option, json_text
from minit.cli.text.podtext import app_json
from minit.cli.uuidfile import uuid_file_first_option
from minit.stage0.pods.poddirectory import Pod, PodState, find_pod
from minit.stage0.pods.podstatus import (
    APP_CREATED,
    APP_EXITED,
    APP_PAUSED,
    APP_RUNNING,
    AppStatus,
    PodStatus,
    read_pod_status,
)
from minit.stage0.stage1.calls import read_app_states

EXIT_FAILURE = 1
"""rkt's for all that fails in sandbox, list and status of `app`, and only there."""

# rkt's words in those of the app-level API, where there is no supervisor to ask.
_LIFECYCLE_STATES = {APP_CREATED: "prepared", APP_RUNNING: "running", APP_PAUSED: APP_PAUSED, APP_EXITED: "exited"}

_LEGEND = ("NAME", "STATE")


@click.command("list", cls=MinitCommand)
@no_legend_option
@format_option
@uuid_file_first_option
@click.argument("uuid", metavar="UUID", required=False)
@click.pass_obj
def list_apps(invocation: Invocation, no_legend: bool, output_format: str | None, uuid: str | None) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app list 2d381b2a

    """
    try:
        with find_pod(invocation.data, _required(uuid, "the pod UUID"), invocation.note) as pod:
            status = read_pod_status(pod)
            states = {} if output_format is None else _lifecycle_states(invocation, pod, status)
    except (MinitError, OSError) as error:
        failed_in_app_group(error)
    if output_format is not None:
        # No apps are null to Go, and so to the readers of this output.
        invocation.say(json_text([_json(app, states) for app in status.apps] or None, output_format))
    else:
        invocation.say(app_list_text(status.apps, legend=not no_legend), end="")


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to show.")
@format_option
@uuid_file_first_option
@click.argument("uuid", metavar="UUID", required=False)
@click.pass_obj
def status(invocation: Invocation, uuid: str | None, app: str | None, output_format: str | None) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit app status --app=web 2d381b2a
      minit app status --app=web --format=json-pretty 2d381b2a

    """
    try:
        with find_pod(invocation.data, _required(uuid, "the pod UUID"), invocation.note) as pod:
            name = _required(app, "the app, with --app=NAME")
            pod_status = read_pod_status(pod)
            found = next((each for each in pod_status.apps if each.name == name), None)
            if found is None:
                raise MinitError(f'cannot find app "{name}" in the pod')
            states = {} if output_format is None else _lifecycle_states(invocation, pod, pod_status)
    except (MinitError, OSError) as error:
        failed_in_app_group(error)
    if output_format is not None:
        invocation.say(json_text(_json(found, states), output_format))
    else:
        invocation.say(app_status_text(found), end="")


def failed_in_app_group(error: MinitError | OSError) -> NoReturn:
    """Raise an error again with rkt's exit code for the group `app`."""
    if isinstance(error, MinitError):
        error.exit_code = EXIT_FAILURE
        raise error
    wrapped = MinitError(describe(error))
    wrapped.exit_code = EXIT_FAILURE
    raise wrapped from error


def _required(value: str | None, what: str) -> str:
    if not value:
        # No click.UsageError, which has another exit code.
        raise MinitError(f"must provide {what}")
    return value


def _json(app: AppStatus, states: dict[str, str]) -> dict[str, object]:
    return {**app_json(app), "lifecycle_state": states[app.name]}


def _lifecycle_states(invocation: Invocation, pod: Pod, status: PodStatus) -> dict[str, str]:
    states = {app.name: _LIFECYCLE_STATES.get(app.state, "unknown") for app in status.apps}
    if status.state is not PodState.RUNNING:
        return states
    try:
        invocation.become_root()
        known = read_app_states(pod) or {}
    except MinitError as error:
        # It is just starting or ending, or it hangs: what the files say is true all the same.
        invocation.note(f"warning: states are those of the pod's files: {describe(error)}")
        return states
    return {name: known.get(name, state) for name, state in states.items()}


# Apps as `app list` and `app status` show them: rkt's text, byte for byte. Pure.


def app_list_text(apps: Sequence[AppStatus], *, legend: bool) -> str:
    """Return the table of `app list`."""
    rows = [_LEGEND] if legend else []
    return align([*rows, *((app.name, app.state) for app in apps)])


def app_status_text(app: AppStatus) -> str:
    """Return the lines of `app status`."""
    lines = [f"name={app.name}", f"state={app.state}", f"image_id={app.image_id or ''}"]
    times = (("created_at", app.created_ns), ("started_at", app.started_ns), ("finished_at", app.finished_ns))
    lines += [f"{name}={format_exact_time(time_ns)}" for name, time_ns in times if time_ns is not None]
    if app.exit_code is not None:
        lines.append(f"exit_code={app.exit_code}")
    mounts = [
        f"{mount.host_path}:{mount.container_path}:(read_only:{'true' if mount.read_only else 'false'})"
        for mount in app.mounts
    ]
    lines += _block("mounts", mounts)
    lines += _block("user_annotations", [f"{name}:{value}" for name, value in app.user_annotations])
    lines += _block("user_labels", [f"{name}:{value}" for name, value in app.user_labels])
    return "".join(f"{harmless(line)}\n" for line in lines)


def _block(name: str, values: Sequence[str]) -> list[str]:
    """Return lines of which rkt's logger ends each part with a newline."""
    return [f"{name}=", ",".join(values), ""] if values else []
