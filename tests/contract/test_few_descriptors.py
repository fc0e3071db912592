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


def leave(pid: int, free: int) -> int:
    """Have a process be able to open so many descriptors more, and return its limit."""
    _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    limit = [number for number in range(hard) if number not in taken][free]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, hard))
    return limit


def test_no_more_apps_than_can_be_looked_after(make_pod: MakePod) -> None:
    """None is added or started for which PID 1 would give its last descriptors; those there are end as always."""
    sandbox = Sandbox(make_pod)
    for name in ("a", "b", "c"):
        assert sandbox.add(name, shell(FOREVER)).returncode == 0
    for name in ("a", "b"):
        assert sandbox.start(name).returncode == 0
    reason = REASON.format(leave(sandbox.pod.pid, 90))
    for refused in (sandbox.add("d", shell(FOREVER)), sandbox.start("c")):
        assert refused.returncode == 254
        assert reason in refused.stdout
    os.kill(named(sandbox.pod.members(), "sleep")[0], signal.SIGKILL)
    wait_for(lambda: len(named(sandbox.pod.members(), "sleep")) == 1, "the end of one app")
    assert sandbox.remove("c").returncode == 0
    assert sandbox.pod.ask({"op": "ping"})["ok"]
    assert sandbox.end().returncode == 0
