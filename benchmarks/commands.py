"""Everyday commands with a running pod, `list` and `status` with a thousand prepared ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

from benchmarks.command import MINIT, Command, compile_ahead
from benchmarks.first_instruction import peer
from benchmarks.stop import run
from benchmarks.table import Measure, compare, missing
from benchmarks.world import World as Bench
from benchmarks.world import world as make_bench
from tests.support.stage0_world import World

RUNS = 10
PODS = 1000
PYTHON = "the command's interpreter, `-I -S -c pass`"


def main() -> None:
    """Print the tables."""
    compile_ahead()
    with make_bench() as bench:
        everyday(bench)
    with TemporaryDirectory(prefix="minit-bench-", dir="/var/tmp") as root:
        world = World(Path(root))
        prepared = world.prepare("--no-overlay", world.app)
        directory = world.data / "pods/prepared"
        for _ in range(PODS - 1):
            _copy(directory / prepared, directory / str(uuid4()))
        minit = [MINIT, f"--dir={world.data}"]
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


def everyday(bench: Bench) -> None:
    """Print the table of commands on a machine with one running pod."""
    command = Command(bench)
    with command.running() as uuid:
        measures: dict[str, Measure | str] = {
            "minit list": lambda: run(command.words("list")),
            "minit status": lambda: run(command.words("status", uuid)),
            "minit app list": lambda: run(command.words("app", "list", uuid)),
            "minit stop --no-wait": lambda: _stop(command, "--no-wait"),
            "minit stop, with the end of the pod": lambda: _stop(command),
            PYTHON: lambda: run([sys.executable, "-I", "-S", "-c", "pass"]),
            "podman ps": peer("podman", lambda: run(["podman", "ps"])),
            "crun list": peer("crun", lambda: run(["crun", "list"])),
        }
        compare("a command, with one running pod", "ms", measures, RUNS)


def _stop(command: Command, *options: str) -> float:
    """Return the milliseconds of a stop of a pod whose app ends at once."""
    with command.running() as uuid:
        return run(command.words("stop", *options, uuid))


def _copy(pod: Path, target: Path) -> None:
    """Copy what is read of a pod that nobody has run: its manifests, not its files."""
    shutil.copytree(pod, target, symlinks=True, ignore=shutil.ignore_patterns("rootfs"))
