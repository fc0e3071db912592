"""How PID 1 was killed, by the kernel's counts in control groups of both versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from minit.launcher.cgroups import Hierarchy
from minit.launcher.start.killed import KillWitness
from minit.podfiles import paths
from minit.supervisor.apps.memorygroup import MemoryGroup

LIMIT = 64 << 20
SENTENCE = "PID 1 of the pod was killed"
NO_LIMIT = "no limit was reached, but the machine had no memory left"


def write_group(path: Path, *, is_v1: bool, kills: int | None, limit: int | None = None, reached: int = 0) -> None:
    """Write the files of a control group; without `kills` it has no memory controller."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.procs").write_text("")
    if kills is None:
        return
    if is_v1:
        (path / "memory.oom_control").write_text(f"oom_kill_disable 0\nunder_oom 0\noom_kill {kills}\n")
        (path / "memory.limit_in_bytes").write_text(f"{limit or 9223372036854771712}\n")
        (path / "memory.failcnt").write_text(f"{reached}\n")
    else:
        (path / "memory.events.local").write_text(f"max {reached}\noom {reached}\noom_kill {kills}\noom_group_kill 0\n")
        (path / "memory.max").write_text(f"{limit or 'max'}\n")


@pytest.fixture(params=[True, False], ids=["v1", "v2"])
def is_v1(request: pytest.FixtureRequest) -> bool:
    """The version of control groups."""
    return bool(request.param)


@pytest.fixture
def hierarchies(tmp_path: Path, is_v1: bool, monkeypatch: pytest.MonkeyPatch) -> list[Hierarchy]:
    """The hierarchies of a hybrid machine, or of one with v2 alone; the working directory is a pod's."""
    (tmp_path / "pod/stage1/rootfs/rkt/minit").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "pod")
    unified = Hierarchy(mount_point=f"{tmp_path}/unified", own_path="/own")
    (tmp_path / "unified/own").mkdir(parents=True)
    return [unified, Hierarchy(mount_point=f"{tmp_path}/memory", own_path="/own", controllers=("memory",))][: 1 + is_v1]


def events() -> list[dict[str, object]]:
    """Return the events in the pod's file."""
    return [json.loads(line) for line in Path(paths.POD_EVENTS).read_text().splitlines()]


def place(hierarchies: list[Hierarchy], path: str) -> Path:
    """Return the directory of a group with the memory controller."""
    return Path(hierarchies[-1].mount_point, path)


def test_nobody_was_killed_by_the_kernel(hierarchies: list[Hierarchy], is_v1: bool) -> None:
    """What the kernel killed before PID 1 was made counts for nothing."""
    write_group(place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=3)
    assert KillWitness(hierarchies, "pod").tell() == f"{SENTENCE} by somebody on the host"
    [event] = events()
    assert (event["seq"], event["event"], event["reason"]) == (1, "pod.killed", "killed")


@pytest.mark.parametrize("around", ["pod/init.scope", "pod", ""], ids=["own", "pod", "around"])
def test_a_group_with_a_limit(hierarchies: list[Hierarchy], is_v1: bool, around: str) -> None:
    """It is the nearest one whose limit was reached, with its bytes and MiB."""
    for path in ("", "pod", "pod/init.scope"):
        write_group(place(hierarchies, path), is_v1=is_v1, kills=0, limit=LIMIT * 2)
    witness = KillWitness(hierarchies, "pod")
    write_group(place(hierarchies, around), is_v1=is_v1, kills=0, limit=LIMIT, reached=2)
    is_own = around == "pod/init.scope"
    write_group(
        place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=1, limit=LIMIT if is_own else None, reached=int(is_own)
    )
    group = place(hierarchies, around)
    limit = f"the limit of {group} is 67108864 bytes (64 MiB)"
    assert witness.tell() == f"{SENTENCE} by the kernel for want of memory: {limit}"
    assert events()[0]["reason"] == "oom-killed"


def test_a_machine_without_memory(hierarchies: list[Hierarchy], is_v1: bool) -> None:
    """No limit is named where none was reached."""
    write_group(place(hierarchies, "pod"), is_v1=is_v1, kills=0, limit=LIMIT)
    write_group(place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=0)
    witness = KillWitness(hierarchies, "pod")
    write_group(place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=1)
    assert witness.tell() == f"{SENTENCE} by the kernel for want of memory: {NO_LIMIT}"


@pytest.mark.parametrize("has_own", [True, False], ids=["groups without controllers", "the launcher's own groups"])
def test_a_group_with_others(hierarchies: list[Hierarchy], is_v1: bool, has_own: bool) -> None:
    """Where others are counted too, the line does not say more than the count."""
    write_group(place(hierarchies, "own"), is_v1=is_v1, kills=5)
    for path in ("own/pod", "own/pod/init.scope"):
        write_group(place(hierarchies, path), is_v1=is_v1, kills=None)
    witness = KillWitness(hierarchies, "own/pod" if has_own else None)
    write_group(place(hierarchies, "own"), is_v1=is_v1, kills=7, limit=LIMIT, reached=1)
    limit = f"the limit of {place(hierarchies, 'own')} is {LIMIT} bytes (64 MiB)"
    words = "which has killed 2 of the processes around it for want of memory since the pod was started"
    assert witness.tell() == f"{SENTENCE}, as it seems by the kernel, {words}: {limit}"


def test_events_before_it(hierarchies: list[Hierarchy], is_v1: bool) -> None:
    """The event has the next number, on a line of its own, also where PID 1 died in the middle of one."""
    write_group(place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=0)
    witness = KillWitness(hierarchies, "pod")
    file = Path(paths.POD_EVENTS)
    file.write_text('{"seq":6,"event":"pod.ready"}\n{"seq":7,"eve')
    witness.tell()
    lines = file.read_text().splitlines()
    assert lines[1] == '{"seq":7,"eve' and json.loads(lines[2])["seq"] == 7
    file.rename(f"{file}.1")
    witness.tell()
    assert events()[0]["seq"] == 8


def test_a_file_that_cannot_be_written(hierarchies: list[Hierarchy], is_v1: bool) -> None:
    """The reason is told all the same."""
    write_group(place(hierarchies, "pod/init.scope"), is_v1=is_v1, kills=0)
    os.mkdir(paths.POD_EVENTS)
    assert KillWitness(hierarchies, "pod").tell() == f"{SENTENCE} by somebody on the host"


@pytest.mark.parametrize(
    ("kills", "is_main", "reached", "line"),
    [
        (1, True, "a.service", "has killed it for want of memory: its limit is 16000000 bytes (15.3 MiB)"),
        (
            2,
            False,
            "a.service",
            "has killed 2 of its processes for want of memory: its limit is 16000000 bytes (15.3 MiB)",
        ),
        (
            1,
            True,
            "",
            "has killed it for want of memory: the limit of all apps of the pod is 16000000 bytes (15.3 MiB)",
        ),
        (1, True, None, f"has killed it for want of memory: {NO_LIMIT}"),
    ],
)
def test_the_line_of_an_app(
    tmp_path: Path, is_v1: bool, kills: int, is_main: bool, reached: str | None, line: str
) -> None:
    """It has the process that was killed, the limit that was reached, and whose that is."""
    for path in ("", "a.service"):
        write_group(tmp_path / path, is_v1=is_v1, kills=kills, limit=16_000_000, reached=int(path == reached))
    directory = os.open(tmp_path / "a.service", os.O_RDONLY)
    assert MemoryGroup(directory, is_v1=is_v1).describe_kills(kills, None, is_main=is_main) == f"the kernel {line}"
    os.close(directory)
