"""The commands on all that takes room: system df, system prune."""

from __future__ import annotations

from collections.abc import Sequence

import click

from minit.base.errors import EXIT_FAILURE, MinitError, describe
from minit.cli.flags.sharedoptions import no_legend_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.pruning import confirm, dry_run_option, force_option
from minit.cli.text.columns import align
from minit.cli.text.jsonoutput import format_option, json_text
from minit.cli.text.sizes import readable_size
from minit.pods.ending import cleanup_of
from minit.pods.ownprogram import PROGRAMS
from minit.stage0.garbage import podgc
from minit.stage0.garbage.storegc import collect_images, collect_trees, prune_volumes
from minit.stage0.garbage.survey import Item, Survey, survey
from minit.stage0.images.defaultstage1 import stage1_kept
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore

_KINDS = ("images", "layers", "trees", "pods", "volumes", "caches")


@click.command(cls=MinitCommand)
@no_legend_option
@format_option
@click.pass_obj
def df(invocation: Invocation, no_legend: bool, output_format: str | None) -> None:
    """
    That is what `minit system prune --volumes` removes.

    \b
      minit system df
      minit system df --format=json

    """
    invocation.require_root()
    found = _survey(invocation)
    if output_format is not None:
        invocation.say(json_text({kind: _json(getattr(found, kind)) for kind in _KINDS}, output_format))
        return
    rows = [] if no_legend else [("TYPE", "TOTAL", "ACTIVE", "SIZE", "RECLAIMABLE")]
    for kind in _KINDS:
        numbers = _json(getattr(found, kind))
        sizes = readable_size(numbers["size"]), readable_size(numbers["reclaimable"])
        rows.append((kind.capitalize(), str(numbers["total"]), str(numbers["active"]), *sizes))
    invocation.say(align(rows), end="")


@click.command(cls=MinitCommand)
@click.option("--volumes", is_flag=True, help="Remove the named volumes that no pod has, too.")
@force_option
@dry_run_option
@click.pass_obj
def prune(invocation: Invocation, volumes: bool, force: bool, dry_run: bool) -> None:
    """
    minit's own stage1 image stays, and so do prepared pods. Named volumes are only removed with --volumes.

    \b
      minit system prune --dry-run --volumes
      minit system prune --force

    """
    invocation.require_root()
    found = _survey(invocation)
    kinds = ("pods", "trees", "images", "layers", *(("volumes",) if volumes else ()))
    unneeded = [(kind, item) for kind in kinds for item in getattr(found, kind) if not item.is_needed]
    total = readable_size(sum(item.size_bytes for _, item in unneeded))
    if dry_run:
        for kind, item in unneeded:
            invocation.say(f"{kind.removesuffix('s')}\t{item.name}")
        invocation.note(f"{len(unneeded)} would be removed, {total}")
        return
    what = "pods that have ended and images that no other pod has"
    confirm(f"Remove all {what}{', and volumes that no pod has' if volumes else ''} ({total})?", force=force)
    is_finished = _prune(invocation, volumes=volumes)
    invocation.say(f"Total reclaimed space: {total}")
    if not is_finished:
        raise click.exceptions.Exit(EXIT_FAILURE)


def _survey(invocation: Invocation) -> Survey:
    data = invocation.data
    with Store(data) as store, stage1_kept(data, store) as kept:
        return survey(data, store, TreeStore(data, store), kept, (PROGRAMS,), invocation.note)


def _prune(invocation: Invocation, *, volumes: bool) -> bool:
    """Remove what nobody needs now, and return whether all of it is gone."""
    data, note = invocation.data, invocation.note
    failures: list[MinitError] = []
    with Store(data) as store:
        podgc.mark(data, note)
        with cleanup_of(invocation.caller, store) as cleanup:
            is_finished = podgc.collect(data, 0, cleanup, invocation.say, note)
        with stage1_kept(data, store) as kept:
            collect_trees(data, TreeStore(data, store), kept, note)
            collect_images(data, store, kept, 0, invocation.say, note, running_only=False)
    if volumes:
        prune_volumes(data, lambda name: invocation.say(f'removed volume "{name}"'), note, failures.append)
    for error in failures:
        note(describe(error))
    return is_finished and not failures


def _json(items: Sequence[Item]) -> dict[str, int]:
    return {
        "total": len(items),
        "active": sum(item.is_needed for item in items),
        "size": sum(item.size_bytes for item in items),
        "reclaimable": sum(item.size_bytes for item in items if not item.is_needed),
    }
