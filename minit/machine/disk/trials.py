"""
The record of the last version that was tried: a variable of the firmware's, as its own record of what it boots next.

There it is whole or not there, whatever the data of the machine look like, and both versions find it.
"""

from __future__ import annotations

from minit.errors import ManifestError
from minit.jsontext import dump, parse
from minit.machine.disk.efivariables import OWN, EfiVariables
from minit.value import Value

ASKED = "asked"  # the firmware is to boot it next
TRIED = "tried"  # it was booted
KEPT = "kept"
FAILED = "failed"

_NAME = "MinitTrial"
_STATES = (ASKED, TRIED, KEPT, FAILED)
_MAXIMUM_TEXT = 200


class TrialRecord(Value):
    """
    The slot that was last to be booted once, what came of it, and when that was asked for, in seconds since 1970.

    `version` is what whoever wrote the slot calls its content, `reason` why it was not kept, as far as that is known.
    """

    slot: str
    state: str
    asked_seconds: int
    version: str | None = None
    reason: str | None = None


def read_trial(variables: EfiVariables) -> TrialRecord | None:
    """Return the record, None if there is none, or none that can be understood."""
    data = variables.read(_NAME, OWN)
    try:
        fields = None if data is None else parse(data, _NAME)
    except ManifestError:
        return None
    if not isinstance(fields, dict) or fields.get("state") not in _STATES:
        return None
    slot, asked = fields.get("slot"), fields.get("asked_seconds")
    if not isinstance(slot, str) or not isinstance(asked, int):
        return None
    texts = {name: fields[name] for name in ("version", "reason") if isinstance(fields.get(name), str)}
    return TrialRecord(slot=slot, state=fields["state"], asked_seconds=asked, **texts)


def write_trial(variables: EfiVariables, trial: TrialRecord) -> None:
    """Write the record; UpdateError if the firmware does not take it."""
    fields = {name: getattr(trial, name) for name in TrialRecord._fields}
    shown = {name: value[:_MAXIMUM_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
    variables.write(_NAME, dump({name: value for name, value in shown.items() if value is not None}), OWN)
