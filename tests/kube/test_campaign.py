"""Ten static pods for some minutes, an hour with MINIT_TEST_LONG=1: they stay as they are to be, and nothing grows."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.campaign import LONG, campaign
from tests.support.kubefootprint import Footprint, footprint, least
from tests.support.kubenode import LOG_FILES, PAUSE_SECONDS, KubeNode
from tests.support.kubepods import condition, container, pod, probe
from tests.support.stage0_world import write_app
from tests.support.staticpods import found, log_files, logged, placed, restarts
from tests.support.waiting import wait_for

SECONDS = campaign(360)
STAY_SECONDS = 5.0
# Half a minute is usual; a busy machine takes longer than other tests wait.
PATIENCE_SECONDS = 240.0
# Those before all is there, and has crashed once, do not count.
SETTLING_SECONDS = 90.0
# The kubelet removes what is over once a minute.
CLEANING_SECONDS = 300.0
MOST_GROWTH = 1.1
# The daemon has one for each processor, from when it is needed, and some descriptors for each.
HANDS = len(os.sched_getaffinity(0))
HAND_DESCRIPTORS = 4
MEBIBYTE = 1 << 20
HELD_MEBIBYTES, WRITTEN_MEBIBYTES = 24, 16
USED_IMAGE, UNUSED_IMAGE = "example.com/busybox", "example.com/unused"

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.timeout(SECONDS + 900),
]

FOREVER = "exec busybox sleep 100000"
SERVE = "busybox mkdir /www; echo page > /www/index.html; exec busybox httpd -f -p 8080 -h /www"
# A machine that is busy with other things is no reason for a restart.
PATIENT = {"periodSeconds": 2, "timeoutSeconds": 30, "failureThreshold": 3}
PAGE = {"httpGet": {"path": "/", "port": 8080}, **PATIENT}
PORT = {"tcpSocket": {"port": 8080}, **PATIENT}

STAY = {
    "by-exec": container(f"> /alive; {FOREVER}", livenessProbe=probe("test -e /alive", **PATIENT)),
    "by-http": container(SERVE, livenessProbe=PAGE, readinessProbe=PAGE),
    "by-port": container(SERVE, livenessProbe=PORT, readinessProbe=PORT),
    # A liveness probe before the end of the startup probe would be a restart.
    "late": container(
        f"busybox sleep 8; > /up; {FOREVER}",
        startupProbe=probe("test -e /up", failureThreshold=120, timeoutSeconds=30),
        livenessProbe=probe("test -e /up", **{**PATIENT, "failureThreshold": 1}),
    ),
    "holds": container(
        f"busybox dd if=/dev/zero of=/dev/shm/held bs=1M count={HELD_MEBIBYTES} 2>/dev/null; "
        f"busybox dd if=/dev/zero of=/written bs=1M count={WRITTEN_MEBIBYTES} 2>/dev/null; {FOREVER}"
    ),
    "writes": container("i=0; while :; do echo line $i; i=$((i+1)); busybox usleep 20000; done"),
    "limited": container(FOREVER, resources={"limits": {"memory": "64Mi", "cpu": "200m"}}),
}
COME_AND_GO = {
    "crashes": container("busybox sleep 3; exit 7"),
    "dies": container(
        f"> /alive; busybox sleep 4; busybox rm /alive; {FOREVER}", livenessProbe=probe("test -e /alive")
    ),
}
BLINKS = container(
    "while :; do > /ready; busybox sleep 6; busybox rm /ready; busybox sleep 6; done",
    readinessProbe=probe("test -e /ready"),
)


@pytest.fixture(scope="module")
def campaign_node(bridge: None, node_directory: Path, stage1_image: Path) -> Iterator[KubeNode]:
    """A node without an API server, which removes images that nobody uses whenever it looks for them."""
    images = {"imageGCHighThresholdPercent": 1, "imageGCLowThresholdPercent": 0}
    node = KubeNode(1, node_directory / "node", stage1_image, settings=images)
    unused = node_directory / "unused.aci"
    write_app(unused, name=UNUSED_IMAGE, files={"bin/unused": os.urandom(MEBIBYTE)})
    try:
        node.start_daemon()
        node.start_kubelet()
        # Its first look removes what is there, however new; what it sees later it removes five minutes after that.
        log = node.logs / "kubelet"
        wait_for(lambda: "Image garbage collection" in log.read_text(), "the first look for images", PATIENCE_SECONDS)
        for image in (node.minit.image(), unused):
            assert node.minit.call("fetch", image).returncode == 0
        yield node
    finally:
        node.remove()


def test_ten_pods(campaign_node: KubeNode) -> None:
    """Probes and restarts are as the pods want them, logs are rotated, numbers are right, and nothing leaks."""
    node = campaign_node
    _visit(node, 0)
    wait_for(lambda: footprint(node).pods == 0, "the end of the first pod", CLEANING_SECONDS, pause_seconds=1)
    before = footprint(node)
    most = replace(
        before, processes=before.processes + HANDS, descriptors=before.descriptors + HAND_DESCRIPTORS * HANDS
    )
    with ExitStack() as stack:
        for name, one in {**STAY, **COME_AND_GO, "blinks": BLINKS}.items():
            stack.enter_context(placed(node, pod(name, one)))
        wait_for(lambda: _are_ready(node.pods()), "ready pods", PATIENCE_SECONDS, PAUSE_SECONDS)
        footprints = _watch(node)
        found(node, f"blinks-{node.name}", lambda one: condition(one, "Ready"), "a ready pod that blinks")
        found(node, f"blinks-{node.name}", lambda one: not condition(one, "Ready"), "a pod that blinks")
        for name in COME_AND_GO:
            found(node, f"{name}-{node.name}", lambda one: restarts(one) >= 2, f"restarts of {name}", PATIENCE_SECONDS)
        _check_numbers(node)
        _check_log(node)
        images = node.minit.call("image", "list").stdout
        assert USED_IMAGE in images
        if LONG:
            assert UNUSED_IMAGE not in images
    _check_growth(footprints)
    after: Footprint | None = None

    def is_clean() -> bool:
        nonlocal after
        after = footprint(node)
        return not _grown(after, most)

    try:
        wait_for(is_clean, "the end of all pods", CLEANING_SECONDS, pause_seconds=1)
    except AssertionError as error:
        raise AssertionError(f"{error}\nbefore: {before}\nafter:  {after}") from None
    print(f"before: {before}\nafter:  {after}")


def _watch(node: KubeNode) -> list[Footprint]:
    """Look at the pods as long as the campaign goes on, while another one comes and goes all the time."""
    footprints = []
    begin, visits = time.monotonic(), 0
    while (elapsed := time.monotonic() - begin) < SECONDS:
        visits += 1
        _visit(node, visits)
        pods = node.pods()
        for name in STAY:
            one = pods[f"{name}-{node.name}"]
            assert condition(one, "Ready"), (elapsed, one["status"])
            assert restarts(one) == 0, (elapsed, one["status"])
        if elapsed > SETTLING_SECONDS:
            footprints.append(footprint(node))
            counts = {name: restarts(pods[f"{name}-{node.name}"]) for name in COME_AND_GO}
            print(f"{elapsed:.0f} s, {visits} visitors, restarts {counts}: {footprints[-1]}", flush=True)
    return footprints


def _visit(node: KubeNode, number: int) -> None:
    """Have a pod that ends by itself, stays for some seconds, and is removed."""
    with placed(node, pod(f"visits-{number}", container("exit 0"), restartPolicy="Never")) as name:
        found(node, name, lambda one: one["status"]["phase"] == "Succeeded", "the end of a visitor", PATIENCE_SECONDS)
        time.sleep(STAY_SECONDS)


def _are_ready(pods: dict[str, dict[str, Any]]) -> bool:
    ready = {name.rpartition("-node-")[0] for name, one in pods.items() if condition(one, "Ready")}
    return STAY.keys() <= ready


def _check_growth(footprints: list[Footprint]) -> None:
    """Compare the least of a quarter of the time with that of the last one."""
    quarter = max(1, len(footprints) // 4)
    first, last = least(footprints[:quarter]), least(footprints[-quarter:])
    print(f"first quarter: {first}\nlast quarter:  {last}")
    assert not (grown := _grown(last, first)), f"{grown}\n{first}\n{last}"
    # What came and went leaves a heap in pieces, which is no leak yet.
    assert last.private_kilobytes < first.private_kilobytes * MOST_GROWTH, f"{first}\n{last}"


def _grown(now: Footprint, before: Footprint) -> set[str]:
    """Return the names of the numbers that are larger than before, but for the memory: of that none is exact."""
    exact = asdict(before).items() - {("private_kilobytes", before.private_kilobytes)}
    return {name for name, count in exact if asdict(now)[name] > count}


def _check_numbers(node: KubeNode) -> None:
    """The summary from which a kubelet evicts has what the pods are known to have taken."""
    status, body = node.ask("/stats/summary")
    assert status == 200, body
    summary = json.loads(body)
    rows = {one["podRef"]["name"]: one["containers"][0] for one in summary["pods"] if one.get("containers")}
    holds = rows[f"holds-{node.name}"]
    assert HELD_MEBIBYTES <= holds["memory"]["workingSetBytes"] / MEBIBYTE < HELD_MEBIBYTES + 8
    assert WRITTEN_MEBIBYTES <= holds["rootfs"]["usedBytes"] / MEBIBYTE < WRITTEN_MEBIBYTES + 1
    assert holds["rootfs"]["inodesUsed"] > 0
    writes = rows[f"writes-{node.name}"]
    assert writes["cpu"]["usageCoreNanoSeconds"] > 0
    assert writes["cpu"]["usageNanoCores"] > 0
    assert writes["logs"]["usedBytes"] > 0
    disk = os.statvfs(node.directory)
    for numbers in (summary["node"]["fs"], summary["node"]["runtime"]["imageFs"]):
        assert numbers["capacityBytes"] == disk.f_blocks * disk.f_frsize
        assert numbers["usedBytes"] > MEBIBYTE
    assert 0 < summary["node"]["memory"]["workingSetBytes"] < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _check_log(node: KubeNode) -> None:
    """The files of the log are as many as are wanted, and have all lines of the time that they are about."""

    def read() -> list[list[str]] | None:
        # The kubelet may rename, compress or remove one of them meanwhile.
        paths = log_files(node, "writes")
        with suppress(FileNotFoundError, EOFError):
            content = [logged(path) for path in paths]
            return content if paths == log_files(node, "writes") and len(paths) == LOG_FILES else None
        return None

    files = wait_for(read, "the log", pause_seconds=PAUSE_SECONDS)
    numbers = [int(number) for lines in files for line in lines for number in re.findall(r"line (\d+)$", line)]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] > 0
