"""
SIGKILL for the launcher or for PID 1 at any system call of a pod's life, under the command.

What somebody does next must work whatever the moment was: look at the pod, collect it, remove it.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from tests.support.campaign import campaign
from tests.support.faults import ANY, KILL, LAUNCHER, Call, Faults, Roles
from tests.support.pods import control_group_name
from tests.support.stage0_world import World, worlds

# minit itself, then the launcher of the image and the interpreter that it executes.
EXECS = 3
SAMPLE = 30
WORKERS = 2
# What can be recorded: of `ends` its own end or that of a stop, of `stays` that of a stop, of either that it never ran.
POSSIBLE = {"ends": {None, 0, 7}, "stays": {None, 0}}


@contextmanager
def own_world(root: Path, stage1_image: Path) -> Iterator[World]:
    """Yield a data directory; gc collects whatever has ended in one."""
    root.mkdir()
    for world in worlds(root):
        world.stage1 = stage1_image
        yield world


def prepare(world: World, *flags: str) -> str:
    """Prepare a pod in which one app ends with 7 at once and the other would stay."""
    volume = ("--volume=data,kind=empty", "--mount=volume=data,target=/data")
    ends = (world.app, "--name=ends", "--exec=/bin/sh", "--", "-c", "exit 7", "---")
    stays = (world.app, "--name=stays", "--exec=/bin/busybox", "--", "sleep", "1000")
    return world.prepare(*flags, *volume, *ends, *stays)


def run(world: World, uuid: str, under: list[str], fd: int) -> int:
    """Run a prepared pod under the tracer and return its exit code."""
    words = world.command("run-prepared", "--net=none", uuid)
    process = subprocess.run(
        [*under, *words],
        env=world.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        pass_fds=(fd,),
        timeout=60,
        check=False,
    )
    return process.returncode


def what_is_left(world: World, uuid: str) -> list[str]:
    """Return the processes, control groups and mounts of a pod that is said to be removed."""
    name = control_group_name(uuid)
    groups = [path for path, below, _ in os.walk("/sys/fs/cgroup") if name in below]
    mounts = [point for point in world.mounts() if uuid in point]
    directories = [place for place in os.listdir(world.data / "pods") if uuid in world.pods(place)]
    return [*groups, *mounts, *directories]


def kill_and_clean_up(world: World, faults: Faults, seed: int, victims: list[tuple[str, int]]) -> str:
    """Kill one process of a pod at one of its calls, and return what is wrong afterwards; empty if nothing is."""
    choice = random.Random(seed)
    who, calls = choice.choice(victims)
    call = Call(who, ANY, choice.randrange(1, calls + 1))
    uuid = prepare(world, *choice.choice(((), (), ("--no-overlay",))))
    with tempfile.TemporaryFile() as log:
        code = run(world, uuid, faults.fault(log.fileno(), call, KILL), log.fileno())
        was_killed = log.tell() > 0
    problems = [] if code == (-signal.SIGKILL if was_killed else 7) else [f"exit code {code}"]
    state = world.minit("status", uuid).stdout
    if not state.startswith(("state=running\n", "state=exited\n")):
        problems.append(state)
    ended = world.minit("status", "--wait=30s", uuid).stdout
    statuses = dict(line.split("=") for line in ended.splitlines() if line.startswith("app-"))
    for app, possible in POSSIBLE.items():
        number = statuses.get(f"app-{app}")
        if (None if number is None else int(number)) not in possible:
            problems.append(f"status {number} of {app}")
    world.minit(*choice.choice((("rm", uuid), ("gc", "--grace-period=0s"))))
    problems += what_is_left(world, uuid)
    return f"seed {seed}: {call}: {' '.join(problems)}" if problems else ""


def test_killed_at_any_moment(work_directory: Path, stage1_image: Path) -> None:
    """status answers, gc and rm leave nothing, and no status is invented or torn."""
    with tempfile.TemporaryDirectory(dir=work_directory) as directory:
        root = Path(directory)
        faults = Faults(root, EXECS)
        with own_world(root / "recorded", stage1_image) as world, tempfile.TemporaryFile("w+") as log:
            assert run(world, prepare(world), faults.recording(log.fileno()), log.fileno()) == 7
            log.seek(0)
            calls = faults.read_calls(log)
        counts = Counter(call.who for call in calls)
        victims = [(who, counts[who]) for who in (LAUNCHER, Roles(calls).pid_1)]

        def kill_some(worker: int) -> list[str]:
            with own_world(root / str(worker), stage1_image) as world:
                seeds = range(worker, campaign(SAMPLE), WORKERS)
                return [kill_and_clean_up(world, faults, seed, victims) for seed in seeds]

        with ThreadPoolExecutor(WORKERS) as executor:
            wrong = [line for lines in executor.map(kill_some, range(WORKERS)) for line in lines if line]
    assert not wrong, "\n".join(wrong)
