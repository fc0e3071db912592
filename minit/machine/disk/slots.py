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
from minit.machine.disk.partitions import find_partition, partition_entry, root_partition
from minit.machine.disk.trials import ASKED, Trial, write_trial
from minit.value import Value

_ROOT = "root-"
_PROGRAMS = {"x86_64": "\\EFI\\BOOT\\BOOTX64.EFI", "aarch64": "\\EFI\\BOOT\\BOOTAA64.EFI"}
_ORDER, _CURRENT, _NEXT = "BootOrder", "BootCurrent", "BootNext"
_ENTRY = "Boot"
_DIGITS = 4


class SlotDevices(Value):
    """The block devices of a slot: the partition that the firmware boots from, and that of the root."""

    boot: str
    root: str


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
        plan = _tell(variables, kept_slot(variables) or running)
        # Before the firmware knows: what happens then is known to have been a trial.
        write_trial(variables, Trial(slot=slot, state=ASKED, asked_seconds=int(time.time()), version=version))
        variables.write(_NEXT, _numbers((plan.numbers[slot],)))


def keep_slot(slot: str) -> None:
    """Have the firmware boot a slot from now on; UpdateError as above."""
    with open_variables() as variables:
        _tell(variables, slot)


def kept_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots if it is told no other, None if it has never been told any."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _ORDER))


def next_slot(variables: EfiVariables) -> str | None:
    """Return the slot that the firmware boots once, the next time, if it is told to."""
    return first_slot(_slots(), _options(variables), _read_numbers(variables, _NEXT))


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
