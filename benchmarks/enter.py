"""One entered command, confined as its app, against nsenter, which confines nothing, and against runc and crun."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.command import Command
from benchmarks.first_instruction import in_cgroups, make_bundle
from benchmarks.stop import run
from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, world
from tests.support.pods import PodDirectory

RUNS = 30
_COMMAND = "/bin/true"
_FOREVER = ("/bin/sleep", "1000000")


def main() -> None:
    """Print the table."""
    with ExitStack() as stack:
        bench = stack.enter_context(world())
        pod = stack.enter_context(bench.pod(*_FOREVER))
        pod.start()
        pod.wait_ready()
        command = Command(bench)
        uuid = stack.enter_context(command.running())
        interpreter = bench.interpreter()
        app = pod.children()["sleep"]
        nsenter = ["nsenter", f"--target={app}", "--mount", "--uts", "--ipc", "--net", "--pid", _COMMAND]
        measures: dict[str, Measure | str] = {
            "enter": lambda: _enter(pod),
            "minit enter": lambda: run(command.words("enter", uuid, _COMMAND)),
            "nsenter, and then the image's interpreter alone": lambda: run(nsenter) + run(interpreter),
            "nsenter": lambda: run(nsenter),
            "runc exec": stack.enter_context(_container(bench, "runc")),
            "crun exec": stack.enter_context(_container(bench, "crun")),
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
def _container(bench: World, runtime: str) -> Iterator[Measure | str]:
    """A container that sleeps; gives what measures `exec` in it, or why there is none."""
    if missing(runtime):
        yield f"{runtime} is not installed"
        return
    name = f"bench-{os.getpid()}"
    bundle = bench.path / "sleeping-bundle"
    make_bundle(bench, bundle, [*_FOREVER])

    def start() -> float:
        # Not to a pipe: the container would hold it.
        quiet = subprocess.DEVNULL
        command = [runtime, "run", "--detach", "--bundle", str(bundle), name]
        subprocess.run(command, check=True, stdin=quiet, stdout=quiet, stderr=quiet)
        return 0.0

    in_cgroups(runtime, start)
    try:
        yield lambda: in_cgroups(runtime, lambda: run([runtime, "exec", name, _COMMAND]))
    finally:
        in_cgroups(runtime, lambda: run([runtime, "delete", "--force", name]))
