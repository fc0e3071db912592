"""The names by which pods on the same networks find each other."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.podfiles.usersdirectory import pod_names
from tests.support.hostnet import leftovers
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for

IDLE = "exec busybox sleep 1000"
NAMED = {"minit/pod-names": "true"}


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Pods of any test leave nothing in the host's network, nor a name, once they are collected."""
    yield
    assert leftovers() == []
    assert not os.path.exists(pod_names()) or os.listdir(pod_names()) == [".lock"]


def others(pod: PodDirectory, app: str = "a") -> list[str]:
    """Return the lines about pods in the hosts file that an app has."""
    return about_pods(pod.enter(app, "/bin/busybox", "cat", "/etc/hosts").stdout)


def about_pods(text: str) -> list[str]:
    """Return the lines of a hosts file that are neither comments nor in every such file."""
    lines = [line for line in text.splitlines() if line and not line.startswith(("#", "127.", "::1"))]
    return [line for line in lines if "ip6-" not in line]


def collect(*pods: PodDirectory) -> None:
    """Remove what pods have left on the host."""
    for pod in pods:
        assert pod.call("gc", pod.uuid).returncode == 0


def address(pod: PodDirectory) -> str:
    """Return a pod's address in its only network."""
    [network] = json.loads((pod.path / "net-info.json").read_text())
    return str(network["ip"])


@pytest.mark.private_users
def test_pods_that_come_and_go(make_pod: MakePod, own_rootfs: Path) -> None:
    """
    A pod that runs has those of its networks in /etc/hosts, over the file of its image, by pod, host and app names, and
    loses them when they end, before gc; those of other networks are not there, and nobody can write to it.
    """
    (own_rootfs / "etc/hosts").write_text("192.0.2.1 of-the-image\n")
    first = make_pod({"a": shell(IDLE)}, own_rootfs, annotations=NAMED)
    (first.path / "minit-name").write_text("front\n")
    running = first.start("--hostname=one", net="default")
    first.wait_ready()
    second = make_pod({"db": shell(f"cat /etc/hosts; {IDLE}"), "log": shell(IDLE)}, annotations=NAMED)
    lasting = second.start("--hostname=two", net="default")
    second.wait_ready()
    expected = [f"{address(first)}\tfront a", f"{address(second)}\ttwo db log"]
    assert others(first) == expected
    assert others(second, "db") == [f"{address(first)}\tfront one a", f"{address(second)}\tdb log"]
    refused = first.enter("a", "/bin/sh", "-c", "echo >> /etc/hosts")
    assert "can't create /etc/hosts" in refused.stderr
    apart = make_pod({"b": shell("cat /etc/hosts")}, annotations=NAMED)
    said = apart.run("--hostname=three", net="default-restricted").stdout
    assert [line.split("\t")[1] for line in said.splitlines() if "\t" in line] == ["b"]
    assert others(first) == expected
    lasting.terminate()
    second.finish(lasting)
    assert others(first) == expected[:1]
    running.terminate()
    first.finish(running)
    collect(first, second, apart)


def test_a_pod_that_was_killed(make_pod: MakePod) -> None:
    """Its name goes when the next pod comes."""
    first, killed, last = (make_pod({name: shell(IDLE)}, annotations=NAMED) for name in ("a", "killed", "last"))
    processes = [pod.start(net="default") for pod in (first, killed)]
    first.wait_ready()
    killed.wait_ready()
    assert len(others(first)) == 2
    os.kill(processes[1].pid, signal.SIGKILL)
    os.kill(killed.pid, signal.SIGKILL)
    killed.finish(processes[1])
    wait_for(lambda: not killed.is_running(), "the end of the pod")
    assert len(others(first)) == 2
    processes[1] = last.start(net="default")
    last.wait_ready()
    assert [line.split()[-1] for line in others(first)] == ["a", "last"]
    for pod, process in ((first, processes[0]), (last, processes[1])):
        process.terminate()
        pod.finish(process)
    collect(first, killed, last)


def test_files_that_are_asked_for(make_pod: MakePod, tmp_path: Path) -> None:
    """A volume there stays, stage0's file has the names added, the host's file stays, and so does all without names."""
    (tmp_path / "hosts").write_text("192.0.2.9 volume\n")
    volumes = [{"name": "v", "kind": "host", "source": str(tmp_path / "hosts")}]
    mounted = shell("cat /etc/hosts", mounts=[{"volume": "v", "path": "/etc/hosts"}])
    pods = []
    of_host = [line.split()[-1] for line in about_pods(Path("/etc/hosts").read_text())]
    for named, section, mode, expected in (
        (NAMED, mounted, "default", ["volume"]),
        (NAMED, shell("cat /etc/hosts"), "stage0", ["db", "a"]),
        (NAMED, shell("cat /etc/hosts"), "host", of_host),
        ({}, shell("cat /etc/hosts"), "default", []),
    ):
        pod = make_pod({"a": section}, annotations=named, volumes=volumes if section is mounted else [])
        (pod.stage1 / "etc/rkt-hosts").write_text("127.0.0.1 localhost\n192.0.2.7 db\n")
        result = pod.run(f"--dns-conf-mode=resolv=default,hosts={mode}", net="default")
        text = "".join(f"{line.partition(']: ')[2]}\n" for line in result.stdout.splitlines())
        assert [line.split()[-1] for line in about_pods(text)] == expected, result
        pods.append(pod)
    collect(*pods)
