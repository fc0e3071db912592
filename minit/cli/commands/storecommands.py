"""The commands on images of the store, of the group `image`, but for those that bring images about or away."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from minit.base import jsontext
from minit.base.errors import MinitError, StoreError, describe
from minit.base.harmless import harmless
from minit.base.progress import Progress
from minit.cli.commands.storagecommands import listed_image, tell_removed
from minit.cli.flags.filters import Filter, Subject, chosen, filter_option
from minit.cli.flags.sharedoptions import (
    image_format_option,
    no_legend_option,
    pretty_print_option,
    quiet_option,
)
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, fit, format_age, format_option, format_time, json_text, readable_size
from minit.cli.text.progressdisplay import show_progress
from minit.pods import images as service
from minit.pods.images import ImageFormat, trust_of
from minit.stage0.garbage.storegc import collect_trees, render_anew
from minit.stage0.images.extract import extract_image_to
from minit.stage0.images.signatures import Signature, SignatureKind
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import MissingImage, StoredImage, named_images
from minit.stage0.images.treestore import TreeStore

_overwrite_option = click.option("--overwrite", is_flag=True, help="Replace what is there.")
_rootfs_option = click.option("--rootfs-only", is_flag=True, help="Only the root filesystem, without the manifest.")

_FIELDS = ("id", "name", "size", "importtime", "lastused")
_SORT_FIELDS = ("name", "importtime", "lastused", "size")

_LEGEND = {"id": "ID", "name": "NAME", "size": "SIZE", "importtime": "IMPORT TIME", "lastused": "LAST USED"}
_NAMELESS = "<none>"
_LISTED_ID = len("sha512-") + 12


@click.command("list", cls=MinitCommand)
@click.option(
    "--fields", metavar="LIST", default=",".join(_FIELDS), help=f"What to show.  [default: {','.join(_FIELDS)}]"
)
@click.option(
    "--sort",
    metavar="LIST",
    default="importtime",
    help=f"Sort by some of {','.join(_SORT_FIELDS)}.  [default: importtime]",
)
@click.option("--order", type=click.Choice(["asc", "desc"], case_sensitive=False), default="asc", help="[default: asc]")
@click.option("--full", is_flag=True, help="Show whole ids, sizes in bytes and points in time.")
@filter_option(Subject.IMAGES, "-f")
@no_legend_option
@format_option
@click.pass_obj
def list_images(
    invocation: Invocation,
    fields: str,
    sort: str,
    order: str,
    full: bool,
    filters: tuple[Filter, ...],
    no_legend: bool,
    output_format: str | None,
) -> None:
    """
    \b
      minit image list
      minit image list --sort=size --order=desc --fields=name,size
      minit image list --filter=reference=nginx --filter=dangling=false

    """
    try:
        shown, sorted_by = _parse_fields("--fields", fields, _FIELDS), _parse_fields("--sort", sort, _SORT_FIELDS)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    with Store(invocation.data) as store:
        images = store.list(lambda error: invocation.note(f"skipping image: {describe(error)}"))
    named = named_images(images)
    images = chosen(filters, images, lambda image: listed_image(image, is_dangling=image.id not in named))
    images = _sort_images(images, sorted_by, descending=order.lower() == "desc")
    if output_format is not None:
        invocation.say(json_text([_image_json(image) for image in images] or None, output_format))
    else:
        invocation.say(
            list_text(images, shown, time.time_ns(), full=full, legend=not no_legend, width=invocation.terminal_width),
            end="",
        )


@click.command("rm", cls=MinitCommand)
@click.option("--unpacked", is_flag=True, help="Remove unpacked images, too, that are gone and that no pod refers to.")
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.pass_obj
def remove_images(invocation: Invocation, unpacked: bool, images: tuple[str, ...]) -> None:
    """
    By an id an image is removed with all its names.

    \b
      minit image rm example.com/web:1.2 sha512-78c08a541997

    """
    invocation.become_root()
    removed, failed = 0, False
    with Store(invocation.data) as store:
        for reference in images:
            try:
                image = store.find(reference)
                name = store.remove_name(image.id, reference)
                if name is not None:
                    invocation.say(f'removed name "{name}" from image: "{image.id}"')
                    continue
                store.remove(image.id)
            except MissingImage as error:
                invocation.note(f"{error.problem}: minit image list shows the images")
                failed = True
            except MinitError as error:
                invocation.note(describe(error))
                failed = True
            else:
                invocation.say(f'successfully removed aci for image: "{image.id}"')
                removed += 1
        if unpacked:
            trees = TreeStore(invocation.data, store)
            collect_trees(invocation.data, trees, None, invocation.note, gone_only=True)
    tell_removed(invocation, removed)
    if failed:
        raise StoreError("failed to remove one or more images")


@click.command("cat-manifest", cls=MinitCommand)
@pretty_print_option
@click.argument("image", metavar="IMAGE")
@click.pass_obj
def cat_image_manifest(invocation: Invocation, pretty_print: bool, image: str) -> None:
    """
    \b
      minit image cat-manifest example.com/web

    """
    with Store(invocation.data) as store:
        found = store.find(image)
    manifest = jsontext.parse(found.manifest_bytes, found.id)
    invocation.say(json_text(manifest, "json-pretty" if pretty_print else "json"))


@click.command(cls=MinitCommand)
@pretty_print_option
@click.argument("image", metavar="IMAGE")
@click.pass_obj
def inspect(invocation: Invocation, pretty_print: bool, image: str) -> None:
    """
    The configuration is OCI's; cat-manifest prints the manifest of appc.

    \b
      minit image inspect nginx:1

    """
    with Store(invocation.data) as store:
        facts = service.inspect(store, image)
    invocation.say(json_text(facts, "json-pretty" if pretty_print else "json"))


@click.command("export", cls=MinitCommand)
@image_format_option(ImageFormat.ACI)
@_overwrite_option
@quiet_option
@click.argument("image", metavar="IMAGE")
@click.argument("output", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.pass_obj
def export(invocation: Invocation, image_format: str, overwrite: bool, quiet: bool, image: str, output: Path) -> None:
    """
    Layers leave as they came. The same image gives the same bytes.

    \b
      minit image export example.com/web web.aci
      minit image export --format=oci-archive nginx:1 nginx.tar
      minit image export --format=docker-archive nginx:1 nginx.tar
      minit image export --format=oci nginx:1 ./nginx

    """
    with Store(invocation.data) as store, show_progress(invocation, quiet=quiet) as progress:
        service.export_stored(
            invocation.caller, store, image, ImageFormat(image_format), output, progress, overwrite=overwrite
        )


@click.command("extract", cls=MinitCommand)
@_rootfs_option
@_overwrite_option
@quiet_option
@click.argument("image", metavar="IMAGE")
@click.argument("output", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def extract(invocation: Invocation, rootfs_only: bool, overwrite: bool, quiet: bool, image: str, output: Path) -> None:
    """
    \b
      minit image extract example.com/web ./web

    """
    _unpack(invocation, image, output, rendered=False, rootfs_only=rootfs_only, overwrite=overwrite, quiet=quiet)


@click.command("render", cls=MinitCommand)
@_rootfs_option
@_overwrite_option
@quiet_option
@click.argument("image", metavar="IMAGE")
@click.argument("output", metavar="DIR", type=click.Path(path_type=Path))
@click.pass_obj
def render(invocation: Invocation, rootfs_only: bool, overwrite: bool, quiet: bool, image: str, output: Path) -> None:
    """
    \b
      minit image render --rootfs-only example.com/web ./rootfs

    """
    _unpack(invocation, image, output, rendered=True, rootfs_only=rootfs_only, overwrite=overwrite, quiet=quiet)


@click.command("verify", cls=MinitCommand)
@format_option
@quiet_option
@click.argument("images", metavar="IMAGE...", nargs=-1, required=True)
@click.pass_obj
def verify(invocation: Invocation, output_format: str | None, quiet: bool, images: tuple[str, ...]) -> None:
    """
    An unpacked one that was changed is unpacked again, unless a pod refers to it. The command also tells who signed the
    images when they were imported, and fails for an ACI without a signature by a key that is trusted now, if there are
    keys for its name.

    \b
      minit image verify example.com/web
      minit image verify --format=json example.com/web

    """
    invocation.become_root()
    failed = False
    found: list[dict[str, object]] = []
    with Store(invocation.data) as store, show_progress(invocation, quiet=quiet) as progress:
        trees = TreeStore(invocation.data, store)
        for reference in images:
            facts: dict[str, object] = {"image": reference}
            found.append(facts)
            try:
                told = _verify(invocation, store, trees, reference, facts, progress)
            except MinitError as error:
                facts["error"] = describe(error)
                invocation.note(describe(error))
                failed = True
            else:
                if output_format is None:
                    invocation.say(told[0])
                    invocation.note(told[1])  # the output is rkt's
    if output_format is not None:
        invocation.say(json_text(found, output_format))
    if failed:
        raise StoreError("failed to verify one or more images")


def _verify(
    invocation: Invocation,
    store: Store,
    trees: TreeStore,
    reference: str,
    facts: dict[str, object],
    progress: Progress,
) -> tuple[str, str]:
    """Return what is told of an image that is what it was, and of its signer; MinitError for another image."""
    image = store.find(reference)
    facts["id"] = image.id
    store.verify(image.id)
    tree_id = trees.tree_id_of(image.id)
    if not trees.is_rendered(tree_id):
        told = f'image "{reference}" not rendered; no verification needed'
    else:
        try:
            trees.verify(tree_id)
        except StoreError as error:
            told = f"tree cache verification failed for image {reference}: {error};  rebuilding..."
            render_anew(invocation.data, trees, image.id, invocation.note, progress)
        else:
            told = f'successfully verified checksum for image: "{reference}" ("{image.id}")'
    signature = store.signature(image.id)
    facts["signature"] = None if signature is None else signature.document
    is_aci = not image.diff_ids and store.is_own(image.id)
    if is_aci and not trust_of(invocation.caller).accepts(image.name, signature):
        raise StoreError(
            f'image "{reference}": {_signer(signature)}, and images named "{image.name}" must be signed by a key that'
            " is trusted now: minit trust list"
        )
    return told, f'image "{reference}": {_signer(signature)}'


def _signer(signature: Signature | None) -> str:
    if signature is None:
        return "nobody signed it"
    if signature.kind is SignatureKind.POLICY:
        return f"allowed by {signature.policy}: {', '.join(signature.requirements)}"
    subkey = "" if signature.fingerprint == signature.key else f", subkey {signature.fingerprint}"
    signed = format_time(signature.signed_seconds * 1_000_000_000)
    return f'signed by "{signature.user_id}", key {signature.key}{subkey}, at {signed}'


def _unpack(
    invocation: Invocation,
    image: str,
    output: Path,
    *,
    rendered: bool,
    rootfs_only: bool,
    overwrite: bool,
    quiet: bool,
) -> None:
    invocation.become_root()
    with Store(invocation.data) as store, show_progress(invocation, quiet=quiet) as progress:
        extract_image_to(
            store,
            store.find(image).id,
            output,
            rendered=rendered,
            rootfs_only=rootfs_only,
            overwrite=overwrite,
            progress=progress,
        )


# The output of `image list`: fields of the images, their order, and text or JSON. Pure.


def _parse_fields(flag: str, text: str, allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the fields of a list separated by commas; FlagError if one is unknown or named twice."""
    fields = tuple(text.lower().split(","))
    for field in fields:
        if field not in allowed:
            raise FlagError(f'{flag}: expected some of {",".join(allowed)}, got "{field}"')
        if fields.count(field) > 1:
            raise FlagError(f'{flag}: "{field}" is given twice')
    return fields


def _sort_images(images: Sequence[StoredImage], fields: Sequence[str], *, descending: bool) -> list[StoredImage]:
    """Return the images by these fields, the first one counting most."""
    keys = {
        "name": lambda image: image.name,
        "importtime": lambda image: image.import_time_ns,
        "lastused": lambda image: image.last_used_ns,
        "size": lambda image: image.size_bytes,
    }
    return sorted(images, key=lambda image: tuple(keys[field](image) for field in fields), reverse=descending)


def list_text(
    images: Sequence[StoredImage],
    fields: Sequence[str],
    now_ns: int,
    *,
    full: bool,
    legend: bool,
    width: int | None = None,
) -> str:
    """
    Return the images as lines of columns, a line for each name; `full` has whole ids, bytes and points in time.

    `width` is that of the terminal that it is for, None for anything else. Columns that are asked for in full are not
    shortened.
    """
    rows: list[Sequence[str]] = [tuple(_LEGEND[field] for field in fields)] if legend else []
    rows += [
        tuple(_cell(image, name, field, now_ns, full=full) for field in fields)
        for image in images
        for name in image.all_names or (_NAMELESS,)
    ]
    if width is None or full or "name" not in fields:
        return align(rows)
    return fit(rows, width, (fields.index("name"),))


def _image_json(image: StoredImage) -> dict[str, object]:
    """Return an image as rkt's JSON has it, times in nanoseconds."""
    return {
        "id": image.id,
        "name": image.all_names[0] if image.all_names else None,
        "import_time": image.import_time_ns,
        "last_used_time": image.last_used_ns,
        "size": image.size_bytes,
        "names": list(image.all_names),
        "digests": service.digests(image),
    }


def _cell(image: StoredImage, name: str, field: str, now_ns: int, *, full: bool) -> str:
    if field == "id":
        return image.id if full else image.id[:_LISTED_ID]
    if field == "name":
        return harmless(name)
    if field == "size":
        return str(image.size_bytes) if full else readable_size(image.size_bytes)
    time_ns = image.import_time_ns if field == "importtime" else image.last_used_ns
    return format_time(time_ns) if full else format_age(time_ns, now_ns)
