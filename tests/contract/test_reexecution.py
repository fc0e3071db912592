"""PID 1 that executes its program anew: on request, and after an error of its own."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from minit.stage0.pods.poddirectory import open_pod
from minit.stage0.reports.podtraces import count_errors
from tests.contract.test_attach import lines_through
from tests.support.attach import APP, attach
from tests.support.campaign import LONG, campaign
from tests.support.faults import mistaken
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.processes import copy_descriptor, descriptors_of, status_of
from tests.support.sandbox import Sandbox
from tests.support.unpack import unpack
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
# Of a line of much output, in bytes.
WIDTH = 200
# Signals and capabilities, and who may trace it.
LASTING = (
    "Name",
    "Uid",
    "Gid",
    "Groups",
    "SigBlk",
    "SigIgn",
    "CapInh",
    "CapPrm",
    "CapEff",
    "CapBnd",
    "CapAmb",
    "Seccomp",
)


def resumed(pod: PodDirectory) -> int:
    """Return how often PID 1 has gone on in a new program."""
    return [event["event"] for event in pod.events()].count("supervisor.resumed")


def failures(pod: PodDirectory) -> list[dict[str, Any]]:
    """Return the events about errors of PID 1."""
    return [event for event in pod.events() if event["event"] == "supervisor.failed"]


def written(pod: PodDirectory, app: str) -> list[bytes]:
    """Return the lines in the log of an app, but for those of the shell about the ends of its children."""
    lines = [line.split(b" ", 3)[3] for line in pod.log(app).splitlines()]
    return [line for line in lines if line != b"Terminated"]


def counted_errors(pod: PodDirectory) -> int:
    """Return the number of errors of PID 1 as minit's stage0 reads the number."""
    with open_pod(pod.data, pod.uuid) as opened:
        return count_errors(opened)


@contextmanager
def in_new_program(pod: PodDirectory) -> Iterator[None]:
    """Wait, after what has PID 1 execute its program, for the new program."""
    count = resumed(pod)
    yield
    wait_for(lambda: resumed(pod) > count, "the new program of PID 1")


def reexecute(pod: PodDirectory) -> None:
    """Have PID 1 execute its program, and wait for the new one."""
    with in_new_program(pod):
        assert pod.ask({"op": "reexecute"}) == {"ok": True}


def make_error(pod: PodDirectory) -> None:
    """Have PID 1 fail: with no number for another descriptor it cannot look at the group of an app that ends."""
    _, hard = resource.prlimit(pod.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pod.pid, resource.RLIMIT_NOFILE, (3, hard))


def make_errors(pod: PodDirectory, launcher: int, count: int = 1) -> None:
    """Have PID 1 fail at so many messages of the launcher, each without the word that PID 1 looks for."""
    ours, theirs = (
        {int(name[8:-1]): fd for fd, name in descriptors_of(pid).items() if name.startswith("socket:")}
        for pid in (launcher, pod.pid)
    )
    # Both ends of a pair have numbers made one after the other, but for other sockets of a busy machine.
    fd = min((abs(number - other), fd) for number, fd in ours.items() for other in theirs if other != number)[1]
    with socket.socket(fileno=copy_descriptor(launcher, fd)) as link:
        for _ in range(count):
            link.send(b"{}")


def deny_readiness(pod: PodDirectory) -> None:
    """Have PID 1 fail whenever it marks the pod as ready: something else is in the place of the mark."""
    (pod.stage1 / "rkt/supervisor-status").mkdir()


def deny_memory(pod: PodDirectory, limit: int) -> None:
    """Let PID 1 have no more memory, for good in a user namespace: a hard limit is the host's."""
    _, hard = resource.prlimit(pod.pid, limit)
    resource.prlimit(pod.pid, limit, (1 << 20, hard if pod.private_users is None else 1 << 20))


def lasting_state(pod: PodDirectory) -> object:
    """Return what a new program of PID 1 must not change."""
    status = status_of(pod.pid)
    # The loop's own, and the log's, have other numbers.
    files = sorted(name for name in descriptors_of(pod.pid).values() if not name.startswith("socket:"))
    return {name: status[name] for name in LASTING}, os.stat(f"/proc/{pod.pid}/fd").st_uid, files


def socket_count(pod: PodDirectory) -> int:
    """Return how many sockets PID 1 has; those of clients come and go."""
    return sum(name.startswith("socket:") for name in descriptors_of(pod.pid).values())


@pytest.mark.private_users
def test_apps_go_on_under_a_new_program(make_pod: MakePod) -> None:
    """Ten programs later the apps are the same processes, the state is known, and ends have their statuses."""
    pod = make_pod({"a": shell(FOREVER), "b": shell("while [ ! -e /tmp/end ]; do sleep 0.02; done; exit 3")})
    process = pod.start()
    pod.wait_ready()
    before = pod.ask({"op": "state"})
    for _ in range(10):
        reexecute(pod)
    assert pod.ask({"op": "state"}) == before
    pod.file("b", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (3, 0, 3)


def test_an_interpreter_that_is_not_dumped(plain_stage1_image: Path, app_rootfs: Path, tmp_path: Path) -> None:
    """PID 1 executes loader and interpreter, which have the modules from where the first program had them."""
    tree = tmp_path / "data/tree"
    unpack(plain_stage1_image, tree)
    pod = PodDirectory(
        tmp_path / "data", tree, app_rootfs, {"a": shell("while [ ! -e /tmp/end ]; do sleep 0.02; done")}
    )
    try:
        process = pod.start()
        pod.wait_ready()
        for _ in range(2):
            reexecute(pod)
        pod.file("a", "/tmp/end").touch()
        assert pod.finish(process).returncode == 0
    finally:
        pod.remove()


@pytest.mark.private_users
def test_a_new_program_has_what_the_old_had(make_pod: MakePod) -> None:
    """The same descriptors, the same capabilities and blocked signals, and hidden memory."""
    pod = make_pod({"a": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    # The first execution writes down what never changes.
    reexecute(pod)
    before, sockets = lasting_state(pod), socket_count(pod)
    for _ in range(3):
        reexecute(pod)
        assert lasting_state(pod) == before
    wait_for(lambda: socket_count(pod) <= sockets, "the end of the clients' sockets")


@pytest.mark.private_users
def test_an_error_of_pid_1(make_pod: MakePod) -> None:
    """One line and an event tell the error; the app whose end PID 1 was about to see has its status, the others run."""
    pod = make_pod({"a": shell(FOREVER), "b": shell("while [ ! -e /tmp/end ]; do sleep 0.02; done; exit 0")})
    process = pod.start()
    pod.wait_ready()
    with in_new_program(pod):
        make_error(pod)
        pod.file("b", "/tmp/end").touch()
    assert pod.wait_status("b") == 0
    assert pod.ask({"op": "state"})["state"] == "running"
    failed = next(event for event in pod.events() if event["event"] == "supervisor.failed")
    assert failed["error"] == "OSError"
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, pod.status("a")) == (0, 0)
    assert result.stderr.count("stage1: error of PID 1") == 1
    numbered = [event["seq"] for event in pod.events()]
    assert numbered == [*range(1, len(numbered) + 1)]


def test_output_has_no_gap(make_pod: MakePod) -> None:
    """An attached client gets every line while PID 1 is executed again and again."""
    assert lines_through(make_pod, 200_000, (16, 8, 4, 2), reexecute) == b""


@pytest.mark.timeout(7200 if LONG else 120)
def test_much_output(make_pod: MakePod) -> None:
    """A client gets every line, and the rotated log is whole, of 10 GiB in a long run, while PID 1 is executed."""
    count = (10 << 30) // WIDTH if LONG else (24 << 20) // WIDTH
    script = f"read x; busybox awk 'BEGIN {{ for (i = 1; i <= {count}; i++) printf \"%0{WIDTH - 1}d\\n\", i }}'; read x"
    values = {"coreos.com/rkt/stage2/stdin": "stream", "coreos.com/rkt/stage2/stdout": "log+stream"}
    values["minit/log-max-size"] = "4Mi"
    pod = make_pod({APP: shell(script, annotations=[{"name": name, "value": values[name]} for name in values])})
    process = pod.start()
    pod.wait_ready()
    with attach(pod, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as client:
        assert client.stdin is not None and client.stdout is not None
        client.stdin.write(b"go\n")
        got, rest = 0, b""
        for share in range(1, 21):
            while got < count * share // 20:
                piece = os.read(client.stdout.fileno(), 1 << 20)
                assert piece
                *lines, rest = (rest + piece).split(b"\n")
                assert [*map(int, lines)] == [*range(got + 1, got + 1 + len(lines))]
                got += len(lines)
            reexecute(pod)
        client.stdin.write(b"end\n")
    assert pod.finish(process).returncode == 0
    files = sorted((pod.stage1 / "rkt/minit/log").glob(f"{APP}.log*"), key=lambda path: path.suffix, reverse=True)
    kept = [int(line.split()[3]) for path in (*files[1:], files[0]) for line in path.read_bytes().splitlines()]
    assert len(files) == 5
    assert kept == [*range(kept[0], count + 1)]


def test_kills_meanwhile_lose_no_line(make_pod: MakePod) -> None:
    """A sidecar or the spawner that is killed right before or after the request costs an attached client nothing."""
    # A spawner is made when a sidecar is needed.
    names = ("minit-spawner", f"iottymux-{APP}") * 2
    victims = iter(zip(names, (True, False, False, True)))

    def disturb(pod: PodDirectory) -> None:
        name, is_before = next(victims)
        with in_new_program(pod):
            victim = os.pidfd_open(wait_for(lambda: pod.children().get(name, 0), name))
            if is_before:
                signal.pidfd_send_signal(victim, signal.SIGKILL)
            assert pod.ask({"op": "reexecute"}) == {"ok": True}
            if not is_before:
                signal.pidfd_send_signal(victim, signal.SIGKILL)
            os.close(victim)

    errors = lines_through(make_pod, 200_000, (16, 8, 4, 2), disturb)
    assert set(errors.splitlines()) <= {f'attach: the sidecar of app "{APP}" was killed; attaching again'.encode()}


def test_every_start_end_and_line_is_there(make_pod: MakePod) -> None:
    """Apps end and are started again, with handlers, while PID 1 is executed: all is logged, once and in order."""
    runs = campaign(20)
    script = f"echo x >> /tmp/runs; n=$(wc -l < /tmp/runs); echo run $n; [ $n -ge {runs} ] || exit 7"
    policy = {"minit/restart": "on-failure", "minit/restart-delay": "10ms", "minit/restart-max-delay": "20ms"}
    annotations = [{"name": name, "value": value} for name, value in policy.items()]
    fields = {"eventHandlers": handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))}
    pod = make_pod({name: shell(script, annotations=annotations, **fields) for name in ("a", "b", "c")})
    process = pod.start()
    while process.poll() is None:
        # The pod may not have begun, or have ended.
        with suppress(OSError, ValueError):
            pod.ask({"op": "reexecute"})
    assert pod.finish(process).returncode == 0
    assert resumed(pod) > 3
    for name in ("a", "b", "c"):
        assert written(pod, name) == [b"run %d" % number for number in range(1, runs + 1)]
        named = [event["event"] for event in pod.events() if event.get("app") == name]
        assert [named.count(event) for event in ("app.exited", "app.started-again")] == [runs, runs - 1]


def test_a_request_that_waits_is_answered(make_pod: MakePod) -> None:
    """Its client stays connected to the new program of PID 1, which answers; apps are added and started by both."""
    sandbox = Sandbox(make_pod)
    pod = sandbox.pod
    assert (
        sandbox.add(
            "a", shell(f"trap 'while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 4' TERM; {FOREVER}")
        ).returncode
        == 0
    )
    assert sandbox.start("a").returncode == 0
    with pod.connect() as client:
        client.send(b'{"op":"app-stop","app":"a","grace_seconds":3600.0}')
        wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["state"] == "stopping", "the stop", 3)
        reexecute(pod)
        reexecute(pod)
        pod.file("a", "/tmp/go").touch()
        assert client.recv(1 << 16) == b'{"ok":true}'
    assert pod.status("a") == 4
    assert sandbox.add("b", shell(FOREVER)).returncode == 0
    reexecute(pod)
    for name in ("a", "b"):
        assert sandbox.start(name).returncode == 0
    assert sandbox.remove("a").returncode == 0
    assert sandbox.end().returncode == 0


def test_a_stop_is_not_lost(make_pod: MakePod) -> None:
    """Signals that come while PID 1 is executed wait for the new program."""
    for _ in range(campaign(3)):
        pod = make_pod({"a": shell(f"trap 'exit 6' TERM; touch /tmp/up; {FOREVER}")})
        process = pod.start()
        pod.wait_file("a", "/tmp/up")
        pod.wait_ready()
        assert pod.ask({"op": "reexecute"}) == {"ok": True}
        process.send_signal(signal.SIGTERM)
        assert pod.finish(process).returncode == 0
        assert pod.status("a") == 6


def image_mount(tree: Path) -> int:
    """Return a read-only mount of a stage1 image, which only the descriptor leads to."""
    mount = syscalls.open_tree(syscalls.AT_FDCWD, str(tree), syscalls.OPEN_TREE_CLONE)
    syscalls.mount_setattr(mount, set=syscalls.MOUNT_ATTR_RDONLY, propagation=syscalls.MS_PRIVATE)
    return mount


def upgrade(pod: PodDirectory, tree: Path) -> dict[str, Any]:
    """Offer PID 1 the program in a tree, and return the answer."""
    mount = image_mount(tree / "rootfs")
    try:
        with pod.connect() as client:
            socket.send_fds(client, [b'{"op": "upgrade"}'], [mount])
            answer: dict[str, Any] = json.loads(client.recv(1 << 16))
            return answer
    finally:
        os.close(mount)


@pytest.fixture(scope="module")
def other_tree(plain_stage1_image: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stage1 of another version, whose interpreter is not dumped."""
    tree = tmp_path_factory.mktemp("other")
    unpack(plain_stage1_image, tree)
    return tree


@pytest.mark.private_users
def test_another_version(
    make_pod: MakePod, private_users: tuple[int, int] | None, other_tree: Path, stage1_tree: Path
) -> None:
    """PID 1 executes the program of another image and, later, that of the first again; apps and rights stay."""
    pod = make_pod({"a": shell(FOREVER), "b": shell("while [ ! -e /tmp/end ]; do sleep 0.02; done; exit 3")})
    process = pod.start()
    pod.wait_ready()
    reexecute(pod)
    before, status = pod.ask({"op": "state"}), lasting_state(pod)
    program = os.readlink(f"/proc/{pod.pid}/exe")
    assert upgrade(pod, other_tree) == {"ok": True}
    assert os.path.basename(os.readlink(f"/proc/{pod.pid}/exe")) == "ld.so"
    assert upgrade(pod, stage1_tree) == {"ok": True}
    assert os.readlink(f"/proc/{pod.pid}/exe") == program
    reexecute(pod)
    assert (pod.ask({"op": "state"}), lasting_state(pod)) == (before, status)
    assert [event["event"] for event in pod.events()].count("pod.upgraded") == 2
    pod.file("b", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (3, 0, 3)
    # The other interpreter is not dumped.
    refusal = (
        "stage1: the launcher goes on in the old version of minit: with private users only a dumped program is taken"
    )
    assert result.stderr == ("" if private_users is None else f"{refusal} from PID 1\n")


@pytest.mark.private_users
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize(
    ("mistake", "lines"),
    [
        ("arch_prctl:retval=0:when=1", 0),
        ("epoll_create1:error=EPERM:when=1", 1),
        ("prctl:delay_enter=2500000:when=1", 0),
    ],
)
def test_a_version_that_fails_as_pid_1(make_pod: MakePod, stage1_tree: Path, mistake: str, lines: int) -> None:
    """After a fault, an error or two seconds of silence PID 1 is the old program again, and the client is told."""
    pod = make_pod({"a": shell(FOREVER), "b": shell("while [ ! -e /tmp/end ]; do sleep 0.02; done; exit 3")})
    process = pod.start()
    pod.wait_ready()
    reexecute(pod)
    before, status = pod.ask({"op": "state"}), lasting_state(pod)
    with mistaken(pod.pid, mistake):
        answer = upgrade(pod, stage1_tree)
    assert answer == {"ok": False, "error": "the new program has failed, and PID 1 goes on in the old program"}
    assert (pod.ask({"op": "state"}), lasting_state(pod)) == (before, status)
    assert not any(event["event"] == "pod.upgraded" for event in pod.events())
    assert upgrade(pod, stage1_tree) == {"ok": True}
    pod.file("b", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (3, 0, 3)
    said = "stage1: error of another version of PID 1: PermissionError(1, 'Operation not permitted'): the old version"
    assert [line.partition(" goes on")[0] for line in result.stderr.splitlines()] == [said] * lines


def test_what_is_no_version_of_minit(make_pod: MakePod, tmp_path: Path) -> None:
    """PID 1 executes no program that does not prove itself, and says why."""
    pod = make_pod({"a": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    programs = tmp_path / "rootfs/usr/lib/minit/bin"
    programs.mkdir(parents=True)
    assert "ld.so" in upgrade(pod, tmp_path)["error"]
    shutil.copy("/bin/busybox", programs / "minit")
    assert upgrade(pod, tmp_path)["error"] == "the program cannot go on with the state: the program died"
    assert pod.ask({"op": "upgrade"})["error"] == "expected a descriptor of a read-only mount of a stage1 image"
    assert resumed(pod) == 0
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


def test_versions_change_under_load(make_pod: MakePod, other_tree: Path, stage1_tree: Path) -> None:
    """Apps with handlers end and are started again, all of it logged in order, while versions go back and forth."""
    changes, trees = campaign(4), (other_tree, stage1_tree)
    policy = {"minit/restart": "on-failure", "minit/restart-delay": "10ms", "minit/restart-max-delay": "20ms"}
    annotations = [{"name": name, "value": value} for name, value in policy.items()]
    fields = {"eventHandlers": handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))}
    script = "echo x >> /tmp/runs; echo run $(wc -l < /tmp/runs); [ -e /tmp/end ] || exit 7"
    names = ("a", "b", "c")
    pod = make_pod({name: shell(script, annotations=annotations, **fields) for name in names} | {"d": shell(FOREVER)})
    process = pod.start()
    logs = [pod.stage1 / f"rkt/minit/log/{name}.log" for name in names]
    wait_for(lambda: all(log.exists() for log in logs), "the first lines")
    for number in range(changes):
        assert upgrade(pod, trees[number % 2]) == {"ok": True}
    for name in names:
        pod.file(name, "/tmp/end").touch()
    for name in names:
        wait_for(lambda: pod.status(name) == 0, "the end")  # noqa: B023
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
    for name in names:
        lines = [line.split(b" ", 3)[3] for line in pod.log(name).splitlines()]
        assert lines == [b"run %d" % number for number in range(1, len(lines) + 1)]
        named = [event["event"] for event in pod.events() if event.get("app") == name]
        assert [named.count(event) for event in ("app.exited", "app.started-again")] == [len(lines), len(lines) - 1]
    assert [event["event"] for event in pod.events()].count("pod.upgraded") == changes


@pytest.mark.private_users
def test_an_error_that_stays(make_pod: MakePod) -> None:
    """The third error within a second has PID 1 stop all apps with their grace; statuses and output are there."""
    pod = make_pod({"a": shell(f"trap 'sleep 1; echo down; exit 5' TERM; echo up; {FOREVER}"), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    make_errors(pod, process.pid, 3)
    result = pod.finish(process)
    lines = [line for line in result.stderr.splitlines() if "PID 1" in line]
    assert [line.rpartition(": ")[2] for line in lines] == ["PID 1 goes on", "PID 1 goes on", "the pod is stopped"]
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0)
    assert written(pod, "a") == [b"up", b"down"]
    named = [event["event"] for event in pod.events()]
    assert (named.count("supervisor.failed"), named[-1]) == (3, "pod.ended")
    assert counted_errors(pod) == 3
    assert pod.record("a")["reason"] == "stopped"


def test_left_processes_end_in_the_last_loop(make_pod: MakePod) -> None:
    """A child that ignores the stop is killed after the grace period, and the app's own status counts."""
    script = f"(trap '' TERM; echo up; {FOREVER}) & trap 'exit 4' TERM; {FOREVER}"
    pod = make_pod({"a": shell(script)}, annotations={"minit/stop-grace": "1s"})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the child")
    make_errors(pod, process.pid, 3)
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 4


def test_a_second_request_kills_in_the_last_loop(make_pod: MakePod) -> None:
    """An app that ignores its stop has all its time, unless somebody asks for the stop twice."""
    pod = make_pod({"a": shell(f"trap '' TERM; echo up; {FOREVER}")}, annotations={"minit/stop-grace": "1h"})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    make_errors(pod, process.pid, 3)
    wait_for(lambda: len(failures(pod)) == 3, "the last loop")
    process.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert pod.finish(process).returncode == 0
    assert pod.status("a") == 128 + signal.SIGKILL


@pytest.mark.private_users
def test_an_error_that_comes_back(make_pod: MakePod) -> None:
    """The app in whose work the error comes back has failed with 254, and the pod ends with that app."""
    pod = make_pod({"a": shell(FOREVER), "b": shell(f"trap 'exit 6' TERM; {FOREVER}")})
    deny_readiness(pod)
    result = pod.finish(pod.start())
    failed = [name for name in ("a", "b") if pod.status(name) == 254]
    assert result.returncode == 254 and len(failed) == 1
    assert pod.record(failed[0])["step"] == "supervisor"
    assert len(failures(pod)) == 2


@pytest.mark.private_users
@pytest.mark.parametrize("limit", [resource.RLIMIT_AS, resource.RLIMIT_DATA])
def test_an_error_without_memory(make_pod: MakePod, limit: int) -> None:
    """
    PID 1 takes a limit of memory back and goes on in a new program.

    A hard limit cannot be taken back in a user namespace: there PID 1 stops the pod, with the memory that is there.
    """
    pod = make_pod({"a": shell(f"trap 'echo down; exit 5' TERM; echo up; {FOREVER}"), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    deny_memory(pod, limit)
    make_errors(pod, process.pid)
    if pod.private_users is None:
        wait_for(lambda: resumed(pod), "the new program")
        assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0), result.stderr
    assert written(pod, "a") == [b"up", b"down"]
    refusal = "PID 1 cannot begin anew: a limit of memory of PID 1 cannot be taken back: the pod is stopped"
    assert (refusal in result.stderr) == (pod.private_users is not None)
