"""
The way of an update from its source to the slot that does not run, and to the firmware that boots it once.

Everything is refused that can be refused before anything is written: a manifest that is not signed, for another model,
processor or disk, an older version. Then the other slot is empty until all of the update is in it and has been read
again. So whenever this ends, by an error or a loss of power, the other slot boots not at all or as a whole.
"""

from __future__ import annotations

from collections.abc import Callable

from minit import paths
from minit.errors import UpdateError, describe
from minit.machine.disk.slots import boot_once, other_slot, require_kept, running_slot, slot_devices
from minit.machine.update.slotwriter import SlotWriter
from minit.machine.update.source import Read, open_source, read_fully
from minit.manifest.machineconfig import parse_machine
from minit.manifest.machineupdate import (
    HEADER,
    UpdateManifest,
    parse_header,
    parse_update,
    read_public_key,
    version_numbers,
)
from minit.processors import this_processor
from minit.progress import Progress
from minit.value import Value

_ROOT_HASH = "minit.root_hash="


class NothingNewer(UpdateError):
    """An update is of no use: its version runs, or is in the other slot, or is older than that which runs."""


class Running(Value):
    """The version that runs, and what its updates have to be: signed with one of the public `keys`."""

    model: str
    version: str
    architecture: str
    root_hash: str
    keys: tuple[bytes, ...]


class Installed(Value):
    """The version that has been written, and the slot that it is in, which the firmware boots next."""

    version: str
    slot: str


def install_update(source: str, progress: Progress, *, allow_downgrade: bool) -> Installed:
    """
    Write the update that is at a path, at a URL, or comes on standard input (`-`), and have it booted once.

    An update that nobody asks for by hand should not `allow_downgrade`: whoever has an old one could bring back its
    errors. MinitError if it is refused or cannot be written.
    """
    with open_source(source) as read:
        return install_from(read, source, progress, allow_downgrade=allow_downgrade, by_hand=True)


def install_from(read: Read, source: str, progress: Progress, *, allow_downgrade: bool, by_hand: bool) -> Installed:
    """
    Do so with an update that `read` returns the bytes of.

    One that is in the other slot already is written again only `by_hand`: it waits to be booted, or was not kept.
    """
    running = _read_running()
    manifest = read_manifest(read, source, running)
    check_version(manifest, running, allow_downgrade=allow_downgrade)
    require_kept()
    slot = other_slot(running_slot())
    devices = slot_devices(slot)
    with SlotWriter(devices.boot, devices.root) as writer:
        if not by_hand and writer.holds(manifest):
            raise NothingNewer(f"{source}: version {manifest.version} is in slot {slot} already")
        writer.write(manifest, read, source, progress)
    boot_once(slot, manifest.version)
    return Installed(version=manifest.version, slot=slot)


def _read_running() -> Running:
    """Return what runs; UpdateError for a machine that takes no updates."""
    with open(paths.MACHINE_CONFIG, "rb") as file:
        update = parse_machine(file.read(), paths.MACHINE_CONFIG).update
    if update is None:
        raise UpdateError(f"this machine takes no updates: {paths.MACHINE_CONFIG} has no table [update]")
    with open(paths.KERNEL_COMMAND_LINE, encoding="utf-8", errors="replace") as file:
        words = file.read().split()
    return Running(
        model=update.model,
        version=update.version,
        architecture=this_processor().appc,
        root_hash=next((word.removeprefix(_ROOT_HASH) for word in words if word.startswith(_ROOT_HASH)), ""),
        keys=tuple(_read_key(name) for name in update.keys),
    )


def read_manifest(read: Read, source: str, running: Running) -> UpdateManifest:
    """Return the manifest of an update for this machine; ManifestError or UpdateError if it is none."""
    header = parse_header(read_fully(read, HEADER.size), source)
    manifest = parse_update(header, read_fully(read, header.manifest_bytes), running.keys, source)
    for name, own, theirs in (
        ("model", running.model, manifest.model),
        ("processor", running.architecture, manifest.architecture),
    ):
        if own != theirs:
            raise UpdateError(f'{source}: an update for the {name} "{theirs}", and this machine is "{own}"')
    return manifest


def check_version(manifest: UpdateManifest, running: Running, *, allow_downgrade: bool) -> None:
    """Raise NothingNewer unless the update is newer than what runs, or may be older, and is something else."""
    place = f"version {manifest.version}"
    # Both slots must never have the same root: a kernel takes the first one that it finds.
    if manifest.root_hash == running.root_hash:
        raise NothingNewer(f"{place} is the one that runs")
    if not allow_downgrade and version_numbers(manifest.version) <= version_numbers(running.version):
        raise NothingNewer(f"{place} is not newer than {running.version}, which runs (try --allow-downgrade)")


def _read_key(name: str) -> bytes:
    path = f"{paths.MACHINE_KEYS}/{name}"
    try:
        with open(path, "rb") as file:
            return read_public_key(file.read(), path)
    except OSError as error:
        raise UpdateError(f"update.keys: {describe(error)}") from error


def tell_tenths(say: Callable[[str], object]) -> Progress:
    """Return a progress that says each step and, of a long one, how much of it is done, ten times at most."""
    said = ("", 0)

    def progress(step: str, done: int, total: int | None) -> None:
        nonlocal said
        tenth = 10 * done // total if total else 0
        if (step, tenth) != said:
            said = (step, tenth)
            say(f"{step}: {tenth * 10} %" if total else step)

    return progress
