"""The commands for the output of apps and the events of a pod: logs, events, attach."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

import click

from minit.base import jsontext
from minit.base.errors import MinitError
from minit.base.moment import parse_moment
from minit.base.value import replace
from minit.cli.flags.filters import Filter, Listed, Subject, filter_option, fits, listed_pod
from minit.cli.flags.sharedoptions import apps_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.logview import Choice, reopen_logs, show_logs
from minit.cli.uuidfile import one_pod, uuid_file_first_option
from minit.linux.process import raise_open_files
from minit.linux.stdio import flush_output
from minit.podfiles.paths import POD_PRIVATE_USERS
from minit.podfiles.usersdirectory import is_of_user
from minit.stage0.apps.enter import attach as attach_app
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.pods.podstatus import PodStatus, read_pod_status
from minit.stage0.reports.eventreader import Wanted, events_of_all, pod_events

STREAMS = ("stdout", "stderr")

_PLAIN = re.compile(r"[\w./:@%+,-]+", re.ASCII)
_HEAD = ("seq", "time", "event", "app")

_SLOW_POLICIES = ("wait", "drop", "disconnect", "block")


def read_moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    """Return a point in time in nanoseconds since 1970; a callback of options."""
    if value is None:
        return None
    try:
        return parse_moment(value, time.time_ns())
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def read_tail(ctx: click.Context, parameter: click.Parameter, value: str) -> int | None:
    """Return a number of lines, None for all; a callback of options."""
    if value == "all":
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        raise click.BadParameter(f'expected a number of lines or "all", got "{value}"', ctx, parameter)
    return int(value)


@click.command(cls=MinitCommand)
@apps_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until the app or the pod has ended.")
@click.option(
    "--since", metavar="TIME", callback=read_moment, help="Only lines from TIME on: 10m, or 2026-11-21 18:00."
)
@click.option("--until", metavar="TIME", callback=read_moment, help="Only lines up to TIME.")
@click.option("--tail", metavar="N", default="all", callback=read_tail, help="Only the last N lines.  [default: all]")
@click.option("--stream", type=click.Choice(STREAMS), help="Only one of the two streams.")
@click.option("-t", "--timestamps", is_flag=True, help="Begin each line with its time, in UTC.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("text", "json")),
    default="text",
    help="One JSON object a line, or text.  [default: text]",
)
@click.option("--reopen", is_flag=True, help="Have the pod let go of log files that were moved, and show nothing.")
@one_pod()
@click.pass_obj
def logs(
    invocation: Invocation,
    apps: tuple[str, ...],
    follow: bool,
    since: int | None,
    until: int | None,
    tail: int | None,
    stream: str | None,
    timestamps: bool,
    output_format: str,
    reopen: bool,
    uuid: str,
) -> None:
    """
    Lines of several apps are sorted by time and have the app's name before them.

    \b
      minit logs 2d381b2a
      minit logs --follow --app=web --tail=20 2d381b2a
      minit logs --since=10m --timestamps --format=json 2d381b2a

    """
    if reopen:
        reopen_logs(invocation, uuid, apps)
        return

    choice = Choice(
        apps=apps,
        follow=follow,
        since_ns=since,
        until_ns=until,
        tail=tail,
        streams=frozenset(name.encode() for name in ((stream,) if stream else STREAMS)),
        timestamps=timestamps,
        json=output_format == "json",
    )
    show_logs(invocation, uuid, choice)


@click.command(cls=MinitCommand)
@apps_option
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Go on with what happens, until the pod has ended; without a UUID until SIGINT.",
)
@click.option("--since", metavar="SEQ", type=click.IntRange(min=0), help="Only events after number SEQ.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("text", "json")),
    default="json",
    help="Text, or one JSON object a line.  [default: json]",
)
@filter_option(Subject.EVENTS)
@uuid_file_first_option
@click.argument("uuid", metavar="[UUID]", required=False)
@click.pass_obj
def events(
    invocation: Invocation,
    apps: tuple[str, ...],
    follow: bool,
    since: int | None,
    filters: tuple[Filter, ...],
    output_format: str,
    uuid: str | None,
) -> None:
    """
    Without a UUID the events of all pods are shown by their times, with the pod of each; with --follow of pods that
    start later, too, until the command is interrupted.

    Each event has a number in its pod, so that a later call can go on after it. Where some are no longer there, a "gap"
    tells how many.

    \b
      minit events
      minit events 2d381b2a
      minit events --follow --format=text 2d381b2a
      minit events --follow --filter=event=app.exited --filter=label=tier=web

    """
    line = _json_line if output_format == "json" else text_line
    if uuid is None:
        if since is not None:
            raise click.UsageError("--since is for the events of one pod: give the UUID")
        _show_all(invocation, apps, filters, line, follow=follow)
        return
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        invocation.look_into_pod(has_own_ids=pod.has_file(POD_PRIVATE_USERS))
        wanted = Wanted(apps=frozenset(apps), since=since)
        status = None
        for some in pod_events(pod, wanted, sys.stdout.fileno(), follow=follow):
            with suppress(MinitError, OSError):  # of a pod that is gone
                status = read_pod_status(pod) if filters else None
            for event in some:
                if fits(filters, _listed(pod.uuid, event, status)):
                    invocation.say(line(event))
            sys.stdout.flush()


def _show_all(
    invocation: Invocation,
    apps: tuple[str, ...],
    filters: Sequence[Filter],
    line: Callable[[Mapping[str, object]], str],
    *,
    follow: bool,
) -> None:
    raise_open_files()
    if is_of_user():
        invocation.look_into_pod(has_own_ids=any(invocation.data.glob(f"pods/*/*/{POD_PRIVATE_USERS}")))
    batches = events_of_all(
        invocation.data, frozenset(apps), sys.stdout.fileno(), invocation.note, follow=follow, with_status=bool(filters)
    )
    for batch in batches:
        for each in batch:
            if fits(filters, _listed(each.uuid, each.event, each.status)):
                invocation.say(line({**each.event, "pod": each.uuid}))
        sys.stdout.flush()


def _listed(uuid: str, event: Mapping[str, object], status: PodStatus | None) -> Listed:
    """Return what filters look at in an event: of the app, or of all apps for an event of the pod."""
    app = event.get("app")
    if status is None:
        return Listed(ids=(uuid,), event=str(event.get("event")), apps=(app,) if isinstance(app, str) else ())
    named = tuple(each for each in status.apps if each.name == app)
    return replace(
        listed_pod(replace(status, apps=named if app is not None else status.apps)),
        event=str(event.get("event")),
        apps=(app,) if isinstance(app, str) else (),
    )


# Events as `minit events` prints them: JSON as it is, or text that is harmless for a terminal. Pure.


def _json_line(event: Mapping[str, object]) -> str:
    """Return an event as one line of JSON."""
    return jsontext.dump(event).decode("ascii")


def text_line(event: Mapping[str, object]) -> str:
    """Return an event as `NUMBER TIME EVENT APP NAME=VALUE…`, with `-` where it has no time or app."""
    head = [_word(event.get(name, "-")) for name in _HEAD]
    return " ".join([*head, *(f"{name}={_word(value)}" for name, value in event.items() if name not in _HEAD)])


def _word(value: object) -> str:
    # Texts of apps are among them: what is not plain is quoted, with all but ASCII escaped.
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else jsontext.dump(value).decode("ascii")


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to attach to, if the pod has several.")
@click.option(
    "--mode",
    metavar="MODE",
    default="auto",
    help="`auto` for all that is attachable, `list` to show what is, or names separated by commas: "
    "stdin, stdout, stderr; or tty, tty-in, tty-out.  [default: auto]",
)
@click.option(
    "--detach-keys",
    metavar="KEYS",
    help="What is typed to detach from a terminal: keys separated by commas, each a character or ctrl-CHARACTER; "
    "`none` for none.  [default: ctrl-p,ctrl-q]",
)
@click.option("--read-only", is_flag=True, help="Pass nothing on to the app, neither input nor the window's size.")
@click.option("--take-stdin", is_flag=True, help="Take the input over from the client that has it.")
@click.option("--no-replay", is_flag=True, help="Do not show what the app wrote last, before the attachment.")
@click.option(
    "--on-slow",
    type=click.Choice(_SLOW_POLICIES),
    help="What happens when output is not read as fast as the app writes: the app waits for a client that reads, the "
    "oldest is dropped, the client is disconnected, or the app waits for ever.  [default: wait]",
)
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def attach(
    invocation: Invocation,
    app: str | None,
    mode: str,
    detach_keys: str | None,
    read_only: bool,
    take_stdin: bool,
    no_replay: bool,
    on_slow: str | None,
    uuid: str,
) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit attach 2d381b2a
      minit attach --app=web --mode=stdout,stderr 2d381b2a > output
      minit attach --mode=list 2d381b2a

    """
    invocation.become_root()
    options = {"detach-keys": detach_keys, "on-slow": on_slow}
    switches = {"read-only": read_only, "take-stdin": take_stdin, "no-replay": no_replay}
    given = {name: value for name, value in options.items() if value is not None}
    given.update({name: "true" for name, value in switches.items() if value})
    if read_only and take_stdin:
        raise click.UsageError("--read-only and --take-stdin exclude each other")
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        attach_app(pod, app, mode, given, flush_output, debug=invocation.debug)
