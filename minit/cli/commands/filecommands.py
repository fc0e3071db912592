"""The commands on an app's files: cp, export, diff."""

from __future__ import annotations

import io
import os
from pathlib import Path

import click

from minit.base.errors import PodError
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.cli.flags.sharedoptions import image_format_option, quiet_option
from minit.cli.flagwords import FlagError
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import format_option, json_text
from minit.cli.text.progressdisplay import show_progress
from minit.cli.uuidfile import uuid_file_first_option
from minit.linux.stdio import write_all
from minit.pods.images import ImageFormat
from minit.stage0.apps.applayer import export_layered
from minit.stage0.apps.changes import find_changes
from minit.stage0.apps.copying import copy_in, copy_out, read_tar, write_tar
from minit.stage0.apps.export import export_app
from minit.stage0.apps.podfiles import AppPlace, app_place
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import Note, find_pod

_STREAM = "-"


# The operands of `cp`: places in pods, files of this machine, and `-` for a tar on a standard stream. Pure.


class PodPath(Value):
    """An absolute path in an app of a pod; `app` None is the pod's only one."""

    pod: str
    app: str | None
    path: str


def parse_copy_words(source: str, target: str) -> tuple[PodPath | str, PodPath | str]:
    """Return both operands of a copy, of which exactly one is in a pod; FlagError."""
    words = _parse(source), _parse(target)
    if isinstance(words[0], PodPath) == isinstance(words[1], PodPath):
        what = "a file of this machine or -" if isinstance(words[0], PodPath) else "POD[:APP]:/PATH"
        raise FlagError(f'one of the two is POD[:APP]:/PATH: expected {what}, got "{target}"')
    return words


def _parse(text: str) -> PodPath | str:
    """Return a place in a pod, or a path of this machine, which may have a colon if it begins with `.` or `/`."""
    if text.startswith((".", "/")) or ":" not in text:
        return text
    pod, _, rest = text.partition(":")
    app, colon, path = rest.partition(":")
    if pod and rest.startswith("/"):
        return PodPath(pod=pod, app=None, path=rest)
    if not (pod and app and colon and path.startswith("/")):
        raise FlagError(f'expected POD:/PATH or POD:APP:/PATH with an absolute path, got "{text}"')
    return PodPath(pod=pod, app=app, path=path)


@click.command("cp", cls=MinitCommand)
@click.option("-a", "--archive", is_flag=True, help="Keep owners, set-id bits and attributes.")
@click.argument("source", metavar="SOURCE", type=click.Path())
@click.argument("target", metavar="TARGET", type=click.Path())
@click.pass_obj
def copy(invocation: Invocation, archive: bool, source: str, target: str) -> None:
    """
    One of SOURCE and TARGET is POD:/PATH, or POD:APP:/PATH in a pod of several apps; the other one is a path of this
    machine, or `-` for a tar on standard input or output. A directory is copied with all that is in it, into TARGET if
    that is a directory; `DIRECTORY/.` is only what is in it. Copies belong to root, and have no bits that run them as
    somebody else. Links are copied as links. Devices and sockets are left out.

    \b
      minit cp 2d381b2a:/var/log/web.log .
      minit cp site/. 2d381b2a:web:/www
      minit cp db:/var/lib/data - | gzip > data.tar.gz

    """
    invocation.become_root()
    try:
        words = parse_copy_words(source, target)
    except FlagError as error:
        raise click.UsageError(str(error)) from error
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        invocation.note(text)

    inside = next(word for word in words if isinstance(word, PodPath))
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, inside.pod, invocation.note) as pod,
        app_place(pod, inside.app, inside.path, TreeStore(invocation.data, store)) as place,
    ):
        outside = next(word for word in words if isinstance(word, str))
        if words[0] is inside:
            _copy_out(place, outside, note, archive=archive)
        elif outside == _STREAM:
            with io.FileIO(0, closefd=False) as raw:
                read_tar(io.BufferedReader(raw, 1 << 20), place, note, archive=archive)
        else:
            copy_in(outside, place, note, archive=archive)
    if notes:
        raise PodError(f"not everything was copied: {len(notes)} left out")


def _copy_out(place: AppPlace, target: str, note: Note, *, archive: bool) -> None:
    if target != _STREAM:
        copy_out(place, target, note, archive=archive)
        return
    if os.isatty(1):
        raise click.UsageError("a tar is nothing for a terminal: write it to a file or a pipe")
    write_tar(place, lambda data: write_all(1, bytes(data)), note)


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to export, if the pod has several.")
@click.option("--name", metavar="NAME[:VERSION]", help="Name of the image.  [default: that of the app's image]")
@image_format_option(ImageFormat.ACI)
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@quiet_option
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.argument("output", metavar="FILE|DIR", type=click.Path(path_type=Path))
@click.pass_obj
def export(
    invocation: Invocation,
    app: str | None,
    name: str | None,
    image_format: str,
    overwrite: bool,
    quiet: bool,
    uuid: str,
    output: Path,
) -> None:
    """
    An ACI has all files; the name of its file ends with .aci. Other formats have the layers of the app's image, and one
    with the changes.

    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit export 2d381b2a changed.aci
      minit export --name=example.com/changed:2.0.0 2d381b2a changed.aci
      minit export --app=web --overwrite 2d381b2a web.aci
      minit export --format=oci-archive --name=web:2 2d381b2a web.tar

    """
    invocation.become_root()
    is_aci = image_format == ImageFormat.ACI
    if is_aci and output.suffix != ".aci":
        raise PodError(f"extension must be .aci (given {output})")
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
        show_progress(invocation, quiet=quiet) as progress,
    ):
        note = invocation.note
        if is_aci:
            trees = TreeStore(invocation.data, store)
            export_app(pod, app, trees, output, overwrite=overwrite, image_name=name, note=note, progress=progress)
        else:
            export_layered(
                *(pod, app, store, image_format, output),
                overwrite=overwrite,
                image_name=name,
                note=note,
                progress=progress,
            )


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
    invocation.become_root()
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
