"""
Memory of an idle one-app pod, all processes of the supervisor together, against supervisord with one program; and what
each further app adds, which is the private memory of the process that reads its output, against conmon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
        readers: dict[str, Measure | str] = {
            "minit's sidecar": lambda: sidecar(bench),
            "conmon": missing("conmon") or (lambda: conmon(bench)),
        }
        compare("private memory of what reads an app's output", "MB", readers, RUNS)


def minit(bench: World) -> float:
    """Return the megabytes of launcher, PID 1, spawner and sidecar."""
    with idle_pod(bench) as pid:
        return sum(map(pss, descendants(pid, skip="sleep")))


def sidecar(bench: World) -> float:
    """Return the megabytes of the sidecar."""
    with idle_pod(bench) as pid:
        [reader] = [each for each in descendants(pid, skip="sleep") if name_of(each) == "iottymux-app"]
        return private(reader)


def conmon(bench: World) -> float:
    """Return the megabytes of conmon, which has a container made by a runtime: a process that sleeps."""
    with tempfile.TemporaryDirectory(dir=bench.path) as bundle:
        runtime = Path(bundle) / "runtime"
        runtime.write_text(
            '#!/bin/sh\nwhile [ $# -gt 0 ]; do [ "$1" = --pid-file ] && file=$2; shift; done\n'
            f"{bench.rootfs}/bin/sleep 1000 & printf $! > $file\n"
        )
        runtime.chmod(0o755)
        command = ["conmon", "-c", "c", "-u", "c", "-n", "c", "-r", runtime, "-b", bundle, "-p", f"{bundle}/pid"]
        process = subprocess.Popen([*command, "--full-attach", "--sync", "-l", f"k8s-file:{bundle}/log"])
        while not (Path(bundle) / "pid").exists():
            time.sleep(0.01)
        time.sleep(_SETTLE_SECONDS)
        figure = private(process.pid)
        os.kill(int((Path(bundle) / "pid").read_text()), signal.SIGKILL)
        process.wait()
    return figure


@contextmanager
def idle_pod(bench: World) -> Iterator[int]:
    """A pod of one app that sleeps, with nothing left to do; gives the pid of its launcher."""
    with bench.pod("/bin/sleep", "1000") as pod:
        process = pod.start()
        ready = pod.status_root / "rkt/supervisor-status"
        while not ready.is_symlink():
            time.sleep(0.01)
        time.sleep(_SETTLE_SECONDS)
        yield process.pid
        process.send_signal(signal.SIGTERM)
        process.communicate()


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
    found = [] if name_of(pid) == skip else [pid]
    return found + [below for child in children(pid) for below in descendants(child, skip)]


def name_of(pid: int) -> str:
    """Return the name of a process."""
    return Path(f"/proc/{pid}/comm").read_text().strip()


def children(pid: int) -> list[int]:
    """Return the children of a single-threaded process."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def pss(pid: int) -> float:
    """Return the megabytes a process accounts for, shared pages divided among their users."""
    return megabytes(pid, "Pss")


def private(pid: int) -> float:
    """Return the megabytes that another one of its kind takes once more: what it has written to."""
    return megabytes(pid, "Private_Dirty")


def megabytes(pid: int, field: str) -> float:
    """Return a field of what the kernel counts about a process's memory (proc_pid_smaps(5))."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no {field} for {pid}")
