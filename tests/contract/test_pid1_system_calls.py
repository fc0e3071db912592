"""The system calls of PID 1, seen by strace."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from minit.plan.rights.protection import plan_protection
from tests.support.pods import MakePod, handlers, shell

RLIM_NLIMITS = 16


def test_pid1_forks_only_by_clone3_and_waits_only_in_the_reaper(make_pod: MakePod, tmp_path: Path) -> None:
    """PID 1 runs no program and uses no fork or wait but its own; importing trio and structlog forks nothing."""
    both = handlers(pre_start=("/bin/true",), post_stop=("/bin/true",))
    pod = make_pod({"a": shell("while :; do sleep 1; done", eventHandlers=both)})
    process = pod.start(under=["strace", "-ff", "-qq", "-o", str(tmp_path / "trace")])
    pod.wait_ready()
    # Only trio answers, so it has been imported by then.
    assert pod.ask({"op": "ping"})["ok"]
    pid = pod.pid
    assert pod.stop().returncode == 0
    process.communicate(timeout=90)
    assert process.returncode == 0
    trace = (tmp_path / f"trace.{pid}").read_text()
    traced = set(re.findall(r"^(\w+)\(", trace, re.MULTILINE))
    assert {"clone3", "wait4", "pivot_root"} <= traced
    assert not {"fork", "vfork", "clone", "execve", "execveat"} & traced
    waits = [line for line in trace.splitlines() if line.startswith(("waitid(", "wait4("))]
    assert all("WNOHANG" in line for line in waits), waits


def test_a_status_waits_for_the_disk_once(make_pod: MakePod, tmp_path: Path) -> None:
    """The reason of an end is seen before its status, and both are durable when PID 1 goes on."""
    pod = make_pod({"a": shell("exit 3")})
    assert (
        pod.run(under=["strace", "-ff", "-qq", "-y", "-e", "fsync,renameat", "-o", str(tmp_path / "trace")]).returncode
        == 3
    )
    [trace] = [text for file in tmp_path.glob("trace.*") if "/rkt/status/.a.new>" in (text := file.read_text())]
    assert re.findall(r"^(fsync)\(\d+<[^>]*?([^/>]+)>|^(renameat)\(.*\"([^\"]+)\"\)", trace, re.MULTILINE) == [
        ("", "", "renameat", "a.json"),
        ("fsync", ".a.new", "", ""),
        ("", "", "renameat", "a"),
        ("fsync", "status", "", ""),
        ("fsync", ".a.json.new", "", ""),
        ("", "", "renameat", "a.json"),
        ("fsync", "state", "", ""),
    ]


def trace_of(directory: Path, call: str) -> str:
    """Return the system calls of the one process that made this one."""
    [trace] = [text for path in directory.glob("trace.*") if call in (text := path.read_text())]
    return trace


def test_sidecars_are_asked_for_when_the_apps_are_executed(make_pod: MakePod, tmp_path: Path) -> None:
    """No app waits for a sidecar, its own or another's: the spawner hears nothing before the last "go"."""
    pod = make_pod({name: shell("echo hello") for name in ("a", "b", "c")})
    result = pod.run(under=["strace", "-ff", "-qq", "-o", str(tmp_path / "trace")])
    assert sorted(line.partition("]: ")[2] for line in result.stdout.splitlines()) == ["hello"] * 3
    trace = trace_of(tmp_path, "sethostname(")
    gos = [match.start() for match in re.finditer(r'^sendto\(\d+, "go"', trace, re.MULTILINE)]
    requests = [match.start() for match in re.finditer(r'^sendmsg\(.*iov_base="\{\\"app\\":', trace, re.MULTILINE)]
    assert (len(gos), len(requests)) == (3, 3)
    assert max(gos) < min(requests)


def test_an_app_asks_for_nothing_twice(make_pod: MakePod, tmp_path: Path) -> None:
    """Until its exec it looks protected paths up once, and changes only those signals and capabilities that differ."""
    pod = make_pod({"a": shell("exit 0")})
    assert pod.run(under=["strace", "-ff", "-qq", "-o", str(tmp_path / "trace")]).returncode == 0
    trace = trace_of(tmp_path, 'execve("/bin/sh"').partition('execve("/bin/sh"')[0]
    opened = Counter(re.findall(r'^openat2\(\d+, "([^"]+)"', trace, re.MULTILINE))
    protection = plan_protection(disabled=False, own_network=True)
    assert {opened[path] for path in (*protection.masked, *protection.read_only)} == {1}
    # Four are the interpreter's own, SIGPIPE for one, two the C library's; the caller of the test may ignore some.
    assert trace.count("rt_sigaction(") < 11
    assert "PR_CAPBSET" not in trace


@pytest.mark.parametrize(("flags", "looks_again"), [((), False), (("--disable-seccomp",), True)])
def test_pid1_looks_after_its_limits_where_an_app_can_change_them(
    make_pod: MakePod, tmp_path: Path, flags: tuple[str, ...], looks_again: bool
) -> None:
    """It reads each of them once, and again at each event only if a filter does not keep the apps from them."""
    pod = make_pod({"a": shell("exit 0")})
    assert pod.run(*flags, under=["strace", "-ff", "-qq", "-o", str(tmp_path / "trace")]).returncode == 0
    assert (trace_of(tmp_path, "sethostname(").count("prlimit64(") > RLIM_NLIMITS) == looks_again
