"""
A PodSandboxConfig as the request for a pod without apps, with the way to run the pod; and LinuxContainerResources.

Resources become settings of an app that is added, and limits of an app of the pod.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
from collections.abc import Iterator, Sequence

from minit.base.errors import ManifestError
from minit.base.hostname import canonical_address
from minit.base.idrange import IdRange, parse_id_range
from minit.base.jsontext import dump
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.refusal import refuse
from minit.manifest.annotations import Annotation
from minit.manifest.app import CPU_SHARES, MAX_PORT, MEMORY, OOM_SCORE_ADJ, Isolator, Port
from minit.manifest.limits import (
    MAX_CPU_SHARES,
    MIN_CPU_SHARES,
    MIN_MEMORY_BYTES,
    Limits,
    limit_isolator,
    with_annotation,
)
from minit.manifest.pod import ExposedPort
from minit.plan.groupparent import is_group_path
from minit.pods.requests import PodRequest, Stage1Request
from minit.stage0.pods.appsection import Pairs
from minit.stage0.pods.nameservice import stated_service
from minit.stage0.stage1.entrypoints import RunOptions

# What other runtimes do: containers have the same files in /etc as there, which they may change, and as much memory.
_PLAIN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HABITS = ((Annotation.POD_NAMES, "own"), (Annotation.SHM_SIZE, "64Mi"))
_PROTOCOLS = {api.TCP: "tcp", api.UDP: "udp"}
_ANY_ADDRESS = "0.0.0.0"


def hostname_of(config: api.PodSandboxConfig) -> str:
    """Return the host name of a sandbox: with the host's network the host's, if none is given; empty for any."""
    has_host = config.linux.security_context.namespace_options.network == api.NODE
    return config.hostname or (os.uname().nodename if has_host else "")


def sandbox_request(config: api.PodSandboxConfig, stage1: Stage1Request) -> PodRequest:
    """Return the request for the pod of a sandbox; CallError if the sandbox cannot be made."""
    context = config.linux.security_context
    options = context.namespace_options
    refuse(options.network not in (api.POD, api.NODE), "namespace_options.network", "POD or NODE")
    refuse(options.ipc not in (api.POD, api.NODE), "namespace_options.ipc", "POD or NODE")
    # The rest is about the process of a pause container, which there is not.
    only_group = context.HasField("run_as_group") and not context.HasField("run_as_user")
    refuse(only_group, "security_context.run_as_group", "a user with it")
    return PodRequest(
        is_mutable=True,
        stage1=stage1,
        private_users=user_ids(options) or False,
        host_pids=options.pid == api.NODE,
        ports=() if options.network == api.NODE else tuple(_ports(config.port_mappings)),
        ports_place="port_mappings",
        annotations=_annotations(config),
    )


def run_options(config: api.PodSandboxConfig, network: str | None) -> RunOptions:
    """Return the way to run a sandbox, in the `network` of the node's sandboxes unless the sandbox has the host's."""
    options = config.linux.security_context.namespace_options
    own = () if network is None else (_with_names(network, config.metadata),)
    dns = config.dns_config
    return RunOptions(
        networks=("host",) if options.network == api.NODE else own,
        hostname=hostname_of(config) or None,
        name_service=stated_service(dns.servers, dns.searches, dns.options),
        ipc="parent" if options.ipc == api.NODE else None,
        mutable=True,
    )


_NONE = "none"
"""The entry of --net for `lo` alone, which has no plugins."""


def _with_names(network: str, pod: api.PodSandboxMetadata) -> str:
    """Return an entry of --net with the names of the pod, by which plugins of a cluster look the pod up."""
    words = (("K8S_POD_NAMESPACE", pod.namespace), ("K8S_POD_NAME", pod.name), ("K8S_POD_UID", pod.uid))
    given = [f"{key}={value}" for key, value in words if _PLAIN_NAME.fullmatch(value)]
    if not given or "," in network or network == _NONE:
        return network
    return f"{network}{';' if ':' in network else ':'}{';'.join(('IgnoreUnknown=1', *given))}"


def _annotations(config: api.PodSandboxConfig) -> Pairs:
    parent = posixpath.normpath(f"{config.linux.cgroup_parent}/") if config.linux.cgroup_parent else "/"
    has_parent = parent.lstrip("/") != ""  # that of a kubelet without groups of its own is the root
    refuse(has_parent and not is_group_path(parent), "linux.cgroup_parent", "a path of cgroupfs, as in /kubepods/pod1")
    refuse(bool(config.log_directory) and not config.log_directory.startswith("/"), "log_directory", "an absolute path")
    own: dict[str, str] = dict(_HABITS)
    own |= {Annotation.CGROUP_PARENT: parent} if has_parent else {}
    own |= {Annotation.LOG_DIRECTORY: config.log_directory} if config.log_directory else {}
    if config.linux.sysctls:
        # Sorted, as the order in a message means nothing.
        own[Annotation.SYSCTLS] = dump(dict(sorted(config.linux.sysctls.items()))).decode()
    own |= {Annotation.ALLOW_PRIVILEGED: "true"} if config.linux.security_context.privileged else {}
    return tuple(own.items())


def _ports(mappings: Sequence[api.PortMapping]) -> Iterator[ExposedPort]:
    for number, one in enumerate(mappings):
        if not one.host_port:
            continue
        place = f"port_mappings[{number}]"
        refuse(one.protocol not in _PROTOCOLS, f"{place}.protocol", "TCP or UDP")
        address = canonical_address(one.host_ip or _ANY_ADDRESS)
        refuse(address is None, f"{place}.host_ip", "an IP address")
        for field, port in (("container_port", one.container_port), ("host_port", one.host_port)):
            refuse(not 0 < port <= MAX_PORT, f"{place}.{field}", f"a number from 1 to {MAX_PORT}")
        name = f"port{number}"
        inner = Port(name=name, protocol=_PROTOCOLS[one.protocol], port=one.container_port)
        yield ExposedPort(name=name, host_port=one.host_port, host_ip=address, pod_port=inner)


def user_ids(options: api.NamespaceOption) -> IdRange | None:
    """Return the ids of a sandbox, None without users of its own; CallError for others than one range of both kinds."""
    users = options.userns_options
    if not options.HasField("userns_options") or users.mode == api.NODE:
        return None
    refuse(users.mode != api.POD, "userns_options.mode", "POD or NODE")
    refuse(len(users.uids) != 1 or [*users.gids] != [*users.uids], "userns_options", "one range for users and groups")
    [mapping] = users.uids
    refuse(mapping.container_id != 0, "userns_options.uids[0].container_id", "0")
    ids = parse_id_range(f"{mapping.host_id}:{mapping.length}")
    if ids is None:
        refuse(True, "userns_options.uids[0]", "ids from 1 to 4294967294")
    return ids


def check_users(options: api.NamespaceOption, ids: IdRange | None) -> None:
    """Raise CallError for a container that asks for users other than the sandbox's."""
    differs = options.HasField("userns_options") and user_ids(options) != ids
    refuse(differs, "namespace_options.userns_options", "those of the sandbox")


def is_mapped(place: str, mount: api.Mount, ids: IdRange | None) -> bool:
    """Tell whether a mount has the owners of the disk; CallError for owners other than the sandbox's."""
    mappings: Sequence[Sequence[api.IDMapping]] = (mount.uidMappings, mount.gidMappings)
    if not any(mappings):
        return False
    own = [] if ids is None else [api.IDMapping(host_id=ids.shift, length=ids.count)]
    refuse(not own or any([*each] != own for each in mappings), f"{place}.uidMappings", "the range of the sandbox")
    return True


def limit_isolators(resources: api.LinuxContainerResources) -> tuple[Isolator, ...]:
    """Return the limits that isolators have; CallError if minit has not one of them."""
    isolators = []
    memory = resources.memory_limit_in_bytes
    if memory > 0:
        refuse(memory < MIN_MEMORY_BYTES, "resources.memory_limit_in_bytes", f"at least {MIN_MEMORY_BYTES}")
        isolators.append(limit_isolator(MEMORY, str(memory)))
    if resources.cpu_shares > 0:
        isolators.append(Isolator(name=CPU_SHARES, value=_shares(resources)))
    score = resources.oom_score_adj
    if score:
        refuse(not -1000 <= score <= 1000, "resources.oom_score_adj", "a number from -1000 to 1000")
        isolators.append(Isolator(name=OOM_SCORE_ADJ, value=score))
    return tuple(isolators)


def limit_annotation(resources: api.LinuxContainerResources) -> dict[str, str]:
    """Return the annotation with the limits that no isolator has; CallError if minit has not one of them."""
    exact = _exact_limits(resources)
    return {Annotation.LIMITS: json.dumps(exact)} if exact else {}


def resource_limits(resources: api.LinuxContainerResources) -> Limits:
    """Return the same as limits, but for `oom_score_adj`; CallError if they are none."""
    limits = Limits(
        memory_bytes=resources.memory_limit_in_bytes or None,
        cpu_shares=_shares(resources) if resources.cpu_shares > 0 else None,
    )
    try:
        return with_annotation(limits, json.dumps(_exact_limits(resources)), "resources")
    except ManifestError as error:
        raise CallError(Code.INVALID_ARGUMENT, str(error)) from error


def completed(
    asked: api.LinuxContainerResources, present: api.LinuxContainerResources
) -> tuple[api.LinuxContainerResources, api.LinuxContainerResources]:
    """
    Return what a change asks for, with the other one of two limits that belong together, and all limits after it.

    A field that is empty or 0 stays as it is. With another limit of memory there is as much swap beside it as before.
    """
    change = api.LinuxContainerResources()
    change.CopyFrom(asked)
    if asked.memory_limit_in_bytes and not asked.memory_swap_limit_in_bytes:
        change.memory_swap_limit_in_bytes = _moved_sum(asked.memory_limit_in_bytes, present)
    elif asked.memory_swap_limit_in_bytes and not asked.memory_limit_in_bytes:
        change.memory_limit_in_bytes = present.memory_limit_in_bytes
    if asked.cpu_quota or asked.cpu_period:
        change.cpu_quota = asked.cpu_quota or present.cpu_quota
        change.cpu_period = asked.cpu_period or present.cpu_period
    after = api.LinuxContainerResources()
    after.CopyFrom(present)
    sizes = {one.page_size for one in change.hugepage_limits}
    kept = [one for one in present.hugepage_limits if one.page_size not in sizes]
    del after.hugepage_limits[:]
    after.hugepage_limits.extend(kept)
    after.MergeFrom(change)
    return change, after


def _moved_sum(memory: int, present: api.LinuxContainerResources) -> int:
    both, before = present.memory_swap_limit_in_bytes, present.memory_limit_in_bytes
    if both <= 0 or before <= 0:
        return both
    return -1 if memory < 0 else memory + both - before


def _shares(resources: api.LinuxContainerResources) -> int:
    return min(max(resources.cpu_shares, MIN_CPU_SHARES), MAX_CPU_SHARES)


def _exact_limits(resources: api.LinuxContainerResources) -> dict[str, object]:
    limits: dict[str, object] = {}
    if resources.cpu_quota:
        limits["cpuQuota"] = max(resources.cpu_quota, -1)
        limits |= {"cpuPeriod": resources.cpu_period} if resources.cpu_period else {}
    if resources.cpuset_cpus:
        limits["cpus"] = resources.cpuset_cpus
    if resources.cpuset_mems:
        limits["mems"] = resources.cpuset_mems
    if resources.memory_swap_limit_in_bytes and resources.memory_limit_in_bytes > 0:
        limits["swap"] = _swap_bytes(resources)
    if resources.hugepage_limits:
        limits["hugepages"] = {one.page_size: one.limit for one in resources.hugepage_limits}
    if resources.unified:
        limits["unified"] = dict(resources.unified)
    return limits


def _swap_bytes(resources: api.LinuxContainerResources) -> int:
    """Return the limit of swap alone, of which the interface has the sum with that of memory; -1 for none."""
    both, memory = resources.memory_swap_limit_in_bytes, resources.memory_limit_in_bytes
    refuse(0 <= both < memory, "resources.memory_swap_limit_in_bytes", "at least memory_limit_in_bytes")
    return -1 if both < 0 else both - memory
