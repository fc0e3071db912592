"""Sandboxes and containers in the lists, statuses and verbose statuses of the interface, and the filters of lists."""

from __future__ import annotations

import json
import platform
import posixpath
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.cri.node import Container, Sandbox
from minit.linux.mountinfo import find_mounts
from minit.stage0.reports.usage import find_group, find_hierarchies, read_file

# Of what follows the name in a process' `stat`, proc_pid_stat(5).
_START_TIME = 19
# As OCI calls them, and as proc(5) does.
_NAMESPACES = {
    "pid": "pid",
    "network": "net",
    "ipc": "ipc",
    "uts": "uts",
    "mount": "mnt",
    "user": "user",
    "cgroup": "cgroup",
}


def listed_sandbox(sandbox: Sandbox) -> api.PodSandbox:
    """Return a list's item for a sandbox."""
    return api.PodSandbox(**_sandbox_fields(sandbox))


def sandbox_status(sandbox: Sandbox) -> api.PodSandboxStatus:
    """Return the whole status of a sandbox."""
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
    """Return a list's item for a container."""
    # Kubelets up to 1.29 find the images that are in use by it.
    image_ref = container.config.image.image
    return api.Container(pod_sandbox_id=container.sandbox.uuid, image_ref=image_ref, **_container_fields(container))


def container_status(container: Container) -> api.ContainerStatus:
    """Return the whole status of a container."""
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
    """Return the common fields of lists and statuses."""
    return {
        "id": sandbox.uuid,
        "metadata": sandbox.config.metadata,
        "state": _sandbox_state(sandbox),
        "created_at": sandbox.created_ns,
        "labels": sandbox.config.labels,
        "annotations": sandbox.config.annotations,
        "runtime_handler": sandbox.handler,
    }


def _container_fields(container: Container) -> dict[str, Any]:
    """Return the common fields of lists and statuses."""
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


def is_sandbox_listed(sandbox: Sandbox, wanted: api.PodSandboxFilter) -> bool:
    """Tell whether a sandbox is in a list; an id may be shortened, as crictl shows them."""
    state = _sandbox_state(sandbox)
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


def _sandbox_state(sandbox: Sandbox) -> api.PodSandboxState:
    """Return the state of a sandbox in the interface's words."""
    return api.SANDBOX_READY if sandbox.is_ready else api.SANDBOX_NOTREADY


def _has_labels(labels: Mapping[str, str], wanted: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in wanted.items())


def runtime_info(settings: Mapping[str, object]) -> dict[str, str]:
    """Return the settings of the daemon, and what runs it."""
    return _info(config=settings, python=platform.python_version())


def sandbox_info(sandbox: Sandbox) -> dict[str, str]:
    """Return the pid of minit's own process in the sandbox, its namespaces and group, and the configuration."""
    pid = sandbox.pid or 0
    return _info(pid=pid, config=_described(sandbox.config), runtimeSpec=_runtime_spec(pid, sandbox.group))


def container_info(container: Container) -> dict[str, str]:
    """Return the pid of the container's first process, 0 if it does not run, its namespaces and group, and the rest."""
    config = _described(container.config)
    config["envs"] = [{"key": one.key, "value": one.value.decode(errors="replace")} for one in container.config.envs]
    group = container.group
    pid = _first_process(group) if group is not None and container.state == api.CONTAINER_RUNNING else None
    spec = _runtime_spec(pid or 0, group)
    return _info(pid=pid or 0, sandboxID=container.sandbox.uuid, config=config, runtimeSpec=spec)


def _runtime_spec(pid: int, group: str | None) -> dict[str, object]:
    """Return of OCI's specification of a container what there is of it, whose words scripts look for."""
    linux: dict[str, object] = {} if group is None else {"cgroupsPath": f"/{group}"}
    if pid:
        linux["namespaces"] = [{"type": kind, "path": f"/proc/{pid}/ns/{name}"} for kind, name in _NAMESPACES.items()]
    return {"linux": linux}


def _described(config: Message) -> dict[str, object]:
    return MessageToDict(config, preserving_proto_field_name=True)


def _info(**fields: object) -> dict[str, str]:
    """Return the one entry that other runtimes have, too, and scripts look into."""
    return {"info": json.dumps(fields)}


def _first_process(group: str) -> int | None:
    """Return the oldest process of a container's control group; what came later was started by it, or by an exec."""
    started = {}
    for _, directory in find_group(find_hierarchies(find_mounts("cgroup")), group)[:1]:
        for pid in map(int, read_file(directory, "cgroup.procs").split()):
            with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                started[pid] = int(file.read().rpartition(b")")[2].split()[_START_TIME])
    return min(started, key=lambda pid: (started[pid], pid), default=None)
