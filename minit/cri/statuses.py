"""What lists and statuses tell of sandboxes and containers. Pure."""

from __future__ import annotations

import posixpath
from typing import Any

from minit.cri.api import cri_pb2 as api
from minit.cri.filters import sandbox_state
from minit.cri.node import Container, Sandbox


def listed_sandbox(sandbox: Sandbox) -> api.PodSandbox:
    """Return what a list tells of a sandbox."""
    return api.PodSandbox(**_sandbox_fields(sandbox))


def sandbox_status(sandbox: Sandbox) -> api.PodSandboxStatus:
    """Return all that is known of a sandbox."""
    status = api.PodSandboxStatus(
        **_sandbox_fields(sandbox),
        linux=api.LinuxPodSandboxStatus(
            namespaces=api.Namespace(options=sandbox.config.linux.security_context.namespace_options)
        ),
    )
    if sandbox.is_ready and sandbox.has_own_network and sandbox.addresses:
        status.network.ip = sandbox.addresses[0]
        for address in sandbox.addresses[1:]:
            status.network.additional_ips.add(ip=address)
    return status


def listed_container(container: Container) -> api.Container:
    """Return what a list tells of a container."""
    # Kubelets up to 1.29 find the images that are in use by it.
    image_ref = container.config.image.image
    return api.Container(pod_sandbox_id=container.sandbox.uuid, image_ref=image_ref, **_container_fields(container))


def container_status(container: Container) -> api.ContainerStatus:
    """Return all that is known of a container."""
    return api.ContainerStatus(
        **_container_fields(container),
        # Pods have it as `imageID`.
        image_ref=container.config.image.image_ref or container.config.image.image,
        started_at=container.started_ns,
        finished_at=container.finished_ns,
        exit_code=container.exit_code,
        reason=container.reason,
        message=container.message,
        mounts=container.config.mounts,
        log_path=_log_path(container) or "",
        user=container.user,
        resources=api.ContainerResources(linux=container.resources),
    )


def _sandbox_fields(sandbox: Sandbox) -> dict[str, Any]:
    """Return what lists and statuses have in common."""
    return {
        "id": sandbox.uuid,
        "metadata": sandbox.config.metadata,
        "state": sandbox_state(sandbox),
        "created_at": sandbox.created_ns,
        "labels": sandbox.config.labels,
        "annotations": sandbox.config.annotations,
        "runtime_handler": sandbox.handler,
    }


def _container_fields(container: Container) -> dict[str, Any]:
    """Return what lists and statuses have in common."""
    return {
        "id": container.id,
        "metadata": container.config.metadata,
        "image": _named(container.config.image),
        "image_id": container.config.image.image,
        "state": container.state,
        "created_at": container.created_ns,
        "labels": container.config.labels,
        "annotations": container.config.annotations,
    }


def _named(spec: api.ImageSpec) -> api.ImageSpec:
    """Return a container's image by the name that users know."""
    named = api.ImageSpec()
    named.CopyFrom(spec)
    named.image = spec.user_specified_image or spec.image
    named.runtime_handler = ""  # as lists of images have it, in which a kubelet looks for those in use
    return named


def _log_path(container: Container) -> str | None:
    directory, name = container.sandbox.config.log_directory, container.config.log_path
    return posixpath.join(posixpath.normpath(directory), posixpath.normpath(name)) if directory and name else None
