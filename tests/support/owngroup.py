"""
A control group of the process that runs tests, in every hierarchy: whatever tests start, and all their pods, is in it.

So what a test leaves behind is seen at a glance, whoever else has pods on this machine meanwhile.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from minit.launcher.cgroups import Hierarchy, pod_subcgroup, read_hierarchies
from tests.support.waiting import wait_for

_PREFIX = "minit-tests-"
_PROCS = "cgroup.procs"
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")


class OwnGroup:
    """The group, with this process in it from the beginning."""

    def __init__(self) -> None:
        hierarchies = read_hierarchies()
        around = os.path.dirname(pod_subcgroup(hierarchies, ""))
        path = os.path.join(around, f"{_PREFIX}{os.getpid()}")
        self._before: list[Path] = []
        self.directories: list[Path] = []
        for hierarchy in hierarchies:
            directory = Path(hierarchy.mount_point, path)
            _make(hierarchy, directory)
            self.directories.append(directory)
            self._before.append(Path(f"{hierarchy.mount_point}/{hierarchy.own_path}"))
            (directory / _PROCS).write_text("0")

    def groups(self) -> list[Path]:
        """Return the groups that pods have in it, in whatever hierarchy."""
        return [Path(entry.path) for top in self.directories for entry in os.scandir(top) if entry.is_dir()]

    def processes(self) -> set[int]:
        """Return the processes in it and in the groups of pods, but for this one."""
        found = {pid for directory in _deepest_first(self.directories[0]) for pid in _members(directory)}
        return found - {os.getpid()}

    def remove(self) -> None:
        """Go back to where this process was, end whatever is in it, and remove it."""
        for directory in self._before:
            (directory / _PROCS).write_text("0")
        for top in self.directories:
            _remove(top)


def remove_stale_groups() -> None:
    """Remove the groups of processes that were killed, with what ran there."""
    hierarchies = read_hierarchies()
    around = os.path.dirname(pod_subcgroup(hierarchies, ""))
    for hierarchy in hierarchies:
        for directory in Path(hierarchy.mount_point, around).glob(f"{_PREFIX}*"):
            if not Path("/proc", directory.name.removeprefix(_PREFIX)).exists():
                # What does not go is in nobody's way.
                with suppress(AssertionError):
                    _remove(directory)


def _remove(top: Path) -> None:
    for directory in _deepest_first(top):
        for pid in _members(directory):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_for(lambda directory=directory: _is_removed(directory), f"the end of {directory}")


def _deepest_first(top: Path) -> Iterator[Path]:
    return (Path(directory) for directory, _, _ in os.walk(top, topdown=False))


def _make(hierarchy: Hierarchy, directory: Path) -> None:
    directory.mkdir(exist_ok=True)
    if "cpuset" in hierarchy.controllers:
        # A new one takes no tasks, cpusets(7).
        for name in _CPUSET_FILES:
            (directory / name).write_text((directory.parent / name).read_text())


def _members(directory: Path) -> list[int]:
    with suppress(FileNotFoundError):
        return [int(pid) for pid in (directory / _PROCS).read_text().split()]
    return []


def _is_removed(directory: Path) -> bool:
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
