"""The calls about containers, and about commands in them."""

from __future__ import annotations

import os
import posixpath
import secrets
import subprocess
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from minit.base.errors import kind_of
from minit.base.hostname import default_name
from minit.cri.api import cri_pb2 as api
from minit.cri.containerstops import ContainerStops
from minit.cri.failurepipe import failure_pipe
from minit.cri.grpc.framing import CallError, Code, code_of
from minit.cri.hands import Hands, limited
from minit.cri.imagecalls import ImageCalls
from minit.cri.node import Container, Node, Sandbox
from minit.cri.nodeimages import NodeImage
from minit.cri.records import ContainerRecord
from minit.cri.refusal import check_message
from minit.cri.statuses import container_info, container_status, is_container_listed, listed_container
from minit.cri.translation.container import app_request, check_pids, environment, with_cdi_devices, with_devices
from minit.cri.translation.sandbox import completed, hostname_of, resource_limits, user_ids
from minit.linux import syscalls
from minit.manifest.image import ImageManifest
from minit.manifest.limits import Limits
from minit.podfiles import paths
from minit.podfiles.hostlogs import open_log
from minit.pods.requests import AddRequest, AppRemoval, AppStart, AppStop, LogReopening
from minit.stage0.apps.appcontrol import change_limits
from minit.stage0.pods.poddirectory import open_pod

_ID_BYTES = 32
_EXIT_TIMED_OUT = 124
_OUTPUT_BYTES = 7 << 20
"""Of each stream of ExecSync: both and the rest have to fit into a message."""

_RESOLVE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class ContainerCalls:
    """CreateContainer to ListContainers, UpdateContainerResources, ReopenContainerLog and ExecSync."""

    def __init__(
        self,
        node: Node,
        hands: Hands,
        stops: ContainerStops,
        images: ImageCalls,
        cdi_directories: Sequence[Path],
    ) -> None:
        self._node = node
        self._hands = hands
        self._stops = stops
        self._images = images
        self._cdi_directories = cdi_directories

    async def create(self, request: api.CreateContainerRequest) -> api.ContainerId:
        """Put a container into a sandbox; the same request again gets the same container."""
        sandbox = self._node.sandbox(request.pod_sandbox_id)
        metadata = request.config.metadata
        if not metadata.name:
            raise CallError(Code.INVALID_ARGUMENT, "config.metadata.name: expected a name")
        if not request.config.image.image:
            raise CallError(Code.INVALID_ARGUMENT, "config.image.image: expected an image")
        check_message(request.config, "config")
        image = self._images.get(request.config.image.image)
        request = _settled(request, image)
        target = sandbox.containers.get(request.config.linux.security_context.namespace_options.target_id)
        stored = image.stored[-1]
        config = with_cdi_devices(request.config, self._cdi_directories)
        config = self._with_images(with_devices(config))
        if config.linux.security_context.privileged and not sandbox.config.linux.security_context.privileged:
            raise CallError(Code.INVALID_ARGUMENT, "security_context.privileged: its sandbox is not privileged")
        if config.linux.security_context.selinux_options.ByteSize() and os.path.exists(paths.SELINUX):
            raise CallError(Code.INVALID_ARGUMENT, "selinux_options: minit sets no labels, and this kernel has SELinux")
        app = app_request(
            sandbox.config,
            config,
            stored.id,
            None if target is None else target.app,
            user_ids(sandbox.config.linux.security_context.namespace_options),
            image_has_group=_has_group(stored.manifest),
        )
        of_sandbox = sandbox.config.linux.security_context.namespace_options
        check_pids(config.linux.security_context.namespace_options, of_sandbox)
        hostname = hostname_of(sandbox.config) or default_name(sandbox.uuid)
        variables = environment(config, "" if _has_hostname(stored.manifest) else hostname)
        addition = AddRequest(uuid=sandbox.uuid, app=app, environment=variables)
        async with self._node.lock(sandbox.record.path.name):
            self._node.sandbox(sandbox.uuid)  # it may have been removed meanwhile
            for present in sandbox.containers.values():
                if present.config.metadata == metadata:
                    if present.config == request.config:
                        return api.ContainerId(container_id=present.id)
                    name = f"{metadata.name}, attempt {metadata.attempt}"
                    raise CallError(Code.ALREADY_EXISTS, f"there is a container {name} already: {present.id}")
            record = await self._make(sandbox, request, addition)
        return api.ContainerId(container_id=record.id)

    def _with_images(self, asked: api.ContainerConfig) -> api.ContainerConfig:
        """Return a container with the store's references of image mounts."""
        config = api.ContainerConfig()
        config.CopyFrom(asked)
        for mount in config.mounts:
            if mount.HasField("image"):
                mount.image.image = self._images.get(mount.image.image).stored[-1].id
        return config

    async def _make(
        self, sandbox: Sandbox, request: api.CreateContainerRequest, addition: AddRequest
    ) -> ContainerRecord:
        record = sandbox.record.keep_container(secrets.token_hex(_ID_BYTES), request)
        try:
            await _in_thread(partial(_make_host_paths, request.config.mounts))
            with sandbox.record.held() as held:
                await self._hands.carry_out(addition, held=held)
            record.mark_made()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.undo(sandbox, record)
            raise
        self.adopt(sandbox, record)
        self._node.note(sandbox, record.id, api.CONTAINER_CREATED_EVENT)
        return record

    def adopt(self, sandbox: Sandbox, record: ContainerRecord) -> None:
        """Add a new container to the sandbox."""
        sandbox.containers[record.id] = Container(sandbox, record)
        self._node.follow(sandbox)

    async def undo(self, sandbox: Sandbox, record: ContainerRecord) -> None:
        """Remove a container whose making was cut short, and its record."""
        container = Container(sandbox, record)
        if self._node.has_app(container):
            with suppress(CallError):  # it goes with its sandbox
                await self._hands.carry_out(AppRemoval(uuid=container.sandbox.uuid, app=container.app))
        record.remove()

    async def start(self, request: api.ContainerId) -> api.Nothing:
        """Start a container, once."""
        container = self._node.container(request.container_id)
        async with self._node.lock(container.sandbox.record.path.name):
            self._node.container(container.id)  # it may have been removed meanwhile
            self._node.follow(container.sandbox)
            if container.state != api.CONTAINER_CREATED:
                state = api.ContainerState.Name(container.state)
                raise CallError(Code.FAILED_PRECONDITION, f"container {container.id} was started before: {state}")
            _make_log(container)
            await self._hands.carry_out(AppStart(uuid=container.sandbox.uuid, app=container.app))
            self._node.follow(container.sandbox)
        return api.Nothing()

    async def reopen_log(self, request: api.ContainerId) -> api.Nothing:
        """Make the log of a container that was renamed anew, and return when nothing is written to the old one."""
        container = self._node.running_container(request.container_id)
        _make_log(container)
        await self._hands.carry_out(LogReopening(uuid=container.sandbox.uuid, app=container.app))
        return api.Nothing()

    async def stop(self, request: api.StopContainerRequest) -> api.Nothing:
        """Stop a container, and return when it has stopped; no error if there is none, or it does not run."""
        container = self._node.find_container(request.container_id)
        if container is not None:
            self._node.follow(container.sandbox)
            if container.state == api.CONTAINER_RUNNING:
                await self._stop(container, request.timeout)
        return api.Nothing()

    async def _stop(self, container: Container, timeout_seconds: int) -> None:
        has_stopped = await self._stops.stop(container, limited(timeout_seconds))
        try:
            if not has_stopped:  # a hand knows why
                grace_seconds = limited(timeout_seconds)
                stop = AppStop(uuid=container.sandbox.uuid, app=container.app, grace_seconds=grace_seconds)
                await self._hands.carry_out(stop, lasts=has_stopped is None and timeout_seconds > 0)
        except CallError:
            self._node.follow(container.sandbox)
            if container.state == api.CONTAINER_RUNNING:
                raise
        self._node.follow(container.sandbox)

    async def update(self, request: api.UpdateContainerResourcesRequest) -> api.Nothing:
        """Change limits of a container that has not ended; all stay as they were if one cannot be changed."""
        container = self._node.container(request.container_id)
        async with self._node.lock(container.sandbox.record.path.name):
            self._node.container(container.id)  # it may have been removed meanwhile
            if container.state not in (api.CONTAINER_CREATED, api.CONTAINER_RUNNING):
                raise CallError(Code.FAILED_PRECONDITION, f"container {container.id} has ended")
            change, after = completed(request.linux, container.resources)
            limits = resource_limits(change)
            with container.record.changing_resources(after):
                await _in_thread(partial(self._change_limits, container, limits))
            container.resources = after
        return api.Nothing()

    def _change_limits(self, container: Container, limits: Limits) -> None:
        with open_pod(self._node.data, container.sandbox.uuid) as pod:
            change_limits(pod, container.app, limits)

    async def remove(self, request: api.ContainerId) -> api.Nothing:
        """Remove a container, and kill it first if it runs; no error if there is none."""
        container = self._node.find_container(request.container_id)
        if container is not None:
            async with self._node.lock(container.sandbox.record.path.name):
                if self._node.find_container(container.id) is None:
                    return api.Nothing()  # it has been removed meanwhile
                self._node.follow(container.sandbox)
                if container.state == api.CONTAINER_RUNNING:
                    await self._stop(container, 0)
                try:
                    await self._hands.carry_out(AppRemoval(uuid=container.sandbox.uuid, app=container.app))
                except CallError:
                    if self._node.has_app(container):
                        raise
                container.record.remove()
                del container.sandbox.containers[container.id]
                self._node.note(container.sandbox, container.id, api.CONTAINER_DELETED_EVENT)
        return api.Nothing()

    async def status(self, request: api.ContainerStatusRequest) -> api.ContainerStatusResponse:
        """Return all that is known of a container."""
        container = self._node.container(request.container_id)
        info = container_info(container) if request.verbose else None
        return api.ContainerStatusResponse(status=container_status(container), info=info)

    async def list(self, request: api.ListContainersRequest) -> api.ListContainersResponse:
        """Return the containers that a filter is about."""
        listed = [one for one in self._node.containers() if is_container_listed(one, request.filter)]
        return api.ListContainersResponse(containers=[listed_container(one) for one in listed])

    async def exec_sync(self, request: api.ExecSyncRequest) -> api.ExecSyncResponse:
        """Run a command in a container; DEADLINE_EXCEEDED, with the command killed, when its time is over."""
        container = self._node.running_container(request.container_id)
        if not request.cmd:
            raise CallError(Code.INVALID_ARGUMENT, "cmd: expected a command")
        limit = float(limited(request.timeout)) if request.timeout > 0 else None
        begin = trio.current_time()
        with failure_pipe() as failures:
            entered = self._node.enter(container, request.cmd, limit, failures.theirs)
            process = await trio.lowlevel.open_process(
                entered.words,
                cwd=entered.directory,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=(failures.theirs,),
            )
            answer = await _outcome(process)
            if (reason := failures.reason()) is not None:
                raise CallError(Code.UNKNOWN, f"cannot enter container {container.id}: {reason}")
        if limit and answer.exit_code == _EXIT_TIMED_OUT and trio.current_time() >= begin + request.timeout:
            raise CallError(Code.DEADLINE_EXCEEDED, f"the command did not end within {request.timeout} s")
        return answer


async def _in_thread(action: Callable[[], None]) -> None:
    """Do what may wait for the kernel or a file system of the network, in a thread that nobody else waits for."""
    await trio.to_thread.run_sync(action, limiter=trio.CapacityLimiter(1))


def _has_group(image: ImageManifest) -> bool:
    """Tell whether an image names a group; a converted image without a group has the name of the user there."""
    return image.app is not None and not (image.from_docker and image.app.group == image.app.user)


def _has_hostname(image: ImageManifest) -> bool:
    return image.app is not None and any(name == "HOSTNAME" for name, _ in image.app.environment)


def _settled(request: api.CreateContainerRequest, image: NodeImage) -> api.CreateContainerRequest:
    """Return a request with the image by id, by digest, and by the name that users know."""
    settled = api.CreateContainerRequest()
    settled.CopyFrom(request)
    spec = settled.config.image
    spec.image_ref = image.digest_of(spec.user_specified_image or spec.image)
    spec.user_specified_image = spec.user_specified_image or image.name_of(spec.image)
    spec.image = image.id
    return settled


async def _outcome(process: trio.Process) -> api.ExecSyncResponse:
    outputs = {"stdout": bytearray(), "stderr": bytearray()}
    try:
        async with trio.open_nursery() as nursery:
            for name, stream in (("stdout", process.stdout), ("stderr", process.stderr)):
                assert stream is not None
                nursery.start_soon(_read, stream, outputs[name])
            await process.wait()
    finally:
        if process.returncode is None:
            process.kill()  # with which the command ends
            with trio.CancelScope(shield=True):
                await process.wait()
    code = await process.wait()
    return api.ExecSyncResponse(
        stdout=bytes(outputs["stdout"]), stderr=bytes(outputs["stderr"]), exit_code=128 - code if code < 0 else code
    )


async def _read(stream: trio.abc.ReceiveStream, output: bytearray) -> None:
    """Take all that comes; what is too much is dropped."""
    async for data in stream:
        output += data[: _OUTPUT_BYTES - len(output)]


def _make_host_paths(mounts: Iterable[api.Mount]) -> None:
    """Have each path of the host be there, as a directory if nothing is, which pods with volumes of it count on."""
    for number, mount in enumerate(mounts):
        if mount.host_path and not os.path.exists(mount.host_path):
            try:
                os.makedirs(mount.host_path, mode=0o755, exist_ok=True)
            except OSError as error:
                place = f"mounts[{number}].host_path"
                raise CallError(
                    code_of(kind_of(error)), f"{place}: cannot make {mount.host_path}: {error.strerror}"
                ) from error


def _make_log(container: Container) -> None:
    """Have the log be there before anything is written to it, so that the kubelet finds it."""
    directory, name = container.sandbox.config.log_directory, container.config.log_path
    if directory and name:
        try:
            make_log(directory, posixpath.normpath(name))
        except OSError as error:
            path = posixpath.join(directory, name)
            raise CallError(code_of(kind_of(error)), f"log_path: cannot make {path}: {error.strerror}") from error


def make_log(directory: str, path: str) -> None:
    """Make a log and the directories above, except existing ones; OSError if another kind of file is there."""
    parent = os.open(directory, _DIRECTORY | os.O_CLOEXEC)
    try:
        *parents, name = path.split("/")
        for each in parents:
            with suppress(FileExistsError):
                os.mkdir(each, 0o755, dir_fd=parent)
            inner = syscalls.openat2(parent, each, _DIRECTORY, resolve=_RESOLVE)
            os.close(parent)
            parent = inner
        os.close(open_log(parent, name, os.O_WRONLY | os.O_CREAT, 0o640))
    finally:
        os.close(parent)
