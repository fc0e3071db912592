"""A kubelet without an API server: the pods of its directory of manifests."""

from __future__ import annotations

import json
import os
import re

import pytest

from tests.support.kubenode import PAUSE_SECONDS, KubeNode
from tests.support.kubepods import condition, container, containers_of, pod, probe
from tests.support.staticpods import found, log_files, logged, placed, restarts
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.timeout(300)]

FOREVER = "exec busybox sleep 100000"


def test_pod_with_most_that_a_pod_may_have(lone_node: KubeNode) -> None:
    """Containers come after those that prepare, share a volume, are ready by probes, and have users and limits."""
    httpd = {"httpGet": {"path": "/page", "port": 8080}, "periodSeconds": 1}
    hook = {"exec": {"command": ["/bin/sh", "-c", "echo hooked > /shared/hook"]}}
    shared = [{"name": "shared", "mountPath": "/shared"}]
    limits = {"limits": {"memory": "64Mi", "cpu": "500m"}}
    wanted = pod(
        "most",
        container("busybox httpd -f -p 8080 -h /shared", volumeMounts=shared, readinessProbe=httpd, resources=limits),
        container(
            f"echo $NAME; echo to-stderr >&2; {FOREVER}",
            "second",
            volumeMounts=shared,
            env=[{"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
            securityContext={"runAsUser": 1000, "runAsGroup": 2000},
            lifecycle={"postStart": hook},
        ),
        initContainers=[container("echo first > /shared/page", "init", volumeMounts=shared)],
        volumes=[{"name": "shared", "emptyDir": {"medium": "Memory"}}],
    )
    with placed(lone_node, wanted) as name:
        status = found(lone_node, name, lambda pod: condition(pod, "Ready"), "a ready pod")
        address = status["status"]["podIP"]
        assert lone_node.run("busybox", "wget", "-qO-", f"http://{address}:8080/page") == "first\n"
        assert lone_node.log_of(name, "second") == f"{name}\nto-stderr\n"
        assert lone_node.execute(name, "/bin/busybox", "cat", "/shared/hook", container="second") == "hooked\n"
        assert lone_node.execute(name, "/bin/busybox", "id", "-u", container="second") == "1000\n"
        tops = (top / "kubepods/burstable" for top in lone_node.group.directories)
        limits_bytes = {int(path.read_text()) for top in tops for path in top.glob("pod*/**/memory.limit_in_bytes")}
        assert 64 << 20 in limits_bytes


def test_numbers_of_a_pod(lone_node: KubeNode) -> None:
    """The summary from which the kubelet evicts has what a container takes of the memory and of the disk."""
    with placed(lone_node, pod("small", container(f"> /written; {FOREVER}"))) as name:

        def has_numbers() -> bool:
            status, body = lone_node.ask("/stats/summary")
            pods = json.loads(body)["pods"] if status == 200 else []
            rows = [row for one in pods if one["podRef"]["name"] == name for row in one.get("containers", [])]
            return any(row["rootfs"].get("usedBytes") and row["memory"].get("workingSetBytes") for row in rows)

        wait_for(has_numbers, "the numbers of a pod", pause_seconds=PAUSE_SECONDS)


def test_container_whose_probe_fails(lone_node: KubeNode) -> None:
    """It is killed and started again, and the log of the one before is kept."""
    script = f"echo born; busybox touch /alive; busybox sleep 2; busybox rm /alive; {FOREVER}"
    with placed(lone_node, pod("probed", container(script, livenessProbe=probe("test -e /alive")))) as name:
        status = found(lone_node, name, lambda pod: restarts(pod) >= 1, "a restart")
        assert containers_of(status)["main"]["lastState"]["terminated"]["exitCode"] == 137
        assert lone_node.log_of(name, previous=True) == "born\n"


def test_container_that_ends(lone_node: KubeNode) -> None:
    """Its status is the pod's, with what it left as the reason of its end."""
    wanted = pod("ends", container("echo why > /dev/termination-log; exit 3"), restartPolicy="Never")
    with placed(lone_node, wanted) as name:
        status = found(lone_node, name, lambda pod: pod["status"]["phase"] == "Failed", "the end of the container")
        end = containers_of(status)["main"]["state"]["terminated"]
        assert (end["exitCode"], end["reason"], end["message"]) == (3, "Error", "why\n")


def test_log_that_is_rotated(lone_node: KubeNode) -> None:
    """No line is lost or doubled between the renamed file and the new one."""
    script = (
        "i=0; while [ ! -e /enough ]; do echo line $i; i=$((i+1)); busybox usleep 5000; done; echo over; " + FOREVER
    )
    with placed(lone_node, pod("writer", container(script))) as name:
        wait_for(lambda: len(log_files(lone_node, "writer")) > 1, "a rotated log")
        lone_node.execute(name, "/bin/busybox", "touch", "/enough")
        wait_for(lambda: "over" in lone_node.log_of(name), "the last line", pause_seconds=PAUSE_SECONDS)
        files = log_files(lone_node, "writer")
        lines = [line for path in files for line in logged(path)]
    numbers = [int(number) for number in re.findall(r"line (\d+)", "\n".join(lines))]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert numbers[0] == 0 or len(files) >= 3


def test_daemon_and_kubelet_killed(lone_node: KubeNode) -> None:
    """The pods go on, and are found again by those that come after."""
    with placed(lone_node, pod("stays", container(f"echo up; {FOREVER}"))) as name:
        before = found(lone_node, name, lambda pod: condition(pod, "Ready"), "a ready pod")
        lone_node.kill()
        lone_node.start_daemon()
        lone_node.start_kubelet()
        after = found(lone_node, name, lambda pod: condition(pod, "Ready"), "the pod after all")
        assert containers_of(after)["main"]["containerID"] == containers_of(before)["main"]["containerID"]
        assert restarts(after) == 0
        assert lone_node.log_of(name) == "up\n"
