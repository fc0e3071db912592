"""
The launcher's work for a pod with a user namespace, where PID 1 is root of the pod only: user_namespaces(7).

Its ids are mapped from here, and what its root may not make it gets ready: device nodes, and the sysfs of a network
namespace that is not the pod's own.
"""

from __future__ import annotations

import os

from minit.base.errors import describe
from minit.base.idrange import IdRange
from minit.base.value import replace
from minit.linux.idmapping import map_ids
from minit.linux.messages import Socket, send_message
from minit.linux.stdio import complain
from minit.plan.podplan import PodPlan
from minit.plan.root.mountoperations import DEV, DEV_FILESYSTEM, DEVICES, MadeFilesystem
from minit.supervisor.boot import MadeMounts
from minit.supervisor.root.applymounts import apply_mounts, new_filesystem

_LOWEST_PORT = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
_PING_GROUPS = "/proc/sys/net/ipv4/ping_group_range"


def make_mounts(plan: PodPlan, mapped: IdRange) -> MadeMounts:
    """Return the mounts that the plan has the launcher make; this process is in the pod's network namespace."""
    pod = []
    for operation in plan.mounts:
        if isinstance(operation, MadeFilesystem):
            is_dev = operation.target == DEV
            pod.append((operation.target, make_dev(mapped) if is_dev else new_filesystem(operation.filesystem)))
    apps = tuple(make_dev(mapped) for _ in plan.apps) if makes_dev(plan) else ()
    return MadeMounts(pod=tuple(pod), apps=apps)


def makes_dev(plan: PodPlan) -> bool:
    """Tell whether each /dev is made here, as only root of the machine makes nodes."""
    return any(isinstance(operation, MadeFilesystem) and operation.target == DEV for operation in plan.mounts)


def admit(plan: PodPlan, mapped: IdRange, pid: int, link: Socket) -> None:
    """Map the ids of PID 1, which waits for that, and tell it; LaunchError if the kernel refuses."""
    _set_oom_score(pid, plan)
    map_ids(pid, mapped)
    try:
        send_message(link, {"mapped": True})
    except (BrokenPipeError, ConnectionResetError):
        pass  # it has ended, and has said why


def open_network(mapped: IdRange) -> None:
    """
    Let the pod use low ports and ping in this network namespace, which only the pod is in.

    The namespace belongs to the host, where the pod's root has none of the capabilities that this takes otherwise.
    """
    for path, text in ((_LOWEST_PORT, "0"), (_PING_GROUPS, f"{mapped.shift} {mapped.shift + mapped.count - 1}")):
        try:
            _write(path, text)
        except OSError as error:
            complain(f"stage1: warning: root of the pod cannot use its network fully: {describe(error)}")


def _set_oom_score(pid: int, plan: PodPlan) -> None:
    # The lowest that any app asks for: what the root of the host gives to PID 1, every process of the pod can take for
    # itself (proc_pid_oom_score_adj(5)).
    lowest = min([0, *(app.resources.oom_score_adj or 0 for app in plan.apps)])
    try:
        _write(f"/proc/{pid}/oom_score_adj", str(lowest))
    except PermissionError:
        pass  # without CAP_SYS_RESOURCE, as in a container


def make_dev(mapped: IdRange) -> int:
    """Return a detached /dev with the nodes that every app has."""
    owner = (("uid", str(mapped.shift)), ("gid", str(mapped.shift)))
    tree = new_filesystem(replace(DEV_FILESYSTEM, options=(*DEV_FILESYSTEM.options, *owner)))
    mask = os.umask(0)
    for operation in DEVICES:
        name = operation.target.removeprefix(f"{DEV}/")
        apply_mounts((replace(operation, target=f"/{name}"),), tree)
        os.chown(name, mapped.shift, mapped.shift, dir_fd=tree)
    os.umask(mask)
    return tree


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
