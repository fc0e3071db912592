"""Memory of an idle one-app pod, all processes of the supervisor together, against supervisord with one program."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, world

RUNS = 3
_SETTLE_SECONDS = 1.0

_SUPERVISORD = """\
[supervisord]
nodaemon=true
user=root
logfile=/dev/null
logfile_maxbytes=0
pidfile={path}/supervisord.pid
[program:app]
command={rootfs}/bin/sleep 1000
"""


def main() -> None:
    """Print the table."""
    with world() as bench:
        absent = missing("supervisord")
        measures: dict[str, Measure | str] = {
            "minit, one app": lambda: minit(bench),
            "supervisord, one program": f"{absent} is not installed" if absent else lambda: supervisord(bench),
        }
        compare("proportional set size", "MB", measures, RUNS)


def minit(bench: World) -> float:
    """Return the megabytes of launcher, PID 1, spawner and sidecar."""
    with bench.pod("/bin/sleep", "1000") as pod:
        process = pod.start()
        ready = pod.status_root / "rkt/supervisor-status"
        while not ready.is_symlink():
            time.sleep(0.01)
        time.sleep(_SETTLE_SECONDS)
        figure = sum(map(pss, descendants(process.pid, skip="sleep")))
        process.send_signal(signal.SIGTERM)
        process.communicate()
    return figure


def supervisord(bench: World) -> float:
    """Return the megabytes of supervisord."""
    config = bench.path / "supervisord.conf"
    config.write_text(_SUPERVISORD.format(path=bench.path, rootfs=bench.rootfs))
    process = subprocess.Popen(["supervisord", "-c", config], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while not children(process.pid):
        time.sleep(0.01)
    time.sleep(_SETTLE_SECONDS)
    figure = sum(map(pss, descendants(process.pid, skip="sleep")))
    process.terminate()
    process.wait()
    return figure


def descendants(pid: int, skip: str) -> list[int]:
    """Return the process and all below it whose name is not `skip`."""
    found = [] if Path(f"/proc/{pid}/comm").read_text().strip() == skip else [pid]
    return found + [below for child in children(pid) for below in descendants(child, skip)]


def children(pid: int) -> list[int]:
    """Return the children of a single-threaded process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pss(pid: int) -> float:
    """Return the megabytes a process accounts for, shared pages divided among their users."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no Pss for {pid}: {os.strerror(0)}")
