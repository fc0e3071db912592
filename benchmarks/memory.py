"""
Memory of idle pods, all processes of the supervisor together: of one app against supervisord with one program, of
twenty pods at once against machines of systemd with its log daemon. The cost of an app is shown twice, by pods with
more apps, and by the private memory of the process that reads its output, against conmon.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.first_instruction import own_tree
from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, world
from tests.support.pods import app_section
from tests.support.waiting import wait_for

RUNS = 3
AT_ONCE = 20
# Each has a dozen inotify instances, of which a user has 128 as a rule.
MACHINES_AT_ONCE = 5
FURTHER_APPS = 20
SETTLE_SECONDS = 1.0

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
_NSPAWN_UNIT = """\
[Unit]
DefaultDependencies=no
Requires=systemd-journald.service
After=systemd-journald.service
[Service]
ExecStart=/bin/sleep 1000
"""


def main() -> None:
    """Print the tables."""
    with world() as bench:
        absent = missing("supervisord")
        measures: dict[str, Measure | str] = {
            "minit, one app": lambda: minit(bench),
            "supervisord, one program": f"{absent} is not installed" if absent else lambda: supervisord(bench),
        }
        compare("proportional set size", "MB", measures, RUNS)
        own: dict[str, Measure | str] = {
            "minit, one app": lambda: anonymous(bench, 1),
            "minit, each further app": lambda: (
                (anonymous(bench, 1 + FURTHER_APPS) - anonymous(bench, 1)) / FURTHER_APPS
            ),
        }
        compare("anonymous memory", "MB", own, RUNS)
        absent = missing("systemd-nspawn")
        with own_tree(bench):
            many: dict[str, Measure | str] = {
                f"minit, {AT_ONCE} pods of one app": lambda: minit(bench, AT_ONCE) / AT_ONCE,
                f"systemd-nspawn --boot, {MACHINES_AT_ONCE} machines with journald": f"{absent} is not installed"
                if absent
                else lambda: nspawn(bench, MACHINES_AT_ONCE) / MACHINES_AT_ONCE,
            }
            compare("proportional set size of each of many at once", "MB", many, RUNS)
        readers: dict[str, Measure | str] = {
            "minit's sidecar": lambda: sidecar(bench),
            "conmon": missing("conmon") or (lambda: conmon(bench)),
        }
        compare("private memory of the reader of an app's output", "MB", readers, RUNS)


def minit(bench: World, pods: int = 1) -> float:
    """Return the megabytes of launcher, PID 1, spawner and sidecar, of all these pods."""
    with ExitStack() as stack:
        launchers = [stack.enter_context(running_pod(bench)) for _ in range(pods)]
        time.sleep(SETTLE_SECONDS)
        return sum(pss(pid) for launcher in launchers for pid in descendants(launcher, skip="sleep"))


def anonymous(bench: World, apps: int) -> float:
    """Return the megabytes that a pod of so many apps has for itself, which are no pages of files."""
    with running_pod(bench, apps) as launcher:
        time.sleep(SETTLE_SECONDS)
        return sum(megabytes(pid, "Pss_Anon") for pid in descendants(launcher, skip="sleep"))


def nspawn(bench: World, machines: int) -> float:
    """Return the megabytes of nspawn, systemd and journald, of all these machines."""
    unit = bench.path / "sleep.service"
    unit.write_text(_NSPAWN_UNIT)
    processes = []
    try:
        for number in range(machines):
            command = ["systemd-nspawn", "--quiet", f"--directory={bench.path}/machine", "--volatile=overlay"]
            command += ["--register=no", "--keep-unit", "--private-network", f"--machine=minit-bench-{number}"]
            command += [f"--bind-ro={unit}:/etc/systemd/system/sleep.service", "--boot", "--", "--unit=sleep.service"]
            quiet = subprocess.DEVNULL
            processes.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet))
        for process in processes:
            wait_for(lambda pid=process.pid: _runs_sleep(pid), "the machine")  # type: ignore[misc]
        time.sleep(SETTLE_SECONDS)
        return sum(pss(pid) for process in processes for pid in descendants(process.pid, skip="sleep"))
    finally:
        for process in processes:
            # nspawn itself would leave the machine behind.
            for pid in children(process.pid):
                os.kill(pid, signal.SIGKILL)
            process.wait()


def sidecar(bench: World) -> float:
    """Return the megabytes of the sidecar."""
    with running_pod(bench) as pid:
        time.sleep(SETTLE_SECONDS)
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
        command = ["conmon", *("-c", "c", "-u", "c", "-n", "c", "-r"), str(runtime)]
        command += ["-b", str(bundle), "-p", f"{bundle}/pid"]
        process = subprocess.Popen([*command, "--full-attach", "--sync", "-l", f"k8s-file:{bundle}/log"])
        while not (Path(bundle) / "pid").exists():
            time.sleep(0.01)
        time.sleep(SETTLE_SECONDS)
        figure = private(process.pid)
        os.kill(int((Path(bundle) / "pid").read_text()), signal.SIGKILL)
        process.wait()
    return figure


@contextmanager
def running_pod(bench: World, apps: int = 1) -> Iterator[int]:
    """A pod of apps that sleep; gives the pid of its launcher."""
    names = ["app", *(f"app{number}" for number in range(2, apps + 1))]
    with bench.pod_of({name: app_section("/bin/sleep", "1000") for name in names}) as pod:
        process = pod.start()
        pod.wait_ready()
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
    time.sleep(SETTLE_SECONDS)
    figure = sum(map(pss, descendants(process.pid, skip="sleep")))
    process.terminate()
    process.wait()
    return figure


def _runs_sleep(pid: int) -> bool:
    try:
        return "sleep" in map(name_of, descendants(pid))
    except (FileNotFoundError, ProcessLookupError):
        return False  # one has ended meanwhile


def descendants(pid: int, skip: str | None = None) -> list[int]:
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
