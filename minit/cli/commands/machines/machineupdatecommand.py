"""The command of a machine that brings another version: init update."""

from __future__ import annotations

import click

from minit.base.progress import silent
from minit.cli.flags.sharedoptions import quiet_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.jsonoutput import format_option, json_text
from minit.machine.requests import request_ending
from minit.machine.update import install_update, tell_tenths
from minit.manifest.machineconfig import REBOOT


@click.command(cls=MinitCommand)
@click.option("--allow-downgrade", is_flag=True, help="Take a version that is not newer than the one that runs.")
@click.option("--reboot", is_flag=True, help="Stop the apps and start the machine again, with the new version.")
@format_option
@quiet_option
@click.argument("image", metavar="IMAGE")
@click.pass_obj
def update(
    invocation: Invocation, image: str, allow_downgrade: bool, reboot: bool, output_format: str | None, quiet: bool
) -> None:
    """
    IMAGE is an update that `init build --format update` made: a file, a block device, a URL of HTTP, or `-` for
    standard input. It is refused unless it is signed with one of the keys in machine.toml, for this model, and newer.

    What runs is not touched. The other slot is empty from the first write to the last, so that a loss of power leaves
    a machine that boots.

    \b
      minit init update /var/data/sensor.update
      minit init update --reboot http://updates.example.org/sensor.update

    """
    invocation.require_root()
    done = install_update(image, silent if quiet else tell_tenths(invocation.note), allow_downgrade=allow_downgrade)
    if output_format is None:
        invocation.say(f"version {done.version} is in slot {done.slot}: the next boot tries it")
    else:
        invocation.say(json_text({"version": done.version, "slot": done.slot}, output_format))
    if reboot:
        request_ending(REBOOT)
