"""
The helper's part in the trial of a version: it reads and writes the firmware's variables, which can take seconds.

    helper -> PID 1   {"event": TRIAL_BEGUN}      this version was booted once
    PID 1 -> helper   {KEEP: true}                it is to be kept; asked again until there is an answer
                      {TRIAL_FAILED: "reason"}    it will not be
    helper -> PID 1   {"event": TRIAL_OVER}       that is done, or cannot be
"""

from __future__ import annotations

from typing import Any

from minit.base.errors import MinitError, describe
from minit.linux.messages import Socket, send_message
from minit.linux.stdio import complain_at_once
from minit.machine.disk.partitions import root_partition
from minit.machine.disk.slots import begin_boot, keep_running, note_failure, running_slot
from minit.manifest.machineconfig import MachineConfig

TRIAL_BEGUN = "trial begun"
TRIAL_OVER = "trial over"
KEEP = "keep"
TRIAL_FAILED = "trial failed"


def begin_trial(config: MachineConfig, link: Socket) -> None:
    """Tell PID 1 if this version is on trial, and the console if one was that is not kept."""
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
    """Do what PID 1 asks for at the end of a trial, if it asks for that."""
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
