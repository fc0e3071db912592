"""What PID 1 asks the kernel for, seen by strace."""

from __future__ import annotations

import re

from tests.support.pods import handlers, shell


def test_pid1_forks_only_by_clone3_and_waits_only_in_the_reaper(make_pod, tmp_path):
    """PID 1 runs no program and uses no fork or wait but its own; importing trio and structlog forks nothing."""
    both = handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))
    pod = make_pod({"a": shell("while :; do sleep 1; done", eventHandlers=both)})
    process = pod.start(under=["strace", "-ff", "-qq", "-o", str(tmp_path / "trace")])
    pod.wait_ready()
    # Only trio answers, so it has been imported by then.
    assert pod.ask({"op": "ping"})["ok"]
    pid = pod.pid
    assert pod.stop().returncode == 0
    process.communicate(timeout=60)
    assert process.returncode == 0
    traced = set(re.findall(r"^(\w+)\(", (tmp_path / f"trace.{pid}").read_text(), re.MULTILINE))
    assert {"clone3", "waitid", "pivot_root"} <= traced
    assert not {"fork", "vfork", "clone", "execve", "execveat", "wait4"} & traced
