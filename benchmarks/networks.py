"""A pod on the default network, by the plugins built into minit and by those of the CNI, against one with lo alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from benchmarks.first_instruction import since
from benchmarks.table import Measure, compare
from benchmarks.world import World, world
from minit.linux import syscalls
from minit.supervisor.kernelsettings import bring_up_loopback
from tests.support.pods import PodDirectory

RUNS = 20
MANY_RUNS = 3
IN_A_ROW = 50
AT_ONCE = 20
_PLUGINS = Path("/usr/lib/cni")
_USED = ("ptp", "host-local")

# The helper process of `run`, from its fork to its answer, or from the end of its socket to its own end.
_HELPER = """
import os, sys, time
from minit.launcher.start.networkhelper import NetworkHelper
from minit.network.configs import load_networks
from minit.plan.inputs.runflags import parse_run_flags
from minit.plan.networks.networkplan import NetworkPlan, plan_networks

flags = parse_run_flags(sys.argv[1:])
networks, _ = load_networks(flags.local_config, flags.networks)
plan = NetworkPlan(networks=plan_networks(networks, flags.networks))
start = time.monotonic_ns()
helper = NetworkHelper(plan, flags, os.open(".", os.O_RDONLY))
helper.wait(())
connected = time.monotonic_ns()
helper.undo()
print((connected - start) / 1e6, (time.monotonic_ns() - connected) / 1e6)
"""


def main() -> None:
    """Print the tables."""
    with world() as bench, own_host():
        for title, measure, runs in (
            ("exec to first instruction", start, RUNS),
            ("connecting alone", connect, RUNS),
            ("disconnecting alone", disconnect, RUNS),
            ("gc, whole process", collect, RUNS),
            (f"{IN_A_ROW} pods in a row, run and gc of each", run_in_a_row, MANY_RUNS),
            (f"{AT_ONCE} pods at once, until the last one's first instruction, for each", run_at_once, MANY_RUNS),
        ):
            measures: dict[str, Measure | str] = {
                "built in": partial(measure, bench, "default", bench.path / "nowhere"),
                "by the CNI's ptp and host-local": with_plugins(measure, bench),
            }
            if measure not in (connect, disconnect):
                measures["`--net=none`"] = partial(measure, bench, "none", bench.path / "nowhere")
            compare(f"default network: {title}", "ms", measures, runs)


def with_plugins(measure: Callable[[World, str, Path], float], bench: World) -> Measure | str:
    """Return the measure with the CNI's plugins where they are found before those that are built in."""
    if missing := [name for name in _USED if not (_PLUGINS / name).exists()]:
        return f"no {missing[0]} in {_PLUGINS}"
    directory = bench.path / "local/net.d"
    directory.mkdir(parents=True, exist_ok=True)
    for name in _USED:
        shutil.copy(_PLUGINS / name, directory / name)
    return partial(measure, bench, "default", directory.parent)


def start(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds from exec of `run` to the first instruction of the app."""
    with bench.pod("/bin/first") as pod:
        begin = time.monotonic_ns()
        result = pod.run(f"--local-config={local}", net=net)
        elapsed = since(begin, result.stdout.partition(": ")[2])
        collect_pod(pod, local)
    return elapsed


def run_in_a_row(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds that a pod takes from its start to the end of its gc, one pod after the other."""
    elapsed_ns = 0
    for _ in range(IN_A_ROW):
        with bench.pod("/bin/first") as pod:
            begin = time.monotonic_ns()
            assert pod.run(f"--local-config={local}", net=net).returncode == 0
            collect_pod(pod, local)
            elapsed_ns += time.monotonic_ns() - begin
    return elapsed_ns / 1e6 / IN_A_ROW


def run_at_once(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds for each pod until all that are started together have come to their apps."""
    with ExitStack() as stack:
        pods = [stack.enter_context(bench.pod("/bin/first")) for _ in range(AT_ONCE)]
        begin = time.monotonic_ns()
        started = [pod.start(f"--local-config={local}", net=net) for pod in pods]
        outputs = [pod.finish(process).stdout for pod, process in zip(pods, started)]
        for pod in pods:
            collect_pod(pod, local)
    return max(since(begin, output.partition(": ")[2]) for output in outputs) / AT_ONCE


def collect(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds that the `gc` entrypoint takes for a pod that has ended."""
    with bench.pod("/bin/first") as pod:
        pod.run(f"--local-config={local}", net=net)
        begin = time.monotonic_ns()
        collect_pod(pod, local)
        return (time.monotonic_ns() - begin) / 1e6


def collect_pod(pod: PodDirectory, local: Path) -> None:
    """Run `gc`, which has nothing to say."""
    result = pod.call("gc", f"--local-config={local}", pod.uuid)
    assert (result.returncode, result.stderr) == (0, ""), result.stderr


def connect(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds that the helper of `run` takes to connect a pod."""
    return connect_and_disconnect(bench, net, local)[0]


def disconnect(bench: World, net: str, local: Path) -> float:
    """Return the milliseconds that the helper of `run` takes to undo that."""
    return connect_and_disconnect(bench, net, local)[1]


def connect_and_disconnect(bench: World, net: str, local: Path) -> tuple[float, float]:
    """Return both, as the image's interpreter measures them."""
    with bench.pod("/bin/first") as pod:
        words = bench.interpreter(_HELPER, f"--net={net}", f"--local-config={local}", pod.uuid)
        result = subprocess.run(words, cwd=pod.path, stdout=subprocess.PIPE, check=True)
    there, back = map(float, result.stdout.split())
    return there, back


@contextmanager
def own_host() -> Iterator[None]:
    """Put this process into a network of its own, with what belongs to it on disk, and back at the end."""
    directory = os.getcwd()
    kinds = {"net": syscalls.CLONE_NEWNET, "mnt": syscalls.CLONE_NEWNS}
    before = [(os.open(f"/proc/self/ns/{name}", os.O_RDONLY), kind) for name, kind in kinds.items()]
    try:
        syscalls.unshare(syscalls.CLONE_NEWNET | syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        bring_up_loopback()
        for place in ("/run/netns", "/run/minit", "/var/lib/cni"):
            os.makedirs(place, exist_ok=True)
            syscalls.mount("tmpfs", place, "tmpfs", 0)
        yield
    finally:
        for namespace, kind in before:
            syscalls.setns(namespace, kind)
            os.close(namespace)
        os.chdir(directory)
