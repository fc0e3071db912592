"""From exec of the runtime to the app's first instruction, against systemd-nspawn --boot, runc and crun."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.table import Measure, compare, missing
from benchmarks.world import World, own_group, world
from minit.linux import syscalls

RUNS = 20

_NSPAWN_UNIT = """\
[Unit]
SuccessAction=exit-force
[Service]
Type=oneshot
ExecStart=/bench/first
StandardOutput=file:/bench/out
"""


def main() -> None:
    """Print the table."""
    with world() as bench:
        measures: dict[str, Measure | str] = {
            "minit": lambda: minit(bench),
            "runc": peer("runc", lambda: oci(bench, "runc")),
            "crun": peer("crun", lambda: oci(bench, "crun")),
            "systemd-nspawn --boot": peer("systemd-nspawn", lambda: nspawn_boot(bench)),
        }
        with own_tree(bench):
            compare("exec to first instruction", "ms", measures, RUNS)


@contextmanager
def own_tree(bench: World) -> Iterator[None]:
    """The tree of this machine as that of machines of systemd, at `machine`, of which no group is left."""
    (bench.path / "machine").mkdir()
    subprocess.run(["mount", "--bind", "/", bench.path / "machine"], check=True)
    try:
        with own_group():
            yield
    finally:
        subprocess.run(["umount", bench.path / "machine"], check=True)


def peer(program: str, measure: Measure) -> Measure | str:
    """Return the measure, or why it cannot be taken."""
    return f"{program} is not installed" if missing(program) else measure


def minit(bench: World, *flags: str, **fields: Any) -> float:
    """Return the milliseconds minit takes, with more flags of `run` and fields of the app section."""
    with bench.pod("/bin/first", **fields) as pod:
        start = time.monotonic_ns()
        result = pod.run(*flags)
    return since(start, result.stdout.partition(": ")[2])


def oci(bench: World, runtime: str, isolation: dict[str, Any] | None = None) -> float:
    """
    Return the milliseconds an OCI runtime takes for the same root and the same namespaces.

    `isolation` is what its `linux` section has beside these, None for what `runc spec` has and no filter.
    """
    command = oci_command(bench, runtime, isolation)
    return in_cgroups(runtime, lambda: timed(command))


def oci_command(bench: World, runtime: str, isolation: dict[str, Any] | None = None) -> list[str]:
    """Return the words that have an OCI runtime do that."""
    bundle = bench.path / ("bundle" if isolation is None else "isolated-bundle")
    make_bundle(bench, bundle, ["/bin/first"], isolation)
    return [runtime, "run", "--bundle", str(bundle), f"bench-{os.getpid()}"]


def make_bundle(bench: World, bundle: Path, command: list[str], isolation: dict[str, Any] | None = None) -> None:
    """Make a directory from which an OCI runtime runs `command` in the same root and namespaces, unless it is there."""
    if bundle.exists():
        return
    bundle.mkdir()
    subprocess.run(["runc", "spec", "--bundle", bundle], check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["process"].update(terminal=False, args=command)
    config["root"]["path"] = str(bench.rootfs)
    config["mounts"] = [mount for mount in config["mounts"] if mount["type"] != "cgroup"]
    linux = config["linux"]
    linux["namespaces"] = [entry for entry in linux["namespaces"] if entry["type"] != "cgroup"]
    for unused in ("seccomp", "resources"):
        linux.pop(unused, None)
    linux.update(isolation or {})
    (bundle / "config.json").write_text(json.dumps(config))


def in_cgroups(runtime: str, measure: Measure) -> float:
    """Take a measure; for crun where the v2 tree beside v1 hierarchies is hidden, with which it refuses to run."""
    if runtime != "crun":
        return measure()
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount(None, "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
        if Path("/sys/fs/cgroup/unified").is_dir():
            syscalls.umount2("/sys/fs/cgroup/unified", syscalls.MNT_DETACH)
        try:
            os.write(writer, str(measure()).encode())
        finally:
            os._exit(0)
    os.close(writer)
    figure = os.read(reader, 64)
    os.close(reader)
    os.waitpid(child, 0)
    return float(figure)


def timed(command: list[str]) -> float:
    """Return the milliseconds from now to the stamp that the command prints."""
    start = time.monotonic_ns()
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return since(start, result.stdout)


def nspawn_boot(bench: World) -> float:
    """Return the milliseconds that nspawn with systemd as PID 1 takes, booting this machine's own tree."""
    shared = bench.path / "shared"
    shared.mkdir(exist_ok=True)
    (shared / "first").write_bytes((bench.rootfs / "bin/first").read_bytes())
    (shared / "first").chmod(0o755)
    (shared / "bench.service").write_text(_NSPAWN_UNIT)
    (shared / "out").unlink(missing_ok=True)
    command = [
        *("systemd-nspawn", "--quiet", "--directory", str(bench.path / "machine"), "--volatile=overlay"),
        *("--register=no", "--keep-unit", "--private-network", "--machine=minit-bench", f"--bind={shared}:/bench"),
        *(
            f"--bind-ro={shared}/bench.service:/etc/systemd/system/bench.service",
            "--boot",
            "--",
            "--unit=bench.service",
        ),
    ]
    start = time.monotonic_ns()
    subprocess.run(command, capture_output=True, check=False, timeout=120)
    return since(start, (shared / "out").read_text())


def since(start_ns: int, output: str) -> float:
    """Return the milliseconds between `start_ns` and the stamp in the output."""
    match = re.search(r"\d{6,}", output)
    assert match is not None, output
    return (int(match.group()) - start_ns) / 1e6
