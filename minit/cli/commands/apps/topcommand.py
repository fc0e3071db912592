"""The command `top`: a live table of what the apps of all running pods use."""

from __future__ import annotations

import time

import click

from minit.cli.commands.apps.statscommand import read_interval
from minit.cli.commands.apps.topview import Meters, show_live
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.terminalkeys import is_terminal
from minit.cli.text.toptext import sort_rows, table_lines, top_rows
from minit.cli.uuidfile import uuid_file_first_option


@click.command(cls=MinitCommand)
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    callback=read_interval,
    help="How long from one look to the next.  [default: 1s]",
)
@uuid_file_first_option
@click.argument("uuids", metavar="[UUID...]", nargs=-1)
@click.pass_obj
def top(invocation: Invocation, interval: float, uuids: tuple[str, ...]) -> None:
    """
    Show what the apps of all running pods use, the busiest first, and go on doing so.

    The keys c, m, p and n sort by processor, memory, processes and name; q quits. The traffic of a pod's network stands
    in the row of its first app. If standard output is no terminal, one table is printed after one interval.

    \b
      minit top
      minit top --interval=5s 2d381b2a

    """
    with Meters(invocation, uuids) as meters:
        if is_terminal():
            show_live(meters, interval)
            return
        before = {sample.uuid: sample for sample in meters.read()}
        time.sleep(interval)
        for line in table_lines(sort_rows(top_rows(meters.read(), before), "cpu"), None):
            invocation.say(line)
