"""From exec of `minit run` to the app's first instruction, and the part of it that is the entrypoint's."""

from __future__ import annotations

import time

from benchmarks.command import Command
from benchmarks.first_instruction import minit, since
from benchmarks.table import Measure, compare
from benchmarks.world import world

RUNS = 20


def main() -> None:
    """Print the table."""
    with world() as bench:
        command = Command(bench)
        measures: dict[str, Measure | str] = {
            "minit run": lambda: run(command),
            "minit, the entrypoint alone": lambda: minit(bench),
        }
        compare("whole command to first instruction", "ms", measures, RUNS)


def run(command: Command) -> float:
    """Return the milliseconds of the whole command; what it leaves is removed."""
    start = time.monotonic_ns()
    output = command.output("run", "--net=none", command.image, "--exec=/bin/first")
    command.collect()
    return since(start, output.partition(": ")[2])
