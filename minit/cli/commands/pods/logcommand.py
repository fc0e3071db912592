"""The command that shows what the apps of a pod have written: logs."""

from __future__ import annotations

import time

import click

from minit.cli.flags.moments import parse_moment
from minit.cli.flags.sharedoptions import apps_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.logview import Choice, reopen_logs, show_logs
from minit.cli.uuidfile import one_pod

_STREAMS = ("stdout", "stderr")


def _read_moment(ctx: click.Context, parameter: click.Parameter, value: str | None) -> int | None:
    if value is None:
        return None
    try:
        return parse_moment(value, time.time_ns())
    except ValueError as error:
        raise click.BadParameter(str(error), ctx, parameter) from error


def _read_tail(ctx: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "all":
        return None
    if not (value.isascii() and value.isdecimal() and len(value) <= 9):
        raise click.BadParameter(f'expected a number of lines or "all", got "{value}"', ctx, parameter)
    return int(value)


@click.command(cls=MinitCommand)
@apps_option
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until the app or the pod has ended.")
@click.option(
    "--since", metavar="TIME", callback=_read_moment, help="Only lines from TIME on: 10m, or 2026-11-21 18:00."
)
@click.option("--until", metavar="TIME", callback=_read_moment, help="Only lines up to TIME.")
@click.option("--tail", metavar="N", default="all", callback=_read_tail, help="Only the last N lines.  [default: all]")
@click.option("--stream", type=click.Choice(_STREAMS), help="Only one of the two streams.")
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
        streams=frozenset(name.encode() for name in ((stream,) if stream else _STREAMS)),
        timestamps=timestamps,
        json=output_format == "json",
    )
    show_logs(invocation, uuid, choice)
