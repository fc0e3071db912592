"""The command that shows what an app has changed in its root: diff."""

from __future__ import annotations

import click

from minit.base.harmless import harmless
from minit.cli.flags.sharedoptions import quiet_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.jsonoutput import format_option, json_text
from minit.cli.text.progressdisplay import show_progress
from minit.stage0.apps.changes import find_changes
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import find_pod


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to look at, if the pod has several.")
@format_option
@quiet_option
@click.argument("uuid", metavar="UUID")
@click.pass_obj
def diff(invocation: Invocation, app: str | None, output_format: str | None, quiet: bool, uuid: str) -> None:
    """
    The pod runs or has ended. Files on volumes are not looked at. All directories above a change are changed.

    \b
      minit diff 2d381b2a
      minit diff --app=web --format=json web

    """
    invocation.require_root()
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
        show_progress(invocation, quiet=quiet) as progress,
    ):
        changes = find_changes(pod, app, TreeStore(invocation.data, store), progress)
    if output_format is not None:
        invocation.say(json_text([{"kind": change.kind, "path": change.path} for change in changes], output_format))
        return
    for change in changes:
        invocation.say(f"{change.kind} {harmless(change.path)}")
