"""A daemon of `minit cri` with a data directory of its own, and a client at its socket."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import trio
from google.protobuf.message import Message
from h2.errors import ErrorCodes

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import frame
from minit.pods.hand import WORD
from tests.support.commands import Stage0
from tests.support.grpcclient import Answer, GrpcClient, grpc_client

IMAGE = "example.com/busybox:1.0"
POD = api.PodSandboxMetadata(name="web", namespace="default", uid="5e5b", attempt=1)

M = TypeVar("M", bound=Message)

_ANSWERS: dict[str, type[Message]] = {
    "RunPodSandbox": api.SandboxId,
    "CreateContainer": api.ContainerId,
    **dict.fromkeys(("Exec", "Attach", "PortForward"), api.StreamingUrl),
    **{
        name: getattr(api, f"{name}Response")
        for name in (
            *("Version", "Status", "RuntimeConfig", "PodSandboxStatus", "ListPodSandbox", "ContainerStatus"),
            *("ContainerStats", "ListContainerStats", "PodSandboxStats", "ListPodSandboxStats"),
            *("ListMetricDescriptors", "ListPodSandboxMetrics"),
            *("ListContainers", "ExecSync", "ListImages", "ImageStatus", "PullImage", "ImageFsInfo"),
        )
    },
}
_IMAGES = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")


def sandbox_config(root: Path, **fields: object) -> api.PodSandboxConfig:
    """Return what a kubelet asks for."""
    usual: dict[str, object] = {"metadata": POD, "hostname": "web-1", "log_directory": str(root / "logs")}
    return api.PodSandboxConfig(**(usual | fields))  # type: ignore[arg-type]


def container_config(script: str, name: str = "main", **fields: object) -> api.ContainerConfig:
    """Return a container with a shell's script."""
    usual: dict[str, object] = {
        "metadata": api.ContainerMetadata(name=name, attempt=2),
        "image": api.ImageSpec(image=IMAGE),
        "command": ["/bin/sh", "-c"],
        "args": [script],
        "log_path": f"{name}/2.log",
    }
    return api.ContainerConfig(**(usual | fields))  # type: ignore[arg-type]


class CallFailed(Exception):
    """A call that has failed, with its code."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.message)
        self.code = answer.code


class CriNode:
    """A client of a daemon."""

    def __init__(self, client: GrpcClient, package: str = "runtime.v1") -> None:
        self._client = client
        self._package = package

    async def ask(self, name: str, request: Message | None = None) -> Any:
        """Make a call and return its answer; CallFailed if it has another status than OK."""
        answer = await self._client.call(f"/{self._package}.{_service(name)}/{name}", request or api.Nothing())
        if answer.code != 0:
            raise CallFailed(answer)
        return _ANSWERS.get(name, api.Nothing).FromString(answer.messages()[0])

    async def run(self, root: Path, *containers: api.ContainerConfig) -> tuple[api.SandboxId, list[api.ContainerId]]:
        """Make a sandbox, and start containers in it."""
        sandbox = await self.ask("RunPodSandbox", api.RunPodSandboxRequest(config=sandbox_config(root)))
        ids = [await self.create(sandbox, config) for config in containers]
        for container in ids:
            await self.ask("StartContainer", container)
        return sandbox, ids

    async def create(self, sandbox: api.SandboxId, config: api.ContainerConfig) -> api.ContainerId:
        """Put a container into a sandbox."""
        request = api.CreateContainerRequest(pod_sandbox_id=sandbox.pod_sandbox_id, config=config)
        container = await self.ask("CreateContainer", request)
        assert isinstance(container, api.ContainerId)
        return container

    async def execute(self, container: api.ContainerId, script: str) -> bytes:
        """Have a container's shell run a script, and return what it writes."""
        request = api.ExecSyncRequest(container_id=container.container_id, cmd=["sh", "-c", script])
        done = await self.ask("ExecSync", request)
        assert done.exit_code == 0, done.stderr
        return bytes(done.stdout)

    async def pull(self, name: str, **auth: str) -> str:
        """Pull an image and return its id."""
        answer = await self.ask("PullImage", pull_request(name, **auth))
        assert isinstance(answer.image_ref, str)
        return answer.image_ref

    async def stream(self, name: str, request: Message) -> list[bytes]:
        """Make a call that is answered with many messages, and return them."""
        answer = await self._client.call(f"/{self._package}.RuntimeService/{name}", request)
        assert answer.code == 0, answer.message
        return answer.messages()

    async def watch(self) -> Answer:
        """Begin to be told of events."""
        stream_id, answer = await self._client.start(f"/{self._package}.RuntimeService/GetContainerEvents", frame(b""))
        assert stream_id in self._client.answers
        return answer

    @asynccontextmanager
    async def giving_up(self, name: str, request: Message) -> AsyncIterator[None]:
        """Make a call, and give it up at the end of a with block."""
        path = f"/{self._package}.{_service(name)}/{name}"
        stream_id, _ = await self._client.start(path, frame(request.SerializeToString()))
        yield
        self._client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        await self._client.flush()


def _service(name: str) -> str:
    return "ImageService" if name in _IMAGES else "RuntimeService"


def pull_request(name: str, **auth: str) -> api.PullImageRequest:
    """Return the request for an image with credentials."""
    return api.PullImageRequest(image=api.ImageSpec(image=name), auth=api.AuthConfig(**auth) if auth else None)


class Daemon:
    """The process that serves a data directory."""

    def __init__(self, minit: Stage0, socket: Path, network: str = "none") -> None:
        self.minit = minit
        self.socket = socket
        self.network = network
        self.process: subprocess.Popen[bytes] | None = None
        self.options: Sequence[str] = ()
        self.notes: list[str] = []
        """What it said of records that it could not read."""

    def start(self, under: Sequence[str] = (), pass_fds: Sequence[int] = ()) -> None:
        """Start it, and return when it listens; under a command that is given it may end before."""
        words = (
            "cri",
            "--insecure-options=none",
            f"--listen=unix://{self.socket}",
            *([f"--net={self.network}"] if self.network else []),
            self.minit.stage1_flag,
            *self.options,
        )
        self.process = self.minit.start(*words, under=under, stderr=subprocess.PIPE, pass_fds=pass_fds)
        assert self.process.stderr is not None
        self.notes = []
        while (line := self.process.stderr.readline()).startswith(b"cri: /"):
            self.notes.append(line.decode())
        assert line.startswith(b"cri: serving ") or (under and not line), line + self.process.stderr.read()

    def end(self, *, kill: bool = False) -> int:
        """End it, by force or as systemd does; return its exit code."""
        assert self.process is not None
        self.process.kill() if kill else self.process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Return its exit code when it has ended."""
        assert self.process is not None
        code = self.process.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()
        self.process = None
        return code

    def memory_bytes(self) -> int:
        """Return what it has of the machine's memory."""
        assert self.process is not None
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def count_descriptors(self) -> int:
        """Return how many it has open."""
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def children(self) -> set[int]:
        """Return its processes."""
        assert self.process is not None
        # A process belongs to the thread that started it.
        lists = [path.read_text() for path in Path(f"/proc/{self.process.pid}/task").glob("*/children")]
        return {int(pid) for pid in " ".join(lists).split()}

    def hands(self) -> set[int]:
        """Return the processes that carry out its commands."""
        return {pid for pid in self.children() if _words(pid)[-1:] == [WORD]}

    def busy(self) -> set[int]:
        """Return the processes that carry out calls: hands with a request, a file in memory, and all others."""
        found = set()
        for pid in self.children():
            words = _words(pid)
            if words and (words[-1] != WORD or _has_request(pid)):
                found.add(pid)
        return found

    def node(self, package: str = "runtime.v1") -> AbstractAsyncContextManager[CriNode]:
        """Connect to it."""
        return node_at(self.socket, package)


@asynccontextmanager
async def node_at(socket: Path, package: str = "runtime.v1") -> AsyncIterator[CriNode]:
    """Connect to the daemon at a socket."""
    stream = await trio.open_unix_socket(os.fspath(socket))
    async with grpc_client(stream) as client:
        yield CriNode(client, package)


def _words(pid: int) -> list[str]:
    """Return the command line of a process, none if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().split("\0")[:-1]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _has_request(pid: int) -> bool:
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                if "memfd:" in os.readlink(f"/proc/{pid}/fd/{name}"):
                    return True
    return False


@contextmanager
def own_daemon(minit: Stage0, socket: Path, network: str = "none") -> Iterator[Daemon]:
    """Yield a daemon with an image in its store that is yet to be started; its pods end with it."""
    assert minit.call("fetch", minit.image()).returncode == 0
    daemon = Daemon(minit, socket, network)
    try:
        yield daemon
    finally:
        if daemon.process is not None:
            daemon.end()
        for pod in minit.data.glob("pods/run/*"):
            minit.call("stop", "--force", "--wait", pod.name)
