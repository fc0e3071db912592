"""The remains of a pod that is refused: one line, and nothing else."""

from __future__ import annotations

from typing import Any

from tests.support.pods import PodDirectory


def assert_nothing_left(pod: PodDirectory) -> None:
    """Nothing of a refused pod is on the host, and nothing was written that says it ran."""
    assert not pod.is_running()
    assert pod.control_groups() == []
    for name in ("pid", "ppid", "subcgroup"):
        assert not (pod.path / name).exists()
    assert [name.name for name in (pod.status_root / "rkt/status").iterdir() if name.name != "status"] == []
    assert not (pod.stage1 / "rkt/minit/control").exists()


def assert_refused(pod: PodDirectory, result: Any, *words: str, code: int = 254) -> None:
    """The refusal is one line that says all of `words`, and has no other effect."""
    assert result.returncode == code, result
    assert result.stdout == ""
    assert result.stderr.startswith("stage1: ") and result.stderr.count("\n") == 1, result.stderr
    for word in words:
        assert word in result.stderr, result.stderr
    assert_nothing_left(pod)
