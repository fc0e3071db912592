"""The static pods of a node, as its kubelet has them."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.kubenode import PAUSE_SECONDS, KubeNode
from tests.support.kubepods import containers_of
from tests.support.waiting import TIMEOUT_SECONDS, wait_for


@contextmanager
def placed(node: KubeNode, wanted: dict[str, Any]) -> Iterator[str]:
    """Have a static pod in the block, and yield its name."""
    name = node.place(wanted)
    try:
        yield name
    finally:
        node.withdraw(wanted)


def found(
    node: KubeNode,
    name: str,
    holds: Callable[[dict[str, Any]], object],
    what: str,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> dict[str, Any]:
    """Return what the kubelet has of a pod as soon as something holds of it."""

    def looks() -> dict[str, Any] | None:
        one = node.pods().get(name)
        return one if one is not None and holds(one) else None

    return wait_for(looks, what, timeout_seconds, PAUSE_SECONDS)


def restarts(found: dict[str, Any]) -> int:
    """Return how often the container of a pod was started again."""
    count = containers_of(found).get("main", {}).get("restartCount", 0)
    assert isinstance(count, int)
    return count


def log_files(node: KubeNode, name: str) -> list[Path]:
    """Return the files of a container's log, the oldest first."""
    files = node.directory.glob(f"upper-var-log/pods/default_{name}-*/main/0.log*")
    return sorted(files, key=lambda path: (path.suffix == ".log", path.name))


def logged(path: Path) -> list[str]:
    """Return the lines of a file of a log."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode().splitlines()
