"""One entered command, confined as its app, against nsenter, which confines nothing, and against runc."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.first_instruction import make_bundle
from benchmarks.stop import run
from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, world
from tests.support.pods import PodDirectory

RUNS = 30
_COMMAND = "/bin/true"
_FOREVER = ("/bin/sleep", "1000000")


def main() -> None:
    """Print the table."""
    with world() as bench, bench.pod(*_FOREVER) as pod, _container(bench) as container:
        pod.start()
        pod.wait_ready()
        python = bench.stage1 / "rootfs/usr/lib/minit"
        loader, program = str(python / "ld.so"), str(python / "bin/python3")
        interpreter = [loader, "--inhibit-cache", "--argv0", program, program, "-I", "-S", "-c", "pass"]
        app = pod.children()["sleep"]
        nsenter = ["nsenter", f"--target={app}", "--mount", "--uts", "--ipc", "--net", "--pid", _COMMAND]
        measures: dict[str, Measure | str] = {
            "enter": lambda: _enter(pod),
            "nsenter, and then the image's interpreter, `-I -S -c pass`": lambda: run(nsenter) + run(interpreter),
            "nsenter": lambda: run(nsenter),
            "runc exec": "runc is not installed"
            if container is None
            else lambda: run(["runc", "exec", container, _COMMAND]),
        }
        compare("one command in a running pod", "ms", measures, RUNS)


def _enter(pod: PodDirectory) -> float:
    """Return the milliseconds that `enter` takes from its exec to its end."""
    directory = os.getcwd()
    os.chdir(pod.path)
    try:
        words = [
            pod.entrypoint("enter", from_tree=True),
            f"--pid={pod.pid}",
            f"--appname={pod.apps[0]}",
            "--",
            _COMMAND,
        ]
        return run(words)
    finally:
        os.chdir(directory)


@contextmanager
def _container(bench: World) -> Iterator[str | None]:
    if missing("runc"):
        yield None
        return
    name = f"bench-{os.getpid()}"
    bundle = bench.path / "sleeping-bundle"
    make_bundle(bench, bundle, [*_FOREVER])
    subprocess.run(
        ["runc", "run", "--detach", "--bundle", str(bundle), name],
        check=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield name
    finally:
        subprocess.run(["runc", "delete", "--force", name], check=True)
