"""What a verbose status has beside the status, as `crictl inspect` shows it: the process, and what was asked for."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from contextlib import suppress

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
