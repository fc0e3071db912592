"""The commands for the output of apps and the events of a pod: logs, events, attach."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping

import click

from minit.base import jsontext
from minit.base.errors import MinitError, describe
from minit.base.moment import parse_moment
from minit.cli.flags.sharedoptions import apps_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.logview import Choice, reopen_logs, show_logs
from minit.cli.uuidfile import one_pod, uuid_file_first_option
from minit.linux.stdio import flush_output
from minit.stage0.apps.enter import attach as attach_app
from minit.stage0.pods.poddirectory import ADDRESSABLE_PLACES, find_pod, walk_pods
from minit.stage0.reports.logreader import Wanted, pod_events

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
@click.option("-f", "--follow", is_flag=True, help="Go on with what happens, until the pod has ended.")
@click.option("--since", metavar="SEQ", type=click.IntRange(min=0), help="Only events after number SEQ.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("text", "json")),
    default="json",
    help="Text, or one JSON object a line.  [default: json]",
)
@uuid_file_first_option
@click.argument("uuid", metavar="[UUID]", required=False)
@click.pass_obj
def events(
    invocation: Invocation,
    apps: tuple[str, ...],
    follow: bool,
    since: int | None,
    output_format: str,
    uuid: str | None,
) -> None:
    """
    Without a UUID the events of all pods are shown by their times, with the pod of each.

    Each event has a number in its pod, so that a later call can go on after it. Where some are no longer there, a "gap"
    tells how many.

    \b
      minit events
      minit events 2d381b2a
      minit events --follow --format=text 2d381b2a

    """
    line = _json_line if output_format == "json" else text_line
    if uuid is None:
        if follow or since is not None:
            raise click.UsageError("--follow and --since are for the events of one pod: give the UUID")
        for event in _events_of_all(invocation, Wanted(apps=frozenset(apps), since=None)):
            invocation.say(line(event))
        return
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        wanted = Wanted(apps=frozenset(apps), since=since)
        for some in pod_events(pod, wanted, sys.stdout.fileno(), follow=follow):
            for event in some:
                invocation.say(line(event))
            sys.stdout.flush()


def _events_of_all(invocation: Invocation, wanted: Wanted) -> list[Mapping[str, object]]:
    """Return the events of all pods in the order of their times; those of a gap have none, and come first."""
    found: list[Mapping[str, object]] = []
    for pod in walk_pods(invocation.data, ADDRESSABLE_PLACES, invocation.note):
        try:
            for some in pod_events(pod, wanted, sys.stdout.fileno(), follow=False):
                found += ({**event, "pod": pod.uuid} for event in some)
        except (MinitError, OSError) as error:
            invocation.note(f'pod "{pod.uuid}": {describe(error)}')
    return sorted(found, key=lambda event: str(event.get("time", "")))


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
