"""SIGKILL for what a user without root has in the background, and for commands that make the user's namespace."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tests.contract.test_network_kills import sample
from tests.contract.test_rootless import keepers, make_home
from tests.support.campaign import LONG, campaign
from tests.support.faults import KILL, LAUNCHER, Call, Faults
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.waiting import wait_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

# nsenter, sh, setpriv and env come before the interpreter.
EXECS = 5
IMAGE = f"{HOME}/box.aci"
STAGE1 = f"--stage1-path={HOME}/stage1.aci"
SCRIPT = "trap 'echo bye; exit 7' TERM; echo up; read -r _"
COMMAND = ("unshare", "sh", "-c", "readlink /proc/self/ns/user")


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory, stage1_image: Path) -> Iterator[OrdinaryUser]:
    """A user without control groups, whose apps have first processes."""
    user = make_home(tmp_path_factory.mktemp("user"), stage1_image, has_groups=False)
    yield user
    user.remove()


@pytest.fixture
def clean(user: OrdinaryUser) -> Iterator[OrdinaryUser]:
    """The user, of whom nothing is left after the test."""
    yield user
    assert user.minit("rm", "--all", "--force").returncode == 0
    assert remains(user) == []


@pytest.fixture(scope="module")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Faults:
    """The tracer."""
    return Faults(tmp_path_factory.mktemp("faults"), EXECS)


def remains(user: OrdinaryUser) -> list[str]:
    """Return what is left of a user without pods, once all processes have ended."""
    user.wait_end()
    tops = ("run/minit/*/new", ".local/share/minit/runtime/*", ".local/share/minit/pods/*/*-*")
    return [str(path) for top in tops for path in user.home.glob(top)]


Words = Sequence[str]


def call(user: OrdinaryUser, words: Words, under: Words, fd: int) -> subprocess.CompletedProcess[str]:
    """Run a command of the user's to its end, under the tracer."""
    return subprocess.run(
        [*under, *user.words(user.minit_words(*words))],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        pass_fds=(fd,),
    )


def record(user: OrdinaryUser, faults: Faults, words: Words) -> list[Call]:
    """Return the calls of a command and its children from the lock on."""
    with tempfile.TemporaryFile("w+") as log:
        done = call(user, words, faults.recording(log.fileno()), log.fileno())
        assert (done.returncode, errors(done.stderr)) == (0, [])
        log.seek(0)
        calls = faults.read_calls(log)
    return calls[calls.index(Call(LAUNCHER, "flock", 1)) :]


def kill_at(
    user: OrdinaryUser, faults: Faults, words: Words, victim: Call
) -> tuple[bool, subprocess.CompletedProcess[str]]:
    """Kill a process of a command at a call; return whether it got so far, and the end of the command."""
    with tempfile.TemporaryFile("w+") as log:
        done = call(user, words, faults.fault(log.fileno(), victim, KILL), log.fileno())
        log.seek(0)
        return bool(log.read()), done


def errors(text: str) -> list[str]:
    """Return the lines that are no warnings."""
    return [line for line in text.splitlines() if "warning: " not in line]


def start(user: OrdinaryUser) -> None:
    """Start a pod that ends when it is told to."""
    done = user.minit(
        "run", "--detach", "--name=web", "--net=none", STAGE1, IMAGE, "--stdin=stream", "--", "-c", SCRIPT
    )
    assert done.returncode == 0, done.stderr


def end_keeper(user: OrdinaryUser) -> None:
    """Have no keeper, whatever runs in the namespace."""
    for pid in keepers(user):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not keepers(user), "the end of the keeper")


@pytest.mark.parametrize("beside", [False, True], ids=["first", "beside a pod"])
def test_commands_killed_while_they_make_the_namespace(clean: OrdinaryUser, faults: Faults, beside: bool) -> None:
    """The next command enters, the namespace of a running pod where there is one, and nothing is left."""
    if beside:
        start(clean)
        end_keeper(clean)
    before = set(clean.processes())
    calls = record(clean, faults, COMMAND)
    problems, reached = [], 0
    chosen = sample(calls)[: None if LONG else 6]
    for victim in chosen:
        end_keeper(clean)
        was_reached, done = kill_at(clean, faults, COMMAND, victim)
        reached += was_reached
        if done.stderr.count("\n") > (done.returncode == 254):
            problems.append(f"{victim}: {done}")
        following = clean.minit(*COMMAND)
        wait_for(lambda: set(clean.processes()) <= before, "the end of the command's processes")
        namespaces = {os.readlink(f"/proc/{pid}/ns/user") for pid in before} or {following.stdout.strip()}
        if following.returncode != 0 or namespaces != {following.stdout.strip()}:
            problems.append(f"{victim}: {done}, then {following}")
    assert not problems, "\n".join(problems)
    assert reached > 0.8 * len(chosen)
    if beside:
        assert check_pod(clean, "web", {7}) == []


def check_pod(
    user: OrdinaryUser, name: str, statuses: Collection[int | None], *, is_stopping: bool = False
) -> list[str]:
    """Stop a pod, and return what is wrong with the app's status and its output."""
    # A second request would kill the app.
    if not is_stopping:
        user.minit("stop", name)
    told = dict(line.partition("=")[::2] for line in user.minit("status", "--wait", name).stdout.splitlines())
    status = int(told["app-busybox"]) if "app-busybox" in told else None
    output = user.minit("logs", name).stdout
    right = {7: {"up\nbye\n"}, None: {""}}.get(status, {"up\n", ""})
    return [] if told["state"] == "exited" and status in statuses and output in right else [f"{told} {output!r}"]


# By the process: the statuses of the app after a kill while the pod starts, runs, and stops. Before its first word the
# app ends by the signal of a stop.
EARLY = {None, 0, 7, 143}
VICTIMS: dict[str, tuple[Collection[int | None], ...]] = {
    **dict.fromkeys(("flock", "minit-uplink", "slirp4netns", "minit-ports", "minit-launcher"), (EARLY, {7}, {7})),
    "init-busybox": ({*EARLY, 137}, {137}, {7, 137}),
}
WORDS = ("run", "--detach", "--name=web", "--publish=18100:80", STAGE1, IMAGE, "--stdin=stream", "--stdout=log")


def kill_process(user: OrdinaryUser, victim: str) -> bool:
    """Kill the user's process of a name, if there is one."""
    found = [pid for pid, name in user.processes().items() if name == victim]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return bool(found)


@pytest.mark.parametrize("victim", VICTIMS)
def test_kills_while_a_pod_lives(clean: OrdinaryUser, victim: str) -> None:
    """After a kill of any process around a pod no status and no output is lost, and after rm nothing is left."""
    chosen = random.Random(None if LONG else 1)
    problems = []
    for turn in range(campaign(2)):
        moment = (turn + [*VICTIMS].index(victim)) % 3
        words = clean.words(clean.minit_words(*WORDS, "--", "-c", SCRIPT))
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            if moment == 0:
                for _ in range(chosen.randrange(1, 5)):
                    wait_for(lambda: victim in clean.processes().values() or process.poll() is not None, victim)
                kill_process(clean, victim)
            _, said = process.communicate()
        # Stage1, which may tell of the app too, has the reason, and the command tells of stage1.
        assert process.returncode == 0 or moment == 0 and 1 <= len(errors(said)) <= 3, said
        if moment > 0:
            wait_for(lambda: clean.minit("logs", "web").stdout == "up\n", "the first word")
            if moment == 2:
                assert clean.minit("stop", "--no-wait", "web").returncode == 0
            assert kill_process(clean, victim) or moment == 2
        if clean.minit("list", "--quiet").stdout:
            problems += check_pod(clean, "web", VICTIMS[victim][moment], is_stopping=moment == 2)
            removed = clean.minit("rm", "web")
            problems += [] if removed.returncode == 0 else [str(removed)]
        problems += remains(clean)
    assert not problems, "\n".join(problems)


def test_kills_while_the_uplink_is_made(clean: OrdinaryUser, faults: Faults) -> None:
    """A pod whose uplink is killed at any call runs or fails with one line, and the next pod has networks again."""
    words = ("run", "--rm", "--net=default", STAGE1, IMAGE, "--", "-c", "true")
    assert clean.minit(*words).returncode == 0
    stay = clean.words(clean.minit_words("unshare", "sh", "-c", "echo; read -r _"))
    with subprocess.Popen(stay, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline()
        wait_for(lambda: len(clean.processes()) == 2, "the end of the pod's processes")
        before = set(clean.processes())
        calls = record(clean, faults, words)
        # The maker of the network and the starter are children of the command, and the uplink is the first grandchild.
        uplink = next(call.who for call in calls if call.who.count(".") == 2)
        makers = [call for call in calls if call.who.count(".") > 0 and call.who[: len(uplink)] <= uplink]
        chosen = sample(makers)[: None if LONG else 4]
        problems, reached = [], 0
        for victim in chosen:
            wait_for(lambda: set(clean.processes()) <= before, "the end of the pods' processes")
            was_reached, done = kill_at(clean, faults, words, victim)
            reached += was_reached
            following = clean.minit(*words)
            if len(errors(done.stderr)) != (done.returncode == 254) or errors(following.stderr):
                problems.append(f"{victim}: {done}, then {following}")
    assert not problems, "\n".join(problems)
    assert reached > 0.8 * len(chosen)
