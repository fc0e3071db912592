"""Logging 100 MB of lines of 100 bytes, with times and rotation, and reading them again, against other loggers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.table import Measure, compare, missing
from minit.iottymux.buffers import make_buffer
from minit.iottymux.logfile import Log
from minit.iottymux.sidecar import Stream, run_sidecar

RUNS = 5
MEGABYTES = 100
FILE_BYTES = 10 << 20
FILES = 5

# conmon has a container made by a runtime: this one makes a process that copies the lines, and says which it is.
_RUNTIME = """#!/bin/sh
while [ $# -gt 0 ]; do
    case "$1" in --pid-file) pid_file="$2";; esac
    shift
done
cat LINES &
echo $! > "$pid_file"
"""


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory(prefix="minit-bench-", dir="/var/tmp") as name:
        path = Path(name)
        lines = path / "lines"
        lines.write_bytes(b"".join(b"%010d %s\n" % (number, b"x" * 88) for number in range(MEGABYTES * 10_000)))
        measures: dict[str, Measure | str] = {"minit's sidecar": lambda: run_minit(path, lines)}
        for program, measure in (("multilog", run_multilog), ("svlogd", run_svlogd), ("conmon", run_conmon)):
            measures[program] = bind(measure, path, lines) if missing(program) is None else f"no {program} here"
        compare(f"log {MEGABYTES} MB with rotation", "ms", measures, RUNS)
        readers: dict[str, Measure | str] = {
            "read the log's lines as `minit logs` does": lambda: read_log(path),
            "`sed` that cuts off the times": lambda: run_reader(path, "sed", "s/^[^ ]* [^ ]* [^ ]* //"),
        }
        compare(f"read {FILE_BYTES * FILES >> 20} MB of log", "ms", readers, RUNS)


def bind(measure: Callable[[Path, Path], float], path: Path, lines: Path) -> Measure:
    """Return a measure without arguments."""
    return lambda: measure(path, lines)


def fresh(path: Path, name: str) -> Path:
    """Return an empty directory."""
    shutil.rmtree(path / name, ignore_errors=True)
    (path / name).mkdir()
    return path / name


def run_minit(path: Path, lines: Path) -> float:
    """Return the milliseconds a sidecar takes, with a console that takes everything."""
    directory = os.open(fresh(path, "minit"), os.O_RDONLY | os.O_DIRECTORY)
    reader, writer = os.pipe()
    start = time.monotonic_ns()
    feeder = subprocess.Popen(["cat", lines], stdout=writer)
    os.close(writer)
    pid = os.fork()
    if pid == 0:
        try:
            console = os.open("/dev/null", os.O_WRONLY)
            log = Log("app", directory, FILE_BYTES, FILES)
            run_sidecar("app", 7, [Stream(name="stdout", fd=reader, buffer=make_buffer(), console=console)], log)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(reader)
    os.close(directory)
    _, status = os.waitpid(pid, 0)
    elapsed = (time.monotonic_ns() - start) / 1e6
    if status or feeder.wait():
        sys.exit("benchmarks: the sidecar failed")
    return elapsed


def run_multilog(path: Path, lines: Path) -> float:
    """Return the milliseconds of multilog."""
    directory = fresh(path, "multilog")
    return run_logger(lines, "multilog", "t", f"s{FILE_BYTES}", f"n{FILES}", str(directory))


def run_svlogd(path: Path, lines: Path) -> float:
    """Return the milliseconds of svlogd."""
    directory = fresh(path, "svlogd")
    (directory / "config").write_text(f"s{FILE_BYTES}\nn{FILES}\n")
    return run_logger(lines, "svlogd", "-tt", str(directory))


def run_logger(lines: Path, *command: str) -> float:
    """Return the milliseconds a command takes that logs its standard input."""
    start = time.monotonic_ns()
    feeder = subprocess.Popen(["cat", lines], stdout=subprocess.PIPE)
    subprocess.run(command, stdin=feeder.stdout, stderr=subprocess.DEVNULL, check=True)
    feeder.wait()
    return (time.monotonic_ns() - start) / 1e6


def run_conmon(path: Path, lines: Path) -> float:
    """Return the milliseconds of conmon, which truncates its one file when that is full."""
    directory = fresh(path, "conmon")
    runtime = directory / "runtime"
    runtime.write_text(_RUNTIME.replace("LINES", str(lines)))
    runtime.chmod(0o755)
    sockets = fresh(directory, "sockets")
    names = ["--cid=bench", "--cuuid=bench", f"--runtime={runtime}", f"--bundle={directory}", "--sync"]
    log = [f"--log-path=k8s-file:{directory}/log", f"--log-size-max={FILE_BYTES}"]
    ends = [f"--container-pidfile={directory}/pid", f"--exit-dir={directory}", f"--socket-dir-path={sockets}"]
    start = time.monotonic_ns()
    subprocess.run(["conmon", *names, *log, *ends], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    return (time.monotonic_ns() - start) / 1e6


def read_log(path: Path) -> float:
    """Return the milliseconds from the first to the last byte of the log that was written."""
    from minit.stage0.reports.logfiles import AppLog, LineAssembler

    start = time.monotonic_ns()
    directory = os.open(path / "minit", os.O_RDONLY | os.O_DIRECTORY)
    log, assembler = AppLog("app", directory), LineAssembler()
    log.find_files()
    with open("/dev/null", "wb") as output:
        for chunk in log.chunks(final=True):
            output.write(assembler.plain_text(chunk))
    log.close()
    os.close(directory)
    return (time.monotonic_ns() - start) / 1e6


def run_reader(path: Path, *command: str) -> float:
    """Return the milliseconds a command takes on the same files."""
    files = sorted((path / "minit").glob("app.log*"), reverse=True)
    start = time.monotonic_ns()
    subprocess.run([*command, *map(str, files)], stdout=subprocess.DEVNULL, check=True)
    return (time.monotonic_ns() - start) / 1e6
