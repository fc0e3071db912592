"""The command that stops pods: stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from minit.cli.commands.podcommands import chosen_uuids, uuid_file_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.errors import MinitError, PodError, describe
from minit.stage0.pods.poddirectory import find_pod
from minit.stage0.stage1.stopcall import stop_pod


@click.command(cls=MinitCommand)
@click.option("--force", is_flag=True, help="Kill the pod instead of letting its apps end.")
@uuid_file_option
@click.argument("uuids", metavar="UUID...", nargs=-1)
@click.pass_obj
def stop(invocation: Invocation, force: bool, uuid_file: Path | None, uuids: tuple[str, ...]) -> None:
    """
    Stop running pods.

    Returns at once; `minit status --wait` waits for the end.

    \b
      minit stop 2d381b2a 6a9c
      minit stop --force --uuid-file=pod.uuid

    """

    def stop_one(uuid: str) -> None:
        with find_pod(invocation.data, uuid, invocation.note) as pod:
            if stop_pod(pod, force=force):
                invocation.say(f'"{pod.uuid}"')
            else:
                invocation.say(f'pod "{pod.uuid}" is already stopped')

    for_each(invocation, chosen_uuids(uuids, uuid_file), stop_one, "failed to stop one or more pods")


def for_each(invocation: Invocation, uuids: tuple[str, ...], action: Callable[[str], None], failure: str) -> None:
    """Act on each pod, telling the failures; PodError with `failure` at the end if there were any."""
    failed = False
    for uuid in uuids:
        try:
            action(uuid)
        except (OSError, MinitError) as error:
            invocation.note(describe(error))
            failed = True
    if failed:
        raise PodError(failure)
