"""Apps that are PID 1 of a namespace of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, handlers, shell
from tests.support.processes import children_of, namespace_of, status_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

pytestmark = pytest.mark.private_users

OWN = [{"name": "minit/pid-namespace", "value": "app"}]
FOREVER = "touch /begun; while :; do sleep 0.05; done"
LOOK = "echo $$; ls -d /proc/[0-9]* | wc -l; readlink /proc/1/exe; touch /begun; sleep 1000; true"


def own(script: str, *annotations: dict[str, str], **section: Any) -> dict[str, Any]:
    """Return an app with a namespace of its own."""
    return shell(f"exec >> /said 2>&1; {script}", annotations=[*OWN, *annotations], **section)


def said(pod: PodDirectory, app: str = "a") -> list[str]:
    """Return the lines that an app has said."""
    return pod.file(app, "said").read_text().splitlines()


def mounts_of(pid: int) -> list[tuple[str, ...]]:
    """Return the places of a process's mounts, and their options, but for what keeps apps from PID 1 of the pod."""
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return sorted(tuple(fields[4:6]) for fields in map(str.split, lines) if fields[4] != "/proc/1")


def pid_of(pod: PodDirectory, app: str) -> int:
    """Return the pid on the host of an app's process."""
    [entry] = [entry for entry in pod.ask({"op": "state"})["apps"] if entry["name"] == app]
    inner = str(entry["pid"])
    return next(pid for pid in children_of(pod.pid) if status_of(pid)["NSpid"].split()[1] == inner)


def test_an_app_is_pid_1(make_pod: MakePod) -> None:
    """It sees its own processes only, the kernel's files are as protected as elsewhere, and others see all."""
    pod = make_pod({"a": own(LOOK), "b": shell(FOREVER)})
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    # The shell, ls and wc.
    pid, count, _ = said(pod)
    assert (pid, int(count) <= 4) == ("1", True)
    app = pid_of(pod, "a")
    assert status_of(app)["NSpid"].split()[2:] == ["1"]
    assert namespace_of(app, "pid") != namespace_of(pod.pid, "pid")
    assert namespace_of(pid_of(pod, "b"), "pid") == namespace_of(pod.pid, "pid")
    assert mounts_of(pid_of(pod, "a")) == mounts_of(pid_of(pod, "b"))
    assert "sleep" in pod.enter("b", "ps").stdout
    pod.stop()
    assert pod.finish(process).returncode == 0


def test_a_command_enters_the_namespace(make_pod: MakePod) -> None:
    """Its processes are the app's, nothing else is seen, and it ends with the app."""
    pod = make_pod({"a": own(FOREVER), "b": shell(FOREVER)})
    pod.start()
    pod.wait_ready()
    result = pod.enter(
        "a", "sh", "-c", "readlink /proc/self/ns/pid; readlink /proc/1/ns/pid; tr '\\0' ' ' < /proc/1/cmdline"
    )
    inner, first, words = result.stdout.split("\n", 2)
    assert inner == first == f"pid:{namespace_of(pid_of(pod, 'a'), 'pid')}" or inner == first
    assert "touch /begun" in words
    assert pod.enter("b", "readlink", "/proc/self/ns/pid").stdout.strip() != inner
    assert pod.enter("a", "sh", "-c", "kill -KILL -1; exit 3").returncode == 3
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_a_signal_without_a_handler(make_pod: MakePod) -> None:
    """PID 1 of a namespace ignores it, and is killed after its grace period; one with a handler ends in order."""
    grace = {"name": "minit/stop-grace", "value": "500ms"}
    sandbox = Sandbox(make_pod)
    for name, script in (("deaf", "touch /begun; exec sleep 1000"), ("hears", "trap 'exit 7' TERM; " + FOREVER)):
        assert sandbox.add(name, own(script, grace)).returncode == 0
        assert sandbox.start(name).returncode == 0
        sandbox.pod.wait_file(name, "begun")
        assert sandbox.stop(name).returncode == 0
    assert (sandbox.pod.status("deaf"), sandbox.pod.status("hears")) == (137, 7)
    assert sandbox.end().returncode == 0


def test_its_end_is_that_of_all_in_it(make_pod: MakePod) -> None:
    """Orphans and daemons die with it, and its exit code is exact."""
    sandbox = Sandbox(make_pod)
    script = "echo $$; (setsid sleep 7777 &); until pidof sleep; do :; done; exit 9"
    assert sandbox.add("a", own(script)).returncode == 0
    for _ in range(3):
        assert sandbox.start("a").returncode == 0
        assert sandbox.pod.wait_status("a") == 9
        sandbox.wait_state("a", "exited")
    assert [len(line.split()) for line in said(sandbox.pod)] == [1] * 6
    assert said(sandbox.pod)[::2] == ["1"] * 3
    assert not any("7777" in Path(f"/proc/{pid}/cmdline").read_text() for pid in sandbox.pod.members())
    result = sandbox.pod.enter("a", "true")
    assert result.returncode == 254
    assert 'app "a" does not run' in result.stderr
    assert sandbox.remove("a").returncode == 0
    assert sandbox.traces("a") == []
    assert sandbox.end().returncode == 0


def test_an_app_that_is_started_again(make_pod: MakePod) -> None:
    """Each start is PID 1 of a new namespace, with a whole /proc that is protected."""
    restart = [{"name": f"minit/restart{name}", "value": value} for name, value in (("", "always"), ("-delay", "10ms"))]
    script = "echo $$ $(readlink /proc/1/ns/pid); [ $(wc -l < /said) -ge 3 ] && touch /begun && sleep 1000; exit 1"
    pod = make_pod({"a": own(script, *restart), "b": shell(FOREVER)})
    pod.start()
    pod.wait_file("a", "begun")
    assert mounts_of(pid_of(pod, "a")) == mounts_of(pid_of(pod, "b"))
    assert [line.split()[0] for line in said(pod)] == ["1"] * 3
    assert said(pod)[-1].split()[1] == namespace_of(pid_of(pod, "a"), "pid")
    assert pod.enter("a", "sh", "-c", "echo > /proc/sysrq-trigger").returncode != 0
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_while_pid_1_of_the_pod_is_stopped(make_pod: MakePod) -> None:
    """Nobody else knows the namespace: the app cannot be entered."""
    pod = make_pod({"a": own(FOREVER)})
    pod.start()
    pod.wait_ready()
    os.kill(pod.pid, signal.SIGSTOP)
    try:
        wait_for(lambda: status_of(pod.pid)["State"].startswith("T"), "the stop")
        result = pod.enter("a", "true")
    finally:
        os.kill(pod.pid, signal.SIGCONT)
    assert result.returncode == 254
    assert "nobody else knows its PID namespace" in result.stderr
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_while_its_process_prepares_itself(make_pod: MakePod) -> None:
    """The root of an app that was added has the /proc of the pod: nobody is led there until the app has its own."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("a", own(FOREVER)).returncode == 0
    group = "system.slice/a.service/freezer.state"
    [freezer] = [path for top in sandbox.pod.control_groups() if (path := top / group).exists()]
    freezer.write_text("FROZEN")
    with ThreadPoolExecutor(1) as pool:
        starting = pool.submit(sandbox.start, "a")
        try:
            wait_for(lambda: freezer.with_name("tasks").read_text(), "the process to be frozen")
            with sandbox.pod.connect() as client:
                client.send(json.dumps({"op": "enter", "app": "a"}).encode())
                _, descriptors, _, _ = socket.recv_fds(client, 1 << 16, 8)
        finally:
            freezer.write_text("THAWED")
    for fd in descriptors:
        os.close(fd)
    # Its PID namespace would be the third, and without that nothing is entered.
    assert len(descriptors) == 2
    assert starting.result().returncode == 0
    sandbox.pod.wait_file("a", "begun")
    assert sandbox.pod.enter("a", "readlink", "/proc/1/exe").returncode == 0
    assert sandbox.end().returncode == 0


def test_a_link_for_proc(make_pod: MakePod) -> None:
    """It could lead elsewhere at the next start, and leave the /proc of the pod where it led before."""
    sandbox = Sandbox(make_pod)
    sandbox.lay_out("a", own(FOREVER))
    root = sandbox.pod.file("a", "/")
    (root / "proc").rmdir()
    (root / "proc").symlink_to("elsewhere")
    (root / "elsewhere").mkdir()
    assert sandbox.call("app/add", f"--uuid={sandbox.pod.uuid}", "--app=a").returncode == 0
    result = sandbox.start("a")
    assert result.returncode != 0
    assert "mount /proc: too many levels of symbolic links" in result.stdout
    assert sandbox.end().returncode == 0


def test_handlers_and_hooks_are_in_the_namespace(make_pod: MakePod) -> None:
    """At each start, and what PID 1 forks for others is not."""
    look = {"exec": ["/bin/sh", "-c", "readlink /proc/self/ns/pid >> /said"]}
    hooks = {"name": "minit/hooks", "value": json.dumps({"post-start": look, "pre-stop": look})}
    sandbox = Sandbox(make_pod)
    handler = handlers(pre_start=look["exec"])
    assert sandbox.add("a", own("touch /begun; exec sleep 1000", hooks, eventHandlers=handler)).returncode == 0
    assert sandbox.add("b", shell("touch /begun; exec sleep 1000")).returncode == 0
    for _ in range(2):
        assert sandbox.start("a").returncode == 0
        wait_for(lambda: len(said(sandbox.pod)) % 3 == 2, "the hook at the start")
        inner = namespace_of(pid_of(sandbox.pod, "a"), "pid")
        assert sandbox.start("b").returncode == 0
        assert namespace_of(pid_of(sandbox.pod, "b"), "pid") == namespace_of(sandbox.pod.pid, "pid")
        assert sandbox.call("app/stop", "--app=a", "--timeout=5s").returncode == 0
        assert said(sandbox.pod)[-3:] == [inner] * 3
        assert sandbox.call("app/stop", "--app=b", "--timeout=0s").returncode == 0
    assert sandbox.end().returncode == 0


def test_a_hook_of_a_pod_that_starts_with_its_apps(make_pod: MakePod) -> None:
    """Also of another user, whose processes PID 1 may not look into."""
    hook = {"exec": ["/bin/sh", "-c", "readlink /proc/self/ns/pid > /tmp/hook"]}
    annotations = [*OWN, {"name": "minit/hooks", "value": json.dumps({"post-start": hook})}]
    pod = make_pod({"a": shell("exec sleep 1000", annotations=annotations, user="1000", group="1000")})
    pod.start()
    pod.wait_ready()
    assert pod.file("a", "tmp/hook").read_text().strip() == namespace_of(pid_of(pod, "a"), "pid")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_an_app_in_the_namespace_of_another(make_pod: MakePod) -> None:
    """It sees that one's processes only, with a protected /proc, is entered there, and ends with it."""
    joins = [{"name": "minit/pid-namespace", "value": "app:a"}]
    debugger = shell("trap 'exit 3' TERM; touch /begun; while :; do sleep 0.05; done", annotations=joins)
    sandbox = Sandbox(make_pod)
    for name, section in (("a", own(FOREVER)), ("b", debugger), ("c", shell(FOREVER))):
        assert sandbox.add(name, section).returncode == 0
    result = sandbox.start("b")
    assert result.returncode != 0
    assert 'app "a", whose PID namespace it joins, does not run' in result.stdout
    for name in ("a", "c", "b"):
        assert sandbox.start(name).returncode == 0, name
        sandbox.pod.wait_file(name, "begun")
    pids = {name: pid_of(sandbox.pod, name) for name in "abc"}
    assert namespace_of(pids["b"], "pid") == namespace_of(pids["a"], "pid") != namespace_of(sandbox.pod.pid, "pid")
    assert mounts_of(pids["b"]) == mounts_of(pids["c"])
    script = "tr '\\0' ' ' < /proc/1/cmdline; echo; ls /proc/1/root/begun; echo > /proc/sysrq-trigger"
    result = sandbox.pod.enter("b", "sh", "-c", script)
    assert ("touch /begun" in result.stdout, "/proc/1/root/begun" in result.stdout) == (True, True)
    assert result.returncode == 1
    # A signal ends it as any app that is not PID 1, and its end is not that of the other one.
    assert sandbox.stop("b").returncode == 0
    assert sandbox.pod.status("b") == 3
    assert sandbox.start("b").returncode == 0
    assert sandbox.call("app/stop", "--app=a", "--timeout=0s").returncode == 0
    assert sandbox.pod.wait_status("b") == 137
    sandbox.wait_state("b", "exited")
    for name in "ba":
        assert sandbox.remove(name).returncode == 0
        assert sandbox.traces(name) == []
    assert sandbox.end().returncode == 0


def test_an_app_that_joins_one_without_its_own_namespace(make_pod: MakePod) -> None:
    """It is in the pod's, where the other one is."""
    sandbox = Sandbox(make_pod)
    assert sandbox.add("a", shell(FOREVER)).returncode == 0
    joins = [{"name": "minit/pid-namespace", "value": "app:a"}]
    assert sandbox.add("b", shell(FOREVER, annotations=joins)).returncode == 0
    for name in "ab":
        assert sandbox.start(name).returncode == 0
        sandbox.pod.wait_file(name, "begun")
    assert namespace_of(pid_of(sandbox.pod, "b"), "pid") == namespace_of(sandbox.pod.pid, "pid")
    assert "sleep" in sandbox.pod.enter("b", "ps").stdout
    assert sandbox.end().returncode == 0


@pytest.mark.parametrize("stream", ["interactive", "tty"])
def test_a_terminal(make_pod: MakePod, stream: str) -> None:
    """It is the controlling one of the namespace's session, for jobs too."""
    streams = [{"name": f"coreos.com/rkt/stage2/{name}", "value": stream} for name in ("stdin", "stdout", "stderr")]
    pod = make_pod(
        {"a": shell("tty > /said; sh -ic 'sleep 0.1 & wait; echo job >> /said'", annotations=[*OWN, *streams])}
    )
    assert pod.run(stdin=subprocess.DEVNULL).returncode == 0
    assert said(pod) == ["/dev/pts/0", "job"]
