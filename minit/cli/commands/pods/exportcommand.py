"""The command that makes an image of an ended app: export."""

from __future__ import annotations

from pathlib import Path

import click

from minit.base.errors import PodError
from minit.cli.flags.sharedoptions import quiet_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.progressdisplay import show_progress
from minit.cli.uuidfile import uuid_file_first_option
from minit.stage0.apps.export import export_app
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import find_pod


@click.command(cls=MinitCommand)
@click.option("--app", metavar="NAME", help="App to export, if the pod has several.")
@click.option("--name", metavar="NAME[:VERSION]", help="Name of the image.  [default: that of the app's image]")
@click.option("--overwrite", is_flag=True, help="Replace the file if there is one.")
@quiet_option
@uuid_file_first_option
@click.argument("uuid", metavar="UUID")
@click.argument("output", metavar="FILE.aci", type=click.Path(path_type=Path))
@click.pass_obj
def export(
    invocation: Invocation, app: str | None, name: str | None, overwrite: bool, quiet: bool, uuid: str, output: Path
) -> None:
    """
    UUID may be shortened to any prefix that only one pod has, or be the pod's name.

    \b
      minit export 2d381b2a changed.aci
      minit export --name=example.com/changed:2.0.0 2d381b2a changed.aci
      minit export --app=web --overwrite 2d381b2a web.aci

    """
    invocation.require_root()
    if output.suffix != ".aci":
        raise PodError(f"extension must be .aci (given {output})")
    with (
        Store(invocation.data) as store,
        find_pod(invocation.data, uuid, invocation.note) as pod,
        show_progress(invocation, quiet=quiet) as progress,
    ):
        trees = TreeStore(invocation.data, store)
        export_app(
            pod,
            app,
            trees,
            output,
            overwrite=overwrite,
            image_name=name,
            note=invocation.note,
            progress=progress,
        )
