"""The daemon: the socket, the remains of earlier daemons, the tasks of clients, and the services' methods by path."""

from __future__ import annotations

import os
import signal
import socket
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio
from google.protobuf.message import DecodeError, Message

from minit import __version__
from minit.base.errors import MinitError, describe
from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.cri.containercalls import ContainerCalls
from minit.cri.containerstops import ContainerStops
from minit.cri.grpc.server import Method, Methods, Server
from minit.cri.hands import Hands
from minit.cri.imagecalls import ImageCalls
from minit.cri.node import Node
from minit.cri.podwatch import EventCalls, PodWatch
from minit.cri.records import Record, Records, SandboxRecord
from minit.cri.sandboxcalls import NO_NETWORK, NodeNetwork, SandboxCalls, UsualSandbox
from minit.cri.statscalls import StatsCalls
from minit.cri.statuses import runtime_info
from minit.cri.streaming.calls import StreamingCalls
from minit.cri.streaming.server import StreamingServer, Tokens, Wanted
from minit.linux.process import raise_open_files
from minit.stage0.files.durable import make_directory
from minit.stage0.files.locks import lock_directory
from minit.stage0.pods.privateusers import supports_user_namespaces

_BACKLOG = 1024  # of clients that come together, one for each command of a script say
_PATIENCE_SECONDS = 6.0
"""From a signal on, for calls that are being carried out; streams have ended their commands long before."""

_PACKAGES = ("runtime.v1", "runtime.v1alpha2")  # the second until Kubernetes 1.25

_API_VERSION = "v1"
_KUBELET_VERSION = "0.1.0"  # of the interface's own messages, which kubelets ask for


class Settings(Value):
    """
    The pods that the daemon serves, and the addresses.

    `program` are the words of minit. `cdi_directories` have the files of CDI, of which the last ones count most.
    `runtime_handlers` are names of RuntimeClasses, beside the empty name, by which sandboxes may ask for minit.
    `stream_address` and `stream_port` are the TCP address of streams; port 0 is any free port.
    """

    data: Path
    socket: Path
    program: tuple[str, ...]
    local_config: str
    system_config: str
    stream_address: str
    stream_port: int
    usual: UsualSandbox = UsualSandbox()
    cdi_directories: tuple[Path, ...] = ()
    runtime_handlers: tuple[str, ...] = ()

    def described(self) -> dict[str, object]:
        """Return the settings for a reader."""
        return {
            "dataDirectory": str(self.data),
            "socket": str(self.socket),
            "stage1Path": self.usual.stage1_path,
            "cdiSpecDirs": [str(directory) for directory in self.cdi_directories],
            "streamAddress": self.stream_address,
            "runtimeHandlers": list(self.runtime_handlers),
        }


def serve(settings: Settings, note: Callable[[str], None]) -> None:
    """Serve until a SIGTERM or SIGINT; pods go on. MinitError if another daemon serves the data directory."""
    raise_open_files()  # several for each pod
    make_directory(settings.data, 0o750)
    records = Records(settings.data)
    try:
        held = lock_directory(records.directory, exclusive=True, blocking=False)
    except BlockingIOError as error:
        raise MinitError(f"another `minit cri` serves {settings.data}") from error
    try:
        with _listener(settings.socket) as listening, _stream_listener(settings) as streaming:
            trio.run(_run, settings, records, listening, streaming, note)
    finally:
        os.close(held)


def _listener(path: Path) -> socket.socket:
    make_directory(path.parent, 0o755)
    try:
        if stat.S_ISSOCK(path.lstat().st_mode):
            path.unlink()  # of a daemon that is no more: the lock of the data directory says so
    except FileNotFoundError:
        pass
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
    except OSError as error:
        listening.close()
        raise MinitError(f"cannot listen at {path}: {describe(error)}") from error
    finally:
        os.umask(before)
    listening.listen(_BACKLOG)
    return listening


def _stream_listener(settings: Settings) -> socket.socket:
    address = (settings.stream_address, settings.stream_port)
    family = socket.AF_INET6 if ":" in settings.stream_address else socket.AF_INET
    try:
        listening = socket.create_server(address, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise MinitError(f"cannot listen at {address[0]}, port {address[1]}: {describe(error)}") from error
    listening.setblocking(False)
    return listening


def _base_url(listening: socket.socket) -> str:
    address, port, *_ = listening.getsockname()
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


async def _run(
    settings: Settings,
    records: Records,
    listening: socket.socket,
    streaming: socket.socket,
    note: Callable[[str], None],
) -> None:
    events = EventCalls()
    node = Node(settings.data, events.note)

    def report(error: BaseException) -> None:
        note(f"{type(error).__name__}: {describe(error)} (a bug in minit)")

    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_end_with, signals, nursery.cancel_scope)
            hands = Hands(nursery, settings.program, settings.data, settings.local_config, settings.system_config)
            watch = PodWatch(nursery, node)
            handlers = settings.runtime_handlers
            network = NodeNetwork(settings.usual, note)
            sandboxes = SandboxCalls(node, records, hands, watch, settings.usual, network, handlers)
            images = ImageCalls(node, hands, nursery)
            stops = ContainerStops(nursery, settings.data)
            containers = ContainerCalls(node, hands, stops, images, settings.cdi_directories)
            await _restore(records, sandboxes, containers, note)
            tokens = Tokens[Wanted]()
            streams = StreamingCalls(node, tokens, _base_url(streaming))
            stats = StatsCalls(node, nursery)
            runtime = _RuntimeCalls(settings.described(), network, handlers)
            methods = _all_methods(runtime, sandboxes, containers, stats, events, streams, images)
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(listening))
            stream_listener = trio.SocketListener(trio.socket.from_stdlib_socket(streaming))
            nursery.start_soon(StreamingServer(tokens, report).serve, stream_listener)
            note(f"serving {settings.data} at unix://{settings.socket}")
            await trio.serve_listeners(Server(methods, report).serve, [listener])


async def _end_with(signals: AsyncIterator[int], scope: trio.CancelScope) -> None:
    async for _ in signals:
        # Longer work goes on in other processes, such as the work of a killed daemon.
        patience = threading.Timer(_PATIENCE_SECONDS, os._exit, (0,))
        patience.daemon = True
        patience.start()
        scope.cancel()


async def _restore(
    records: Records, sandboxes: SandboxCalls, containers: ContainerCalls, note: Callable[[str], None]
) -> None:
    """Take over what earlier daemons have made, and undo what they were cut off in."""
    for record in records.all():
        with _noting(record, note):
            await _restore_one(record, sandboxes, containers, note)


async def _restore_one(
    record: SandboxRecord, sandboxes: SandboxCalls, containers: ContainerCalls, note: Callable[[str], None]
) -> None:
    # By a command that goes on.
    await trio.to_thread.run_sync(record.wait_until_free, abandon_on_cancel=True)
    uuid = record.uuid
    if uuid is None or record.made_ns is None:
        await sandboxes.undo(record)
        return
    sandbox = sandboxes.adopt(record, uuid)
    for made in record.containers():
        with _noting(made, note):
            if made.made_ns is None:
                await containers.undo(sandbox, made)
            else:
                containers.adopt(sandbox, made)


@contextmanager
def _noting(record: Record, note: Callable[[str], None]) -> Iterator[None]:
    """Have an error about a record be told, and no more: the others are served."""
    try:
        yield
    except (MinitError, OSError, DecodeError, UnicodeDecodeError) as error:
        note(f"{record.path}: {describe(error)}")


def _all_methods(
    runtime: _RuntimeCalls,
    sandboxes: SandboxCalls,
    containers: ContainerCalls,
    stats: StatsCalls,
    events: EventCalls,
    streaming: StreamingCalls,
    images: ImageCalls,
) -> Methods:
    """Return all methods."""
    services = {
        "RuntimeService": {
            "Version": Method(request=api.VersionRequest, answer=runtime.version),
            "Status": Method(request=api.StatusRequest, answer=runtime.status),
            "RuntimeConfig": Method(request=api.RuntimeConfigRequest, answer=runtime.runtime_config),
            "UpdateRuntimeConfig": Method(request=api.UpdateRuntimeConfigRequest, answer=runtime.update_runtime_config),
            "RunPodSandbox": Method(request=api.RunPodSandboxRequest, answer=sandboxes.run),
            "StopPodSandbox": Method(request=api.SandboxId, answer=sandboxes.stop),
            "RemovePodSandbox": Method(request=api.SandboxId, answer=sandboxes.remove),
            "PodSandboxStatus": Method(request=api.PodSandboxStatusRequest, answer=sandboxes.status),
            "ListPodSandbox": Method(request=api.ListPodSandboxRequest, answer=sandboxes.list),
            "UpdatePodSandboxResources": Method(
                request=api.UpdatePodSandboxResourcesRequest, answer=sandboxes.update_resources
            ),
            "CreateContainer": Method(request=api.CreateContainerRequest, answer=containers.create),
            "StartContainer": Method(request=api.ContainerId, answer=containers.start),
            "StopContainer": Method(request=api.StopContainerRequest, answer=containers.stop),
            "RemoveContainer": Method(request=api.ContainerId, answer=containers.remove),
            "ContainerStatus": Method(request=api.ContainerStatusRequest, answer=containers.status),
            "ListContainers": Method(request=api.ListContainersRequest, answer=containers.list),
            "UpdateContainerResources": Method(request=api.UpdateContainerResourcesRequest, answer=containers.update),
            "ContainerStats": Method(request=api.ContainerId, answer=stats.container),
            "ListContainerStats": Method(request=api.ListContainerStatsRequest, answer=stats.list_containers),
            "PodSandboxStats": Method(request=api.SandboxId, answer=stats.sandbox),
            "ListPodSandboxStats": Method(request=api.ListPodSandboxStatsRequest, answer=stats.list_sandboxes),
            "ListMetricDescriptors": Method(request=api.Nothing, answer=stats.describe_metrics),
            "ListPodSandboxMetrics": Method(request=api.Nothing, answer=stats.list_metrics),
            "StreamPodSandboxes": _streamed(api.ListPodSandboxRequest, sandboxes.list, "items"),
            "StreamContainers": _streamed(api.ListContainersRequest, containers.list, "containers"),
            "StreamContainerStats": _streamed(api.ListContainerStatsRequest, stats.list_containers, "stats"),
            "StreamPodSandboxStats": _streamed(api.ListPodSandboxStatsRequest, stats.list_sandboxes, "stats"),
            "StreamPodSandboxMetrics": _streamed(api.Nothing, stats.list_metrics, "pod_metrics"),
            "ReopenContainerLog": Method(request=api.ContainerId, answer=containers.reopen_log),
            "ExecSync": Method(request=api.ExecSyncRequest, answer=containers.exec_sync),
            "GetContainerEvents": Method(request=api.Nothing, stream=events.get),
            "Exec": Method(request=api.ExecRequest, answer=streaming.exec),
            "Attach": Method(request=api.AttachRequest, answer=streaming.attach),
            "PortForward": Method(request=api.PortForwardRequest, answer=streaming.port_forward),
        },
        "ImageService": {
            "ListImages": Method(request=api.ListImagesRequest, answer=images.list),
            "ImageStatus": Method(request=api.ImageStatusRequest, answer=images.status),
            "PullImage": Method(request=api.PullImageRequest, answer=images.pull),
            "RemoveImage": Method(request=api.RemoveImageRequest, answer=images.remove),
            "ImageFsInfo": Method(request=api.Nothing, answer=images.filesystem),
            "StreamImages": _streamed(api.ListImagesRequest, images.list, "images"),
        },
    }
    return {
        f"/{package}.{service}/{name}": method
        for package in _PACKAGES
        for service, methods in services.items()
        for name, method in methods.items()
    }


def _streamed(request: type[Message], answer: Callable[[Any], Awaitable[Message]], items: str) -> Method:
    """Return a method that sends each item of a list in an own message, so that no list is too long for a message."""
    return Method(request=request, answer=answer, items=items)


class _RuntimeCalls:
    """Version, Status, RuntimeConfig and UpdateRuntimeConfig."""

    def __init__(self, settings: Mapping[str, object], network: NodeNetwork, handlers: Sequence[str]) -> None:
        """Show `settings` to whoever asks for all there is to know; `handlers` are other names of the only runtime."""
        self._settings = settings
        self._network = network
        self._handlers = ("", *handlers)

    async def version(self, _: api.VersionRequest) -> api.VersionResponse:
        """Return the names and versions, none of which may be empty."""
        return api.VersionResponse(
            version=_KUBELET_VERSION,
            runtime_name="minit",
            runtime_version=__version__,
            runtime_api_version=_API_VERSION,
        )

    async def status(self, request: api.StatusRequest) -> api.StatusResponse:
        """Return whether sandboxes can be run."""
        network, is_ready = self._network.find()
        of_network = api.RuntimeCondition(type="NetworkReady", status=is_ready)
        if not is_ready:
            of_network.reason, of_network.message = "NetworkPluginNotReady", NO_NETWORK
        conditions = [api.RuntimeCondition(type="RuntimeReady", status=True), of_network]
        of_handler = api.RuntimeHandlerFeatures(
            recursive_read_only_mounts=True, user_namespaces=supports_user_namespaces()
        )
        return api.StatusResponse(
            status=api.RuntimeStatus(conditions=conditions),
            info=runtime_info({**self._settings, "network": network}) if request.verbose else None,
            features=api.RuntimeFeatures(supplemental_groups_policy=True, mount_options=True),
            runtime_handlers=[api.RuntimeHandler(name=name, features=of_handler) for name in self._handlers],
        )

    async def runtime_config(self, _: api.RuntimeConfigRequest) -> api.RuntimeConfigResponse:
        """Tell the kubelet to make control groups itself, not by systemd."""
        return api.RuntimeConfigResponse(linux=api.LinuxRuntimeConfiguration(cgroup_driver=api.CGROUPFS))

    async def update_runtime_config(self, _: api.UpdateRuntimeConfigRequest) -> api.Nothing:
        """Accept the node's range of addresses: networks are configured by files."""
        return api.Nothing()
