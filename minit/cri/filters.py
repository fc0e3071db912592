"""Which sandboxes and containers a list's filter is about: all of its parts have to agree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from minit.cri.api import cri_pb2 as api
from minit.cri.node import Container, Sandbox


def is_sandbox_listed(sandbox: Sandbox, wanted: api.PodSandboxFilter) -> bool:
    """Tell whether a sandbox is in a list; an id may be shortened, as crictl shows them."""
    state = sandbox_state(sandbox)
    return (
        sandbox.uuid.startswith(wanted.id)
        and (not wanted.HasField("state") or wanted.state.state == state)
        and _has_labels(sandbox.config.labels, wanted.label_selector)
    )


def is_container_listed(container: Container, wanted: api.ContainerFilter) -> bool:
    """Tell whether a container is in a list; ids may be shortened."""
    return (
        container.id.startswith(wanted.id)
        and container.sandbox.uuid.startswith(wanted.pod_sandbox_id)
        and (not wanted.HasField("state") or wanted.state.state == container.state)
        and _has_labels(container.config.labels, wanted.label_selector)
    )


def sandbox_state(sandbox: Sandbox) -> api.PodSandboxState:
    """Return the state of a sandbox in the interface's words."""
    return api.SANDBOX_READY if sandbox.is_ready else api.SANDBOX_NOTREADY


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())
