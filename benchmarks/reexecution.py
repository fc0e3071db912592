"""
PID 1 that executes its program anew: processor time, pause for a client, and private memory before and afterwards.

The processor time is that of PID 1 from the request until the supervisor serves again, the kernel's share of the exec
included. The peer is a start of the same pod: its PID 1's processor time until the apps run.

An upgrade is the whole command for a pod that has just started, with the copy of the files; the image is in the store,
and unpacked. The peer is the whole command that has started the pod, `run --detach`, until the pod is ready.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.command import Command
from benchmarks.memory import SETTLE_SECONDS, megabytes
from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from tests.support.laterstage1 import write_later_stage1
from tests.support.pods import PodDirectory, app_section
from tests.support.waiting import wait_for

RUNS = 5
COUNTS = (1, 20, 100)
UPGRADED = (1, 20)
PROCESSOR = "processor time of an execution of PID 1 anew"
UPGRADE, START = "minit upgrade", "minit run --detach"


def title(count: int) -> str:
    """Return the title of the table for so many apps."""
    return f"{PROCESSOR}, {count} apps"


def upgrade_title(count: int) -> str:
    """Return the title of the table of upgrades of pods of so many apps."""
    return f"a pod of {count} apps gets another version"


def memory_title(count: int) -> str:
    """Return the title of the table of the memory of PID 1 with so many apps."""
    return f"private memory of PID 1, {count} apps"


def main() -> None:
    """Print the tables."""
    with world() as bench:
        for count in COUNTS:
            with running(bench, count) as pod:
                time.sleep(SETTLE_SECONDS)
                before = private(pod)
                # The first one writes down what never changes, and takes over pages.
                reexecute(pod)
                after = private(pod)
                processor: dict[str, Measure | str] = {
                    "minit, again": lambda: reexecute(pod)[0],  # noqa: B023
                    "a start of the same pod": lambda: start(bench, count),  # noqa: B023
                }
                compare(title(count), "ms", processor, RUNS)
                compare(f"pause for a client, {count} apps", "ms", {"minit": lambda: reexecute(pod)[1]}, RUNS)  # noqa: B023
                memory: dict[str, Measure | str] = {"before": lambda: before, "after one": lambda: after}  # noqa: B023
                compare(memory_title(count), "MB", memory | {"after ten": lambda: private(pod)}, 1)  # noqa: B023
        command = Command(bench)
        later = write_later_stage1(bench.path / "stage1.aci", bench.path / "later.aci")
        # Both images are in the store, and unpacked.
        upgrade(command, later, 1)
        for count in UPGRADED:
            turns: dict[str, Measure | str] = {
                UPGRADE: lambda: upgrade(command, later, count)[1],  # noqa: B023
                START: lambda: upgrade(command, later, count)[0],  # noqa: B023
            }
            compare(upgrade_title(count), "ms", turns, RUNS)


def upgrade(command: Command, later: Path, count: int) -> tuple[float, float]:
    """Return the milliseconds of the start of a pod in the background, and of an upgrade of the pod."""
    apps = [(command.image, f"--name=a{number}", "--exec=/bin/sleep", "--", "1000", "---") for number in range(count)]
    began = time.monotonic_ns()
    uuid = command.output("run", "--quiet", "--net=none", "--detach", *[word for app in apps for word in app]).strip()
    started = time.monotonic_ns()
    command.output("upgrade", "--quiet", f"--stage1-path={later}", uuid)
    upgraded = time.monotonic_ns()
    command.output("rm", "--force", uuid)
    return (started - began) / 1e6, (upgraded - started) / 1e6


@contextmanager
def running(bench: World, count: int) -> Iterator[PodDirectory]:
    """A pod of so many apps that have all begun to wait."""
    with bench.pod_of({f"a{number}": app_section("/bin/sleep", "1000") for number in range(count)}) as pod:
        pod.start()
        pod.wait_ready()
        yield pod
        pod.stop("--force")


def start(bench: World, count: int) -> float:
    """Return the milliseconds of a processor that the PID 1 of a pod takes until its apps run."""
    with running(bench, count) as pod:
        return processor_ms(pod.pid)


def reexecute(pod: PodDirectory) -> tuple[float, float]:
    """Have PID 1 execute its program; return the milliseconds of a processor, and those until the next answer."""
    count = resumed(pod)
    used, began = processor_ms(pod.pid), time.monotonic_ns()
    pod.ask({"op": "reexecute"})
    pod.ask({"op": "ping"})
    ended = time.monotonic_ns()
    wait_for(lambda: resumed(pod) > count, "the new program of PID 1")
    return processor_ms(pod.pid) - used, (ended - began) / 1e6


def resumed(pod: PodDirectory) -> int:
    """Return how often PID 1 has gone on in a new program."""
    return sum(event["event"] == "supervisor.resumed" for event in pod.events())


def processor_ms(pid: int) -> float:
    """Return the milliseconds that a process was on a processor, /proc/PID/schedstat."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


def private(pod: PodDirectory) -> float:
    """Return the megabytes of memory that PID 1 shares with nobody, and no file has, not even one just written."""
    return megabytes(pod.pid, "Pss_Anon")
