"""The command that gives a pod a name: rename."""

from __future__ import annotations

from pathlib import Path

import click

from minit.cli.commands.podcommands import pod_of_line, uuid_file_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.stage0.pods.poddirectory import find_pod, name_pod


@click.command(cls=MinitCommand)
@uuid_file_option
@click.argument("words", metavar="UUID NAME", nargs=-1)
@click.pass_obj
def rename(invocation: Invocation, uuid_file: Path | None, words: tuple[str, ...]) -> None:
    """
    Give a pod a name, or another one.

    UUID may be shortened to any prefix that only one pod has, or be the pod's present name. All commands take the name
    in the place of the UUID. It is the pod's alone until the pod is removed.

    \b
      minit rename 2d381b2a web
      minit rename web web-old

    """
    invocation.require_root()
    uuid, rest = pod_of_line(words, uuid_file)
    if len(rest) != 1:
        raise click.UsageError("must provide the pod's UUID and its new name")
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        name_pod(pod, rest[0])
