"""The command that gives a pod a name: rename."""

from __future__ import annotations

import click

from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.uuidfile import uuid_file_first_option
from minit.stage0.pods.poddirectory import find_pod, name_pod


@click.command(cls=MinitCommand)
@uuid_file_first_option
@click.argument("words", metavar="UUID NAME", nargs=-1)
@click.pass_obj
def rename(invocation: Invocation, words: tuple[str, ...]) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's present name. All commands take the name
    in the place of the UUID. It is the pod's alone until the pod is removed.

    \b
      minit rename 2d381b2a web
      minit rename web web-old

    """
    invocation.require_root()
    if len(words) != 2:
        raise click.UsageError("must provide the pod's UUID and its new name")
    uuid, name = words
    with find_pod(invocation.data, uuid, invocation.note) as pod:
        name_pod(pod, name)
