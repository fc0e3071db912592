"""The time that processes of a control group wait for a resource; the kernel's document is accounting/psi.rst."""

from __future__ import annotations

from minit.base.value import Value
from minit.stage0.reports.usage import read_file

_MICROSECOND_NS = 1000


class Stall(Value):
    """The share of time in percent, of the last 10, 60 and 300 seconds, and all of it so far."""

    avg10: float
    avg60: float
    avg300: float
    total_ns: int


class Pressure(Value):
    """The stall of `some` processes of a group, and of all of them at the same time, `full`."""

    some: Stall
    full: Stall


def read_pressure(directory: str, resource: str) -> Pressure | None:
    """Return the pressure of "cpu", "memory" or "io" by a directory of v2; None if the kernel does not count it."""
    return parse_pressure(read_file(directory, f"{resource}.pressure"))


def parse_pressure(text: str) -> Pressure | None:
    """Return the pressure that a file of it tells; a line that is not there is nothing, an empty file None."""
    stalls = {kind: _parse_stall(words) for kind, _, words in (line.partition(" ") for line in text.splitlines())}
    nothing = Stall(avg10=0.0, avg60=0.0, avg300=0.0, total_ns=0)
    return Pressure(some=stalls["some"], full=stalls.get("full", nothing)) if "some" in stalls else None


def _parse_stall(words: str) -> Stall:
    values = dict(word.split("=", 1) for word in words.split())
    return Stall(
        avg10=float(values["avg10"]),
        avg60=float(values["avg60"]),
        avg300=float(values["avg300"]),
        total_ns=int(values["total"]) * _MICROSECOND_NS,
    )
