"""`minit app update`: limits of an app that change while its pod runs."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_isolators import limit, limits_of
from tests.contract.test_stats import ENVIRONMENT, minit
from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.waiting import wait_for

GROUP = "system.slice/web.service"
IDLE = "touch /tmp/begun; exec sleep 1000"
GREEDY = f"head -c 48000000 /dev/zero >/dev/shm/file; {IDLE}"
MEBIBYTE = 1 << 20


def start(make_pod: MakePod, script: str = IDLE) -> PodDirectory:
    """Start a pod with an app that has limits of 64 MiB and half a processor."""
    pod = make_pod({"web": shell(script, isolators=[limit("memory", "64Mi"), limit("cpu", "500m")])})
    pod.start(stdout=subprocess.DEVNULL)
    pod.wait_file("web", "/tmp/begun")
    return pod


def limits(pod: PodDirectory) -> tuple[int, str, str]:
    """Return the limits of memory and processor time, and the weight."""
    found = limits_of(pod, GROUP)
    quota = found.get("cpu.max") or f"{found['cpu.cfs_quota_us']} {found['cpu.cfs_period_us']}"
    return int(found.get("memory.limit_in_bytes") or found["memory.max"]), quota, found.get("cpu.shares") or "1024"


def test_other_limits(make_pod: MakePod) -> None:
    """Those that are given are changed, to more or less; others stay."""
    pod = start(make_pod)
    assert limits(pod) == (64 * MEBIBYTE, "50000 100000", "1024")
    minit(pod.data, "app", "update", "--app=web", "--memory=128Mi", pod.uuid)
    assert limits(pod) == (128 * MEBIBYTE, "50000 100000", "1024")
    minit(pod.data, "app", "update", "--app=web", "--cpu=1.25", "--memory=32Mi", pod.uuid)
    assert limits(pod) == (32 * MEBIBYTE, "125000 100000", "1024")
    quota = '--limits={"cpuQuota": 7000, "cpuPeriod": 10000, "cpus": "0"}'
    minit(pod.data, "app", "update", "--app=web", quota, "--cpu-shares=512", pod.uuid)
    assert limits(pod)[:2] == (32 * MEBIBYTE, "7000 10000")
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


def test_changes_at_once(make_pod: MakePod) -> None:
    """One waits for whatever else changes the pod's apps."""
    pod = start(make_pod)
    command = [
        sys.executable,
        "-m",
        "minit",
        f"--dir={pod.data}",
        "app",
        "update",
        "--app=web",
        "--memory=32Mi",
        pod.uuid,
    ]
    lock = os.open(pod.path / "pod.lck", os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with subprocess.Popen(command, env=ENVIRONMENT) as process:
        waiting = re.compile(rf"-> FLOCK .* {process.pid} ")
        wait_for(lambda: waiting.search(Path("/proc/locks").read_text()), "the update to wait")
        assert limits(pod)[0] == 64 * MEBIBYTE
        os.close(lock)
        assert process.wait() == 0
    assert limits(pod)[0] == 32 * MEBIBYTE
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()


@pytest.mark.parametrize(
    ("script", "words", "reason"),
    [
        (IDLE, ["--memory=16Mi", "--cpu=2", '--limits={"cpus": "9999"}'], "cpuset.cpus"),
        (GREEDY, ["--memory=16Mi", "--cpu=2", '--limits={"swap": 0}'], "memory"),
        (IDLE, ["--cpu=2", '--limits={"unified": {"memory.nonsense": "1"}}'], "memory"),
    ],
)
def test_all_or_nothing(make_pod: MakePod, script: str, words: list[str], reason: str) -> None:
    """If one cannot be set, be it that the app has more already, all are as before, and the app goes on."""
    pod = start(make_pod, script)
    before = limits(pod)
    failed = minit(pod.data, "app", "update", "--app=web", *words, pod.uuid, code=254)
    assert 'error updating app: app "web": ' in failed.stderr and reason in failed.stderr
    assert limits(pod) == before
    assert "running" in minit(pod.data, "app", "list", pod.uuid).stdout
    assert pod.stop("--force").returncode == 0
    pod.wait_exited()
    assert "isn't currently running" in minit(pod.data, "app", "update", "--app=web", *words, pod.uuid, code=254).stderr


@pytest.mark.parametrize(
    "words", [[], ["--memory=1"], ["--cpu=0"], ["--cpu-shares=1"], ["--limits={"], ['--limits={"swap": 0}']]
)
def test_what_is_no_limit(tmp_path: Path, words: list[str]) -> None:
    """It is refused before a pod is looked for."""
    assert "minit app update" in minit(tmp_path, "app", "update", "--app=web", *words, "2d381b2a", code=254).stderr
