"""
The calls about the resource use of sandboxes and containers.

They read files of control groups and nothing else: a kubelet asks for all containers every ten seconds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakKeyDictionary

import trio

from minit.base.errors import MinitError
from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.cri.metrics import (
    GroupSample,
    Subject,
    cpu_usage,
    group_metrics,
    interface_metrics,
    io_usage,
    memory_usage,
    metric_descriptors,
    network_usage,
    process_usage,
    swap_usage,
)
from minit.cri.node import Container, Node, Sandbox
from minit.cri.statuses import is_container_listed, is_sandbox_listed
from minit.linux.mountinfo import find_mounts
from minit.stage0.apps.podfiles import writable_layer
from minit.stage0.files.untrusted import DiskUsage, disk_usage
from minit.stage0.reports.stats import InterfaceUsage, PodInterfaces
from minit.stage0.reports.usage import Hierarchy, find_group, find_hierarchies, read_pressure, read_usage

_CONTROLLERS = {"cpuacct", "memory", "pids"}
_RESOURCES = ("cpu", "memory", "io")
_LIVE = (api.CONTAINER_CREATED, api.CONTAINER_RUNNING)

_FRESH_SECONDS = 60.0
_REST_FACTOR = 20
"""What takes long to measure is left alone for so many times as long."""
_PATIENCE_SECONDS = 0.5


class StatsCalls:
    """ContainerStats, PodSandboxStats, and the lists of both."""

    def __init__(self, node: Node, nursery: trio.Nursery) -> None:
        self._node = node
        self._layers = WritableLayers(node.data, nursery)

    async def container(self, request: api.ContainerId) -> api.ContainerStatsResponse:
        """Return what a container uses; of one that has ended only what it has written."""
        container = self._node.container(request.container_id)
        [stats] = await self._containers([container])
        return api.ContainerStatsResponse(stats=stats)

    async def list_containers(self, request: api.ListContainerStatsRequest) -> api.ListContainerStatsResponse:
        """Return what the containers use that a filter is about and that have not ended."""
        wanted = api.ContainerFilter(
            id=request.filter.id,
            pod_sandbox_id=request.filter.pod_sandbox_id,
            label_selector=request.filter.label_selector,
        )
        live = [one for one in self._node.containers() if one.state in _LIVE and is_container_listed(one, wanted)]
        return api.ListContainerStatsResponse(stats=await self._containers(live))

    async def sandbox(self, request: api.SandboxId) -> api.PodSandboxStatsResponse:
        """Return what a sandbox uses with its containers; of one that has ended nothing but its name."""
        [stats] = await self._sandboxes([self._node.sandbox(request.pod_sandbox_id)])
        return api.PodSandboxStatsResponse(stats=stats)

    async def list_sandboxes(self, request: api.ListPodSandboxStatsRequest) -> api.ListPodSandboxStatsResponse:
        """Return what the sandboxes use that a filter is about and that are ready."""
        wanted = api.PodSandboxFilter(id=request.filter.id, label_selector=request.filter.label_selector)
        ready = [one for one in self._node.sandboxes.values() if one.is_ready and is_sandbox_listed(one, wanted)]
        return api.ListPodSandboxStatsResponse(stats=await self._sandboxes(ready))

    async def describe_metrics(self, _: api.Nothing) -> api.ListMetricDescriptorsResponse:
        """Return which metrics there are."""
        return api.ListMetricDescriptorsResponse(descriptors=metric_descriptors())

    async def list_metrics(self, _: api.Nothing) -> api.ListPodSandboxMetricsResponse:
        """Return the metrics of the sandboxes that are ready, and of their containers that run."""
        hierarchies = _hierarchies()
        ready = [one for one in self._node.sandboxes.values() if one.is_ready]
        return api.ListPodSandboxMetricsResponse(pod_metrics=[_metrics(one, hierarchies) for one in ready])

    async def _containers(self, containers: Sequence[Container]) -> list[api.ContainerStats]:
        layers = await self._layers.read(containers)
        hierarchies = _hierarchies()
        return [self._described(one, layers.get(one), hierarchies) for one in containers]

    def _described(
        self, container: Container, layer: _LayerUsage | None, hierarchies: Sequence[Hierarchy]
    ) -> api.ContainerStats:
        stats = api.ContainerStats(
            attributes=api.ContainerAttributes(
                id=container.id,
                metadata=container.config.metadata,
                labels=container.config.labels,
                annotations=container.config.annotations,
            ),
            writable_layer=api.FilesystemUsage(
                timestamp=time.time_ns() if layer is None else layer.time_ns,
                fs_id=api.FilesystemIdentifier(mountpoint=str(self._node.data)),
                used_bytes=None if layer is None else api.UInt64Value(value=layer.usage.size_bytes),
                inodes_used=None if layer is None else api.UInt64Value(value=layer.usage.inodes),
            ),
        )
        if container.group is not None and container.state in _LIVE:
            sample = _sample(hierarchies, container.group)
            stats.cpu.CopyFrom(cpu_usage(sample))
            stats.memory.CopyFrom(memory_usage(sample))
            stats.io.CopyFrom(io_usage(sample))
            swap = swap_usage(sample)
            if swap is not None:
                stats.swap.CopyFrom(swap)
        return stats

    async def _sandboxes(self, sandboxes: Sequence[Sandbox]) -> list[api.PodSandboxStats]:
        containers = [one for sandbox in sandboxes for one in sandbox.containers.values() if one.state in _LIVE]
        stats = {one.attributes.id: one for one in await self._containers(containers)}
        hierarchies = _hierarchies()
        found = []
        for sandbox in sandboxes:
            described = api.PodSandboxStats(
                attributes=api.PodSandboxAttributes(
                    id=sandbox.uuid,
                    metadata=sandbox.config.metadata,
                    labels=sandbox.config.labels,
                    annotations=sandbox.config.annotations,
                )
            )
            if sandbox.group is not None and sandbox.is_ready:
                described.linux.CopyFrom(_used(sandbox, sandbox.group, hierarchies))
                described.linux.containers.extend(stats[one] for one in sandbox.containers if one in stats)
            found.append(described)
        return found


def _hierarchies() -> list[Hierarchy]:
    """Return the controllers to read: v2, and of v1 the controllers that count time, memory and processes."""
    found = find_hierarchies(find_mounts("cgroup"))
    return [one for one in found if not one.controllers or one.controllers & _CONTROLLERS]


def _sample(hierarchies: Sequence[Hierarchy], group: str) -> GroupSample:
    places = find_group(hierarchies, group)
    unified = next((directory for hierarchy, directory in places if not hierarchy.controllers), None)
    return GroupSample(
        time_ns=time.time_ns(),
        usage=read_usage(places),
        pressures={} if unified is None else {name: read_pressure(unified, name) for name in _RESOURCES},
    )


def _used(sandbox: Sandbox, group: str, hierarchies: Sequence[Hierarchy]) -> api.LinuxPodSandboxStats:
    sample = _sample(hierarchies, group)
    used = api.LinuxPodSandboxStats(
        cpu=cpu_usage(sample), memory=memory_usage(sample), process=process_usage(sample), io=io_usage(sample)
    )
    interfaces = _read_interfaces(sandbox)
    if interfaces is not None:
        used.network.CopyFrom(network_usage(interfaces, sample.time_ns))
    return used


def _metrics(sandbox: Sandbox, hierarchies: Sequence[Hierarchy]) -> api.PodSandboxMetrics:
    metrics = api.PodSandboxMetrics(pod_sandbox_id=sandbox.uuid)
    if sandbox.group is not None:
        pod = Subject(group=sandbox.group, id=sandbox.uuid)
        metrics.metrics.extend(group_metrics(pod, _sample(hierarchies, sandbox.group), sandbox.created_ns))
        metrics.metrics.extend(interface_metrics(pod, _read_interfaces(sandbox) or ()))
        for container in sandbox.containers.values():
            group = container.group
            if group is not None and container.state == api.CONTAINER_RUNNING:
                subject = Subject(group=group, id=container.id, image=container.config.image.user_specified_image)
                of_container = group_metrics(subject, _sample(hierarchies, group), container.started_ns)
                metrics.container_metrics.add(container_id=container.id, metrics=of_container)
    return metrics


def _read_interfaces(sandbox: Sandbox) -> list[InterfaceUsage] | None:
    """Return the counters of a sandbox's own network, None without one."""
    if sandbox.pid is not None and sandbox.has_own_network:
        with suppress(OSError, MinitError):  # it is ending
            interfaces = PodInterfaces(sandbox.pid)
            try:
                return [*interfaces.read()]
            finally:
                interfaces.close()
    return None


class _LayerUsage(Value):
    """A measurement; `time_ns` since 1970, `due_seconds` the time of the next one, of trio's clock."""

    usage: DiskUsage
    time_ns: int
    due_seconds: float


class WritableLayers:
    """The writable layers of the containers in a data directory, measured one after another by a thread."""

    def __init__(self, data: Path, nursery: trio.Nursery) -> None:
        self._data = data
        self._nursery = nursery
        self._measured: WeakKeyDictionary[Container, _LayerUsage] = WeakKeyDictionary()
        self._pending: dict[Container, trio.Event] = {}
        self._one = trio.CapacityLimiter(1)

    async def read(self, containers: Sequence[Container]) -> dict[Container, _LayerUsage]:
        """Return what is known, measured within the last minute or so; of a new one that takes long nothing yet."""
        now = trio.current_time()
        known = {one: self._measured.get(one) for one in containers}
        due = [one for one, last in known.items() if last is None or last.due_seconds <= now]
        started = {one: trio.Event() for one in due if one not in self._pending}
        if started:
            self._pending |= started
            self._nursery.start_soon(self._measure, started)
        with trio.move_on_after(_PATIENCE_SECONDS):
            for one, last in known.items():
                if last is None and one in self._pending:
                    await self._pending[one].wait()
        return {one: self._measured[one] for one in containers if one in self._measured}

    async def _measure(self, containers: dict[Container, trio.Event]) -> None:
        for one, is_done in containers.items():
            begin = trio.current_time()
            usage = await trio.to_thread.run_sync(
                _measure, self._data, one.sandbox.uuid, one.app, abandon_on_cancel=True, limiter=self._one
            )
            end = trio.current_time()
            if usage is not None:
                rest = max(_FRESH_SECONDS, _REST_FACTOR * (end - begin))
                self._measured[one] = _LayerUsage(usage=usage, time_ns=time.time_ns(), due_seconds=end + rest)
            del self._pending[one]
            is_done.set()


def _measure(data: Path, uuid: str, app: str) -> DiskUsage | None:
    try:
        return disk_usage(writable_layer(data, uuid, app))
    except (MinitError, OSError):
        return None  # it was removed meanwhile
