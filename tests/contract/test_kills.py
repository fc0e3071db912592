"""SIGKILL for a process of a pod at any system call of its life, and `status`, `gc` or `rm` right after it."""

from __future__ import annotations

import itertools
import json
import os
import random
import select
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.campaign import LONG
from tests.support.faults import ANY, KILL, LAUNCHER, Call, Faults, Roles
from tests.support.hostnet import left_by, leftovers
from tests.support.owngroup import find_groups
from tests.support.pods import TIMEOUT_SECONDS, control_group_name
from tests.support.stage0_world import World, worlds, write_app

# By the pod's network. What an ordinary run has of the second adds to tests/contract/test_network_kills.py.
KILLS = {"none": 300, "default": 300} if LONG else {"none": 6, "default": 6}
# What is traced is `python -m minit`, from the first program on: stage0 becomes the launcher.
EXECS = 1
ENDS_ITSELF = ("exit 7", "sleep 60")
ENDS_AFTER_A_WHILE = ("sleep 0.3; exit 7", "sleep 60")
ALL_SUCCEED = ("true", "sleep 0.1")
SECOND_APP = "second.aci"
# A port of the host for each pod, since two that are not in one data directory never share one.
PORTS = itertools.count(20000)


class Kill(NamedTuple):
    """A kill: the process and its call, the pod's network and scripts, and the command that is run right after."""

    who: str
    nth: int
    network: str
    scripts: tuple[str, str]
    command: str


@contextmanager
def own_world(stage1_image: Path) -> Iterator[World]:
    """Yield a data directory with minit's own stage1, in which nobody else runs `gc`."""
    for world in worlds(Path(tempfile.mkdtemp(prefix="kills-", dir=stage1_image.parent))):
        world.stage1 = stage1_image
        port = {"name": "http", "protocol": "tcp", "port": 80}
        app = {"exec": ["/bin/sh"], "user": "0", "group": "0"}
        write_app(world.app, "example.com/server", {**app, "ports": [port]})
        write_app(world.root / SECOND_APP, "example.com/second", app)
        yield world


def prepare(world: World, network: str, scripts: tuple[str, str]) -> str:
    """Prepare a pod of two apps with a volume and, if it has a network, a forwarded port, and return its UUID."""
    words: list[object] = ["--volume=data,kind=empty"]
    words += [] if network == "none" else [f"--port=http:{next(PORTS)}"]
    for name, image, script in zip("ab", (world.app, world.root / SECOND_APP), scripts):
        words += [image, f"--name={name}", "--mount=volume=data,target=/data", "--", "-c", script, "---"]
    return world.prepare(*words[:-1])


def start(world: World, network: str, pod: str, under: list[str], fd: int) -> subprocess.Popen[bytes]:
    """Run a prepared pod under the tracer."""
    return subprocess.Popen(
        [*under, *world.command("run-prepared", f"--net={network}", pod)],
        env=world.environment(),
        cwd=world.root,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(fd,),
    )


def record(world: World, faults: Faults, network: str, scripts: tuple[str, str]) -> dict[str, tuple[int, int]]:
    """Return for each process to be killed the first and the last of its calls for that, counted from 1 on."""
    pod = prepare(world, network, scripts)
    with tempfile.TemporaryFile("w+") as log:
        start(world, network, pod, faults.recording(log.fileno()), log.fileno()).wait(TIMEOUT_SECONDS)
        log.seek(0)
        calls = faults.read_calls(log)
    world.minit("rm", pod)
    roles = Roles(calls)
    own = [call for call in calls if call.who == LAUNCHER]
    # Before its first mount the process is a command that has changed nothing.
    first = own.index(Call(LAUNCHER, "mount", 1)) + 1
    others = [who for who in (roles.pid_1, roles.network_helper) if who is not None]
    counts = {who: len([call for call in calls if call.who == who]) for who in others}
    return {LAUNCHER: (first, len(own)), **{who: (1, count) for who, count in counts.items()}}


def kills(world: World, faults: Faults, network: str, seed: int) -> Iterator[Kill]:
    """Yield the kills of a campaign, the same ones for the same seed."""
    chosen = random.Random(seed)
    all_scripts = (ENDS_ITSELF, ENDS_AFTER_A_WHILE, ALL_SUCCEED)
    ranges = {scripts: record(world, faults, network, scripts) for scripts in all_scripts}
    for count in range(KILLS[network]):
        scripts = chosen.choice(all_scripts)
        victims = list(ranges[scripts].items())
        who, calls = victims[count // 2 % len(victims)]
        yield Kill(who, chosen.randint(*calls), network, scripts, chosen.choice(("status", "gc", "rm")))


def kill(world: World, faults: Faults, case: Kill) -> tuple[bool, str]:
    """Kill a process of a pod and return whether it got so far, and what is wrong then; empty if nothing is."""
    pod = prepare(world, case.network, case.scripts)
    reader, writer = os.pipe()
    call = Call(case.who, ANY, case.nth)
    process = start(world, case.network, pod, faults.fault(writer, call, KILL), writer)
    os.close(writer)
    # The line of the kill, or the end of the pod that came before.
    assert select.select([reader], [], [], TIMEOUT_SECONDS)[0]
    was_reached = bool(os.read(reader, 1))
    command = {"status": ("status", pod), "gc": ("gc", "--grace-period=0s"), "rm": ("rm", pod)}[case.command]
    problems = _run(world, *command)
    process.wait(TIMEOUT_SECONDS)
    os.close(reader)
    if _directory(world, pod) is not None:
        # A user's command makes more calls before the pod's start where there is no uplink yet.
        wait = [] if world.pod_path("prepared", pod).exists() else ["--wait"]
        status = world.minit("status", *wait, pod).stdout
        if "state=exited" not in status and "state=prepared" not in status:
            problems.append(f"state: {status}")
        problems += _check_records(world, pod, case.scripts)
        problems += _run(world, "rm", pod)
    problems += _leaks(world, pod)
    return was_reached, f"{case}: {'; '.join(problems)}" if problems else ""


def _directory(world: World, pod: str) -> Path | None:
    places = ("prepare", "prepared", "run", "exited-garbage", "garbage")
    return next((path for place in places if (path := world.pod_path(place, pod)).exists()), None)


def _run(world: World, *arguments: str) -> list[str]:
    command = world.command(*arguments)
    result = subprocess.run(
        command, env=world.environment(), cwd=world.root, capture_output=True, text=True, check=False, timeout=60
    )
    # `rm` refuses a pod that is still being shut down.
    running = arguments[0] == "rm" and result.returncode == 254 and "running" in result.stderr
    return [] if (result.returncode == 0 or running) and "Traceback" not in result.stderr else [str(result)]


def _check_records(world: World, pod: str, scripts: tuple[str, str]) -> list[str]:
    """Return what is wrong with the statuses: one that is there is whole, right, and told by minit's own record."""
    problems = []
    directory = _directory(world, pod)
    assert directory is not None
    for path in directory.glob("overlay/*/upper/rkt/status/*"):
        if path.name not in ("a", "b"):
            continue
        text = path.read_text()
        # Stopped before its own end an app has 0.
        right = {"0\n", "7\n"} if path.name == "a" and "exit 7" in scripts[0] else {"0\n"}
        record = path.parents[1] / f"minit/state/{path.name}.json"
        if text not in right or json.loads(record.read_text())["status"] != int(text):
            problems.append(f"status of {path.name}: {text!r}")
    return problems


def _leaks(world: World, pod: str) -> list[str]:
    """Return what is left of a pod that was removed."""
    problems = [f"mount {point}" for point in world.mounts() if pod in point]
    if _directory(world, pod) is not None:
        problems.append("pod directory")
    problems += [f"group {path}" for path in find_groups(control_group_name(pod))]
    problems += [f"process {pid}" for pid in _processes(pod)]
    return problems + left_by(pod)


def _processes(pod: str) -> list[str]:
    """Return the processes that have anything of a pod mounted."""
    found = []
    for path in Path("/proc").glob("[0-9]*/mountinfo"):
        try:
            if pod in path.read_text():
                found.append(path.parent.name)
        except OSError:
            continue
    return found


@pytest.mark.parametrize("network", KILLS)
def test_kills_at_any_moment_leave_nothing(stage1_image: Path, tmp_path: Path, network: str) -> None:
    """
    After any kill the commands work at once, no status is torn or invented, and after rm nothing is left.

    What a mount, a group, a process, a lock or a network would show is looked at after each kill.
    """
    faults = Faults(tmp_path, EXECS)
    seed = random.randrange(1 << 32) if LONG else 1
    with own_world(stage1_image) as one, own_world(stage1_image) as other, ThreadPoolExecutor(2) as executor:
        cases = list(kills(one, faults, network, seed))
        halves = ((one, cases[::2]), (other, cases[1::2]))
        ends = [*executor.map(lambda half: [kill(half[0], faults, case) for case in half[1]], halves)]
    reached, problems = zip(*(end for half in ends for end in half))
    assert not any(problems), f"seed {seed}\n" + "\n".join(filter(None, problems))
    assert leftovers() == []
    # What comes in which order differs a little from one pod to the next.
    assert sum(reached) > len(cases) * 0.8
