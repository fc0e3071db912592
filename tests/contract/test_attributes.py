"""Scheduling and personality are the caller's, limits those of every app, for all that runs in an app."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from minit.linux import syscalls
from minit.linux.attributes import narrower
from minit.manifest.ulimits import RESOURCES
from tests.support.commands import Stage0
from tests.support.pods import MakePod, PodDirectory, app_section, handlers, shell
from tests.support.processes import control_groups_of, named, status_of
from tests.support.sandbox import Sandbox
from tests.support.usersession import SURROUNDING, is_capable
from tests.support.waiting import wait_for

ADDR_NO_RANDOMIZE = 0x40000
IDLE_CLASS = 3 << 13  # ioprio_set(2)
OF_STATUS = ("Umask", "Cpus_allowed", "THP_enabled", "CoreDumping", "Seccomp", "NoNewPrivs")
SOFT = {
    resource.RLIMIT_AS: 2 << 30,
    resource.RLIMIT_CORE: 1 << 20,
    resource.RLIMIT_NOFILE: 300,
    resource.RLIMIT_NPROC: 4000,
    resource.RLIMIT_STACK: 4 << 20,
}
TOLD = "echo $(ulimit -v) $(ulimit -d) $(ulimit -s) $(ulimit -n) $(ulimit -f)"
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
    """Have attributes that nobody has by chance, and limits that no app has."""
    os.setpriority(os.PRIO_PROCESS, 0, 5)
    os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    _have_soft_limits()
    syscalls.set_io_priority(IDLE_CLASS)
    syscalls.set_personality(ADDR_NO_RANDOMIZE)
    syscalls.set_timer_slack_ns(123456)
    syscalls.set_thp_disable(1)
    Path("/proc/self/coredump_filter").write_text("0x11")


def _have_soft_limits() -> None:
    for number, limit in SOFT.items():
        resource.setrlimit(number, (limit, resource.getrlimit(number)[1]))


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
    files = [file] if SURROUNDING is None and file.exists() and file.read_text() == "0\n" else []
    for file in files:
        file.write_text("10000")
    yield
    for file in files:
        file.write_text("0")


def sleepers(pod: PodDirectory, app: str) -> list[int]:
    """Return the processes of an app that sleep."""
    return named(pod.members_of_app(app), "sleep")


@pytest.mark.host_root("a user has no real-time policy")
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
    assert limits_of(app) == usual_limits()
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


def limits_of(pid: int) -> dict[str, tuple[int, int]]:
    """Return the limits of a process."""
    return {name: resource.prlimit(pid, row.number) for name, row in RESOURCES.items()}


def usual_limits(**changed: tuple[int, int]) -> dict[str, tuple[int, int]]:
    """Return the limits of an app of a pod that this process runs, with some others."""
    is_free = is_capable("CAP_SYS_RESOURCE")
    threads = int(Path("/proc/sys/kernel/threads-max").read_text())
    found = {}
    for name, row in RESOURCES.items():
        soft, hard = changed.get(name, row.usual(threads))
        widest = resource.RLIM_INFINITY if is_free else resource.getrlimit(row.number)[1]
        found[name] = narrower(soft, widest), narrower(hard, widest)
    return found


@pytest.mark.private_users
def test_limits_are_not_the_callers(make_pod: MakePod) -> None:
    """An app has those of every app and what its annotation says, or the caller's if asked; PID 1 has its caller's."""
    ulimits = {"nofile": "512:1024", "core": "0", "rttime": "unlimited", "memlock": "4096:8192"}
    pod = make_pod(
        {
            "a": shell("exec sleep 1000"),
            "b": shell("exec sleep 1000", annotations=limited(ulimits)),
            "c": shell("exec sleep 1000", annotations=limited({"host": True, "nofile": "64"})),
        }
    )
    process = pod.start(preexec_fn=_have_soft_limits)
    [usual], [changed], [callers] = (wait_for(partial(sleepers, pod, name), name) for name in ("a", "b", "c"))
    assert limits_of(usual) == usual_limits()
    unlimited = resource.RLIM_INFINITY, resource.RLIM_INFINITY
    assert limits_of(changed) == usual_limits(nofile=(512, 1024), core=(0, 0), rttime=unlimited, memlock=(4096, 8192))
    soft = {name: SOFT.get(row.number, resource.getrlimit(row.number)[0]) for name, row in RESOURCES.items()}
    assert {name: limit for name, (limit, _) in limits_of(callers).items()} == {**soft, "nofile": 64}
    assert pod.pid
    for number in (resource.RLIMIT_AS, resource.RLIMIT_CORE, resource.RLIMIT_STACK):
        assert resource.prlimit(pod.pid, number)[0] == SOFT[number]
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


def limited(ulimits: Mapping[str, object]) -> list[dict[str, str]]:
    """Return the annotations of an app with limits."""
    return [{"name": "minit/ulimits", "value": json.dumps(ulimits)}]


@pytest.mark.private_users
def test_less_memory_than_an_interpreter(make_pod: MakePod) -> None:
    """An app, its hook, its restart and a command get so little, and PID 1 and all before their exec are not hurt."""
    little = {"as": str(16 << 20), "data": str(4 << 20), "stack": str(256 << 10), "nofile": "16", "fsize": "4096"}
    hooks = {"post-start": {"exec": ["/bin/sh", "-c", f"{TOLD} >/tmp/hook; echo >/tmp/done"]}}
    again = {"minit/restart": "on-failure", "minit/restart-delay": "10ms", "minit/hooks": json.dumps(hooks)}
    annotations = limited(little) + [{"name": name, "value": value} for name, value in again.items()]
    script = f"{TOLD} >>/tmp/app; [ -e /tmp/again ] && exec sleep 1000; touch /tmp/again; exit 1"
    pod = make_pod({"a": shell(script, annotations=annotations)})
    process = pod.start()
    wait_for(lambda: sleepers(pod, "a"), "the restart")
    pod.wait_file("a", "/tmp/done")
    told = "16384 4096 256 16 8\n"
    assert pod.file("a", "/tmp/app").read_text() == told * 2
    assert pod.file("a", "/tmp/hook").read_text() == told
    assert pod.enter("a", "sh", "-c", TOLD).stdout == told
    assert pod.pid and limits_of(pod.pid)["as"] == resource.getrlimit(resource.RLIMIT_AS)
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


@pytest.mark.private_users
def test_a_limit_holds_for_the_program_alone(make_pod: MakePod) -> None:
    """Three apps of one user start with room for one process each: the kernel would refuse the exec of the last one."""
    section = app_section("/bin/sleep", "1000", user="61234", group="1", annotations=limited({"nproc": "1"}))
    pod = make_pod(dict.fromkeys("abc", section))
    process = pod.start()
    pod.wait_ready()
    for name in "abc":
        [app] = wait_for(partial(sleepers, pod, name), name)
        assert re.search("^Max processes +1 +1 ", Path(f"/proc/{app}/limits").read_text(), re.MULTILINE)
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0


@pytest.mark.private_users
def test_room_for_message_queues(make_pod: MakePod) -> None:
    """An app makes a queue whose caller may make none: the kernel bounds the sum in a user namespace by its maker's."""
    pod = make_pod({"a": shell(": >/dev/mqueue/queue && echo made")})
    hard = resource.getrlimit(resource.RLIMIT_MSGQUEUE)[1]
    result = pod.run(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_MSGQUEUE, (1, hard)))
    assert (result.returncode, result.stdout.partition("]: ")[2]) == (0, "made\n"), result


def test_an_added_app(make_pod: MakePod) -> None:
    """It has the limits of every app and those of its own annotation, whoever has started the pod and whoever adds."""
    sandbox = Sandbox(make_pod, prepare=_have_soft_limits)
    added = sandbox.add("a", shell("exec sleep 1000", annotations=limited({"nofile": "99"})))
    assert added.returncode == 0, added
    assert sandbox.start("a").returncode == 0
    [app] = wait_for(partial(sleepers, sandbox.pod, "a"), "the app")
    assert limits_of(app) == usual_limits(nofile=(99, 99))
    assert sandbox.end().returncode == 0


def test_the_option(minit: Stage0) -> None:
    """--ulimit of the command stands before or behind the only image, and the app has it."""
    words = ("run", minit.stage1_flag, "--net=none", "--debug")
    result = minit.call(*words, "--ulimit", "nofile=512:1024", minit.image(), "--ulimit=fsize=-1:-1", "--", "-c", TOLD)
    assert result.returncode == 0 and " 512 unlimited" in result.stdout, result
    assert "nofile=512:1024" in result.stderr


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ('{"nofil": "1"}', "expected an object with some of as, core, "),
        ('{"nofile": "2:1"}', "nofile: expected SOFT[:HARD], each a number, -1 or unlimited, the first no more than"),
        ('{"nofile": 1}', "nofile: expected a string, got 1"),
        ('{"host": "yes"}', 'host: expected true or false, got "yes"'),
    ],
)
def test_what_is_no_limit(make_pod: MakePod, value: str, reason: str) -> None:
    """The pod is refused in one line, with the place."""
    pod = make_pod({"a": shell("true", annotations=[{"name": "minit/ulimits", "value": value}])})
    result = pod.run()
    assert result.returncode == 254
    assert result.stderr.startswith('stage1: app "a": annotation minit/ulimits'), result.stderr
    assert reason in result.stderr and result.stderr.count("\n") == 1


def test_an_image_has_no_say(make_pod: MakePod) -> None:
    """Limits of an image are refused, as all that is not for images."""
    pod = make_pod({"a": shell("true")}, image_annotations={"minit/ulimits": '{"nofile": "1"}'}, app_in_image=True)
    result = pod.run()
    assert result.returncode == 254
    assert 'annotation "minit/ulimits" is one of apps, not of images' in result.stderr


def _change(pid: int) -> None:
    """Do to PID 1 what root of an app without a filter can do."""
    os.setpriority(os.PRIO_PROCESS, pid, 15)
    os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))})
    # Not the hard limits, which whoever runs the tests without CAP_SYS_RESOURCE could not raise again.
    for number, soft in ((resource.RLIMIT_CORE, 1 << 10), (resource.RLIMIT_STACK, 1 << 20)):
        resource.prlimit(pid, number, (soft, resource.prlimit(pid, number)[1]))


@pytest.mark.private_users
@pytest.mark.host_root("a user has no real-time policy")
def test_a_pod_of_a_realtime_process(make_pod: MakePod) -> None:
    """It runs, as an ordinary one: groups of v1 take no others, and an app would have a processor to itself."""
    pod = make_pod({"a": shell("exec sleep 1000")})
    process = pod.start(preexec_fn=_be_in_a_hurry)
    [app] = wait_for(lambda: sleepers(pod, "a"), "the app")
    assert (os.sched_getscheduler(app), os.getpriority(os.PRIO_PROCESS, app)) == (os.SCHED_OTHER, -5)
    assert pod.enter("a", "true", preexec_fn=_be_in_a_hurry).returncode == 0
    assert pod.stop().returncode == 0
    assert pod.finish(process).returncode == 0
