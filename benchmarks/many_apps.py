"""Pods of many apps: from exec of `run` to the last app's first instruction, against as many containers in a row."""

from __future__ import annotations

import re
import time
from functools import partial

from benchmarks.first_instruction import in_cgroups, oci_command, peer, timed
from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from tests.support.pods import app_section

RUNS = 3
COUNTS = (10, 50)


def main() -> None:
    """Print the tables."""
    with world() as bench:
        for count in COUNTS:
            measures: dict[str, Measure | str] = {f"minit, {count} apps": lambda: minit(bench, count)}  # noqa: B023
            for name in ("crun", "runc"):
                measures[f"{name}, {count} in a row"] = peer(name, partial(row, bench, name, count))
            compare(f"the last of {count} apps, exec to first instruction", "ms", measures, RUNS)


def minit(bench: World, count: int) -> float:
    """Return the milliseconds until the last app of a pod runs."""
    with bench.pod_of({f"a{number}": app_section("/bin/first") for number in range(count)}) as pod:
        start = time.monotonic_ns()
        result = pod.run()
    stamps = [int(stamp) for stamp in re.findall(r"\]: (\d+)$", result.stdout, re.MULTILINE)]
    assert len(stamps) == count, result.stderr
    return (max(stamps) - start) / 1e6


def row(bench: World, runtime: str, count: int) -> float:
    """Return the milliseconds until the last of so many containers runs, each started when the one before has ended."""
    command = oci_command(bench, runtime)

    def run() -> float:
        start = time.monotonic_ns()
        for _ in range(count - 1):
            timed(command)
        before = time.monotonic_ns()
        return (before - start) / 1e6 + timed(command)

    return in_cgroups(runtime, run)
