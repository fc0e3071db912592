"""The command that says why a pod does not do what it should: diagnose."""

from __future__ import annotations

import click

from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.diagnosetext import report_text
from minit.cli.text.jsonoutput import json_text
from minit.cli.uuidfile import one_pod
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.reports.diagnosis import diagnose as make_report


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
    Show why a pod does not do what it should, and everything that is known about it.

    First comes what went wrong, then what it is concluded from: how apps ended, their last output, events, plan,
    mounts, control groups, networks, the manifest and the machine. It works for pods in every state. Values of
    variables and options whose names sound like secrets are masked, so that the report can be passed on; read it
    before you do.

    \b
      minit diagnose 2d381b2a
      minit diagnose --format=json 2d381b2a > report.json

    """
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        report = make_report(pod, lines, show_secrets=show_secrets)
    if output_format == "text":
        invocation.say(report_text(report), end="")
    else:
        invocation.say(json_text(report, output_format))
