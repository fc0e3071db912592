"""Many processes that add, start, stop and remove apps of the same pods at once."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.stage0_world import REPOSITORY, World, write_app

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root")

_WORKERS = 8
_NAMES = {"one", "two", "three"}
# What may be said by a command when another has changed the app meanwhile.
_LOSSES = re.compile(
    r"add: error adding app to pod: multiple apps with name [a-z]+: give it another one with --name"
    r"|(start|stop|rm): error [a-z]+ app: nonexistent app \"[a-z]+\" \(apps: [a-z, ]+\)"
    r'|status: cannot find app "[a-z]+" in the pod'
    r"|start: error starting app: stage1's app/start failed: exit status 254"
    r'|stage1 app start: "[a-z]+" failed to start: (no app "[a-z]+" in this pod|it is being removed)'
    r'|stage1 app start: "[a-z]+" failed to start: (start: stopped before it was executed|it was stopped)'
    r'|enter: supervisor of this pod: (no app "[a-z]+" in this pod|app "[a-z]+" is not prepared yet)'
    # What is in an app's group when that is stopped is stopped too.
    r"|enter: killed by signal (9|15) on the way.*"
)


@pytest.fixture
def world(world: World, stage1_image: Path) -> Iterator[World]:
    """A data directory of its own, with minit's own stage1 and an app that ends on SIGTERM."""
    world.stage1 = stage1_image
    write_app(world.app, app={"exec": ["/bin/busybox", "sleep", "1000"], "user": "0", "group": "0"})
    try:
        yield world
    finally:
        for pod in world.pods("run"):
            world.succeeds("stop", "--force", pod)
            world.succeeds("status", "--wait", pod)


def storm(world: World, count: int, killed_percent: int) -> list[tuple[list[str], int, str]]:
    """Have all workers run that many commands each; return the words, exit code and output of each."""
    numbers = map(str, (_WORKERS, count, killed_percent, 1))
    words = [sys.executable, "-m", "tests.support.storm", "apps", str(world.root), *numbers]
    environment = world.environment()
    result = subprocess.run(words, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    calls = [json.loads(line) for line in result.stdout.splitlines()]
    assert len(calls) == _WORKERS * count
    return [(call["words"], call["code"], call["output"]) for call in calls]


@pytest.mark.parametrize("killed_percent", [0, 20])
def test_a_storm_of_apps(world: World, killed_percent: int) -> None:
    """Commands at once, a part of them killed, end no pod, and all apps can be removed and added again."""
    sandbox = ("app", "sandbox", "--detach", "--net=none", f"--stage1-path={world.stage1}")
    pods = [world.minit(*sandbox, *more).stdout.strip() for more in ((), ("--no-overlay",))]
    unexpected = []
    calls = storm(world, 250 if LONG else 6, killed_percent)
    for words, code, output in calls:
        bad = [line for line in output.splitlines() if code > 0 and not _LOSSES.fullmatch(line)]
        codes = {"status": 1, "exec": -signal.SIGTERM}
        if bad or code not in (0, 254, codes.get(words[1]), -signal.SIGKILL):
            unexpected.append((words, code, output))
    assert not unexpected
    for verb in ("add", "start", "stop", "rm"):
        assert any(words[1] == verb and code == 0 for words, code, _ in calls), verb
    for pod in pods:
        for name in sorted(_NAMES):
            world.succeeds("app", "rm", f"--app={name}", pod)
            world.minit("app", "add", pod, world.app, f"--name={name}")
            world.minit("app", "start", f"--app={name}", pod)
        states = world.minit("app", "list", "--no-legend", pod).stdout.split()
        assert sorted(states[::2]) == sorted(_NAMES) and set(states[1::2]) == {"running"}
        for name in sorted(_NAMES):
            world.minit("app", "rm", f"--app={name}", pod)
        assert world.minit("app", "list", "--no-legend", pod).stdout == ""
        world.minit("stop", pod)
    for pod in pods:
        world.minit("status", "--wait", pod)
    world.minit("gc", "--grace-period=0s")
    world.minit("gc", "--grace-period=0s")
    assert world.pods("run") == world.pods("exited-garbage") == world.mounts() == []
