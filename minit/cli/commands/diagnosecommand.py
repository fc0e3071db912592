"""The command that says why a pod does not do what it should: diagnose."""

from __future__ import annotations

from collections.abc import Iterator

import click

from minit.base.harmless import harmless
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import json_text
from minit.cli.uuidfile import one_pod
from minit.podfiles.paths import POD_PRIVATE_USERS
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.reports.diagnosis import diagnose as make_report

_TITLES = {
    "conclusions": "Conclusions",
    "pod": "Pod",
    "apps": "Apps",
    "networks": "Networks",
    "control_groups": "Control groups and limits",
    "processes": "Processes",
    "events": "Last events",
    "supervisor_log": "Log of the supervisor",
    "plan": "Plan of stage1",
    "mounts": "Mounts",
    "manifest": "Manifest",
    "machine": "Machine",
}
_INDENT = "  "
_NOTHING = "-"


@click.command(cls=MinitCommand)
@click.option(
    "--lines",
    metavar="N",
    type=click.IntRange(0, 10_000),
    default=20,
    help="How many of the last lines of each log to show.  [default: 20]",
)
@click.option("--show-secrets", is_flag=True, help="Show values that look like secrets, too.")
@click.option(
    "--format",
    "output_format",
    type=click.Choice(("text", "json", "json-pretty")),
    default="text",
    help="Text, or JSON.  [default: text]",
)
@one_pod()
@click.pass_obj
def diagnose(
    invocation: Invocation,
    lines: int,
    show_secrets: bool,
    output_format: str,
    uuid: str,
) -> None:
    """
    First comes what went wrong, then what it is concluded from: how apps ended, their last output, events, plan,
    mounts, control groups, networks, the manifest and the machine. It works for pods in every state. Values of
    variables and options whose names sound like secrets are masked, so that the report can be passed on; read it
    before you do.

    \b
      minit diagnose 2d381b2a
      minit diagnose --format=json 2d381b2a > report.json

    """
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        invocation.look_into_pod(has_own_ids=pod.has_file(POD_PRIVATE_USERS))
        report = make_report(pod, lines, show_secrets=show_secrets)
    if output_format == "text":
        invocation.say(report_text(report), end="")
    else:
        invocation.say(json_text(report, output_format))


# The report of `minit diagnose` as text, harmless for a terminal whatever a pod wrote. Pure.


def report_text(report: dict[str, object]) -> str:
    """Return a report as lines with headings, the conclusions first."""
    lines: list[str] = []
    for part, title in _TITLES.items():
        lines += [*([""] if lines else []), title.upper(), *(f"{_INDENT}{line}" for line in _lines(report.get(part)))]
    return "".join(f"{harmless(line)}\n" for line in lines)


def _lines(value: object) -> Iterator[str]:
    if value is None or value in ([], {}):
        yield _NOTHING
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _named(str(name), item)
    elif isinstance(value, list):
        for item in value:
            yield from _item(item)
    else:
        yield _text(value)


def _named(name: str, value: object) -> Iterator[str]:
    inner = list(_lines(value))
    if len(inner) == 1 and not isinstance(value, (dict, list)):
        yield f"{name}: {inner[0]}"
    elif not value:
        yield f"{name}: {_NOTHING}"
    else:
        yield f"{name}:"
        yield from (f"{_INDENT}{line}" for line in inner)


def _item(value: object) -> Iterator[str]:
    """Yield an element of a list; objects are set apart by a dash."""
    inner = list(_lines(value))
    if isinstance(value, (dict, list)):
        yield f"- {inner[0]}"
        yield from (f"{_INDENT}{line}" for line in inner[1:])
    else:
        yield from inner


def _text(value: object) -> str:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
