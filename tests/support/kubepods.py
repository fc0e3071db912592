"""Pods for a kubelet, and what it tells of them."""

from __future__ import annotations

from typing import Any

IMAGE = "example.com/busybox:1.0"


def container(script: str, name: str = "main", **fields: Any) -> dict[str, Any]:
    """Return a container with a shell's script."""
    usual = {"name": name, "image": IMAGE, "imagePullPolicy": "Never", "command": ["/bin/sh", "-c", script]}
    return usual | fields


def pod(name: str, *containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a pod of these containers."""
    metadata = {"name": name, "namespace": "default", "labels": {"app": name}}
    usual = {"containers": list(containers), "terminationGracePeriodSeconds": 2}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": usual | spec}


def probe(command: str, **fields: Any) -> dict[str, Any]:
    """Return a probe by a shell's command, made each second."""
    return {"exec": {"command": ["/bin/sh", "-c", command]}, "periodSeconds": 1, "failureThreshold": 1, **fields}


def condition(found: dict[str, Any], kind: str) -> bool:
    """Return whether a condition of a pod is true."""
    return any(row["type"] == kind and row["status"] == "True" for row in found["status"].get("conditions") or [])


def containers_of(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the statuses of a pod's containers, by their names."""
    return {row["name"]: row for row in found["status"].get("containerStatuses") or []}
