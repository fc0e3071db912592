"""
Pods that do nothing, one after the other, against runc and crun: how long each takes, and how much processor time.

That is counted by a control group, since not every process of a pod has a parent that waits for it.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from benchmarks.first_instruction import in_cgroups, make_bundle, peer
from benchmarks.stop import run
from benchmarks.table import Measure, compare
from benchmarks.world import World, own_group, world
from tests.support.owngroup import OwnGroup

RUNS = 5
PODS = 10
_COMMAND = "/bin/true"


def main() -> None:
    """Print the tables."""
    with world() as bench, own_group() as group:
        spent: dict[str, list[float]] = {}

        def measure(name: str) -> float:
            meter = Meter(group)
            if name == "minit":
                minit(bench, meter)
            else:
                oci(bench, name, meter)
            spent.setdefault(name, []).append(meter.processor_ms / PODS)
            return meter.elapsed_ms / PODS

        measures: dict[str, Measure | str] = {"minit": lambda: measure("minit")}
        for name in ("runc", "crun"):
            measures[name] = peer(name, partial(measure, name))
        compare(f"{PODS} pods in a row, each", "ms", measures, RUNS)
        again: dict[str, Measure | str] = {
            name: each if isinstance(each, str) else spent[name].pop for name, each in measures.items()
        }
        compare("processor time of each pod", "ms", again, RUNS)


class Meter:
    """Adds up time and processor time of what is done in it, by whatever is in a group."""

    def __init__(self, group: OwnGroup) -> None:
        self.group = group
        self.elapsed_ms = self.processor_ms = 0.0

    def __enter__(self) -> None:
        self._before = time.monotonic_ns() / 1e6, _processor_ms(self.group)

    def __exit__(self, *_: object) -> None:
        begun, spent = self._before
        self.elapsed_ms += time.monotonic_ns() / 1e6 - begun
        self.processor_ms += _processor_ms(self.group) - spent


def minit(bench: World, meter: Meter) -> None:
    """Run pods that are prepared before and collected afterwards."""
    for _ in range(PODS):
        with bench.pod(_COMMAND) as pod, meter:
            assert pod.run().returncode == 0


def oci(bench: World, runtime: str, meter: Meter) -> None:
    """Run containers of an OCI runtime, whose groups are in the meter's."""
    bundle = bench.path / "true-bundle"
    make_bundle(bench, bundle, [_COMMAND], {"cgroupsPath": f"/{meter.group.directories[0].name}/container"})
    command = [runtime, "run", "--bundle", str(bundle), "bench-in-a-row"]
    with meter:
        in_cgroups(runtime, lambda: sum(run(command) for _ in range(PODS)))


def _processor_ms(group: OwnGroup) -> float:
    """Return the processor time of all that has been in the group and those below."""
    for directory in group.directories:
        if (usage := directory / "cpuacct.usage").exists():
            return int(usage.read_text()) / 1e6
    return _v2_ms(group.directories[0])


def _v2_ms(directory: Path) -> float:
    fields = dict(line.split() for line in (directory / "cpu.stat").read_text().splitlines())
    return int(fields["usage_usec"]) / 1e3
