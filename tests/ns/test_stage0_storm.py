"""Twenty processes that prepare, run, remove and collect the same pods and images at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest

from minit.stage0.files.locks import flock
from tests.support.campaign import LONG
from tests.support.stage0_world import REPOSITORY, World
from tests.support.storm import write_images

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

_WORKERS = 20
_COUNT = 60 if LONG else 3
# Those that are no pod's, image's or tree's.
_LASTING_LOCKS = {"locks/prepareLock", "locks/endedPods", "minit/locks/default-stage1"}
_UUID = re.compile("[0-9a-f]{8}-[0-9a-f-]{27}")

# What may be said by a command whose pod or image somebody else has taken meanwhile.
_LOSSES = re.compile(
    r"\w[\w-]*: ("
    r'no matches found for "[0-9a-f-]+"'
    r"|ambiguous uuid, .*"
    r'|pod "[^"]+" is (not prepared: its state is "[a-z ]+"|already being run|[a-z ]+, not removed.*)'
    r'|pod "[^"]+" is no longer [a-z ]+: it was moved by another command'
    r"|pod is not exited. Only exited pods can be exported"
    r'|app "app" of pod "[^"]+" was never started: .*'
    r'|image "?\S+"? is not in the store \S+(, which has .*)?'
    r"(: import it with: minit fetch \S+|: minit image list shows the images|, and cannot fetch .*)"
    r'|image "\S+": nobody signed it'
    r"|failed to (verify|remove) one or more (images|pods)"
    r'|moving (pod|failed prepare) "[^"]+" to garbage'
    r'|removed treestore "deps-sha512-[0-9a-f]{64}"'
    r"|[0-9]+ image\(s\) successfully removed"
    r")"
)


def storm(world: World, count: int, killed_percent: int) -> list[tuple[list[str], int, list[str]]]:
    """Have all workers run that many commands each; return the words, exit code and lines of each."""
    write_images(world.root)
    numbers = map(str, (_WORKERS, count, killed_percent, 1))
    words = [sys.executable, "-m", "tests.support.storm", "pods", str(world.root), *numbers]
    environment = world.environment()
    result = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    calls = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(calls) == _WORKERS * count
    return [(call["words"], call["code"], call["output"].splitlines()) for call in calls]


def unexpected_lines(command: str, lines: list[str]) -> list[str]:
    """Return what a command said beside its result and the reasons that are no fault."""
    told = [line for line in lines if command == "run-prepared" or re.match(r"[a-z-]+: ", line)]
    return [line for line in told if not _LOSSES.fullmatch(line)]


def test_a_storm_of_commands(world: World) -> None:
    """Commands at once lose no pod and no tree of a pod; none hangs, and none fails but for a reason."""
    calls = storm(world, _COUNT, 0)
    prepared: set[str] = set()
    removed: set[str] = set()
    unexpected = []
    for words, code, lines in calls:
        command = words[0]
        if command == "prepare" and code == 0:
            prepared.add(lines[-1])
        elif command in ("rm", "gc"):
            found = [_UUID.search(line) for line in lines if line.startswith(('"', "Garbage collecting"))]
            removed.update(match[0] for match in found if match)
        bad = unexpected_lines(command, lines)
        if bad or code not in (0, 254):
            unexpected.append((words, code, bad))
    assert not unexpected
    left = {uuid for place in ("prepared", "run", "exited-garbage") for uuid in world.pods(place)}
    # A prepare that failed has no pod; each of the others is there, or was removed.
    assert prepared - removed == left
    assert world.pods("embryo") == world.pods("prepare") == []
    # Which of the others ever succeed depends on who comes first.
    for command in ("prepare", "run-prepared", "rm", "gc", "export") if LONG else ("prepare", "gc"):
        assert any(words[0] == command and code == 0 for words, code, _ in calls), command
    check_that_all_can_be_collected(world)


def test_a_storm_of_killed_commands(world: World) -> None:
    """A third of them killed at any moment: prepared pods that nobody asked for stay, the rest can be collected."""
    calls = storm(world, _COUNT, 33)
    for words, code, lines in calls:
        # Of a pod whose start or removal was killed there is no stage1 to ask.
        bad = [line for line in unexpected_lines(words[0], lines) if "skipping stage1 GC: " not in line]
        assert code in (0, 254, -signal.SIGKILL) and not bad, (words, code, bad)
    assert any(code == -signal.SIGKILL for _, code, _ in calls)
    prepared = {lines[-1] for words, code, lines in calls if words[0] == "prepare" and code == 0}
    asked_for = {words[-1] for words, _, _ in calls if words[0] in ("run-prepared", "rm")}
    assert prepared - asked_for <= set(world.pods("prepared"))
    for uuid in world.pods("embryo"):  # collected when it is an hour old
        world.pod_path("embryo", uuid).rmdir()
    check_that_all_can_be_collected(world)


def check_that_all_can_be_collected(world: World) -> None:
    """Nothing is held or left over: all pods, trees and images can be collected, with every lock and mount."""
    world.minit("gc", "--grace-period=0s", "--expire-prepared=0s")
    world.minit("gc", "--grace-period=0s")
    world.minit("image", "gc", "--grace-period=0s")
    assert all(world.pods(place) == [] for place in ("prepare", "prepared", "run", "exited-garbage", "garbage"))
    assert world.mounts() == []
    locks = [path for path in world.data.rglob("*") if not path.is_dir()]
    assert {str(path.relative_to(world.data)) for path in locks} <= _LASTING_LOCKS
    assert not list((world.data / "cas/tmp").iterdir()) and not list((world.data / "minit/cas/tmp").iterdir())
    for path in locks:
        fd = os.open(path, os.O_RDONLY)
        flock(fd, exclusive=True, blocking=False)
        os.close(fd)
