"""The start of a thin entrypoint, `stop`, against a bare interpreter."""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.table import Measure, compare
from benchmarks.world import World, world

RUNS = 30


def main() -> None:
    """Print the table."""
    with world() as bench:
        measures: dict[str, Measure | str] = {
            "stop": lambda: run_stop(bench),
            "the image's interpreter alone": lambda: run(bench.interpreter()),
            f"{sys.executable.rpartition('/')[2]}, `-I -S -c pass`": lambda: run(
                [sys.executable, "-I", "-S", "-c", "pass"]
            ),
        }
        compare("whole process", "ms", measures, RUNS)


def run_stop(bench: World) -> float:
    """Return the milliseconds `stop` takes to find that no pod runs."""
    return run([str(bench.stage1 / "rootfs/entrypoints/stop"), "0" * 32], check=False)


def run(command: list[str], check: bool = True) -> float:
    """Return the milliseconds a command takes."""
    start = time.monotonic_ns()
    subprocess.run(command, capture_output=True, check=check)
    return (time.monotonic_ns() - start) / 1e6
