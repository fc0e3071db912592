"""Pods whose apps are in a control group that somebody else has made, as a kubelet does."""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minit.launcher.cgroups import read_hierarchies
from tests.support.pods import TIMEOUT_SECONDS, MakePod, shell
from tests.support.processes import children_of, control_groups_of, is_alive, named
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

PARENT = "minit/cgroup-parent"
SCRIPT = "touch /begun; while :; do sleep 0.05; done"


@pytest.fixture
def parent() -> Iterator[str]:
    """The path of a group in all hierarchies of v1, or in the only one of v2, in which is nothing but it at the end."""
    hierarchies = read_hierarchies()
    places = [each for each in hierarchies if not each.is_v2] or hierarchies
    path = f"/minit-test-{uuid.uuid4()}/pod"
    tops = [Path(each.mount_point + path) for each in places]
    for each, top in zip(places, tops):
        for directory in (top.parent, top):
            directory.mkdir()
            if "cpuset" in each.controllers:
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (directory / name).write_text((directory.parent / name).read_text())
    yield path
    for top in tops:
        top.rmdir()
        top.parent.rmdir()


@pytest.mark.private_users
def test_apps_are_in_the_group(make_pod: MakePod, parent: str) -> None:
    """With the commands in them; PID 1 and all else of minit is not, and gc leaves the group as it was."""
    sandbox = Sandbox(make_pod, annotations={PARENT: parent})
    assert sandbox.add("web", shell(SCRIPT)).returncode == 0
    assert sandbox.start("web").returncode == 0
    sandbox.pod.wait_file("web", "begun")
    [app] = named(children_of(sandbox.pod.pid), "sh")
    groups = control_groups_of(app)
    inside = {name for name, path in groups.items() if path.startswith(f"{parent}/")}
    assert inside and {path.rpartition("/")[2] for name, path in groups.items() if name in inside} == {"web.service"}
    own = control_groups_of(os.getpid())
    others = [sandbox.pod.pid, *(pid for pid in children_of(sandbox.pod.pid) if pid != app)]
    assert [control_groups_of(pid) for pid in others] == [own] * len(others)
    assert sandbox.remove("web").returncode == 0
    assert sandbox.end().returncode == 0
    assert sandbox.pod.gc().returncode == 0


def test_an_app_that_somebody_kills_by_its_group(make_pod: MakePod, parent: str) -> None:
    """It has its status, the pod goes on, and gc finds nothing to do where the groups are gone."""
    sandbox = Sandbox(make_pod, annotations={PARENT: parent})
    assert sandbox.add("web", shell(SCRIPT)).returncode == 0
    assert sandbox.start("web").returncode == 0
    sandbox.pod.wait_file("web", "begun")
    tops = [path for each in read_hierarchies() if (path := Path(each.mount_point + parent)).is_dir()]
    members = next(tops[0].rglob("web.service/cgroup.procs"))
    while pids := members.read_text().split():
        for pid in pids:
            with suppress(ProcessLookupError):  # it has been reaped since
                os.kill(int(pid), signal.SIGKILL)
    assert sandbox.pod.wait_status("web") == 137
    sandbox.wait_state("web", "exited")

    def remove_all() -> bool:
        for top in tops:
            for directory, _, _ in os.walk(top, topdown=False):
                if Path(directory) != top:
                    os.rmdir(directory)
        return True

    wait_for(remove_all, "the end of the groups")
    assert sandbox.remove("web").returncode == 0
    assert sandbox.end().returncode == 0
    assert sandbox.pod.gc().returncode == 0


def test_a_group_that_is_not_there(make_pod: MakePod) -> None:
    """The pod does not start, and says why."""
    pod = make_pod({"web": shell("true")}, annotations={PARENT: "/minit-test-none/pod"})
    result = pod.run()
    assert result.returncode == 254
    assert "no hierarchy of control groups has /minit-test-none/pod: make that group before the pod" in result.stderr


def test_an_immutable_pod(make_pod: MakePod, parent: str) -> None:
    """Its apps and the commands in them are there, too, also where no group of v2 is the pod's."""
    pod = make_pod({"web": shell(SCRIPT)}, annotations={PARENT: parent})
    pod.start()
    pod.wait_file("web", "begun")
    words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=web", "--", "sleep", "1000"]
    limited = pod.call("enter", *words[1:3], "--timeout=1h", "--", "sh", "-c", "exit 7", from_tree=True)
    assert (limited.returncode, limited.stderr) == (7, "")
    with subprocess.Popen(words, cwd=pod.path) as entered:
        [command] = wait_for(lambda: named(children_of(entered.pid), "sleep"), "the command")
        [app] = named(children_of(pod.pid), "sh")
        assert control_groups_of(command) == control_groups_of(app)
        assert any(path.startswith(f"{parent}/") for path in control_groups_of(app).values())
        assert pod.stop("--force").returncode == 0
        assert entered.wait(90) == -signal.SIGKILL
    pod.wait_exited()
    assert pod.gc().returncode == 0


def test_a_supervisor_that_is_killed_among_the_processes_of_the_host(make_pod: MakePod, parent: str) -> None:
    """Neither the apps in the group nor minit's own processes outside of it outlive it."""
    sandbox = Sandbox(make_pod, annotations={PARENT: parent, "minit/pid-namespace": "host"})
    assert sandbox.add("web", shell(f"(setsid sh -c 'trap \"\" TERM HUP; {SCRIPT}' &); {SCRIPT}")).returncode == 0
    assert sandbox.start("web").returncode == 0
    sandbox.pod.wait_file("web", "begun")
    own = children_of(sandbox.pod.pid)
    assert len(own) > 2
    os.kill(sandbox.pod.pid, signal.SIGKILL)
    assert sandbox.process.wait(TIMEOUT_SECONDS) != 0
    wait_for(lambda: not any(is_alive(pid) for pid in own), "the end of the spawner and of the log's process")
    assert sandbox.pod.gc().returncode == 0
