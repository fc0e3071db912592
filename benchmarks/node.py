"""
A Kubernetes node against containerd with its shims, driven by the same client through the CRI: the start of a pod, the
probe by a command, and the cost of idle pods, in memory and in processor time while a kubelet asks for them.

All that a daemon starts is in one control group, whose processor time is that of the node, without the client's. Pods
have the host's network.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from pathlib import Path

import trio

from benchmarks.command import MINIT, compile_ahead
from benchmarks.image_import import scratch
from benchmarks.memory import megabytes, name_of
from benchmarks.table import compare, missing
from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.launcher.cgroups import read_hierarchies
from tests.support.crinode import CallFailed, CriNode, node_at
from tests.support.layers import archive, busybox_layer, config_document, docker_files
from tests.support.owngroup import OwnGroup, remove_groups
from tests.support.waiting import wait_for

RUNS = 10
PROBES = 20
STEP_RUNS = 5
PODS = 10
CONTAINERS = 5
"""In each of the larger pods."""
FULL_PODS = 110
"""As many as a kubelet has on a node unless told otherwise."""

STARTED = "CRI: a pod of one container, asked for to started"
PROBE = f"CRI: a probe by a command, each of {PROBES}"
PROBE_PROCESSOR = f"CRI: processor time of a probe, each of {PROBES}"

_IMAGE = "example.com/bench:1"
_APP = "busybox"
_SLEEP = (f"/bin/{_APP}", "sleep", "1000000")
_NAMESPACES = api.NamespaceOption(network=api.NODE, pid=api.CONTAINER)
_SETTLE_SECONDS = 2.0
_IDLE_SECONDS = 20
_STATUS_SECONDS = 5
_STATS_SECONDS = 10
_LISTS = 20
_CONTAINERD = """\
version = 2
root = "{path}/root"
state = "{path}/state"
[grpc]
address = "{path}/node.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{image}"
disable_apparmor = true
restrict_oom_score_adj = true
stream_server_port = "0"
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{path}/cni"
conf_dir = "{path}/cni"
[plugins."io.containerd.internal.v1.opt"]
path = "{path}/opt"
"""


def main() -> None:
    """Print the tables of pods one at a time, and of some idle ones."""
    with _nodes() as nodes:
        _take(STARTED, "ms", _start_ms, nodes, RUNS)
        for title, measure in _STEPS.items():
            _take(title, "ms", measure, nodes, STEP_RUNS)
        _take(PROBE, "ms", partial(_probe, _wall_ms), nodes, 3)
        _take(PROBE_PROCESSOR, "ms", partial(_probe, Node.processor_ms), nodes, 3)
        _take_idle(PODS, nodes)


def main_full() -> None:
    """Print the tables of a node that is full."""
    with _nodes() as nodes:
        _take_idle(FULL_PODS, nodes)


def many_started(pods: int) -> str:
    """Return the title of the table of many starts."""
    return f"CRI: {pods} pods, asked for to started"


def processor_of(pods: int) -> str:
    """Return the title of the table of the processor time of many starts."""
    return f"CRI: processor time of each of {pods} pods that are started"


def private_of(pods: int) -> str:
    """Return the title of the table of memory."""
    return f"CRI: {pods} idle pods, private memory of each"


def idle_of(pods: int) -> str:
    """Return the title of the table of processor time."""
    return f"CRI: {pods} idle pods, processor time each second"


class Node:
    """A daemon that listens at `path`/node.sock, in a control group of its own with all that it starts."""

    def __init__(self, path: Path, command: Sequence[str], group: OwnGroup, *, names_parent: bool) -> None:
        self.path = path
        self.group = group
        mount_point = read_hierarchies()[0].mount_point
        # minit's pods are where their daemon is.
        self._parent = f"/{group.directories[0].relative_to(mount_point)}/pods" if names_parent else ""
        self._numbers = itertools.count()
        group.enter()
        try:
            self.daemon = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=(path / "log").open("w"))
        finally:
            group.leave()

    def is_served(self) -> bool:
        """Tell whether the daemon answers."""
        assert self.daemon.poll() is None, (self.path / "log").read_text()
        if not (self.path / "node.sock").exists():
            return False
        is_ready = True
        try:
            self.do(_version)
        except* (CallFailed, ConnectionRefusedError):
            is_ready = False  # it listens after its socket is there, and its services come after that
        return is_ready

    def do(self, work: Callable[[CriNode], Awaitable[None]]) -> None:
        """Do some work as a client."""
        trio.run(self._do, work)

    async def _do(self, work: Callable[[CriNode], Awaitable[None]]) -> None:
        async with node_at(self.path / "node.sock") as client:
            await work(client)

    async def run_pod(self, client: CriNode) -> tuple[str, api.PodSandboxConfig]:
        """Run a sandbox; gives its id and its settings."""
        name = f"bench-{next(self._numbers)}"
        metadata = api.PodSandboxMetadata(name=name, namespace="default", uid=name)
        config = api.PodSandboxConfig(metadata=metadata, log_directory=f"{self.path}/logs/{name}")
        config.linux.cgroup_parent = self._parent
        config.linux.security_context.namespace_options.CopyFrom(_NAMESPACES)
        request = api.RunPodSandboxRequest(config=config)
        made: api.SandboxId = await client.ask("RunPodSandbox", request)
        return made.pod_sandbox_id, config

    async def create(self, client: CriNode, sandbox: str, config: api.PodSandboxConfig, name: str) -> str:
        """Create a container in a sandbox; gives its id."""
        container = api.ContainerConfig(
            metadata=api.ContainerMetadata(name=name),
            image=api.ImageSpec(image=_IMAGE),
            command=_SLEEP,
            log_path=f"{name}.log",
        )
        container.linux.security_context.namespace_options.CopyFrom(_NAMESPACES)
        request = api.CreateContainerRequest(pod_sandbox_id=sandbox, config=container, sandbox_config=config)
        made: api.ContainerId = await client.ask("CreateContainer", request)
        return made.container_id

    async def start_pod(self, client: CriNode, containers: int = 1) -> tuple[str, list[str]]:
        """Start a pod of so many containers; gives the ids of all."""
        sandbox, config = await self.run_pod(client)
        made = []
        for number in range(containers):
            made.append(await self.create(client, sandbox, config, f"main-{number}"))
            await client.ask("StartContainer", api.ContainerId(container_id=made[-1]))
        return sandbox, made

    async def end_pod(self, client: CriNode, sandbox: str, containers: Sequence[str]) -> None:
        """Stop and remove a pod and its containers, as a kubelet does."""
        for container in containers:
            await client.ask("StopContainer", api.StopContainerRequest(container_id=container))
        await client.ask("StopPodSandbox", api.SandboxId(pod_sandbox_id=sandbox))
        for container in containers:
            await client.ask("RemoveContainer", api.ContainerId(container_id=container))
        await client.ask("RemovePodSandbox", api.SandboxId(pod_sandbox_id=sandbox))

    @asynccontextmanager
    async def pods(self, client: CriNode, count: int, containers: int = 1) -> AsyncIterator[list[str]]:
        """Have so many pods, which are removed afterwards; gives the ids of their containers."""
        made: list[tuple[str, list[str]]] = []
        try:
            for _ in range(count):
                made.append(await self.start_pod(client, containers))
            yield [container for _, each in made for container in each]
        finally:
            for sandbox, each in made:
                await self.end_pod(client, sandbox, each)

    def processor_ms(self) -> float:
        """Return the processor time of all that was ever in the group, in milliseconds."""
        for directory in self.group.directories:
            if (directory / "cpuacct.usage").exists():
                return int((directory / "cpuacct.usage").read_text()) / 1e6
        fields = (self.group.directories[-1] / "cpu.stat").read_text().split()
        return int(fields[1]) / 1e3

    def private(self) -> float:
        """Return the megabytes that all processes but the daemon and the apps have for themselves."""
        processes = self.group.processes() - {self.daemon.pid}
        return sum(_private(pid) for pid in processes if name_of(pid) != _APP)

    def end(self) -> None:
        """End the daemon and all that is left of its pods."""
        self.daemon.terminate()
        self.daemon.wait()
        remove_groups(self.group.directories)
        os.close(self.group.claim)


@contextmanager
def _nodes() -> Iterator[dict[str, Node | str]]:
    """A node of each kind, or why there is none, with an image."""
    absent = missing("containerd", "ctr", "containerd-shim-runc-v2", "runc")
    with ExitStack() as stack:
        path = stack.enter_context(scratch())
        image = path / "image.tar"
        layer = busybox_layer()
        config = config_document([layer], {"Cmd": _SLEEP})
        image.write_bytes(archive(docker_files(layer, tags=(_IMAGE,), config=config)))
        minit = stack.enter_context(_minit(path, image))
        peer = f"{absent} is not installed" if absent else stack.enter_context(_containerd(path, image))
        yield {"minit": minit, "containerd": peer}


def _take(title: str, unit: str, measure: Callable[[Node], float], nodes: Mapping[str, Node | str], runs: int) -> None:
    """Print a table of a measure of each node."""
    compare(
        title,
        unit,
        {name: node if isinstance(node, str) else partial(measure, node) for name, node in nodes.items()},
        runs,
    )


def _take_idle(pods: int, nodes: Mapping[str, Node | str]) -> None:
    _take(many_started(pods), "s", lambda node: _fill(node, pods).seconds, nodes, 1)
    _take(processor_of(pods), "ms", lambda node: _fill(node, pods).processor_ms, nodes, 1)
    _take(private_of(pods), "MB", lambda node: _fill(node, pods).private, nodes, 1)
    _take(idle_of(pods), "ms", lambda node: _fill(node, pods).idle_ms, nodes, 1)


@contextmanager
def _minit(root: Path, image: Path) -> Iterator[Node]:
    compile_ahead()
    path = root / "minit"
    path.mkdir()
    words = [MINIT, f"--dir={path}/data"]
    first = ("run", "--rm", "--net=none", "--insecure-options=image", f"docker-archive:{image}", f"--exec=/bin/{_APP}")
    # It makes the program from which the daemon and its commands start.
    subprocess.run([*words, *first, "--", "true"], check=True)
    with _served(
        Node(path, [*words, "cri", f"--listen=unix://{path}/node.sock"], OwnGroup(), names_parent=False)
    ) as node:
        yield node


@contextmanager
def _containerd(root: Path, image: Path) -> Iterator[Node]:
    path = root / "containerd"
    path.mkdir()
    (path / "cni").mkdir()
    (path / "config.toml").write_text(_CONTAINERD.format(path=path, image=_IMAGE))
    with _served(Node(path, ["containerd", f"--config={path}/config.toml"], OwnGroup(), names_parent=True)) as node:
        load = ["ctr", f"--address={path}/node.sock", "--namespace=k8s.io", "images", "import", str(image)]
        subprocess.run(load, check=True, stdout=subprocess.DEVNULL)
        yield node


@contextmanager
def _served(node: Node) -> Iterator[Node]:
    try:
        wait_for(node.is_served, f"the node in {node.path}")
        yield node
    finally:
        node.end()


async def _version(client: CriNode) -> None:
    await client.ask("Version", api.VersionRequest())


def _start_ms(node: Node) -> float:
    """Return the milliseconds from the first call for a pod to the answer of the last."""
    taken: list[float] = []

    async def work(client: CriNode) -> None:
        start = time.monotonic()
        async with node.pods(client, 1):
            taken.append((time.monotonic() - start) * 1000)

    node.do(work)
    return taken[0]


async def _timed_ms(work: Awaitable[object]) -> float:
    start = time.monotonic()
    await work
    return (time.monotonic() - start) * 1000


def _of_one(node: Node, work: Callable[[CriNode], Awaitable[float]]) -> float:
    taken: list[float] = []

    async def take(client: CriNode) -> None:
        taken.append(await work(client))

    node.do(take)
    return taken[0]


def _create_ms(node: Node) -> float:
    """Return the milliseconds of CreateContainer in a sandbox that has a container."""

    async def work(client: CriNode) -> float:
        sandbox, config = await node.run_pod(client)
        first = await node.create(client, sandbox, config, "first")
        taken = await _timed_ms(node.create(client, sandbox, config, "second"))
        await node.end_pod(client, sandbox, [first])
        return taken

    return _of_one(node, work)


def _remove_ms(node: Node) -> float:
    """Return the milliseconds of RemoveContainer of a container that has ended."""

    async def work(client: CriNode) -> float:
        sandbox, [first, second] = await node.start_pod(client, 2)
        await client.ask("StopContainer", api.StopContainerRequest(container_id=first))
        taken = await _timed_ms(client.ask("RemoveContainer", api.ContainerId(container_id=first)))
        await node.end_pod(client, sandbox, [second])
        return taken

    return _of_one(node, work)


def _start_all_ms(node: Node) -> float:
    """Return the milliseconds of all calls that start a pod of several containers."""

    async def work(client: CriNode) -> float:
        start = time.monotonic()
        pod = await node.start_pod(client, CONTAINERS)
        taken = (time.monotonic() - start) * 1000
        await node.end_pod(client, *pod)
        return taken

    return _of_one(node, work)


def _end_all_ms(node: Node) -> float:
    """Return the milliseconds of all calls that stop and remove a pod of several containers."""

    async def work(client: CriNode) -> float:
        return await _timed_ms(node.end_pod(client, *await node.start_pod(client, CONTAINERS)))

    return _of_one(node, work)


def _list_ms(node: Node) -> float:
    """Return the milliseconds of a list of all containers of many pods."""

    async def work(client: CriNode) -> float:
        async with node.pods(client, PODS, CONTAINERS) as containers:
            listed = await client.ask("ListContainers", api.ListContainersRequest())
            assert len(listed.containers) == len(containers)
            start = time.monotonic()
            for _ in range(_LISTS):
                await client.ask("ListContainers", api.ListContainersRequest())
            return (time.monotonic() - start) * 1000 / _LISTS

    return _of_one(node, work)


CREATED = "CRI: CreateContainer"
REMOVED = "CRI: RemoveContainer, of one that has ended"
STARTED_ALL = f"CRI: a pod of {CONTAINERS} containers, asked for to started"
ENDED_ALL = f"CRI: a pod of {CONTAINERS} containers, stopped and removed"
LISTED = f"CRI: ListContainers, of {PODS * CONTAINERS}"
_STEPS: Mapping[str, Callable[[Node], float]] = {
    CREATED: _create_ms,
    REMOVED: _remove_ms,
    STARTED_ALL: _start_all_ms,
    ENDED_ALL: _end_all_ms,
    LISTED: _list_ms,
}


def _wall_ms(node: Node) -> float:
    return time.monotonic() * 1000


def _probe(clock: Callable[[Node], float], node: Node) -> float:
    """Return the milliseconds of a command in a container, by a clock."""
    taken: list[float] = []

    async def work(client: CriNode) -> None:
        async with node.pods(client, 1) as [container]:
            request = api.ExecSyncRequest(container_id=container, cmd=["/bin/busybox", "true"], timeout=10)
            await client.ask("ExecSync", request)
            start = clock(node)
            for _ in range(PROBES):
                assert (await client.ask("ExecSync", request)).exit_code == 0
            taken.append((clock(node) - start) / PROBES)

    node.do(work)
    return taken[0]


class _Filled(Value):
    """A node with some pods, which takes minutes to come by."""

    seconds: float
    """Of the start of all, one after the other."""
    processor_ms: float
    """Of the start of each."""
    private: float
    """The megabytes that the processes of each but its app have for themselves."""
    idle_ms: float
    """In each second, for what a kubelet asks for all the time."""


@cache
def _fill(node: Node, pods: int) -> _Filled:
    taken: list[_Filled] = []

    async def work(client: CriNode) -> None:
        before = node.private()
        start, processor_start = time.monotonic(), node.processor_ms()
        async with node.pods(client, pods):
            seconds = time.monotonic() - start
            processor_ms = node.processor_ms() - processor_start
            await trio.sleep(_SETTLE_SECONDS)
            private = node.private() - before
            taken.append(
                _Filled(
                    seconds=seconds,
                    processor_ms=processor_ms / pods,
                    private=private / pods,
                    idle_ms=await _idle_ms(node, client),
                )
            )

    node.do(work)
    return taken[0]


async def _idle_ms(node: Node, client: CriNode) -> float:
    start = node.processor_ms()
    for second in range(_IDLE_SECONDS):
        await client.ask("ListPodSandbox", api.ListPodSandboxRequest())
        await client.ask("ListContainers", api.ListContainersRequest())
        if second % _STATUS_SECONDS == 0:
            await client.ask("Status", api.StatusRequest())
        if second % _STATS_SECONDS == 0:
            await client.ask("ListContainerStats", api.ListContainerStatsRequest())
        await trio.sleep(1)
    return (node.processor_ms() - start) / _IDLE_SECONDS


def _private(pid: int) -> float:
    try:
        return megabytes(pid, "Private_Dirty") + megabytes(pid, "Private_Clean")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
