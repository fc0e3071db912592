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

_PROCS = "cgroup.procs"
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")


class OwnGroup:
    """The group, with this process in it from the beginning."""

    def __init__(self) -> None:
        hierarchies = read_hierarchies()
        around = os.path.dirname(pod_subcgroup(hierarchies, ""))
        path = os.path.join(around, f"minit-tests-{os.getpid()}")
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
        found = {pid for directory in self._all(self.directories[0]) for pid in _members(directory)}
        return found - {os.getpid()}

    def remove(self) -> None:
        """End whatever is in it, go back to where this process was, and remove it."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for directory in self._before:
            (directory / _PROCS).write_text("0")
        for top in self.directories:
            for directory in self._all(top):
                wait_for(lambda directory=directory: _is_removed(directory), f"the end of {directory}")

    def _all(self, top: Path) -> Iterator[Path]:
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
