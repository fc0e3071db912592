"""The methods of the two services by their paths; older kubelets have another name for the same interface."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from google.protobuf.message import Message

from minit import __version__
from minit.cri.api import cri_pb2 as api
from minit.cri.containercalls import ContainerCalls
from minit.cri.grpc.server import Method, Methods
from minit.cri.imagecalls import ImageCalls
from minit.cri.podwatch import EventCalls
from minit.cri.sandboxcalls import SandboxCalls
from minit.cri.statscalls import StatsCalls
from minit.cri.statuses import runtime_info
from minit.cri.streaming.calls import StreamingCalls
from minit.stage0.pods.privateusers import supports_user_namespaces

_PACKAGES = ("runtime.v1", "runtime.v1alpha2")  # the second until Kubernetes 1.25

_API_VERSION = "v1"
_KUBELET_VERSION = "0.1.0"  # of the interface's own messages, which kubelets ask for


def all_methods(
    runtime: RuntimeCalls,
    sandboxes: SandboxCalls,
    containers: ContainerCalls,
    stats: StatsCalls,
    events: EventCalls,
    streaming: StreamingCalls,
    images: ImageCalls,
) -> Methods:
    """Return all methods that there are."""
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
    """Return a method that has the items of a list in messages of their own, so that no list is too long for one."""
    return Method(request=request, answer=answer, items=items)


class RuntimeCalls:
    """Version, Status, RuntimeConfig and UpdateRuntimeConfig."""

    def __init__(self, settings: Mapping[str, object], handlers: Sequence[str]) -> None:
        """Show `settings` to whoever asks for all there is to know; `handlers` are other names of the only runtime."""
        self._settings = settings
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
        # Networks are built in, so that there always is one.
        ready = [api.RuntimeCondition(type=kind, status=True) for kind in ("RuntimeReady", "NetworkReady")]
        of_handler = api.RuntimeHandlerFeatures(
            recursive_read_only_mounts=True, user_namespaces=supports_user_namespaces()
        )
        return api.StatusResponse(
            status=api.RuntimeStatus(conditions=ready),
            info=runtime_info(self._settings) if request.verbose else None,
            features=api.RuntimeFeatures(supplemental_groups_policy=True, mount_options=True),
            runtime_handlers=[api.RuntimeHandler(name=name, features=of_handler) for name in self._handlers],
        )

    async def runtime_config(self, _: api.RuntimeConfigRequest) -> api.RuntimeConfigResponse:
        """Tell the kubelet to make control groups itself, not by systemd."""
        return api.RuntimeConfigResponse(linux=api.LinuxRuntimeConfiguration(cgroup_driver=api.CGROUPFS))

    async def update_runtime_config(self, _: api.UpdateRuntimeConfigRequest) -> api.Nothing:
        """Accept the node's range of addresses: networks are configured by files."""
        return api.Nothing()
