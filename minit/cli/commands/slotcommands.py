"""The commands for the versions of a machine: init status, init update, init rollback."""

from __future__ import annotations

from pathlib import Path

import click

from minit.base.errors import MinitError, UpdateError
from minit.base.progress import silent
from minit.base.utctime import utc_text
from minit.cli.flags.sharedoptions import quiet_option
from minit.cli.grammar import MinitCommand
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, format_option, json_text
from minit.machine.requests import request_ending
from minit.machine.slots import SlotsStatus, boot_once, other_slot, read_slots
from minit.machine.update import install_update, tell_tenths
from minit.manifest.machineconfig import REBOOT, parse_machine
from minit.podfiles import paths

_HASH_DIGITS = 12
_RESULTS = {
    "asked": "it is booted next",
    "tried": "it runs on trial",
    "kept": "it was kept",
    "failed": "it was not kept",
}


@click.command(cls=MinitCommand)
@format_option
@click.pass_obj
def status(invocation: Invocation, output_format: str | None) -> None:
    """
    \b
      minit init status
      minit init status --format=json-pretty

    """
    invocation.require_root()
    slots = read_slots()
    if output_format is not None:
        invocation.say(json_text(_fields(slots), output_format))
        return
    invocation.say(_text(slots), end="")


@click.command(cls=MinitCommand)
@click.pass_obj
def rollback(invocation: Invocation) -> None:
    """
    It is kept when its apps have been healthy for as long as its machine.toml says. Otherwise the next start of the
    machine is with the version that runs now.

    \b
      minit init rollback

    """
    invocation.require_root()
    slots = read_slots()
    if slots.obstacle is not None:
        raise UpdateError(slots.obstacle)
    other = other_slot(slots.running)
    if slots.contents[other] is None:
        raise UpdateError(f"slot {other} has no version that could be booted")
    boot_once(other)
    request_ending(REBOOT)


def _text(slots: SlotsStatus) -> str:
    rows = [("SLOT", "STATE", "VERSION", "BUILT", "ROOT")]
    versions = _versions(slots)
    for slot, content in slots.contents.items():
        states = _states(slots, slot)
        built = "" if content is None else utc_text(content.built_seconds)
        root = "" if content is None else content.root_hash_prefix[:_HASH_DIGITS]
        state = ", ".join(states) if content is not None else "empty"
        rows.append((slot, state, versions.get(slot) or "", built, root))
    lines = [align(rows)]
    if slots.trial is not None:
        trial = slots.trial
        version = f", version {trial.version}," if trial.version is not None else ""
        reason = f": {trial.reason}" if trial.reason is not None else ""
        asked = utc_text(trial.asked_seconds)
        lines.append(f"slot {trial.slot}{version} was to be booted once at {asked}; {_RESULTS[trial.state]}{reason}\n")
    if slots.obstacle is not None:
        lines.append(f"none can be chosen: {slots.obstacle}\n")
    return "".join(lines)


def _versions(slots: SlotsStatus) -> dict[str, str | None]:
    """Return what is known of versions: that of this root, and that of the one that was tried last."""
    versions = {} if slots.trial is None else {slots.trial.slot: slots.trial.version}
    try:
        update = parse_machine(Path(paths.MACHINE_CONFIG).read_bytes(), paths.MACHINE_CONFIG).update
    except (MinitError, OSError):
        return versions  # it has been said at the boot
    return {**versions, slots.running: None if update is None else update.version}


def _states(slots: SlotsStatus, slot: str) -> list[str]:
    states = ["running"] if slot == slots.running else []
    if slot == slots.kept:
        states.append("kept")
    elif slot == slots.running and slots.kept is not None:
        states.append("on trial")
    return [*states, "next"] if slot == slots.next else states


def _fields(slots: SlotsStatus) -> dict[str, object]:
    trial, versions = slots.trial, _versions(slots)
    return {
        "running": slots.running,
        "kept": slots.kept,
        "next": slots.next,
        "slots": {
            slot: None
            if content is None
            else {
                "version": versions.get(slot),
                "root_hash_prefix": content.root_hash_prefix,
                "built_seconds": content.built_seconds,
            }
            for slot, content in slots.contents.items()
        },
        "trial": None if trial is None else {name: getattr(trial, name) for name in trial._fields},
        "obstacle": slots.obstacle,
    }


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
