"""
The two slots of a machine's disk: which slot runs, where both are, and which slot the firmware boots.

The firmware boots the kept slot. It boots the other slot once, if the variable BootNext says so, and deletes that
variable before booting. A variable of minit's own records the last tried version: there the record is whole or missing,
whatever the state of the machine's data, and both versions find the record. The helper reads and writes the variables,
which can take seconds:

    helper -> PID 1   {"event": TRIAL_BEGUN}      this version was booted once
    PID 1 -> helper   {KEEP: true}                keep this version; asked again until there is an answer
                      {TRIAL_FAILED: "reason"}    this version will not be kept
    helper -> PID 1   {"event": TRIAL_OVER}       that is done, or impossible
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from typing import Any

from minit.base.errors import ManifestError, MinitError, UpdateError, describe
from minit.base.jsontext import dump, parse
from minit.base.value import Value, replace
from minit.linux.messages import Socket, send_message
from minit.linux.stdio import complain_at_once
from minit.machine.efivariables import (
    OWN,
    BootPlan,
    EfiVariables,
    SlotEntry,
    first_slot,
    open_variables,
    plan_entries,
)
from minit.machine.partitions import find_partition, partition_entry, root_partition
from minit.manifest.machineconfig import MachineConfig
from minit.podfiles import paths

_ROOT = "root-"
_PROGRAMS = {"x86_64": "\\EFI\\BOOT\\BOOTX64.EFI", "aarch64": "\\EFI\\BOOT\\BOOTAA64.EFI"}
_ORDER, _CURRENT, _NEXT = "BootOrder", "BootCurrent", "BootNext"
_ENTRY = "Boot"
_DIGITS = 4
# The kernel's fs/squashfs/squashfs_fs.h: signature, number of inodes, time, and, further on, the size.
_SQUASHFS = struct.Struct("<4s4xI28xQ")
_SQUASHFS_SIGNATURE = b"hsqs"
_BLOCK_BYTES = 4096
_NOT_STARTED = "it did not start"
_NOT_HEALTHY = "the machine started again before all apps were healthy"
_ASKED = "asked"  # the firmware is to boot it next
_TRIED = "tried"  # it was booted
_KEPT = "kept"
FAILED = "failed"

_TRIAL = "MinitTrial"
_TRIAL_STATES = (_ASKED, _TRIED, _KEPT, FAILED)
_MAXIMUM_REASON = 200
HASH_TREE_SIGNATURE = b"verity\0\0"

# Signature, version and kind, identifier, which is the first half of the root hash (minit/image/disk.py).
_HASH_TREE = struct.Struct("<8s8x16s")

TRIAL_BEGUN = "trial begun"
TRIAL_OVER = "trial over"
KEEP = "keep"
TRIAL_FAILED = "trial failed"


class SlotDevices(Value):
    """The block devices of a slot: the partition for the firmware, and the partition of the root."""

    boot: str
    root: str


class SlotContent(Value):
    """A slot's content: the time of its root in seconds since 1970, and the first half of its root hash."""

    root_hash_prefix: str
    built_seconds: int


class SlotsStatus(Value):
    """
    The running slot, each slot's content, None without a root, and the firmware's knowledge of the slots.

    The firmware boots `kept`, or once, the next time, `next`. `trial` was the last trial, and `obstacle` is why the
    rest is unknown.
    """

    running: str
    contents: Mapping[str, SlotContent | None]
    kept: str | None = None
    next: str | None = None
    trial: TrialRecord | None = None
    obstacle: str | None = None


def running_slot() -> str:
    """Return the slot with the root of this machine; UpdateError for a root outside the slots."""
    name = root_partition() or ""
    slot = name.removeprefix(_ROOT)
    if not name.startswith(_ROOT) or slot not in paths.MACHINE_SLOTS:
        raise UpdateError("the root of this machine is in no slot: `init build --format disk` makes a disk with slots")
    return slot


def other_slot(slot: str) -> str:
    """Return the other slot."""
    first, second = paths.MACHINE_SLOTS
    return second if slot == first else first


def slot_devices(slot: str) -> SlotDevices:
    """Return the devices of a slot; UpdateError if the disk has no such partitions."""
    return SlotDevices(boot=_find(f"boot-{slot}"), root=_find(f"{_ROOT}{slot}"))


def boot_once(slot: str, version: str | None = None) -> None:
    """
    Have the firmware boot a slot the next time, and the kept slot afterwards.

    `version` is the name of the content in reports. UpdateError if the machine has no EFI firmware, or the firmware
    refuses.
    """
    running = running_slot()
    with open_variables() as variables:
        kept = kept_slot(variables) or running
        plan = _tell(variables, kept)
        if slot != kept:
            # Before the firmware knows: whatever happens then is known as a trial.
            record = TrialRecord(slot=slot, state=_ASKED, asked_seconds=int(time.time()), version=version)
            write_trial(variables, record)
        variables.write(_NEXT, _numbers((plan.numbers[slot],)))


def require_kept() -> None:
    """Raise UpdateError if the running slot is on trial: the machine falls back to the other slot."""
    running = running_slot()
    with open_variables() as variables:
        if kept_slot(variables) not in (None, running):
            raise UpdateError(f"slot {running} is on trial: slot {other_slot(running)} is needed until it is kept")


def begin_boot() -> tuple[bool, TrialRecord | None]:
    """
    Return whether the running slot is on trial, and the record of a trial that has failed since the last boot.

    Either is written down. UpdateError if the machine has no slots, or no EFI firmware.
    """
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        if kept_slot(variables) not in (None, running):
            if record is None or record.slot != running:
                record = TrialRecord(slot=running, state=_ASKED, asked_seconds=int(time.time()))
            write_trial(variables, replace(record, state=_TRIED, reason=None))
            return True, None
        if record is None or record.state in (_KEPT, FAILED) or record.slot == next_slot(variables):
            return False, None
        if record.slot == running:
            # The power went in the middle of keep_running().
            write_trial(variables, replace(record, state=_KEPT, reason=None))
            return False, None
        unknown = _NOT_STARTED if record.state == _ASKED else _NOT_HEALTHY
        record = replace(record, state=FAILED, reason=record.reason or unknown)
        write_trial(variables, record)
        return False, record


def keep_running() -> str:
    """Have the firmware boot the running slot from now on, and return the slot; UpdateError as above."""
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        _tell(variables, running)
        if record is not None and record.slot == running:
            write_trial(variables, replace(record, state=_KEPT))
    return running


def note_failure(reason: str) -> None:
    """Write down why the running slot will not be kept; UpdateError as above."""
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        if record is not None and record.slot == running and record.state == _TRIED:
            write_trial(variables, replace(record, reason=reason))


def kept_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots by default, None before the first instruction."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _ORDER))


def next_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots once, the next time, None without one."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _NEXT))


def read_slots() -> SlotsStatus:
    """Return the content of the slots, and the firmware's instructions about them; UpdateError without slots."""
    running = running_slot()
    contents = {slot: _read_root(slot_devices(slot).root) for slot in paths.MACHINE_SLOTS}
    try:
        with open_variables() as variables:
            firmware = kept_slot(variables) or running, next_slot(variables), read_trial(variables)
    except UpdateError as error:
        return SlotsStatus(running=running, contents=contents, obstacle=str(error))
    kept, following, trial = firmware
    return SlotsStatus(running=running, contents=contents, kept=kept, next=following, trial=trial)


def _read_root(node: str) -> SlotContent | None:
    try:
        with open(node, "rb") as device:
            signature, built_seconds, size_bytes = _SQUASHFS.unpack(device.read(_SQUASHFS.size))
            if signature != _SQUASHFS_SIGNATURE:
                return None
            device.seek(-(-size_bytes // _BLOCK_BYTES) * _BLOCK_BYTES)
            prefix = root_hash_prefix(device.read(_BLOCK_BYTES))
    except (OSError, struct.error, OverflowError):
        return None
    return None if prefix is None else SlotContent(root_hash_prefix=prefix, built_seconds=built_seconds)


def _tell(variables: EfiVariables, first: str) -> BootPlan:
    """Have the firmware know both slots, and try this slot first."""
    order, current = _read_numbers(variables, _ORDER), _read_numbers(variables, _CURRENT)
    plan = plan_entries(_slots(), _options(variables), order, current[0] if current else None, first)
    for number, option in plan.options.items():
        variables.write(f"{_ENTRY}{number:04X}", option)
    # Last: an order never names a missing entry.
    variables.write(_ORDER, _numbers(plan.order))
    return plan


def _find(name: str) -> str:
    node = find_partition(name)
    if node is None:
        raise UpdateError(f"the disk has no partition {name}")
    return node


def _slots() -> Mapping[str, SlotEntry]:
    machine = os.uname().machine
    if machine not in _PROGRAMS:
        raise UpdateError(f"no firmware boots slots on {machine}")
    entries = {}
    for slot in paths.MACHINE_SLOTS:
        node = slot_devices(slot).boot
        try:
            partition = partition_entry(node)
        except (OSError, ValueError) as error:
            raise UpdateError(f"the partition boot-{slot}, {node}: {describe(error)}") from error
        entries[slot] = SlotEntry(title=f"minit {slot}", partition=partition, program=_PROGRAMS[machine])
    return entries


def _options(variables: EfiVariables) -> dict[int, bytes]:
    options = {}
    for name in variables.names():
        digits = name.removeprefix(_ENTRY)
        if len(digits) == _DIGITS and name != digits and set(digits) <= set("0123456789ABCDEF"):
            options[int(digits, 16)] = variables.read(name) or b""
    return options


def _read_numbers(variables: EfiVariables, name: str) -> tuple[int, ...]:
    data = variables.read(name) or b""
    return struct.unpack_from(f"<{len(data) // 2}H", data)


def _numbers(numbers: tuple[int, ...]) -> bytes:
    return struct.pack(f"<{len(numbers)}H", *numbers)


class TrialRecord(Value):
    """
    The slot last booted once, the outcome, and the time of the request, in seconds since 1970.

    `version` is the content's name from the writer of the slot, `reason` why the slot was not kept, as far as known.
    """

    slot: str
    state: str
    asked_seconds: int
    version: str | None = None
    reason: str | None = None


def read_trial(variables: EfiVariables) -> TrialRecord | None:
    """Return the record, None if missing or unreadable."""
    data = variables.read(_TRIAL, OWN)
    try:
        fields = None if data is None else parse(data, _TRIAL)
    except ManifestError:
        return None
    if not isinstance(fields, dict) or fields.get("state") not in _TRIAL_STATES:
        return None
    slot, asked = fields.get("slot"), fields.get("asked_seconds")
    if not isinstance(slot, str) or not isinstance(asked, int):
        return None
    texts = {name: fields[name] for name in ("version", "reason") if isinstance(fields.get(name), str)}
    return TrialRecord(slot=slot, state=fields["state"], asked_seconds=asked, **texts)


def write_trial(variables: EfiVariables, trial: TrialRecord) -> None:
    """Write the record; UpdateError if the firmware refuses."""
    fields = {name: getattr(trial, name) for name in TrialRecord._fields}
    shown = {name: value[:_MAXIMUM_REASON] if isinstance(value, str) else value for name, value in fields.items()}
    variables.write(_TRIAL, dump({name: value for name, value in shown.items() if value is not None}), OWN)


def root_hash_prefix(data: bytes) -> str | None:
    """Return the first half of a tree's root hash, in hexadecimal; None for data without a superblock."""
    if len(data) < _HASH_TREE.size or not data.startswith(HASH_TREE_SIGNATURE):
        return None
    _, identifier = _HASH_TREE.unpack_from(data)
    return bytes(identifier).hex()


def begin_trial(config: MachineConfig, link: Socket) -> None:
    """Tell PID 1 if this version is on trial, and the console if a tried version was not kept."""
    if root_partition() is None:
        return
    try:
        on_trial, failed = begin_boot()
    except (MinitError, OSError):
        return  # no slots, or nothing that chooses one: whoever asks for another one is told
    if failed is not None:
        complain_at_once(f"minit: slot {failed.slot} was tried and is not kept: {failed.reason}")
    if on_trial:
        seconds = config.trial.healthy_seconds
        complain_at_once(f"minit: slot {running_slot()} is on trial: apps have to be healthy for {seconds} s")
        send_message(link, {"event": TRIAL_BEGUN})


def end_trial(message: dict[str, Any], link: Socket) -> None:
    """Carry out PID 1's message at the end of a trial, if it is one."""
    if KEEP not in message and TRIAL_FAILED not in message:
        return
    try:
        if KEEP in message:
            complain_at_once(f"minit: slot {keep_running()} is kept")
        else:
            note_failure(str(message[TRIAL_FAILED]))
    except (MinitError, OSError) as error:
        complain_at_once(f"minit: trial: {describe(error)}")
    send_message(link, {"event": TRIAL_OVER})
