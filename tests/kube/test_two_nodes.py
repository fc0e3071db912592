"""A cluster of two nodes, of which one is lost."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.support.kubecluster import KubeCluster
from tests.support.kubenode import KubeNode
from tests.support.kubepods import condition, container, pod

pytestmark = [pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"), pytest.mark.timeout(300)]


def test_lost_node(cluster: KubeCluster, nodes: list[KubeNode]) -> None:
    """Pods are spread over the nodes, and those of one that is killed come up on the other."""
    template = pod("spread", container("exec busybox sleep 100000"))
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "spread"},
        "spec": {
            "replicas": 4,
            "selector": {"matchLabels": {"app": "spread"}},
            "template": {"metadata": {"labels": {"app": "spread"}}, "spec": template["spec"]},
        },
    }
    cluster.apply(deployment)
    cluster.kubectl("rollout", "status", "deployment/spread", "--timeout=90s")
    assert nodes_of(cluster.pods("spread")) == {node.name for node in nodes}
    lost, other = nodes
    lost.remove()

    def moved() -> bool:
        pods = [one for one in cluster.pods("spread") if condition(one, "Ready")]
        return len(pods) == 4 and nodes_of(pods) == {other.name}

    cluster.wait("the pods on the other node", moved)


def nodes_of(pods: list[dict[str, Any]]) -> set[str]:
    """Return the names of the nodes that pods are on."""
    return {one["spec"]["nodeName"] for one in pods}
