"""What a node takes of its machine, in numbers that grow if something leaks."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.kubenode import KubeNode


@dataclass(frozen=True)
class Footprint:
    """Counts at one moment; descriptors, threads and memory are those of the daemon alone."""

    descriptors: int
    threads: int
    private_kilobytes: int
    processes: int
    groups: int
    mounts: int
    links: int
    leases: int
    pods: int
    logs: int

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in asdict(self).items())


def footprint(node: KubeNode) -> Footprint:
    """Return what the node takes now; a process that ends meanwhile may be left out."""
    assert node.daemon is not None
    daemon = Path(f"/proc/{node.daemon.pid}")
    walks = [list(os.walk(top)) for top in node.group.directories]
    leases = (node.directory / "upper-var-lib/cni/networks").glob("*/*.*.*.*")
    return Footprint(
        descriptors=len(os.listdir(daemon / "fd")),
        threads=len(os.listdir(daemon / "task")),
        private_kilobytes=_private_kilobytes(daemon),
        processes=sum(len(_members(Path(path))) for path, _, _ in walks[0]),
        groups=sum(map(len, walks)),
        mounts=len(node.run("cat", "/proc/self/mountinfo").splitlines()),
        links=len(node.run("ip", "-o", "link").splitlines()),
        leases=len(list(leases)),
        pods=len(list((node.minit.data / "pods").glob("*/*"))),
        logs=sum(len(names) for _, *names in os.walk(node.directory / "upper-var-log/pods")),
    )


def least(footprints: list[Footprint]) -> Footprint:
    """Return the least of each number: what comes and goes is not in it, what stays is."""
    rows = [asdict(one) for one in footprints]
    return Footprint(**{name: min(row[name] for row in rows) for name in rows[0]})


def _members(group: Path) -> list[str]:
    with suppress(FileNotFoundError, OSError):
        return (group / "cgroup.procs").read_text().split()
    return []


def _private_kilobytes(process: Path) -> int:
    lines = (process / "smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
