"""
The two slots of a machine's disk: which one runs, where they are, and which one the firmware boots.

The firmware boots the slot that is kept. It boots another one once, if it is told so in the variable BootNext, which
it forgets before it boots.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping

from minit import paths
from minit.errors import UpdateError, describe
from minit.machine.disk.bootentries import BootPlan, SlotEntry, first_slot, plan_entries
from minit.machine.disk.efivariables import EfiVariables, open_variables
from minit.machine.disk.hashtree import root_hash_prefix
from minit.machine.disk.partitions import find_partition, partition_entry, root_partition
from minit.machine.disk.trials import ASKED, FAILED, KEPT, TRIED, TrialRecord, read_trial, write_trial
from minit.value import Value, replace

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


class SlotDevices(Value):
    """The block devices of a slot: the partition that the firmware boots from, and that of the root."""

    boot: str
    root: str


class SlotContent(Value):
    """What a slot has: the time of its root in seconds since 1970, and the first half of its root hash."""

    root_hash_prefix: str
    built_seconds: int


class SlotsStatus(Value):
    """
    The slot that runs, what each of them has, None if that is no root, and what the firmware knows of them.

    It boots `kept`, or once, the next time, `next`. `trial` was the last one, and `obstacle` is why nothing is known of
    all that.
    """

    running: str
    contents: Mapping[str, SlotContent | None]
    kept: str | None = None
    next: str | None = None
    trial: TrialRecord | None = None
    obstacle: str | None = None


def running_slot() -> str:
    """Return the slot with the root of this machine; UpdateError if its root is in none."""
    name = root_partition() or ""
    slot = name.removeprefix(_ROOT)
    if not name.startswith(_ROOT) or slot not in paths.MACHINE_SLOTS:
        raise UpdateError("the root of this machine is in no slot: `init build --format disk` makes a disk with slots")
    return slot


def other_slot(slot: str) -> str:
    """Return the slot that is not this one."""
    first, second = paths.MACHINE_SLOTS
    return second if slot == first else first


def slot_devices(slot: str) -> SlotDevices:
    """Return the devices of a slot; UpdateError if the disk has no such partitions."""
    return SlotDevices(boot=_find(f"boot-{slot}"), root=_find(f"{_ROOT}{slot}"))


def boot_once(slot: str, version: str | None = None) -> None:
    """
    Have the firmware boot a slot the next time, and the one that is kept after that.

    `version` is how its content is called when somebody asks. UpdateError if the machine has no firmware that can be
    told, or it does not take it.
    """
    running = running_slot()
    with open_variables() as variables:
        kept = kept_slot(variables) or running
        plan = _tell(variables, kept)
        if slot != kept:
            # Before the firmware knows: what happens then is known to have been a trial.
            record = TrialRecord(slot=slot, state=ASKED, asked_seconds=int(time.time()), version=version)
            write_trial(variables, record)
        variables.write(_NEXT, _numbers((plan.numbers[slot],)))


def require_kept() -> None:
    """UpdateError if the slot that runs is on trial: the other one is what the machine falls back to."""
    running = running_slot()
    with open_variables() as variables:
        if kept_slot(variables) not in (None, running):
            raise UpdateError(f"slot {running} is on trial: slot {other_slot(running)} is needed until it is kept")


def begin_boot() -> tuple[bool, TrialRecord | None]:
    """
    Return whether the slot that runs is on trial, and the record of a trial that has failed since the last boot.

    Either is written down. UpdateError if the machine has no slots, or no firmware that can be told.
    """
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        if kept_slot(variables) not in (None, running):
            if record is None or record.slot != running:
                record = TrialRecord(slot=running, state=ASKED, asked_seconds=int(time.time()))
            write_trial(variables, replace(record, state=TRIED, reason=None))
            return True, None
        if record is None or record.state in (KEPT, FAILED) or record.slot == next_slot(variables):
            return False, None
        if record.slot == running:
            # The power went in the middle of keep_running().
            write_trial(variables, replace(record, state=KEPT, reason=None))
            return False, None
        unknown = _NOT_STARTED if record.state == ASKED else _NOT_HEALTHY
        record = replace(record, state=FAILED, reason=record.reason or unknown)
        write_trial(variables, record)
        return False, record


def keep_running() -> str:
    """Have the firmware boot the slot that runs from now on, and return it; UpdateError as above."""
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        _tell(variables, running)
        if record is not None and record.slot == running:
            write_trial(variables, replace(record, state=KEPT))
    return running


def note_failure(reason: str) -> None:
    """Write down why the slot that runs will not be kept; UpdateError as above."""
    running = running_slot()
    with open_variables() as variables:
        record = read_trial(variables)
        if record is not None and record.slot == running and record.state == TRIED:
            write_trial(variables, replace(record, reason=reason))


def kept_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots if it is told no other, None if it has never been told any."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _ORDER))


def next_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots once, the next time, if it is told to."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _NEXT))


def read_slots() -> SlotsStatus:
    """Return what is in the slots, and what the firmware is to do with them; UpdateError if there are none."""
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
    """Have the firmware know both slots, and try this one first."""
    order, current = _read_numbers(variables, _ORDER), _read_numbers(variables, _CURRENT)
    plan = plan_entries(_slots(), _options(variables), order, current[0] if current else None, first)
    for number, option in plan.options.items():
        variables.write(f"{_ENTRY}{number:04X}", option)
    # Last: an order never names what is not there.
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
