"""PID 1 that executes its program anew while something else goes wrong: the exec, memory, disks, other processes."""

from __future__ import annotations

import errno
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_devices import AT_V, HOTPLUG, volume
from tests.contract.test_health import annotated
from tests.contract.test_launcher_execution import helper_of
from tests.contract.test_reexecution import (
    FOREVER,
    counted_errors,
    failures,
    in_new_program,
    lasting_state,
    make_errors,
    reexecute,
    resumed,
    socket_count,
    written,
)
from tests.support.campaign import LONG, campaign
from tests.support.faults import ANY, HANG, LAUNCHER, NEVER_FAIL, Call, Faults, mistaken
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import is_alive, status_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace"),
]

COUNTS = 'n=0; while [ ! -e /tmp/end ]; do n=$((n+1)); echo "$n"; sleep 0.02; done; exit 3'
MOST_MORE_KILOBYTES = 256
# A request comes in first. In an ordinary run every call would take too long.
FIRST_CALL, CALLS_BETWEEN, MOST_CALLS = 3, 99, 500
PARTS = 8 if LONG else 1
in_parts = pytest.mark.parametrize("first", range(FIRST_CALL, FIRST_CALL + PARTS))
ASLEEP = "exec sleep 100000"
SAYS_DOWN = f"trap 'echo down; exit 5' TERM; echo up; {FOREVER}"
# A stop lasts until the file is there.
SAYS_DOWN_LATER = SAYS_DOWN.replace("echo down", "while [ ! -e /tmp/end ]; do sleep 0.02; done; echo down")


def anonymous_kilobytes(pid: int) -> int:
    """Return how much memory a process has that is of no file."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))


def log_of(pod: PodDirectory) -> str:
    """Return the log of PID 1."""
    return (pod.stage1 / "rkt/minit/supervisor.log").read_text()


@pytest.mark.parametrize("error", ["ENOMEM", "E2BIG", "EAGAIN", "EACCES"])
def test_an_exec_that_fails_after_an_error(make_pod: MakePod, error: str) -> None:
    """The last loop stops the pod in the old program, with all statuses and the output, and a line says why."""
    pod = make_pod({"a": shell(SAYS_DOWN), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    with mistaken(pod.pid, f"execveat:error={error}"):
        make_errors(pod, process.pid)
        result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0), result.stderr
    assert written(pod, "a") == [b"up", b"down"]
    assert "stage1: PID 1 cannot begin anew: " in result.stderr and result.stderr.count("the pod is stopped") == 1
    assert counted_errors(pod) == 1


def test_an_exec_that_fails_for_a_moment(make_pod: MakePod) -> None:
    """PID 1 tries for a second, and goes on."""
    pod = make_pod({"a": shell(SAYS_DOWN)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    with mistaken(pod.pid, "execveat:error=ENOMEM:when=1..3"), in_new_program(pod):
        make_errors(pod, process.pid)
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), result.stderr.count("stage1: ")) == (0, 5, 1)


def test_an_exec_that_fails_on_request(make_pod: MakePod) -> None:
    """PID 1 goes on in the program, with the same descriptors, and can be asked again."""
    pod = make_pod({"a": shell(SAYS_DOWN)})
    process = pod.start()
    pod.wait_ready()
    reexecute(pod)
    before, sockets = lasting_state(pod), socket_count(pod)
    with mistaken(pod.pid, "execveat:error=ENOMEM"):
        assert pod.ask({"op": "reexecute"}) == {"ok": True}
        wait_for(lambda: "supervisor.not-executed" in log_of(pod), "the end of the attempts")
        assert pod.ask({"op": "state"})["state"] == "running"
    assert lasting_state(pod) == before
    wait_for(lambda: socket_count(pod) <= sockets, "the end of the clients' sockets")
    reexecute(pod)
    assert pod.stop().returncode == 0
    assert (pod.finish(process).returncode, pod.status("a")) == (0, 5)


def test_a_state_that_cannot_be_read(make_pod: MakePod) -> None:
    """After a second all apps are killed; a line says why, and the statuses and the output are there."""
    pod = make_pod({"a": shell(f"echo up; {FOREVER}"), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the output")
    reexecute(pod)
    # Each socket of the state is looked at.
    with mistaken(pod.pid, "getsockname:error=EIO"):
        assert pod.ask({"op": "reexecute"}) == {"ok": True}
        result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (254, 137, 137), result.stderr
    assert written(pod, "a")[0] == b"up"
    assert result.stderr == "stage1: PID 1 cannot go on: input/output error: all apps are killed\n"


@pytest.mark.parametrize(
    ("call", "which", "errors"),
    # The old program has hidden the memory, and has asked who the client is.
    [("setresgid", "2", 0), ("getsockopt", "2", 0), ("pread64", "1..3", 0), ("epoll_create1", "1", 1)],
)
def test_a_new_program_without_a_supervisor(make_pod: MakePod, call: str, which: str, errors: int) -> None:
    """After a failed call the program reads the state once more; after one behind that there is another program."""
    pod = make_pod({"a": shell(SAYS_DOWN), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    reexecute(pod)
    before, sockets = lasting_state(pod), socket_count(pod)
    with mistaken(pod.pid, f"{call}:error=ENOMEM:when={which}"):
        reexecute(pod)
    assert counted_errors(pod) == errors
    assert lasting_state(pod) == before
    wait_for(lambda: socket_count(pod) <= sockets, "the end of the client's socket")
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0), result.stderr


def test_an_end_of_trio_that_fails(make_pod: MakePod) -> None:
    """A failing read of trio's own socket, by which trio ends, is an error of PID 1's own, and hangs nothing."""
    pod = make_pod({"a": shell(SAYS_DOWN), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    reexecute(pod)
    with mistaken(pod.pid, "recvfrom:error=EIO:when=1"):
        reexecute(pod)
    assert counted_errors(pod) == 1
    with mistaken(pod.pid, "recvfrom:error=EIO:when=2"):
        assert pod.stop().returncode == 0
        result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0), result.stderr
    assert counted_errors(pod) == 2
    assert written(pod, "a") == [b"up", b"down"]


def test_a_request_that_leaves_work_undone(make_pod: MakePod) -> None:
    """The client hears of the error; the new program does the work, and serves the client on."""
    sandbox = Sandbox(make_pod)
    pod = sandbox.pod
    assert sandbox.add("a", shell(ASLEEP)).returncode == 0
    assert sandbox.start("a").returncode == 0
    with mistaken(pod.pid, "pidfd_send_signal:error=EIO:when=1"), pod.connect() as client:
        with in_new_program(pod):
            client.send(b'{"op":"app-stop","app":"a"}')
            assert json.loads(client.recv(1 << 16)) == {"ok": False, "error": "input/output error"}
        client.send(b'{"op":"ping"}')
        assert json.loads(client.recv(1 << 16))["ok"]
    assert pod.wait_status("a") == 0
    [failed] = failures(pod)
    assert failed["app"] == "a"
    assert sandbox.end().returncode == 0


def test_a_client_for_whom_the_error_comes_back(make_pod: MakePod) -> None:
    """The client is closed after the second error within a second; apps and other clients notice nothing."""
    sandbox = Sandbox(make_pod)
    pod = sandbox.pod
    for name in ("a", "b", "c"):
        assert sandbox.add(name, shell(ASLEEP)).returncode == 0
        assert sandbox.start(name).returncode == 0
    # The stop signal of "a", both signals after all, and the stop signal of "b".
    with mistaken(pod.pid, "pidfd_send_signal:error=EIO:when=1+3"), pod.connect() as client:
        for name in ("a", "b"):
            client.send(b'{"op":"app-stop","app":"%s"}' % name.encode())
        assert not json.loads(client.recv(1 << 16))["ok"]
        wait_for(lambda: resumed(pod) == 2, "the second program")
        left = []
        with suppress(ConnectionResetError):
            while data := client.recv(1 << 16):
                left.append(data)
        assert len(left) <= 1 and len(failures(pod)) == 2
    assert [pod.wait_status(name) for name in ("a", "b")] == [0, 0]
    assert pod.status("c") is None
    assert pod.ask({"op": "state"})["state"] == "running"
    assert sandbox.end().returncode == 0


def test_nothing_grows(make_pod: MakePod) -> None:
    """After the first re-executions neither descriptors nor memory of PID 1 grow."""
    pod = make_pod({"a": shell(COUNTS), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    for _ in range(2):
        reexecute(pod)
    descriptors, sockets, first_kilobytes = lasting_state(pod), socket_count(pod), anonymous_kilobytes(pod.pid)
    for _ in range(campaign(10)):
        reexecute(pod)
    assert anonymous_kilobytes(pod.pid) < first_kilobytes + MOST_MORE_KILOBYTES
    assert lasting_state(pod) == descriptors
    wait_for(lambda: socket_count(pod) <= sockets, "the end of the clients' sockets")
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


def open_process(pod: PodDirectory, name: str) -> int:
    """Return a pidfd of the present process of that name, of PID 1 or of the spawner, once there is one."""

    def find() -> int:
        pid = pod.children().get(name, 0)
        return pid if is_alive(pid) else 0

    return os.pidfd_open(wait_for(find, name))


def is_readable(fd: int) -> bool:
    """Return whether a descriptor is readable now."""
    return bool(select.select([fd], [], [], 0)[0])


def call_numbers(first: int) -> range:
    """Return the calls of PID 1 to have something happen at: a sample, in a long run a part of all."""
    return range(first, MOST_CALLS, PARTS if LONG else CALLS_BETWEEN)


def kill_at(pod: PodDirectory, faults: Faults, nth: int, pidfds: Sequence[int]) -> bool:
    """
    Kill processes while PID 1 is at a call of the work of beginning anew; return whether there are so many calls.
    """
    reader, writer = os.pipe()
    before = resumed(pod)
    words = faults.fault_of(pod.pid, writer, Call(LAUNCHER, ANY, nth), HANG)
    with subprocess.Popen(words, pass_fds=(writer,)) as tracer, pod.connect() as client:
        os.close(writer)
        wait_for(lambda: status_of(pod.pid)["TracerPid"] == str(tracer.pid), "the tracer")
        client.send(b'{"op":"reexecute"}')
        wait_for(lambda: is_readable(reader) or resumed(pod) > before, "the call")
        was_reached = is_readable(reader)
        for pidfd in pidfds:
            # A sidecar of which a killed spawner has not told PID 1 ends by itself.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        wait_for(lambda: all(map(is_readable, pidfds)), "the ends")
        # PID 1 goes on.
        tracer.kill()
        assert client.recv(1 << 16) == b'{"ok":true}'
    wait_for(lambda: resumed(pod) > before, "the new program")
    for fd in (reader, *pidfds):
        os.close(fd)
    return was_reached


@in_parts
@pytest.mark.parametrize("victim", ["minit-spawner", "iottymux-a"])
def test_kills_at_every_call(make_pod: MakePod, tmp_path: Path, victim: str, first: int) -> None:
    """A process that is killed while PID 1 begins anew, at any of its calls, costs no line and no status."""
    faults = Faults(tmp_path, 1)
    pod = make_pod({"a": shell(COUNTS), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    # Of a killed spawner there is another when there has to be another sidecar.
    names = {victim, "iottymux-a"}
    killed = [kill_at(pod, faults, nth, [open_process(pod, name) for name in names]) for nth in call_numbers(first)]
    assert killed.count(True) >= 3 and not killed[-1]
    pod.file("a", "/tmp/end").touch()
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (3, 3, 0), result.stderr
    lines = written(pod, "a")
    assert lines == [b"%d" % number for number in range(1, len(lines) + 1)]
    assert not failures(pod)


@in_parts
def test_kills_of_the_launcher_at_every_call(make_pod: MakePod, tmp_path: Path, first: int) -> None:
    """The end of the launcher while PID 1 begins anew, at any of its calls, stops the pod in order."""
    faults = Faults(tmp_path, 1)
    killed = []
    for nth in call_numbers(first):
        pod, process = begin(make_pod, SAYS_DOWN_LATER)
        killed.append(kill_at(pod, faults, nth, [os.pidfd_open(process.pid)]))
        pod.file("a", "/tmp/end").touch()
        pod.wait_exited()
        process.communicate()
        assert (pod.status("a"), pod.status("b"), written(pod, "a")) == (5, 0, [b"up", b"down"]), nth
        assert process.returncode == -signal.SIGKILL and not failures(pod), nth
    assert killed.count(True) >= 3 and not killed[-1]


@in_parts
def test_kills_of_helpers_at_every_call(make_pod: MakePod, tmp_path: Path, first: int) -> None:
    """A helper that is killed while PID 1 begins anew, at any of its calls, is missed in one line, and by no app."""
    faults = Faults(tmp_path, 1)
    checked: dict[str, Any] = annotated(SAYS_DOWN, liveness={"exec": ["/bin/true"], "action": "none"})
    app = {**checked, "mounts": AT_V, "annotations": [*checked["annotations"], *HOTPLUG]}
    killed = []
    for nth in call_numbers(first):
        pod = make_pod({"a": app}, **volume("/dev/full"))
        process = pod.start()
        pod.wait_ready()
        wait_for(partial(written, pod, "a"), "the trap")
        helpers = [os.pidfd_open(helper_of(process.pid, name)) for name in ("minit-health", "minit-devices")]
        killed.append(kill_at(pod, faults, nth, helpers))
        assert pod.stop().returncode == 0
        result = pod.finish(process)
        assert (result.returncode, pod.status("a"), written(pod, "a")) == (0, 5, [b"up", b"down"]), result.stderr
        assert result.stderr.count("the process that did it died") == len(helpers), result.stderr
        assert not failures(pod)
    assert killed.count(True) >= 3 and not killed[-1]


def calls_of(pod: PodDirectory, trace: Path) -> list[Call]:
    """Return the calls by which PID 1 begins anew, from the moment on in which a tracer comes."""
    words = ["strace", "-qq", "-o", str(trace), "-p", str(pod.pid)]
    with subprocess.Popen(words) as tracer:
        wait_for(lambda: status_of(pod.pid)["TracerPid"] == str(tracer.pid), "the tracer")
        reexecute(pod)
        tracer.terminate()
    seen: Counter[str] = Counter()
    calls = []
    for name in re.findall(r"^(\w+)\(", trace.read_text(), re.MULTILINE):
        seen[name] += 1
        calls.append(Call(LAUNCHER, name, seen[name]))
    # Without its first calls a program cannot begin.
    return [call for call in calls if call.name not in {*NEVER_FAIL, "arch_prctl"}]


def fail_at(pod: PodDirectory, process: subprocess.Popen[bytes], faults: Faults, call: Call, number: int) -> str:
    """Have a call fail by which PID 1 begins anew; return what is wrong then, empty if nothing is."""
    reader, writer = os.pipe()
    before = resumed(pod), log_of(pod).count("not-executed")
    with subprocess.Popen(faults.fault_of(pod.pid, writer, call, number), pass_fds=(writer,)) as tracer:
        os.close(writer)
        try:
            wait_for(lambda: status_of(pod.pid)["TracerPid"] == str(tracer.pid), "the tracer")
            is_asked = False
            # The request itself may fail.
            with suppress(OSError, ValueError):
                is_asked = pod.ask({"op": "reexecute"})["ok"]
            if is_asked:
                wait_for(
                    lambda: process.poll() is not None or (resumed(pod), log_of(pod).count("not-executed")) != before,
                    "the new program",
                )
            with suppress(OSError, ValueError):
                if pod.ask({"op": "ping"})["ok"]:
                    return ""
            result = pod.finish(process)
        finally:
            tracer.kill()
            os.close(reader)
    lines = written(pod, "a")
    ends = result.returncode, pod.status("a"), pod.status("b")
    is_right = ends == (0, 5, 0) and lines == [b"up", b"down"]
    return "" if is_right else f"{call}: {os.strerror(number)}: {ends}: {lines}: {result.stderr}"


def begin(make_pod: MakePod, script: str = SAYS_DOWN) -> tuple[PodDirectory, subprocess.Popen[bytes]]:
    """Return a pod with an app that says when it is stopped, whose PID 1 has begun anew once."""
    pod = make_pod({"a": shell(script), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    reexecute(pod)
    return pod, process


def test_failures_at_every_call(make_pod: MakePod, tmp_path: Path) -> None:
    """A call that fails while PID 1 begins anew, any of its calls, at worst ends the pod as a stop does."""
    faults = Faults(tmp_path, 1)
    errors = itertools.cycle((errno.ENOMEM, errno.EIO, errno.ENOSPC))
    pod, process = begin(make_pod)
    calls = calls_of(pod, tmp_path / "trace")
    assert len(calls) > 200
    wrong = []
    for call in calls[:: 1 if LONG else CALLS_BETWEEN]:
        if process.poll() is not None:
            pod, process = begin(make_pod)
        wrong.append(fail_at(pod, process, faults, call, next(errors)))
    assert not any(wrong), "\n".join(filter(None, wrong))


def test_a_control_group_that_is_removed(make_pod: MakePod) -> None:
    """Somebody on the host moves an app and removes the groups: PID 1 begins anew, and stops the app in order."""
    pod = make_pod({"a": shell(SAYS_DOWN), "b": shell(ASLEEP)})
    process = pod.start()
    pod.wait_ready()
    wait_for(lambda: written(pod, "a"), "the trap")
    for group in [group for group in pod.control_groups() if group.name == "a.service"]:
        other = group.parents[1] / "init.scope"
        wait_for(partial(is_emptied, group, other), "the last process")
        group.rmdir()
    reexecute(pod)
    with in_new_program(pod):
        make_errors(pod, process.pid)
    assert pod.ask({"op": "state"})["state"] == "running"
    assert pod.stop().returncode == 0
    result = pod.finish(process)
    assert (result.returncode, pod.status("a"), pod.status("b")) == (0, 5, 0), result.stderr
    assert written(pod, "a") == [b"up", b"down"]


def is_emptied(group: Path, other: Path) -> bool:
    """Move the processes of a group to another one, and return whether there was none."""
    found = (group / "cgroup.procs").read_text().split()
    for pid in found:
        with suppress(ProcessLookupError):
            (other / "cgroup.procs").write_text(pid)
    return not found
