"""`minit gc` of many pods that have ended: how long it takes for each, and how much processor time."""

from __future__ import annotations

import resource

from benchmarks.command import Command
from benchmarks.stop import run
from benchmarks.table import compare
from benchmarks.world import world

RUNS = 3
PODS = 20
MANY_PODS = 1000


def main() -> None:
    """Print the tables for some pods."""
    measure(PODS, RUNS)


def main_long() -> None:
    """Print the tables for a thousand pods, which takes minutes to run them."""
    measure(MANY_PODS, 1)


def measure(pods: int, runs: int) -> None:
    """Print the tables."""
    with world() as bench:
        command = Command(bench)
        spent: list[float] = []

        def collect() -> float:
            for _ in range(pods):
                command.output("run", "--net=none", command.image)
            before = _children_ms()
            elapsed = run(command.words("gc", "--grace-period=0s"))
            spent.append((_children_ms() - before) / pods)
            assert command.output("list", "--no-legend") == ""
            return elapsed / pods

        compare(f"gc of {pods} pods, for each", "ms", {"minit gc": collect}, runs)
        compare(f"gc of {pods} pods, processor time for each", "ms", {"minit gc": spent.pop}, runs)


def _children_ms() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (usage.ru_utime + usage.ru_stime) * 1000
