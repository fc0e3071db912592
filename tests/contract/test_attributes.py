"""Limits, scheduling and personality: those of who runs the pod, for all that runs in an app, and nobody else's."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minit.linux import syscalls
from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.processes import control_groups_of, named, status_of
from tests.support.waiting import wait_for

ADDR_NO_RANDOMIZE = 0x40000
IDLE_CLASS = 3 << 13  # ioprio_set(2)
OF_STATUS = ("Umask", "Cpus_allowed", "THP_enabled", "CoreDumping", "Seccomp", "NoNewPrivs")
OF_FILES = ("limits", "personality", "timerslack_ns", "coredump_filter", "oom_score_adj")


def attributes_of(pid: int) -> dict[str, object]:
    """Return what a process has of its parent, or of whoever gave it something else."""
    status = status_of(pid)
    attributes: dict[str, object] = {name: status[name] for name in OF_STATUS}
    attributes |= {name: Path(f"/proc/{pid}/{name}").read_text() for name in OF_FILES}
    attributes["nice"] = os.getpriority(os.PRIO_PROCESS, pid)
    attributes["policy"] = os.sched_getscheduler(pid)
    attributes["io_priority"] = syscalls.io_priority(pid)
    return attributes


def _be_humble() -> None:
    """Have attributes that nobody has by chance."""
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    resource.setrlimit(resource.RLIMIT_CORE, (0, 1 << 20))
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
    syscalls.set_io_priority(IDLE_CLASS)
    syscalls.set_personality(ADDR_NO_RANDOMIZE)
    syscalls.set_timer_slack_ns(123456)
    syscalls.set_thp_disable(1)
    Path("/proc/self/coredump_filter").write_text("0x11")


def _be_in_a_hurry() -> None:
    """Have none of them."""
    os.umask(0o077)
    syscalls.set_io_priority(1 << 13)
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))


@pytest.fixture(autouse=True)
def realtime() -> Iterator[None]:
    """The group of the tests may have processes with a real-time policy, which a group of v1 has to be allowed."""
    own = control_groups_of(os.getpid()).get("cpu", "")
    file = Path(f"/sys/fs/cgroup/cpu/{own}/cpu.rt_runtime_us")
    files = [file] if file.exists() and file.read_text() == "0\n" else []
    for file in files:
        file.write_text("10000")
    yield
    for file in files:
        file.write_text("0")


def sleepers(pod: PodDirectory, app: str) -> list[int]:
    """Return the processes of an app that sleep."""
    pids = set()
    for top in pod.control_groups():
        members = top / f"system.slice/{app}.service/cgroup.procs"
        pids |= set(map(int, members.read_text().split())) if members.exists() else set()
    return named(pids, "sleep")


def test_everything_in_an_app_has_the_same(make_pod: MakePod) -> None:
    """App, handler, and what is started later, though PID 1 was changed, or entered by a caller with others."""
    again = [{"name": "minit/restart", "value": "always"}, {"name": "minit/restart-delay", "value": "10ms"}]
    later = "[ -e /tmp/again ] && exec sleep 1000; touch /tmp/again; while [ ! -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod(
        {
            "a": shell("exec sleep 1000"),
            "b": shell(later, annotations=again),
            "c": shell("true", eventHandlers=handlers(pre_start=("/bin/sleep", "1000"))),
        }
    )
    pod.start(preexec_fn=_be_humble)
    [app], [handler] = (wait_for(partial(sleepers, pod, name), name) for name in ("a", "c"))
    expected = attributes_of(app)
    assert (expected["nice"], expected["policy"], expected["io_priority"]) == (5, os.SCHED_BATCH, IDLE_CLASS)
    assert (expected["personality"], expected["timerslack_ns"]) == ("00040000\n", "123456\n")
    assert bin(int(str(expected["Cpus_allowed"]).replace(",", ""), 16)).count("1") == 1
    assert (expected["THP_enabled"], expected["coredump_filter"]) == ("0", "00000011\n")
    assert attributes_of(handler) == {**expected, "Seccomp": attributes_of(handler)["Seccomp"]}
    _change(pod.pid)
    pod.file("b", "/tmp/go").touch()
    wait_for(lambda: pod.ask({"op": "state"})["apps"][1]["restarts"], "b's restart")
    [restarted] = wait_for(lambda: sleepers(pod, "b"), "b")
    assert attributes_of(restarted) == expected
    words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "sleep", "1000"]
    with subprocess.Popen(words, cwd=pod.path, preexec_fn=_be_in_a_hurry) as process:
        [entered] = wait_for(lambda: set(sleepers(pod, "a")) - {app}, "the command")
        assert attributes_of(entered) == expected
        process.terminate()


def _change(pid: int) -> None:
    """Do to PID 1 what root of an app without a filter can do."""
    os.setpriority(os.PRIO_PROCESS, pid, 15)
    os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
    # Of hard limits only what whoever runs the tests without CAP_SYS_RESOURCE may have.
    resource.prlimit(pid, resource.RLIMIT_CORE, (1 << 10, 1 << 20))
    resource.prlimit(pid, resource.RLIMIT_STACK, (1 << 20, resource.getrlimit(resource.RLIMIT_STACK)[1]))


@pytest.mark.private_users
def test_a_pod_of_a_realtime_process(make_pod: MakePod) -> None:
    """It runs, as an ordinary one: groups of v1 take no others, and an app would have a processor to itself."""
    pod = make_pod({"a": shell("exec sleep 1000")})
    process = pod.start(preexec_fn=_be_in_a_hurry)
    [app] = wait_for(lambda: sleepers(pod, "a"), "the app")
    assert (os.sched_getscheduler(app), os.getpriority(os.PRIO_PROCESS, app)) == (os.SCHED_OTHER, -5)
    assert pod.enter("a", "true", preexec_fn=_be_in_a_hurry).returncode == 0
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
