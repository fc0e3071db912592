"""
Apps of a running pod: `app/start` to the app's first instruction and `app/stop`, against a bare interpreter.

Also how soon the control socket answers while orphans are reaped.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from statistics import quantiles
from typing import Any

from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from tests.support.pods import PodDirectory, app_section
from tests.support.sandbox import Sandbox

RUNS = 30
_ASKED = 2000
_ORPHANS = """
#include <time.h>
#include <unistd.h>
int main(void)
{
    struct timespec pause = {0, 1000000};
    for (;;) {
        if (fork() == 0) {
            if (fork() == 0)
                _exit(0);
            _exit(0);
        }
        nanosleep(&pause, 0);
    }
}
"""


def main() -> None:
    """Print the tables."""
    with world() as bench:
        source = bench.path / "orphans.c"
        source.write_text(_ORPHANS)
        subprocess.run(["cc", "-O2", "-static", "-o", bench.rootfs / "bin/orphans", source], check=True)
        sandbox = Sandbox(maker(bench))
        try:
            add(sandbox, "first", app_section("/bin/first"))
            add(sandbox, "idle", app_section("/bin/sleep", "1000000"))
            bare = bench.interpreter()
            measures: dict[str, Measure | str] = {
                "app/start to the first instruction": lambda: start_milliseconds(sandbox),
                "app/stop of an app that ends on SIGTERM": lambda: stop_milliseconds(sandbox),
                "the image's interpreter alone": lambda: milliseconds(bare),
            }
            compare("whole process", "ms", measures, RUNS)
            answers(sandbox, "at rest")
            add(sandbox, "storm", app_section("/bin/orphans"))
            sandbox.start("storm")
            answers(sandbox, "with a thousand orphans a second")
        finally:
            sandbox.end()
            sandbox.pod.remove()


def maker(bench: World) -> Callable[..., PodDirectory]:
    """Return what makes the pod directory."""

    def make(apps: dict[str, dict[str, Any]], **options: Any) -> PodDirectory:
        return PodDirectory(bench.path / "data", bench.stage1, bench.rootfs, apps, **options)

    return make


def add(sandbox: Sandbox, name: str, section: dict[str, Any]) -> None:
    """Add an app."""
    result = sandbox.add(name, section)
    assert result.returncode == 0, result.stdout


def start_milliseconds(sandbox: Sandbox) -> float:
    """Return how long it takes from executing `app/start` to the first instruction of an app."""
    log = sandbox.pod.stage1 / "rkt/minit/log/first.log"
    sandbox.mark_started("first")
    begun = time.monotonic_ns()
    result = sandbox.call("app/start", "--app=first")
    assert result.returncode == 0, result.stdout
    sandbox.wait_state("first", "exited")
    return (last_number(log, begun) - begun) / 1e6


def last_number(log: Path, after: int) -> int:
    """Return what the app wrote last, once that is later than a time."""
    while True:
        numbers = [int(line.split()[-1]) for line in log.read_text().splitlines()] if log.exists() else []
        if numbers and numbers[-1] > after:
            return numbers[-1]
        time.sleep(0.001)


def stop_milliseconds(sandbox: Sandbox) -> float:
    """Return how long `app/stop` takes for an app that ends at once."""
    sandbox.start("idle")
    begun = time.monotonic_ns()
    sandbox.stop("idle")
    return (time.monotonic_ns() - begun) / 1e6


def milliseconds(command: list[str]) -> float:
    """Return how long a command takes."""
    begun = time.monotonic_ns()
    subprocess.run(command, capture_output=True, check=True)
    return (time.monotonic_ns() - begun) / 1e6


def answers(sandbox: Sandbox, what: str) -> None:
    """Print how soon the control socket answers, a connection for each request."""
    request = json.dumps({"op": "state"}).encode()
    times = []
    for _ in range(_ASKED):
        begun = time.monotonic_ns()
        with sandbox.pod.connect() as client:
            client.send(request)
            client.recv(1 << 16)
        times.append((time.monotonic_ns() - begun) / 1e6)
    cuts = quantiles(times, n=100)
    print(f"control socket, {what}: median {cuts[49]:.2f} ms, 99th percentile {cuts[98]:.2f} ms")
