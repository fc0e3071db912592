"""What a verbose status has beside the status, as `crictl inspect` shows it: the process, and what was asked for."""

from __future__ import annotations

import json
import os
from contextlib import suppress

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from minit.cri.api import cri_pb2 as api
from minit.cri.node import Container, Sandbox
from minit.mountinfo import find_mounts
from minit.stage0.reports.usage import APPS, find_group, find_hierarchies, read_file

# Of what follows the name in a process' `stat`, proc_pid_stat(5).
_START_TIME = 19


def sandbox_info(sandbox: Sandbox) -> dict[str, str]:
    """Return the pid of minit's own process in the sandbox, whose namespaces it has, and the configuration."""
    return _info(pid=sandbox.pid or 0, config=_described(sandbox.config))


def container_info(container: Container) -> dict[str, str]:
    """Return the pid of the container's first process, 0 if it does not run, and the configuration."""
    config = _described(container.config)
    config["envs"] = [{"key": one.key, "value": one.value.decode(errors="replace")} for one in container.config.envs]
    pid = _first_process(container) if container.state == api.CONTAINER_RUNNING else None
    return _info(pid=pid or 0, sandboxID=container.sandbox.uuid, config=config)


def _described(config: Message) -> dict[str, object]:
    return MessageToDict(config, preserving_proto_field_name=True)


def _info(**fields: object) -> dict[str, str]:
    """Return the one entry that other runtimes have, too, and scripts look into."""
    return {"info": json.dumps(fields)}


def _first_process(container: Container) -> int | None:
    """Return the oldest process of a container's control group; what came later was started by it, or by an exec."""
    if container.sandbox.group is None:
        return None
    group = os.path.join(container.sandbox.group, APPS, f"{container.app}.service")
    started = {}
    for _, directory in find_group(find_hierarchies(find_mounts("cgroup")), group)[:1]:
        for pid in map(int, read_file(directory, "cgroup.procs").split()):
            with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as file:
                started[pid] = int(file.read().rpartition(b")")[2].split()[_START_TIME])
    return min(started, key=lambda pid: (started[pid], pid), default=None)
