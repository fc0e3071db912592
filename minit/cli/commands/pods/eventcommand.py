"""The command that shows what happened in a pod: events."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping

import click

from minit.base import jsontext
from minit.cli.flags.sharedoptions import apps_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import one_pod
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.reports.logreader import Wanted, pod_events

_PLAIN = re.compile(r"[\w./:@%+,-]+", re.ASCII)
_HEAD = ("seq", "time", "event", "app")


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
@one_pod()
@click.pass_obj
def events(
    invocation: Invocation,
    apps: tuple[str, ...],
    follow: bool,
    since: int | None,
    output_format: str,
    uuid: str,
) -> None:
    """
    Each event has a number, so that a later call can go on after it. Where some are no longer there, a "gap" tells how
    many.

    \b
      minit events 2d381b2a
      minit events --follow --format=text 2d381b2a

    """
    line = _json_line if output_format == "json" else text_line
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        wanted = Wanted(apps=frozenset(apps), since=since)
        for some in pod_events(pod, wanted, sys.stdout.fileno(), follow=follow):
            for event in some:
                invocation.say(line(event))
            sys.stdout.flush()


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
