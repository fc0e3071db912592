"""
The calls about sandboxes.

Work that a call has begun goes on if the caller gives up. A later call for the same sandbox gets the outcome
of the first.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import trio

from minit.base.errors import kind_of
from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code, code_of
from minit.cri.hands import Hands
from minit.cri.node import Node, Sandbox
from minit.cri.podwatch import PodWatch
from minit.cri.records import Records, SandboxRecord, sandbox_key
from minit.cri.refusal import check_message
from minit.cri.statuses import container_status, is_sandbox_listed, listed_sandbox, sandbox_info, sandbox_status
from minit.cri.translation.sandbox import run_options, sandbox_request
from minit.podfiles.networkfiles import CNI_DIRECTORY
from minit.pods.requests import PodRelease, PodRemoval, PodRequest, PodStop, SandboxRequest, Stage1Request
from minit.stage0.networks import first_network
from minit.stage0.stage1.entrypoints import RunOptions

NO_NETWORK = f"{CNI_DIRECTORY} has no valid configuration"
"""What is wrong on a node that waits for the network of the cluster."""


class UsualSandbox(Value):
    """
    Settings of all sandboxes of a node: a network, None for the first of all runtimes', and a stage1, None for minit's.

    With `waits_for_cni` a node has no network until there is one for all runtimes, else the default network.
    """

    network: str | None = None
    waits_for_cni: bool = False
    stage1_path: str | None = None


class NodeNetwork:
    """The network of the sandboxes, looked for at each use: a cluster's is configured by a pod of the node."""

    def __init__(self, usual: UsualSandbox, note: Callable[[str], None]) -> None:
        """Tell `note` about each broken file once."""
        self._usual = usual
        self._note = note
        self._told: set[str] = set()

    def find(self) -> tuple[str | None, bool]:
        """Return the name, None for the default network, and whether sandboxes can have the network."""
        if self._usual.network is not None:
            return self._usual.network, True
        name = first_network(self._tell)
        return name, name is not None or not self._usual.waits_for_cni

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._note(text)


class SandboxCalls:
    """RunPodSandbox to ListPodSandbox."""

    def __init__(
        self,
        node: Node,
        records: Records,
        hands: Hands,
        watch: PodWatch,
        usual: UsualSandbox,
        network: NodeNetwork,
        handlers: Sequence[str],
    ) -> None:
        """Make sandboxes; `handlers` are names that RuntimeClasses have for minit."""
        self._node = node
        self._records = records
        self._hands = hands
        self._watch = watch
        self._usual = usual
        self._network = network
        self._handlers = handlers

    async def run(self, request: api.RunPodSandboxRequest) -> api.SandboxId:
        """Make a sandbox, and return when it is ready; nothing is left of one that fails."""
        handler = request.runtime_handler
        if handler and handler not in self._handlers:
            remedy = f"`minit cri --runtime-handler={handler}` takes it to mean minit"
            raise CallError(Code.INVALID_ARGUMENT, f'runtime_handler: there is no "{handler}"; {remedy}')
        metadata = request.config.metadata
        if not metadata.name:
            raise CallError(Code.INVALID_ARGUMENT, "config.metadata.name: expected a name")
        check_message(request.config, "config")
        pod = sandbox_request(request.config, Stage1Request(path=self._usual.stage1_path))
        network, is_ready = self._network.find()
        options = run_options(request.config, network)
        if not is_ready and options.networks != ("host",):
            raise CallError(Code.UNKNOWN, f"there is no network yet: {NO_NETWORK}")
        key = sandbox_key(metadata)
        async with self._node.lock(key):
            present = next((one for one in self._node.sandboxes.values() if one.record.path.name == key), None)
            if present is not None:
                if present.is_ready and present.config == request.config and present.handler == handler:
                    return api.SandboxId(pod_sandbox_id=present.uuid)
                name = f"{metadata.namespace}/{metadata.name}, attempt {metadata.attempt}"
                raise CallError(Code.ALREADY_EXISTS, f"there is a sandbox {name} already: {present.uuid}")
            sandbox = await self._make(request, pod, options)
        return api.SandboxId(pod_sandbox_id=sandbox.uuid)

    async def _make(self, request: api.RunPodSandboxRequest, pod: PodRequest, options: RunOptions) -> Sandbox:
        record = self._records.keep(request)
        try:
            _make_log_directory(request.config.log_directory)
            with record.held() as held:
                asked = SandboxRequest(pod=pod, options=options, uuid_file=record.uuid_file)
                uuid = await self._hands.carry_out(asked, held=held, begins=True)
            record.mark_made()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.undo(record)
            raise
        return self.adopt(record, uuid)

    def adopt(self, record: SandboxRecord, uuid: str) -> Sandbox:
        """Add a new sandbox to the node, with the containers already made."""
        sandbox = self._node.sandboxes[uuid] = Sandbox(record, uuid)
        self._node.follow(sandbox)
        self._watch.add(sandbox)
        return sandbox

    async def undo(self, record: SandboxRecord) -> None:
        """Remove a sandbox that did not become ready, and its record; one that stays is the kubelet's to remove."""
        uuid = record.uuid
        if uuid is not None:
            try:
                await self._remove_pod(uuid)
            except CallError:
                self.adopt(record, uuid)
                return
        record.remove()

    async def stop(self, request: api.SandboxId) -> api.Nothing:
        """Kill a sandbox with its containers, and return when its addresses are free; no error if there is none."""
        async with self._locked(request) as sandbox:
            if sandbox is not None and not sandbox.is_released:
                sandbox.is_released = await self._stop(sandbox, PodRelease(uuid=sandbox.uuid))
        return api.Nothing()

    async def remove(self, request: api.SandboxId) -> api.Nothing:
        """Remove a sandbox with its containers; no error if there is none."""
        async with self._locked(request) as sandbox:
            if sandbox is not None:
                self._node.follow(sandbox)
                if sandbox.is_ready:
                    await self._stop(sandbox, PodStop(uuid=sandbox.uuid, force=True))
                await self._remove_pod(sandbox.uuid)
                self._watch.drop(sandbox)
                sandbox.record.remove()
                del self._node.sandboxes[sandbox.uuid]
                for deleted in (*sandbox.containers, sandbox.uuid):
                    self._node.note(sandbox, deleted, api.CONTAINER_DELETED_EVENT)
        return api.Nothing()

    @asynccontextmanager
    async def _locked(self, request: api.SandboxId) -> AsyncIterator[Sandbox | None]:
        """Yield a sandbox that nobody else changes for the length of a with block, None if there is none."""
        sandbox = self._node.find_sandbox(request.pod_sandbox_id)
        if sandbox is None:
            yield None
            return
        async with self._node.lock(sandbox.record.path.name):
            # It may have been removed meanwhile, and another one be made of the same request.
            yield self._node.sandboxes.get(sandbox.uuid)

    async def _stop(self, sandbox: Sandbox, request: PodRelease | PodStop) -> bool:
        """Have a sandbox stopped, and return whether that did all; what it did not the removal does."""
        try:
            with sandbox.record.held() as held:
                await self._hands.carry_out(request, held=held)
        except CallError:
            self._node.follow(sandbox)
            if sandbox.is_ready:
                raise
            return False
        self._node.follow(sandbox)
        return True

    async def _remove_pod(self, uuid: str) -> None:
        try:
            await self._hands.carry_out(PodRemoval(uuid=uuid))
        except CallError:
            if self._node.has_pod(uuid):
                raise

    async def status(self, request: api.PodSandboxStatusRequest) -> api.PodSandboxStatusResponse:
        """Return all that is known of a sandbox."""
        sandbox = self._node.sandbox(request.pod_sandbox_id)
        return api.PodSandboxStatusResponse(
            status=sandbox_status(sandbox),
            info=sandbox_info(sandbox) if request.verbose else None,
            containers_statuses=[container_status(one) for one in sandbox.containers.values()],
            timestamp=time.time_ns(),
        )

    async def update_resources(self, request: api.UpdatePodSandboxResourcesRequest) -> api.Nothing:
        """Accept other limits of a sandbox: the kubelet has set them for the group that its containers are in."""
        self._node.sandbox(request.pod_sandbox_id)
        return api.Nothing()

    async def list(self, request: api.ListPodSandboxRequest) -> api.ListPodSandboxResponse:
        """Return the sandboxes that a filter is about."""
        listed = [one for one in self._node.sandboxes.values() if is_sandbox_listed(one, request.filter)]
        return api.ListPodSandboxResponse(items=[listed_sandbox(one) for one in listed])


def _make_log_directory(path: str) -> None:
    if path:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise CallError(code_of(kind_of(error)), f"log_directory: cannot make {path}: {error.strerror}") from error
