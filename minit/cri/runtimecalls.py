"""The calls about the runtime itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit import __version__
from minit.cri.api import cri_pb2 as api
from minit.cri.verboseinfo import runtime_info
from minit.stage0.pods.privateusers import supports_user_namespaces

_API_VERSION = "v1"
_KUBELET_VERSION = "0.1.0"  # of the interface's own messages, which kubelets ask for


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
