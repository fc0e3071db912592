"""PID 1 with few descriptors left: it takes on no more than it can look after."""

from __future__ import annotations

import os
import resource
import signal

from tests.support.pods import MakePod, shell
from tests.support.processes import named
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

FOREVER = "exec sleep 1000"
REASON = "too few descriptors are left for another app: the limit of open files (ulimit -n) of the pod is {}"


FREE = 92


def with_three_apps(make_pod: MakePod, limit: int | None = None) -> Sandbox:
    """Return a pod that may open so many files, with three apps, two of which run."""

    def prepare() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))

    sandbox = Sandbox(make_pod, prepare=prepare)
    for name in ("a", "b", "c"):
        assert sandbox.add(name, shell(FOREVER)).returncode == 0
    for name in ("a", "b"):
        assert sandbox.start(name).returncode == 0
    return sandbox


def limit_that_leaves(pid: int, free: int) -> int:
    """Return the limit of open files under which a process can open so many more."""
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    return [number for number in range(len(taken) + free + 1) if number not in taken][free]


def test_no_more_apps_than_can_be_looked_after(make_pod: MakePod) -> None:
    """None is added or started for which PID 1 would give its last descriptors; those there are end as always."""
    wide = with_three_apps(make_pod)
    limit = limit_that_leaves(wide.pod.pid, FREE)
    wide.end()
    sandbox = with_three_apps(make_pod, limit)
    reason = REASON.format(limit)
    for refused in (sandbox.add("d", shell(FOREVER)), sandbox.start("c")):
        assert refused.returncode == 254
        assert reason in refused.stdout
    os.kill(named(sandbox.pod.members(), "sleep")[0], signal.SIGKILL)
    wait_for(lambda: len(named(sandbox.pod.members(), "sleep")) == 1, "the end of one app")
    assert sandbox.remove("c").returncode == 0
    assert sandbox.pod.ask({"op": "ping"})["ok"]
    assert sandbox.end().returncode == 0
