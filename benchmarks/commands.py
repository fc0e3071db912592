"""What a person waits for: `minit --help`, and `list` and `status` with a thousand pods."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from benchmarks.stop import run
from benchmarks.table import Measure, compare, missing
from tests.support.stage0_world import World

RUNS = 10
PODS = 1000


def main() -> None:
    """Print the table."""
    compile_ahead()
    with TemporaryDirectory(prefix="minit-bench-", dir="/var/tmp") as root:
        world = World(Path(root))
        prepared = world.prepare("--no-overlay", world.app)
        directory = world.data / "pods/prepared"
        for _ in range(PODS - 1):
            _copy(directory / prepared, directory / str(uuid4()))
        minit = [sys.executable, "-m", "minit", f"--dir={world.data}"]
        rkt = ["rkt", f"--dir={world.data}"]
        absent = "rkt is not installed" if missing("rkt") else None
        measures: dict[str, Measure | str] = {
            "minit --help": lambda: run([*minit, "--help"]),
            f"minit list, {PODS} pods": lambda: run([*minit, "list"]),
            f"rkt list, {PODS} pods": absent or (lambda: run([*rkt, "list"])),
            f"minit status, of {PODS} pods": lambda: run([*minit, "status", prepared]),
            f"rkt status, of {PODS} pods": absent or (lambda: run([*rkt, "status", prepared])),
            "the interpreter, `-c pass`": lambda: run([sys.executable, "-c", "pass"]),
            "podman --help": "podman is not installed" if missing("podman") else lambda: run(["podman", "--help"]),
        }
        compare("a command", "ms", measures, RUNS)


def compile_ahead() -> None:
    """Have Python keep what it compiles, whatever it is told, and not among the sources: as if minit were installed."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = "/var/tmp/minit-bench-compiled"
    subprocess.run([sys.executable, "-m", "minit", "--help"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([sys.executable, "-m", "minit", "--", "true"], check=True)


def _copy(pod: Path, target: Path) -> None:
    """Copy what is read of a pod that nobody has run: its manifests, not its files."""
    shutil.copytree(pod, target, symlinks=True, ignore=shutil.ignore_patterns("rootfs"))
