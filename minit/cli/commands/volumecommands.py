"""The commands on named volumes: volume create, ls, rm, prune."""

from __future__ import annotations

import time

import click

from minit.base.errors import MinitError, StoreError, describe
from minit.base.harmless import harmless
from minit.cli.commands.pods.stopcommand import for_each
from minit.cli.flags.sharedoptions import no_legend_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.pruning import confirm, dry_run_option, force_option
from minit.cli.text.columns import align
from minit.cli.text.jsonoutput import format_option, json_text
from minit.cli.text.times import format_age
from minit.stage0.garbage.storegc import prune_volumes, remove_volume, unused_volumes, volume_users
from minit.stage0.volumes import create_volume, list_volumes


@click.command(cls=MinitCommand)
@click.argument("names", metavar="VOLUME...", nargs=-1, required=True)
@click.pass_obj
def create(invocation: Invocation, names: tuple[str, ...]) -> None:
    """
    A pod makes those that it lacks itself. The first one to have a volume gives it the files that its image has at the
    volume's place, if it is still empty then.

    \b
      minit volume create pgdata
      minit run --volume=pgdata:/var/lib/postgresql/data docker://postgres

    """
    invocation.require_root()
    for name in names:
        create_volume(invocation.data, name)
        invocation.say(name)


@click.command("ls", cls=MinitCommand)
@no_legend_option
@format_option
@click.pass_obj
def list_all(invocation: Invocation, no_legend: bool, output_format: str | None) -> None:
    """
    \b
      minit volume ls
      minit volume ls --format=json-pretty

    """
    users = volume_users(invocation.data, invocation.note)
    volumes = list_volumes(invocation.data)
    if output_format is not None:
        listed = [
            {"name": volume.name, "path": volume.path, "created": volume.created_ns, "pods": users.get(volume.name, [])}
            for volume in volumes
        ]
        invocation.say(json_text(listed, output_format))
        return
    now_ns = time.time_ns()
    rows = [] if no_legend else [("NAME", "CREATED", "PODS", "PATH")]
    for volume in volumes:
        pods = str(len(users.get(volume.name, ())))
        rows.append((volume.name, format_age(volume.created_ns, now_ns), pods, harmless(volume.path)))
    invocation.say(align(rows), end="")


@click.command("rm", cls=MinitCommand)
@click.argument("names", metavar="VOLUME...", nargs=-1, required=True)
@click.pass_obj
def remove(invocation: Invocation, names: tuple[str, ...]) -> None:
    """
    \b
      minit volume rm pgdata

    """
    invocation.require_root()

    def remove_one(name: str) -> None:
        remove_volume(invocation.data, name, invocation.note)
        invocation.say(name)

    for_each(invocation, names, remove_one, "failed to remove one or more volumes")


@click.command("prune", cls=MinitCommand)
@force_option
@dry_run_option
@click.pass_obj
def prune(invocation: Invocation, force: bool, dry_run: bool) -> None:
    """
    \b
      minit volume prune --dry-run
      minit volume prune --force

    """
    invocation.require_root()
    if dry_run:
        for name in unused_volumes(invocation.data, invocation.note):
            invocation.say(name)
        return
    confirm("Remove all volumes that no pod has, with their files?", force=force)
    failures: list[MinitError] = []
    prune_volumes(invocation.data, invocation.say, invocation.note, failures.append)
    for error in failures:
        invocation.note(describe(error))
    if failures:
        raise StoreError("failed to remove one or more volumes")
