"""
A control group of the process that runs tests, in every hierarchy: whatever tests start, and all their pods, is in it.

So what a test leaves behind is seen at a glance, whoever else has pods on this machine meanwhile.
"""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from minit.launcher.cgroups import Hierarchy, pod_subcgroup, read_hierarchies
from tests.support.claims import claim
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

_PREFIX = "minit-session-"
_PROCS = "cgroup.procs"
_CPUSET_FILES = ("cpuset.cpus", "cpuset.mems")
_STALE_PATIENCE_SECONDS = 5.0


class OwnGroup:
    """The group; `claim` makes it this session's as long as somebody has it open."""

    def __init__(self) -> None:
        hierarchies = read_hierarchies()
        around = os.path.dirname(pod_subcgroup(hierarchies, ""))
        self._before = [Path(f"{hierarchy.mount_point}/{hierarchy.own_path}") for hierarchy in hierarchies]
        claimed = None
        while claimed is None:
            path = os.path.join(around, f"{_PREFIX}{secrets.token_hex(4)}")
            self.directories = [Path(hierarchy.mount_point, path) for hierarchy in hierarchies]
            # A session that removes what is nobody's may take it for such before it is claimed.
            with suppress(FileNotFoundError):
                for hierarchy, directory in zip(hierarchies, self.directories):
                    _make(hierarchy, directory)
            claimed = claim(self.directories[0])
        self.claim: int = claimed

    def enter(self) -> None:
        """Put this process into it."""
        for directory in self.directories:
            (directory / _PROCS).write_text("0")

    def leave(self) -> None:
        """Go back to where this process was."""
        for directory in self._before:
            (directory / _PROCS).write_text("0")

    def groups(self) -> list[Path]:
        """Return the groups that pods have in it, in whatever hierarchy."""
        return [Path(entry.path) for top in self.directories for entry in os.scandir(top) if entry.is_dir()]

    def processes(self) -> set[int]:
        """Return the processes in it and in the groups of pods, but for this one."""
        found = {pid for directory in _deepest_first(self.directories[0]) for pid in _members(directory)}
        return found - {os.getpid()}


def group_below_own(hierarchy: Hierarchy, name: str) -> Path:
    """Return where a group of that name is in the one that this process is in."""
    return Path(f"{hierarchy.mount_point}/{hierarchy.own_path}", name)


def make_groups_below_own(name: str) -> list[Path]:
    """Make a group of that name in the one that this process is in, in every hierarchy; return the directories."""
    directories = []
    for hierarchy in read_hierarchies():
        directories.append(group_below_own(hierarchy, name))
        _make(hierarchy, directories[-1])
    return directories


@contextmanager
def group_elsewhere(around: Path) -> Iterator[Path]:
    """A group outside the session's, which later sessions remove if this one is killed."""
    path = around / f"{_PREFIX}{secrets.token_hex(4)}"
    path.mkdir()
    fd = claim(path)
    yield path
    if fd is not None:
        os.close(fd)


def find_groups(name: str) -> list[Path]:
    """Return the groups of a name in those that this process is in, in every hierarchy; others' take no time."""
    tops = (group_below_own(hierarchy, "") for hierarchy in read_hierarchies())
    return [Path(path) / name for top in tops for path, groups, _ in os.walk(top) if name in groups]


def remove_groups(directories: list[Path], patience_seconds: float = TIMEOUT_SECONDS) -> None:
    """End whatever is in these groups, and remove them; AssertionError if something stays, after all that goes."""
    for top in reversed(directories):
        for directory in _deepest_first(top):
            wait_for(partial(_end, directory), f"the end of {directory}", patience_seconds)


def remove_stale_groups() -> None:
    """Remove the groups of sessions that nobody is left of, with what runs there."""
    hierarchies = read_hierarchies()
    around = os.path.dirname(pod_subcgroup(hierarchies, ""))
    names = {path.name for hierarchy in hierarchies for path in Path(hierarchy.mount_point, around).glob(f"{_PREFIX}*")}
    for name in names:
        directories = [Path(hierarchy.mount_point, around, name) for hierarchy in hierarchies]
        # The first one is claimed first and removed last.
        fd = claim(directories[0])
        if fd is not None or not directories[0].exists():
            # What does not go is in nobody's way.
            with suppress(AssertionError):
                remove_groups(directories, _STALE_PATIENCE_SECONDS)
        if fd is not None:
            os.close(fd)


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


def _end(directory: Path) -> bool:
    """Kill what is in a group and remove it; tells whether it is gone."""
    for pid in _members(directory):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    try:
        directory.rmdir()
    except FileNotFoundError:
        pass
    except OSError:
        return False
    return True
