"""A cluster of one node, with all that its users ask of it."""

from __future__ import annotations

import base64
import os
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.kubecluster import KubeCluster
from tests.support.kubenode import KubeNode
from tests.support.kubepods import IMAGE, condition, container, containers_of, pod, probe
from tests.support.terminal import Terminal

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("node"),
]

FOREVER = "exec busybox sleep 100000"


@contextmanager
def applied(cluster: KubeCluster, *objects: dict[str, Any]) -> Iterator[None]:
    """Have objects in the block."""
    cluster.apply(*objects)
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.report()}") from error
    finally:
        names = [f"{entry['kind'].lower()}/{entry['metadata']['name']}" for entry in objects]
        cluster.kubectl("delete", "--wait", *names)
        selectors = ("-l", f"app in ({', '.join(entry['metadata']['name'] for entry in objects)})")
        cluster.wait("the end of the pods", lambda: not cluster.get("pods", *selectors))


def workload(kind: str, name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return what makes pods of these containers."""
    template = pod(name, *containers, **spec.pop("pod", {}))
    selector = {} if kind == "Job" else {"selector": {"matchLabels": {"app": name}}}
    return {
        "apiVersion": "batch/v1" if kind == "Job" else "apps/v1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {**selector, "template": {"metadata": {"labels": {"app": name}}, "spec": template["spec"]}, **spec},
    }


def test_deployment_with_a_rolling_update(cluster: KubeCluster, node: KubeNode) -> None:
    """Its pods are replaced by those of a new version, and a port of the host is the new one's."""

    def version(number: int) -> dict[str, Any]:
        page = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
        served = container(
            f"busybox mkdir /www; echo version {number} > /www/index.html; exec busybox httpd -f -p 8080 -h /www",
            readinessProbe=page,
        )
        return workload("Deployment", "web", served, replicas=3)

    with applied(cluster, version(1)):
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=80s")
        old = {found["metadata"]["name"] for found in cluster.pods("web")}
        assert len(old) == 3
        cluster.apply(version(2))
        cluster.kubectl("rollout", "status", "deployment/web", "--timeout=80s")
        new = cluster.pods("web")
        assert len(new) == 3
        assert not old & {found["metadata"]["name"] for found in new}
        for found in new:
            assert node.run("busybox", "wget", "-qO-", f"http://{found['status']['podIP']}:8080/") == "version 2\n"


def test_port_of_the_host(cluster: KubeCluster, node: KubeNode) -> None:
    """A service is reached from another machine at a port of the node."""
    ports = [{"containerPort": 8080, "hostPort": 8088}]
    script = "busybox mkdir /www; echo served > /www/index.html; exec busybox httpd -f -p 8080 -h /www"
    ready = {"httpGet": {"path": "/", "port": 8080}, "periodSeconds": 1}
    with applied(cluster, pod("served", container(script, ports=ports, readinessProbe=ready))):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/served", "--timeout=80s")
        # The test is on the other side of the bridge.
        assert fetched(f"{node.address}:8088") == b"served\n"


def test_configmap_and_secret(cluster: KubeCluster) -> None:
    """They are files and variables; a file changes when the map does."""
    configuration = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "settings"},
        "data": {"color": "red"},
    }
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "key"},
        "data": {"word": base64.b64encode(b"sesame").decode()},
    }
    wanted = pod(
        "reads",
        container(
            f"echo $WORD; busybox cat /settings/color; echo; {FOREVER}",
            env=[{"name": "WORD", "valueFrom": {"secretKeyRef": {"name": "key", "key": "word"}}}],
            volumeMounts=[
                {"name": "settings", "mountPath": "/settings"},
                {"name": "key", "mountPath": "/key", "readOnly": True},
            ],
        ),
        volumes=[
            {"name": "settings", "configMap": {"name": "settings"}},
            {"name": "key", "secret": {"secretName": "key", "defaultMode": 0o400}},
        ],
    )
    with applied(cluster, configuration, secret, wanted):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/reads", "--timeout=80s")
        cluster.wait("the log", lambda: cluster.kubectl("logs", "reads") == "sesame\nred\n")
        in_pod = ("exec", "reads", "--", "/bin/busybox")
        assert cluster.kubectl(*in_pod, "cat", "/key/word") == "sesame"
        account = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
        assert cluster.kubectl(*in_pod, "cat", account) == "default"
        cluster.apply({**configuration, "data": {"color": "green"}})
        cluster.wait("the new colour", lambda: cluster.kubectl(*in_pod, "cat", "/settings/color") == "green")


def test_statefulset_with_volumes(cluster: KubeCluster, tmp_path: Path) -> None:
    """Its pods come one after the other with names and persistent volumes of their own, whose data outlive them."""
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"disk-{number}"},
            "spec": {
                "capacity": {"storage": "1Mi"},
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "disks",
                "hostPath": {"path": str(tmp_path / str(number)), "type": "DirectoryOrCreate"},
            },
        }
        for number in range(2)
    ]
    claim = {
        "metadata": {"name": "disk"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "disks",
            "resources": {"requests": {"storage": "1Mi"}},
        },
    }
    script = f"echo $HOSTNAME >> /store/names; busybox cat /store/names; {FOREVER}"
    wanted = workload(
        "StatefulSet",
        "store",
        container(script, volumeMounts=[{"name": "disk", "mountPath": "/store"}]),
        replicas=2,
        serviceName="store",
        volumeClaimTemplates=[claim],
    )
    with applied(cluster, *volumes):
        with applied(cluster, wanted):
            cluster.kubectl("rollout", "status", "statefulset/store", "--timeout=80s")
            assert cluster.kubectl("logs", "store-1") == "store-1\n"
            before = cluster.get("pod", "store-1")["metadata"]["uid"]
            cluster.kubectl("delete", "pod", "store-1")
            cluster.wait(
                "another pod",
                lambda: (
                    (now := cluster.pods("store"))
                    and all(condition(one, "Ready") for one in now)
                    and before not in {one["metadata"]["uid"] for one in now}
                    and len(now) == 2
                ),
            )
            cluster.wait("both lines", lambda: cluster.kubectl("logs", "store-1") == "store-1\nstore-1\n")
        cluster.kubectl("delete", "--wait", "pvc", "-l", "app=store")
    assert sorted(path.read_text() for path in tmp_path.glob("*/names")) == ["store-0\n", "store-1\n" * 2]


def test_job(cluster: KubeCluster, tmp_path: Path) -> None:
    """It is over when as many pods as it wants have succeeded, whatever others did."""
    script = "[ -e /store/tried ] && echo done && exit 0; > /store/tried; exit 1"
    mounts = [{"name": "store", "mountPath": "/store"}]
    volumes = [{"name": "store", "hostPath": {"path": str(tmp_path)}}]
    wanted = workload(
        "Job",
        "work",
        container(script, volumeMounts=mounts),
        completions=2,
        pod={"volumes": volumes, "restartPolicy": "OnFailure"},
    )
    with applied(cluster, wanted):
        cluster.kubectl("wait", "--for=condition=Complete", "job/work", "--timeout=90s")
        ended = cluster.get("pods", "-l", "app=work")
        assert sorted(containers_of(one)["main"]["restartCount"] for one in ended) == [0, 1]


def test_daemonset(cluster: KubeCluster) -> None:
    """It has a pod on the node, in the network of the host."""
    wanted = workload("DaemonSet", "agent", container(FOREVER), pod={"hostNetwork": True})
    with applied(cluster, wanted):
        cluster.kubectl("rollout", "status", "daemonset/agent", "--timeout=80s")
        [agent] = cluster.pods("agent")
        assert agent["status"]["podIP"] == agent["status"]["hostIP"]


def test_streams(cluster: KubeCluster, node: KubeNode) -> None:
    """The streams of kubectl: logs that go on, a command with an input and a status, an attachment and a port."""
    script = "echo up; while read line; do echo got $line; done; echo over"
    served = container(
        "busybox mkdir /www; echo page > /www/index.html; exec busybox httpd -f -p 8080 -h /www", "served"
    )
    talker = container(script, stdin=True, stdinOnce=True)
    with applied(cluster, pod("streams", talker, served, restartPolicy="Never")):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/streams", "--timeout=80s")
        with cluster.running_kubectl("logs", "-f", "streams", "-c", "main") as logs:
            assert logs.stdout is not None
            assert logs.stdout.readline() == "up\n"
            attached = cluster.kubectl("attach", "-i", "-c", "main", "streams", stdin="one\ntwo\n")
            assert logs.stdout.read() == "got one\ngot two\nover\n"
        assert attached.endswith("got one\ngot two\nover\n")
        command = ("exec", "-i", "-c", "served", "streams", "--", "/bin/sh", "-c", "busybox cat; echo err >&2; exit 7")
        result = cluster.try_kubectl(*command, stdin="through\n")
        assert (result.returncode, result.stdout) == (7, "through\n")
        assert result.stderr.startswith("err\n")
        with cluster.running_kubectl("port-forward", "pod/streams", ":8080") as forward:
            assert forward.stdout is not None
            assert fetched(forward.stdout.readline().split()[2]) == b"page\n"


def test_terminal(cluster: KubeCluster) -> None:
    """A person at a terminal has a shell in a container, which knows the size of the window and each new one."""
    with applied(cluster, pod("shell", container(FOREVER))), Terminal(rows=30, columns=100) as terminal:
        cluster.kubectl("wait", "--for=condition=Ready", "pod/shell", "--timeout=80s")
        words = cluster.words("exec", "-it", "shell", "--", "/bin/sh")
        with subprocess.Popen(words, env=cluster.environment(), **terminal.options) as process:
            try:
                terminal.type(b"PS1='at your '; PS1=${PS1}service; export TERM=dumb\n")
                terminal.expect(b"at your service")
                wait_for_size(terminal, 30, 100)
                terminal.resize(40, 120)
                os.kill(process.pid, signal.SIGWINCH)
                wait_for_size(terminal, 40, 120)
                terminal.type(b"exit 3\n")
                assert terminal.finish(process) == 3
            finally:
                process.kill()


def wait_for_size(terminal: Terminal, rows: int, columns: int) -> None:
    """Ask a shell in a terminal for the size until it is this one, as sizes go another way than what is typed."""
    terminal.type(b"until [ \"$(busybox stty size)\" = '%d %d' ]; do busybox usleep 100000; done; " % (rows, columns))
    terminal.type(b"echo is $(busybox stty size).\n")
    terminal.expect(rb"is %d %d\." % (rows, columns))


def test_files_to_and_from(cluster: KubeCluster, tmp_path: Path) -> None:
    """`kubectl cp` takes a tree into a container and out of it, as it is."""
    tree = tmp_path / "tree"
    (tree / "below").mkdir(parents=True)
    content = os.urandom(3 << 20)
    (tree / "below/random").write_bytes(content)
    script = f"busybox ln -s busybox /bin/tar; > /linked; {FOREVER}"
    ready = probe("test -e /linked", failureThreshold=60)
    with applied(cluster, pod("copies", container(script, readinessProbe=ready))):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/copies", "--timeout=80s")
        cluster.kubectl("cp", tree, "copies:/in")
        cluster.kubectl("cp", "copies:/in/below", tmp_path / "out")
    assert (tmp_path / "out/random").read_bytes() == content


def test_log_of_the_one_before(cluster: KubeCluster) -> None:
    """A container that was started again has a log of its own, and that of the one before is kept."""
    script = f"[ -e /shared/again ] && {{ echo second; {FOREVER}; }}; > /shared/again; echo first; exit 1"
    mounts = [{"name": "shared", "mountPath": "/shared"}]
    wanted = pod("again", container(script, volumeMounts=mounts), volumes=[{"name": "shared", "emptyDir": {}}])
    with applied(cluster, wanted):
        cluster.wait("the second log", lambda: cluster.try_kubectl("logs", "again").stdout == "second\n")
        assert cluster.kubectl("logs", "--previous", "again") == "first\n"


def test_ephemeral_container(cluster: KubeCluster) -> None:
    """`kubectl debug` adds a container to a pod that runs, which sees the processes of another one of it."""
    with applied(cluster, pod("watched", container("exec busybox sleep 98765"))):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/watched", "--timeout=80s")
        debugger = ("--image", IMAGE, "--image-pull-policy=Never", "--container=debugger", "--target=main")
        look = f"busybox tr '\\0' ' ' < /proc/1/cmdline; echo; {FOREVER}"
        cluster.kubectl("alpha", "debug", "watched", *debugger, "--", "/bin/sh", "-c", look)
        logs = ("logs", "watched", "-c", "debugger")
        cluster.wait("its log", lambda: cluster.try_kubectl(*logs).stdout == "busybox sleep 98765 \n")
        assert containers_of(cluster.get("pod", "watched"))["main"]["restartCount"] == 0


def test_metrics(cluster: KubeCluster, node: KubeNode) -> None:
    """What `kubectl top` is made of has what each container takes of processor and memory."""
    with applied(cluster, pod("busy", container("while :; do :; done", resources={"limits": {"cpu": "200m"}}))):
        cluster.kubectl("wait", "--for=condition=Ready", "pod/busy", "--timeout=80s")
        path = f"/api/v1/nodes/{node.name}/proxy/metrics/resource"

        def numbers() -> dict[str, float]:
            lines = [line for line in cluster.kubectl("get", "--raw", path).splitlines() if 'pod="busy"' in line]
            return {line.partition("{")[0]: float(line.split()[1]) for line in lines}

        cluster.wait("a second of processor time", lambda: numbers().get("container_cpu_usage_seconds_total", 0) > 1)
        assert 0 < numbers()["container_memory_working_set_bytes"] < 16 << 20


def test_eviction(cluster: KubeCluster) -> None:
    """A pod that writes more than it may have of the disk is evicted, by what the runtime says it has written."""
    script = f"busybox dd if=/dev/zero of=/large bs=1M count=24; {FOREVER}"
    limits = {"limits": {"ephemeral-storage": "8Mi"}}
    with applied(cluster, pod("greedy", container(script, resources=limits), restartPolicy="Never")):
        cluster.wait("its end", lambda: cluster.get("pod", "greedy")["status"]["phase"] == "Failed", 150)
        assert cluster.get("pod", "greedy")["status"]["reason"] == "Evicted"


def test_cordon_and_drain(cluster: KubeCluster, node: KubeNode) -> None:
    """A drained node loses the pods of a Deployment, which come back when it may have pods again."""
    with applied(cluster, workload("Deployment", "moves", container(FOREVER), replicas=2)):
        cluster.kubectl("rollout", "status", "deployment/moves", "--timeout=80s")
        cluster.kubectl("drain", node.name, "--ignore-daemonsets", "--force", "--timeout=80s")
        assert all(one["status"]["phase"] == "Pending" for one in cluster.pods("moves"))
        cluster.kubectl("uncordon", node.name)
        cluster.kubectl("rollout", "status", "deployment/moves", "--timeout=80s")


def test_daemon_and_kubelet_killed(cluster: KubeCluster, node: KubeNode) -> None:
    """All pods go on, and are found again."""
    with applied(cluster, workload("Deployment", "stays", container(FOREVER), replicas=5)):
        cluster.kubectl("rollout", "status", "deployment/stays", "--timeout=80s")
        before = ids(cluster.pods("stays"))
        node.kill()
        node.start_daemon()
        node.start_kubelet()
        cluster.wait_for_node(node.name)
        cluster.wait("ready pods", lambda: all(condition(one, "Ready") for one in cluster.pods("stays")))
        assert ids(cluster.pods("stays")) == before


def fetched(address: str) -> bytes:
    """Return the page at an address and a port."""
    with urllib.request.urlopen(f"http://{address}/", timeout=60) as answer:
        content = answer.read()
    assert isinstance(content, bytes)
    return content


def ids(pods: list[dict[str, Any]]) -> set[tuple[str, int]]:
    """Return the ids of the pods' containers, and how often they were started again."""
    return {(row["containerID"], row["restartCount"]) for one in pods for row in containers_of(one).values()}
