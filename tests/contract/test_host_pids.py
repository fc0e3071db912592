"""Pods without a PID namespace of their own: their apps see the processes of the host."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import namespace_of, status_of
from tests.support.refusals import assert_refused
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

HOST = {"minit/pid-namespace": "host"}
FOREVER = "touch /begun; while :; do sleep 0.05; done"


def of_host(make_pod: MakePod, script: str = FOREVER, **section: Any) -> PodDirectory:
    """Return a pod of one app, with the processes of the host."""
    return make_pod({"a": shell(script, **section)}, annotations=HOST)


def entry_of(pod: PodDirectory) -> dict[str, Any]:
    """Return what PID 1 says of the only app."""
    [entry] = pod.ask({"op": "state"})["apps"]
    assert isinstance(entry, dict)
    return entry


def test_the_processes_of_the_host_are_seen(make_pod: MakePod) -> None:
    """The app has the number that it has on the host, is entered there, and stopped as any other."""
    pod = of_host(make_pod, f"exec > /said; echo $$; ls -d /proc/{os.getpid()}; {FOREVER}")
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    app = entry_of(pod)["pid"]
    assert pod.file("a", "said").read_text().split() == [str(app), f"/proc/{os.getpid()}"]
    assert namespace_of(app, "pid") == namespace_of(pod.pid, "pid") == namespace_of(os.getpid(), "pid")
    for kind in ("mnt", "uts", "ipc"):
        assert namespace_of(app, kind) != namespace_of(os.getpid(), kind)
    result = pod.enter("a", "sh", "-c", "cat /proc/1/comm; echo > /proc/sysrq-trigger")
    assert (result.stdout, result.returncode) == (Path("/proc/1/comm").read_text(), 1)
    pod.stop()
    assert pod.finish(process).returncode == 0
    assert pod.members() == []


def test_orphans_are_the_pods(make_pod: MakePod) -> None:
    """They go to PID 1 and not to the host's, and are stopped with their app; its exit code is exact."""
    pod = of_host(make_pod, "(setsid sleep 7777 & echo $! > /orphan); touch /begun; read line < /fifo; exit 9")
    os.mkfifo(pod.file("a", "fifo"))
    process = pod.start()
    pod.wait_file("a", "begun")
    orphan = int(pod.file("a", "orphan").read_text())
    wait_for(lambda: status_of(orphan)["PPid"] == str(pod.pid), "PID 1 to have the orphan")
    pod.file("a", "fifo").write_text("go\n")
    assert pod.finish(process).returncode == 9
    assert not Path(f"/proc/{orphan}").exists()


@pytest.mark.parametrize("both", [False, True], ids=["supervisor", "and-launcher"])
def test_a_supervisor_that_is_killed(make_pod: MakePod, both: bool) -> None:
    """Nothing of the pod is left when the launcher has ended, or if that is killed too, when gc has."""
    pod = of_host(make_pod, f"(setsid sh -c 'trap \"\" TERM HUP; while :; do sleep 0.01; done' &); {FOREVER}")
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    members = pod.members()
    assert len(members) > 2
    if both:
        process.send_signal(signal.SIGSTOP)
    os.kill(pod.pid, signal.SIGKILL)
    if both:
        process.kill()
        process.wait()
        wait_for(lambda: not Path(f"/proc/{pod.pid}").exists(), "the end of PID 1")
        assert pod.members()
        assert pod.gc().returncode == 0
    else:
        assert pod.finish(process).returncode != 0
    assert pod.members() == []
    assert not any(Path(f"/proc/{pid}").exists() and not is_dead(pid) for pid in members)


def is_dead(pid: int) -> bool:
    """Tell whether only its parent does not know yet that a process has ended."""
    try:
        return status_of(pid)["State"].startswith("Z")
    except (OSError, LookupError):
        return True


def test_a_launcher_that_is_killed(make_pod: MakePod) -> None:
    """PID 1 ends the pod, as in one with a namespace."""
    pod = of_host(make_pod)
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    process.kill()
    process.communicate()
    wait_for(lambda: not pod.members(), "the end of the pod")
    assert pod.status("a") in (0, 137, 143)


def test_no_process_of_the_pod_asks_pid_1(make_pod: MakePod) -> None:
    """Not even root of an app that has found the way to the control socket."""
    pod = of_host(make_pod)
    pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    places = [top / "system.slice/a.service/cgroup.procs" for top in pod.control_groups()]
    code = (
        "import os, socket, sys\n"
        "for place in sys.argv[1:]: open(place, 'w').write(str(os.getpid()))\n"
        "client = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "client.connect('rkt/minit/control')\n"
        'client.send(b\'{"op": "ping"}\')\n'
        "print(client.recv(4096))\n"
    )
    said = []
    for joined in ([], [str(place) for place in places if place.exists()]):
        words = [sys.executable, "-c", code, *joined]
        said.append(subprocess.run(words, cwd=pod.stage1, capture_output=True, text=True).stdout)
    assert "true" in said[0]
    assert "true" not in said[1]
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_an_app_that_is_added(make_pod: MakePod) -> None:
    """It is one of the pod's, and gone when it is removed."""
    sandbox = Sandbox(make_pod, annotations=HOST)
    assert sandbox.add("a", shell(FOREVER)).returncode == 0
    assert sandbox.start("a").returncode == 0
    sandbox.pod.wait_file("a", "begun")
    assert namespace_of(entry_of(sandbox.pod)["pid"], "pid") == namespace_of(os.getpid(), "pid")
    assert sandbox.remove("a").returncode == 0
    assert sandbox.traces("a") == []
    assert sandbox.end().returncode == 0
    assert sandbox.pod.members() == []


def test_a_stop_by_force(make_pod: MakePod) -> None:
    """It ends a PID 1 that is stopped, and with it all of the pod."""
    pod = of_host(make_pod)
    process = pod.start()
    pod.wait_ready()
    pod.wait_file("a", "begun")
    os.kill(pod.pid, signal.SIGSTOP)
    assert pod.stop("--force").returncode == 0
    pod.finish(process)
    assert pod.members() == []


def test_what_cannot_be(make_pod: MakePod) -> None:
    """Only the pod can ask for it, and then no app for another one."""
    own = [{"name": "minit/pid-namespace", "value": "app"}]
    pod = make_pod({"a": shell("true", annotations=own)}, annotations=HOST)
    assert_refused(pod, pod.run(), 'annotation minit/pid-namespace: host: app "a" asks for another one')
    pod = make_pod({"a": shell("true", annotations=[{"name": "minit/pid-namespace", "value": "host"}])})
    assert_refused(pod, pod.run(), "host is for all apps of a pod, by an annotation of that")
