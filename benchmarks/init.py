"""`minit -- COMMAND` against tini and dumb-init: what a command takes longer by, and what stays in memory for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.command import MINIT, compile_ahead
from benchmarks.stop import run
from benchmarks.table import Measure, compare, missing
from tests.support.stage0_world import REPOSITORY

RUNS = 30
_START = f"import sys; sys.path.append({str(REPOSITORY)!r}); from minit.__main__ import main; main()"
INITS = {
    "minit -- COMMAND": [MINIT, "--"],
    # As the command of the Debian package starts it.
    "minit -- COMMAND, by Python": [sys.executable, "-s", "-S", "-c", _START, "--"],
    "tini": ["tini", "-s", "--"],
    "dumb-init": ["dumb-init", "--"],
}


def main() -> None:
    """Print the tables."""
    compile_ahead()
    programs = {name: words for name, words in INITS.items() if name.startswith("minit") or not missing(name)}
    lacking: dict[str, Measure | str] = {name: f"{name} is not installed" for name in INITS if name not in programs}
    times: dict[str, Measure | str] = {
        name: lambda words=words: run([*words, "/bin/true"])  # type: ignore[misc]
        for name, words in programs.items()
    }
    times["the interpreter, `-s -S -c pass`"] = lambda: run([sys.executable, "-s", "-S", "-c", "pass"])
    times["no init"] = lambda: run(["/bin/true"])
    compare("a command under an init", "ms", {**times, **lacking}, RUNS)
    memory: dict[str, Measure | str] = {
        name: lambda words=words: _memory(words)  # type: ignore[misc]
        for name, words in programs.items()
    }
    compare("memory of an init", "MiB", {**memory, **lacking}, 3)


def _memory(words: list[str]) -> float:
    """Return the mebibytes that an init has for itself, with its part of what is shared."""
    script = "echo; exec sleep 1000"
    process = subprocess.Popen([*words, "sh", "-c", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
    [kibibytes] = [int(line.split()[1]) for line in lines if line.startswith("Pss:")]
    process.terminate()
    process.wait()
    process.stdout.close()
    return kibibytes / 1024
