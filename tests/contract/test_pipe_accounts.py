"""
Pods whose user may have no more pipes than there are (pipe(7), pipe-user-pages-soft): nothing of their output is lost.

All pipes of a user are one account, in whatever pod. Here that user is the root of some pods in user namespaces with
ids of their own: what the tests take is nobody else's.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.attached import connect, read_all, read_until
from tests.support.campaign import LONG
from tests.support.guest import build_program
from tests.support.pods import LOOPBACK_ONLY, MakePod, PodDirectory, app_section, shell
from tests.support.processes import descriptors_of
from tests.support.usersession import SURROUNDING
from tests.support.waiting import wait_for

pytestmark = pytest.mark.host_users("they are in user namespaces as it is, with ids of their own")

LINES = 2000
COUNT = f"i=0; while [ $i -lt {LINES} ]; do echo line $i of some length; i=$((i+1)); done"
STREAMS = [{"name": f"coreos.com/rkt/stage2/{name}", "value": "stream"} for name in ("stdin", "stdout", "stderr")]
WANTED = [f"line {number} of some length" for number in range(LINES)]


@pytest.fixture
def private_users() -> tuple[int, int] | None:
    """Ids that no other test has at the same time; None in the session of a user, who has the account of all apps."""
    if SURROUNDING is not None:
        return None
    return (1 << 30) + (os.getpid() % 16384 << 16), 1 << 16


@pytest.fixture(scope="module")
def hostile_rootfs(work_directory: Path, app_rootfs: Path) -> Iterator[Path]:
    """The root of an image with the attacker's programs."""
    with tempfile.TemporaryDirectory(prefix="hostile-", dir=work_directory) as directory:
        rootfs = Path(directory, "rootfs")
        shutil.copytree(app_rootfs, rootfs, symlinks=True)
        build_program("attacker", rootfs / "bin/attacker")
        yield rootfs


@pytest.fixture
def no_pipes_left(make_pod: MakePod, hostile_rootfs: Path) -> PodDirectory:
    """A pod whose root has taken all pipes that the user may have."""
    pod = make_pod({"thief": app_section("/bin/attacker", "pipes")}, hostile_rootfs)
    pod.start()
    wait_for(lambda: b"taken" in log_of(pod, "thief"), "all pipes")
    return pod


def log_of(pod: PodDirectory, app: str) -> bytes:
    """Return what is in the log of an app so far."""
    try:
        return pod.log(app)
    except FileNotFoundError:
        return b""


def logged(pod: PodDirectory, app: str) -> list[str]:
    """Return the lines in the log of an app."""
    return [line.split(" ", 3)[3] for line in log_of(pod, app).decode().splitlines()]


def shown(output: str, app: str) -> list[str]:
    """Return the lines of an app on the pod's standard output, without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines() if line.startswith(f"{app}[")]


@pytest.mark.usefixtures("no_pipes_left")
def test_all_lines_are_printed_and_logged(make_pod: MakePod) -> None:
    """A pod that begins when the account is used up prints and logs each line of its apps, and ends at once."""
    pod = make_pod({name: shell(COUNT) for name in ("a", "b")})
    result = pod.run()
    assert (result.returncode, result.stderr) == (0, "")
    for app in ("a", "b"):
        assert shown(result.stdout, app) == WANTED
        assert logged(pod, app) == WANTED


@pytest.mark.usefixtures("no_pipes_left")
def test_a_line_that_is_larger_than_the_pipe(make_pod: MakePod) -> None:
    """A line that no small pipe holds is one line, and its app does not wait for ever."""
    pod = make_pod({"a": shell("head -c 15000 /dev/zero | tr '\\0' x; echo; printf end")})
    result = pod.run()
    assert shown(result.stdout, "a") == ["x" * 15000, "end"]
    assert logged(pod, "a") == ["x" * 15000, "end"]


def test_a_running_pod_goes_on(make_pod: MakePod, hostile_rootfs: Path) -> None:
    """A pod that ran before goes on too, also when its sidecar is killed and another has to take over."""
    pod = make_pod({"a": shell("while :; do read x < /fifo && echo $x; done")})
    os.mkfifo(pod.file("a", "/fifo"))
    pod.start()
    pod.wait_ready()
    thief = make_pod({"thief": app_section("/bin/attacker", "pipes")}, hostile_rootfs)
    thief.start()
    wait_for(lambda: b"taken" in log_of(thief, "thief"), "all pipes")
    for line in ("one", "two", "three"):
        say_and_kill_the_sidecar(pod, line)
    assert list(dict.fromkeys(logged(pod, "a"))) == ["one", "two", "three"]


def say_and_kill_the_sidecar(pod: PodDirectory, line: str) -> None:
    """Have the app write a line, and then another sidecar take over."""
    pod.file("a", "/fifo").write_text(f"{line}\n")
    wait_for(lambda: logged(pod, "a")[-1:] == [line], "the next line")
    sidecar = pod.children()["iottymux-a"]
    os.kill(sidecar, signal.SIGKILL)
    wait_for(lambda: pod.children().get("iottymux-a") not in (None, sidecar), "another sidecar")


def test_sidecars_have_no_pipes_of_their_own(make_pod: MakePod) -> None:
    """Pipes of a sidecar were made by PID 1, which has the capability to make them as large as they should be."""
    pod = make_pod({"a": shell("sleep 60"), "b": shell("read x", annotations=STREAMS)})
    pod.start()
    for app in ("a", "b"):
        sidecar = wait_for(lambda: pod.children().get(f"iottymux-{app}"), "the sidecar")  # noqa: B023
        assert pipes_of(sidecar) <= pipes_of(pod.pid)


def pipes_of(pid: int) -> set[str]:
    """Return the pipes that a process has open."""
    return {target for target in descriptors_of(pid).values() if target.startswith("pipe:")}


@pytest.mark.usefixtures("no_pipes_left")
def test_clients_get_all_output_and_give_input(make_pod: MakePod) -> None:
    """Streams that clients attach to work by pipes of two pages as well, and with the next sidecar."""
    pod = make_pod({"a": shell(f"read x; {COUNT}; read x; echo got $x; {COUNT} >&2", annotations=STREAMS)})
    process = pod.start()
    directory = pod.stage1 / "rkt/iottymux/a"
    wait_for((directory / "endpoints").exists, "the endpoints")
    wanted = "".join(f"{line}\n" for line in WANTED).encode()
    with connect(directory, "sock-stdin") as stdin, connect(directory, "sock-stdout") as stdout:
        stdin.sendall(b"go\n")
        assert read_until(stdout, WANTED[-1].encode() + b"\n") == wanted
    os.kill(pod.children()["iottymux-a"], signal.SIGKILL)
    with connect(directory, "sock-stdout") as stdout, connect(directory, "sock-stderr") as stderr:
        # What came last is kept.
        read_until(stdout, WANTED[-1].encode() + b"\n")
        with connect(directory, "sock-stdin") as stdin:
            stdin.sendall(b"this\n")
            read_until(stdout, b"got this\n")
        assert read_all(stderr).endswith(wanted)
    assert pod.finish(process).returncode == 0


@pytest.mark.timeout(900)
def test_many_apps_and_streams(make_pod: MakePod) -> None:
    """Many apps that are logged and some that clients read much from use the account up by themselves."""
    quiet = [f"quiet{number}" for number in range(500 if LONG else 40)]
    loud = [f"loud{number}" for number in range(64 if LONG else 30)]
    # In a user namespace there are no more than 200 session keyrings (keyrings(7), maxkeys).
    ids = {"private_users": None} if LONG else {}
    apps = {name: shell("seq 100; echo end >&2") for name in quiet}
    apps |= {name: shell("read x; seq 30000", annotations=STREAMS[:2]) for name in loud}
    pod = make_pod(apps, **ids)
    process = pod.start(stderr=subprocess.STDOUT)
    with ThreadPoolExecutor(len(loud)) as executor:
        outputs = [*executor.map(lambda app: read_much(pod, app), loud)]
    result = pod.finish(process)
    assert result.returncode == 0
    much = "".join(f"{number}\n" for number in range(1, 30_001)).encode()
    assert [output == much for output in outputs] == [True] * len(loud)
    # The order of stdout and stderr is not kept.
    wanted = sorted([*(str(number) for number in range(1, 101)), "end"])
    printed = Counter(re.sub(r"\[\d+\]", "", result.stdout.replace(LOOPBACK_ONLY, "", 1)).splitlines())
    assert printed == Counter(f"{app}: {line}" for app in quiet for line in wanted)
    assert all(sorted(logged(pod, app)) == wanted for app in quiet)


def read_much(pod: PodDirectory, app: str) -> bytes:
    """Have an app write, and return all of it."""
    directory = pod.stage1 / "rkt/iottymux" / app
    wait_for((directory / "endpoints").exists, "the endpoints")
    with connect(directory, "sock-stdout") as stdout, connect(directory, "sock-stdin") as stdin:
        stdin.sendall(b"go\n")
        return read_all(stdout)
