"""`gc_many`: what `gc` does, for many pods by one program."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.test_networks import LocalConfig
from tests.support.hostnet import left_by, leftovers
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import is_alive
from tests.support.waiting import wait_for


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Pods of any test leave nothing in the host's network once they are collected."""
    yield
    assert leftovers() == []


@pytest.fixture
def local(tmp_path: Path) -> LocalConfig:
    """A directory of local configuration."""
    return LocalConfig(tmp_path)


def exited(make_pod: MakePod, *flags: str, net: str = "none") -> PodDirectory:
    """Run a pod to its end and return it."""
    pod = make_pod({"a": shell("exit 0")})
    assert pod.run(*flags, net=net).returncode == 0
    wait_for(lambda: pod.members() == [], "the end of all processes")
    return pod


def collect(pods: list[PodDirectory], *flags: str, words: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Collect pods, or what the words say, as stage0 does."""
    lines = [pod.uuid for pod in pods] if words is None else words
    text = "".join(f"{line}\n" for line in lines)
    return pods[0].call("gc-many", *flags, from_tree=True, input=text, cwd=pods[0].path.parent)


@pytest.mark.delegated_groups("it looks at groups")
def test_each_pod_has_an_answer(make_pod: MakePod) -> None:
    """A line with UUID and exit code for each, in their order; what one pod says is what `gc` alone says."""
    pods = [exited(make_pod) for _ in range(4)]
    bystander = subprocess.Popen(["sleep", "60"])
    try:
        for group in pods[1].control_groups():
            (group / "system.slice/a.service/cgroup.procs").write_text(str(bystander.pid))
        alone = pods[1].gc()
        subcgroup = pods[2].path / "subcgroup"
        kept = subcgroup.rename(pods[2].path / "kept")
        subcgroup.write_text("elsewhere")
        result = collect(pods, words=[*(pod.uuid for pod in pods[:3]), "../x", pods[3].uuid])
    finally:
        bystander.kill()
        bystander.wait()
    codes = [0, 75, 254, 254, 0]
    names = [*(pod.uuid for pod in pods[:3]), "../x", pods[3].uuid]
    assert (result.returncode, result.stdout) == (0, "".join(f"{n} {code}\n" for n, code in zip(names, codes)))
    stuck, foreign, malformed = result.stderr.splitlines(keepends=True)
    assert stuck == alone.stderr
    assert foreign == f'stage1 gc: subcgroup: "elsewhere" is not a control group of pod {pods[2].uuid}\n'
    assert malformed == 'stage1 gc: UUID is missing or malformed: "../x"\n'
    assert [bool(pod.control_groups()) for pod in pods] == [False, True, True, False]
    kept.rename(subcgroup)
    assert collect(pods[1:3]).stderr == ""
    assert not any(pod.control_groups() for pod in pods)


def test_bad_arguments(make_pod: MakePod) -> None:
    """Pods are no arguments, and a wrong flag is refused as that of any entrypoint."""
    pod = make_pod({"a": shell("exit 0")})
    for words in (["--bad"], [pod.uuid]):
        result = collect([pod], *words)
        assert (result.returncode, result.stdout) == (2, "")
        assert "Usage of gc_many: [flags]\n" in result.stderr


@pytest.mark.host_root("plugins that are programs work on links of the machine")
def test_networks_of_many_pods(make_pod: MakePod, local: LocalConfig) -> None:
    """Pods with networks and without are collected one after the other; what plugins cannot undo is said of each."""
    local.plugin("lan", DEL={"print": {"code": 1, "msg": "not now"}, "exit": 1})
    pods = [exited(make_pod, local.flag, net="default,lan"), exited(make_pod), exited(make_pod, net="default")]
    result = collect(pods, "--local-config", str(local.path))
    assert result.stdout == "".join(f"{pod.uuid} 0\n" for pod in pods)
    assert result.stderr == 'networking: error deleting "lan": not now\n'
    assert not any(left_by(pod.uuid) or pod.control_groups() for pod in pods)
    assert local.calls == ["ADD lan", "DEL lan"]


@pytest.mark.host_root("plugins that are programs work on links of the machine")
def test_what_befalls_one_pod_is_no_others(make_pod: MakePod, local: LocalConfig, tmp_path: Path) -> None:
    """That a process was killed at a pod is the answer for that pod; a later gc ends what it has begun."""
    killer = local.networks / "killer"
    killer.write_text(f"#!/bin/sh\ncat > /dev/null\n[ $CNI_COMMAND = ADD ] && echo {{}} || . {tmp_path}/then\n")
    killer.chmod(0o755)
    local.write("lan.conf", {"cniVersion": "0.1.0", "name": "lan", "type": "killer"})
    pods = [exited(make_pod, local.flag, net="lan"), exited(make_pod, net="default")]
    then = tmp_path / "then"
    then.write_text("kill -KILL $PPID")
    result = collect(pods)
    assert (result.stdout, result.stderr) == (f"{pods[0].uuid} {-signal.SIGKILL}\n{pods[1].uuid} 0\n", "")
    then.write_text("true")
    assert collect(pods).stdout == "".join(f"{pod.uuid} 0\n" for pod in pods)
    assert not any(left_by(pod.uuid) for pod in pods)


@pytest.mark.host_root("plugins that are programs work on links of the machine")
def test_when_it_is_killed_nothing_goes_on(make_pod: MakePod, local: LocalConfig, tmp_path: Path) -> None:
    """The caller that learns of its death may start another one at once."""
    local.plugin("lan", DEL={"hang": True})
    pod = exited(make_pod, local.flag, net="lan")
    program = subprocess.Popen(
        [pod.entrypoint("gc-many", from_tree=True), "--local-config", local.path],
        cwd=pod.path.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program:
        assert program.stdin is not None and program.stdout is not None
        program.stdin.write(f"{pod.uuid}\n".encode())
        program.stdin.flush()
        mark = local.record / "hanging"
        hanging = int(wait_for(lambda: mark.exists() and mark.read_text(), "the plugin"))
        [worker] = Path(f"/proc/{program.pid}/task/{program.pid}/children").read_text().split()
        program.kill()
        assert program.stdout.read() == b""
    wait_for(lambda: not is_alive(int(worker)) and not is_alive(hanging), "the end of all processes")
    (pod.path / "net/lan.conf").unlink()
    assert collect([pod]).stdout == f"{pod.uuid} 0\n"
