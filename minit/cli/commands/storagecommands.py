"""The commands on disk space and named volumes: the groups `system` and `volume`, and image gc."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence

import click

from minit.base.errors import EXIT_FAILURE, MinitError, StoreError, describe
from minit.base.harmless import harmless
from minit.cli.commands.podcommands import for_each
from minit.cli.flags.filters import Filter, Listed, Subject, chosen, filter_option, fits, listed_pod
from minit.cli.flags.sharedoptions import no_legend_option, read_duration
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_age, format_option, json_text, readable_size
from minit.podfiles.usersdirectory import program_directory
from minit.pods import ending
from minit.pods.ending import cleanup_of
from minit.stage0.garbage import podgc
from minit.stage0.garbage.storegc import (
    collect_images,
    collect_trees,
    prune_volumes,
    remove_volume,
    unused_volumes,
    volume_users,
)
from minit.stage0.garbage.survey import Item, Survey, survey
from minit.stage0.images.defaultstage1 import stage1_kept
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.podstatus import read_pod_status
from minit.stage0.volumes import NamedVolume, create_volume, list_volumes

_KINDS = ("images", "layers", "trees", "pods", "volumes", "caches")

_force_option = click.option("-f", "--force", is_flag=True, help="Do not ask.")

_dry_run_option = click.option("--dry-run", is_flag=True, help="Only print what would be removed.")


@click.command(cls=MinitCommand)
@no_legend_option
@format_option
@click.pass_obj
def df(invocation: Invocation, no_legend: bool, output_format: str | None) -> None:
    """
    That is what `minit system prune --all --volumes` removes.

    \b
      minit system df
      minit system df --format=json

    """
    invocation.become_root()
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
@click.option("-a", "--all", "every", is_flag=True, help="Remove the images with a name that no pod has, too.")
@click.option("--volumes", is_flag=True, help="Remove the named volumes that no pod has, too.")
@_force_option
@_dry_run_option
@filter_option(Subject.UNNEEDED)
@click.pass_obj
def prune(
    invocation: Invocation, every: bool, volumes: bool, force: bool, dry_run: bool, filters: tuple[Filter, ...]
) -> None:
    """
    minit's own stage1 image stays, and so do prepared pods. Of several imports of a name the last one has the name.
    Images with a name are only removed with --all, named volumes only with --volumes. An image that does not fit the
    filters stays with its layers and unpacked, and an ended pod with its images.

    \b
      minit system prune --dry-run --all --volumes
      minit system prune --force
      minit system prune --all --filter=until=24h --filter=label!=keep

    """
    invocation.become_root()
    found = _survey(invocation, filters, keeps_named=not every)
    fitting = _volumes_that_fit(invocation, filters) if volumes else ()
    kinds = ("pods", "trees", "images", "layers", *(("volumes",) if volumes else ()))
    unneeded = [
        (kind, item)
        for kind in kinds
        for item in getattr(found, kind)
        if not item.is_needed and (kind != "volumes" or item.name in fitting)
    ]
    total = readable_size(sum(item.size_bytes for _, item in unneeded))
    if dry_run:
        for kind, item in unneeded:
            invocation.say("\t".join((kind.removesuffix("s"), item.name, *item.labels)))
        invocation.note(f"{len(unneeded)} would be removed, {total}")
        return
    images = "all images" if every else "images without a name"
    what = f"pods that have ended, {images} that no other pod has{', and volumes that no pod has' if volumes else ''}"
    what += ", as far as they fit" if filters else ""
    confirm(f"Remove {what} ({len(unneeded)}, {total}; --dry-run lists them)?", force=force)
    is_finished = _prune(invocation, filters, fitting, keeps_named=not every)
    invocation.say(f"Total reclaimed space: {total}")
    if not is_finished:
        raise click.exceptions.Exit(EXIT_FAILURE)


@click.command(cls=MinitCommand)
@click.option("--data", "with_data", is_flag=True, help="Remove pods, images and volumes, too: the data directory.")
@_force_option
@_dry_run_option
@click.pass_obj
def uninstall(invocation: Invocation, with_data: bool, force: bool, dry_run: bool) -> None:
    """
    These are networks and addresses of ended pods, the quick form of the command, and with --data the data directory.
    Files that were written where somebody said so, as units and completions, stay.

    \b
      minit system uninstall --dry-run --data
      minit system uninstall && pip uninstall minit

    """
    invocation.become_root()
    gone = [
        str(program_directory()),
        "networks and addresses of ended pods",
        *([str(invocation.data)] if with_data else ()),
    ]
    if dry_run:
        for name in gone:
            invocation.say(name)
        return
    confirm(f"Remove {', '.join(gone)}?", force=force)
    ending.uninstall(invocation.caller, with_data=with_data)
    stays = "" if with_data else f" {invocation.data} stays: --data removes it, with all pods, images and volumes."
    invocation.say(f"Removed. The package goes with pip uninstall minit, or apt remove minit.{stays}")


def _volumes_that_fit(invocation: Invocation, filters: Sequence[Filter]) -> frozenset[str]:
    volumes = list_volumes(invocation.data)
    users = volume_users(invocation.data, invocation.note)
    return frozenset(volume.name for volume in chosen(filters, volumes, lambda volume: _listed_volume(volume, users)))


def _listed_volume(volume: NamedVolume, users: Mapping[str, object]) -> Listed:
    return Listed(names=(volume.name,), created_ns=volume.created_ns, is_dangling=not users.get(volume.name))


def _survey(invocation: Invocation, filters: Sequence[Filter] = (), *, keeps_named: bool = False) -> Survey:
    data = invocation.data
    with Store(data) as store, stage1_kept(data, store) as kept:
        return survey(
            *(data, store, TreeStore(data, store), kept, (program_directory(),), invocation.note),
            keeps_named=keeps_named,
            leaves_pod=_leaves_pod(filters) if filters else None,
            leaves_image=_leaves_image(filters) if filters else None,
        )


def _prune(invocation: Invocation, filters: Sequence[Filter], volumes: Collection[str], *, keeps_named: bool) -> bool:
    """Remove what nobody needs now and what fits, the `volumes` too, and return whether all of it is gone."""
    data, note = invocation.data, invocation.note
    failures: list[MinitError] = []
    with Store(data) as store:
        podgc.mark(data, note, _leaves_pod(filters))
        with cleanup_of(invocation.caller, store) as cleanup:
            is_finished = podgc.collect(data, 0, cleanup, invocation.say, note, _leaves_pod(filters))
        _collect(invocation, store, filters, 0, running_only=False, keeps_named=keeps_named)
    if volumes:
        prune_volumes(data, volumes, lambda name: invocation.say(f'removed volume "{name}"'), note, failures.append)
    for error in failures:
        note(describe(error))
    return is_finished and not failures


def _collect(
    invocation: Invocation,
    store: Store,
    filters: Sequence[Filter],
    grace_seconds: float,
    *,
    running_only: bool = True,
    keeps_named: bool = False,
) -> int:
    """Remove images as `collect_images` does, and the trees that no pod has; return the number of removed images."""
    data, note = invocation.data, invocation.note
    trees = TreeStore(data, store)
    with stage1_kept(data, store) as kept:
        # With filters trees go with their images alone, and so after the images.
        if not filters:
            collect_trees(data, trees, kept, note)
        removed = collect_images(
            *(data, store, kept, grace_seconds, invocation.say, note),
            running_only=running_only,
            keeps_named=keeps_named,
            leaves=_leaves_image(filters),
        )
        if filters:
            collect_trees(data, trees, kept, note, gone_only=True)
    return removed


def _json(items: Sequence[Item]) -> dict[str, int]:
    return {
        "total": len(items),
        "active": sum(item.is_needed for item in items),
        "size": sum(item.size_bytes for item in items),
        "reclaimable": sum(item.size_bytes for item in items if not item.is_needed),
    }


@click.command("gc", cls=MinitCommand)
@click.option(
    "--grace-period",
    metavar="DURATION",
    callback=read_duration,
    default="24h",
    help="How long images are kept after they were last used.  [default: 24h]",
)
@filter_option(Subject.UNNEEDED)
@click.pass_obj
def collect_unused(invocation: Invocation, grace_period: float, filters: tuple[Filter, ...]) -> None:
    """
    minit's own stage1 image stays.

    \b
      minit image gc
      minit image gc --grace-period=0s
      minit image gc --grace-period=0s --filter=label=stage=build

    """
    invocation.become_root()
    with Store(invocation.data) as store:
        tell_removed(invocation, _collect(invocation, store, filters, grace_period))


def _leaves_image(filters: Sequence[Filter]) -> Callable[[StoredImage], bool]:
    return lambda image: not fits(filters, listed_image(image, is_dangling=True))


def _leaves_pod(filters: Sequence[Filter]) -> Callable[[Pod], bool]:
    def leaves(pod: Pod) -> bool:
        try:
            return bool(filters) and not fits(filters, listed_pod(read_pod_status(pod)))
        except (MinitError, OSError):
            return True  # nothing is known about it

    return leaves


def listed_image(image: StoredImage, *, is_dangling: bool) -> Listed:
    """Return what filters look at in an image; one that `is_dangling` is meant by no name."""
    digests = () if image.digests is None else (image.digests.configuration, *image.digests.manifests)
    original = () if image.original_name is None else (image.original_name,)
    return Listed(
        ids=(image.id, *digests),
        names=(*image.all_names, *original) if image.all_names else (),
        labels=() if image.manifest.app is None else image.manifest.app.user_labels,
        created_ns=image.import_time_ns,
        is_dangling=is_dangling,
    )


def tell_removed(invocation: Invocation, count: int) -> None:
    """Tell how many images were removed, if any."""
    if count:
        invocation.note(f"{count} image(s) successfully removed")


@click.command("create", cls=MinitCommand)
@click.argument("names", metavar="VOLUME...", nargs=-1, required=True)
@click.pass_obj
def create_named(invocation: Invocation, names: tuple[str, ...]) -> None:
    """
    A pod makes those that it lacks itself. The first one to have a volume gives it the files that its image has at the
    volume's place, if it is still empty then.

    \b
      minit volume create pgdata
      minit run --volume=pgdata:/var/lib/postgresql/data docker://postgres

    """
    invocation.become_root()
    for name in names:
        create_volume(invocation.data, name)
        invocation.say(name)


@click.command("ls", cls=MinitCommand)
@filter_option(Subject.VOLUMES, "-f")
@no_legend_option
@format_option
@click.pass_obj
def list_named(invocation: Invocation, filters: tuple[Filter, ...], no_legend: bool, output_format: str | None) -> None:
    """
    \b
      minit volume ls
      minit volume ls --filter=dangling=true
      minit volume ls --format=json-pretty

    """
    users = volume_users(invocation.data, invocation.note)
    volumes = chosen(
        filters,
        list_volumes(invocation.data),
        lambda volume: _listed_volume(volume, users),
    )
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
def remove_named(invocation: Invocation, names: tuple[str, ...]) -> None:
    """
    \b
      minit volume rm pgdata

    """
    invocation.become_root()

    def remove_one(name: str) -> None:
        remove_volume(invocation.data, name, invocation.note)
        invocation.say(name)

    for_each(invocation, names, remove_one, "failed to remove one or more volumes")


@click.command("prune", cls=MinitCommand)
@_force_option
@_dry_run_option
@filter_option(Subject.VOLUMES)
@click.pass_obj
def prune_named(invocation: Invocation, force: bool, dry_run: bool, filters: tuple[Filter, ...]) -> None:
    """
    \b
      minit volume prune --dry-run
      minit volume prune --force
      minit volume prune --filter=until=24h

    """
    invocation.become_root()
    fitting = _volumes_that_fit(invocation, filters)
    if dry_run:
        for name in unused_volumes(invocation.data, invocation.note):
            if name in fitting:
                invocation.say(name)
        return
    which = "the volumes that fit, and" if filters else "all volumes"
    confirm(f"Remove {which} that no pod has, with their files?", force=force)
    failures: list[MinitError] = []
    prune_volumes(invocation.data, fitting, invocation.say, invocation.note, failures.append)
    for error in failures:
        invocation.note(describe(error))
    if failures:
        raise StoreError("failed to remove one or more volumes")


def confirm(question: str, *, force: bool) -> None:
    """Have somebody at the terminal agree, and end the command if nobody does; UsageError without a terminal."""
    if force:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("nobody can be asked without a terminal: --force removes without asking")
    click.confirm(question, abort=True, err=True)
