"""The common part of tests with a real kubelet: Debian's Kubernetes 1.20, which `make test-kube` builds."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kubecluster import KubeCluster
from tests.support.kubenode import PROGRAMS, KubeNode, hosts_bridge


@pytest.fixture(scope="module")
def node_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the nodes of a module."""
    if not PROGRAMS.is_dir():
        pytest.skip("no Kubernetes in build/kubernetes")
    return tmp_path_factory.mktemp("kube")


@pytest.fixture(scope="module")
def bridge(node_directory: Path) -> Iterator[None]:
    """A bridge for the nodes of a module."""
    with hosts_bridge():
        yield


@pytest.fixture(scope="module")
def lone_node(bridge: None, node_directory: Path, stage1_image: Path) -> Iterator[KubeNode]:
    """A node without an API server."""
    node = KubeNode(1, node_directory / "node", stage1_image)
    try:
        node.start_daemon()
        node.start_kubelet()
        yield node
    finally:
        node.remove()


@pytest.fixture(scope="module")
def cluster(bridge: None, node_directory: Path) -> Iterator[KubeCluster]:
    """A control plane without nodes."""
    cluster = KubeCluster(node_directory / "cluster")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="module")
def node(cluster: KubeCluster, node_directory: Path, stage1_image: Path) -> Iterator[KubeNode]:
    """The only node of the cluster."""
    with contextlib.ExitStack() as stack:
        yield added(stack, cluster, KubeNode(1, node_directory / "node-1", stage1_image, cluster.kubeconfig))


@pytest.fixture(scope="module")
def nodes(cluster: KubeCluster, node_directory: Path, stage1_image: Path) -> Iterator[list[KubeNode]]:
    """The two nodes of the cluster."""
    with contextlib.ExitStack() as stack:
        yield [
            added(stack, cluster, KubeNode(number, node_directory / f"node-{number}", stage1_image, cluster.kubeconfig))
            for number in (1, 2)
        ]


def added(stack: contextlib.ExitStack, cluster: KubeCluster, node: KubeNode) -> KubeNode:
    """Start a node that ends with the stack, and return it when the cluster has pods for it."""
    stack.callback(node.remove)

    node.start_daemon()
    node.start_kubelet()
    cluster.wait_for_node(node.name)
    return node


@pytest.fixture(autouse=True)
def nothing_left() -> None:
    """Pods come and go with the node, which is a module's and takes all with it."""
