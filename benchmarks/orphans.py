"""
Ten thousand orphans at once: how long the first process takes to reap them, and its processor time for each.

It is stopped until all of them are dead and its own: what is measured is a backlog, and who makes it takes no part.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.first_instruction import peer
from benchmarks.init import INITS
from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from tests.support.processes import children_of, named, status_of
from tests.support.waiting import wait_for

RUNS = 5
ORPHANS = 10_000
_LOOK_SECONDS = 0.0002

_SOURCE = f"""
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void)
{{
    if (fork() == 0) {{
        for (int i = 0; i < {ORPHANS}; i++)
            if (fork() == 0)
                _exit(0);
        prctl(PR_SET_NAME, "parent");
        pause();
    }}
    wait(0);
    pause();
}}
"""


def main() -> None:
    """Print the tables."""
    with world() as bench:
        program = bench.rootfs / "bin/orphans"
        source = bench.path / "orphans.c"
        source.write_text(_SOURCE)
        subprocess.run(["cc", "-O2", "-static", "-o", program, source], check=True)
        spent: dict[str, list[float]] = {}

        def measure(name: str) -> float:
            with _pod(bench) if name == "minit" else _init([*INITS[name], program]) as init:
                milliseconds, each = _reaping(init)
            spent.setdefault(name, []).append(each)
            return milliseconds

        measures: dict[str, Measure | str] = {"minit": lambda: measure("minit")}
        measures["minit -- COMMAND"] = lambda: measure("minit -- COMMAND")
        for name in ("tini", "dumb-init"):
            measures[name] = peer(name, partial(measure, name))
        compare(f"{ORPHANS} orphans", "ms", measures, RUNS)
        again: dict[str, Measure | str] = {
            name: each if isinstance(each, str) else spent[name].pop for name, each in measures.items()
        }
        compare("processor time for each orphan", "us", again, RUNS)


def _reaping(init: int) -> tuple[float, float]:
    """Return the milliseconds until the last one is reaped, and the processor microseconds for each."""
    [made] = wait_for(lambda: named(children_of(init), "orphans"), "the program")
    parent = int(wait_for(lambda: named(children_of(made), "parent"), "the orphans")[0])
    others = {*children_of(init)}
    os.kill(init, signal.SIGSTOP)
    wait_for(lambda: status_of(init)["State"].startswith("T"), "the stop")
    os.kill(parent, signal.SIGKILL)
    wait_for(lambda: len(children_of(init)) >= len(others) + ORPHANS, "the backlog")
    orphans = [pid for pid in children_of(init) if pid not in others]
    spent_before = _processor_ns(init)
    begun = time.monotonic_ns()
    os.kill(init, signal.SIGCONT)
    while orphans:
        if Path(f"/proc/{orphans[-1]}").exists():
            time.sleep(_LOOK_SECONDS)
            continue
        ended = time.monotonic_ns()
        orphans = [pid for pid in orphans if Path(f"/proc/{pid}").exists()]
    return (ended - begun) / 1e6, (_processor_ns(init) - spent_before) / 1e3 / ORPHANS


def _processor_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@contextmanager
def _pod(bench: World) -> Iterator[int]:
    with bench.pod("/bin/orphans") as pod:
        process = pod.start()
        pod.wait_ready()
        assert pod.ask({"op": "ping"})["ok"]
        yield pod.pid
        process.terminate()
        process.communicate()


@contextmanager
def _init(command: Sequence[str | Path]) -> Iterator[int]:
    """An init in a PID namespace, since not every one adopts orphans elsewhere."""
    process = subprocess.Popen(["unshare", "--pid", "--fork", "--kill-child", *command])
    [init] = wait_for(lambda: children_of(process.pid), "the init")
    yield init
    process.kill()
    process.wait()
