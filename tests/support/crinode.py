"""A daemon of `minit cri` with a data directory of its own, and a client at its socket."""

from __future__ import annotations

import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import trio
from google.protobuf.message import Message
from h2.errors import ErrorCodes

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import frame
from tests.support.commands import Stage0
from tests.support.grpcclient import Answer, GrpcClient, grpc_client

M = TypeVar("M", bound=Message)

_ANSWERS: dict[str, type[Message]] = {
    "RunPodSandbox": api.SandboxId,
    "CreateContainer": api.ContainerId,
    **dict.fromkeys(("Exec", "Attach", "PortForward"), api.StreamingUrl),
    **{
        name: getattr(api, f"{name}Response")
        for name in (
            *("Version", "Status", "RuntimeConfig", "PodSandboxStatus", "ListPodSandbox", "ContainerStatus"),
            *("ListContainers", "ExecSync", "ListImages", "ImageStatus", "PullImage", "ImageFsInfo"),
        )
    },
}
_IMAGES = ("ListImages", "ImageStatus", "PullImage", "RemoveImage", "ImageFsInfo")


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
        service = "ImageService" if name in _IMAGES else "RuntimeService"
        answer = await self._client.call(f"/{self._package}.{service}/{name}", request or api.Nothing())
        if answer.code != 0:
            raise CallFailed(answer)
        return _ANSWERS.get(name, api.Nothing).FromString(answer.messages()[0])

    async def pull(self, name: str, **auth: str) -> str:
        """Pull an image and return its id."""
        answer = await self.ask("PullImage", pull_request(name, **auth))
        assert isinstance(answer.image_ref, str)
        return answer.image_ref

    @asynccontextmanager
    async def pulling(self, name: str) -> AsyncIterator[None]:
        """Give up a pull at the end of a with block."""
        request = frame(pull_request(name).SerializeToString())
        stream_id, _ = await self._client.start(f"/{self._package}.ImageService/PullImage", request)
        yield
        self._client.h2.reset_stream(stream_id, ErrorCodes.CANCEL)
        await self._client.flush()


def pull_request(name: str, **auth: str) -> api.PullImageRequest:
    """Return the request for an image with credentials."""
    return api.PullImageRequest(image=api.ImageSpec(image=name), auth=api.AuthConfig(**auth) if auth else None)


class Daemon:
    """The process that serves a data directory."""

    def __init__(self, minit: Stage0, socket: Path) -> None:
        self.minit = minit
        self.socket = socket
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it listens."""
        words = ("cri", f"--listen=unix://{self.socket}", "--net=none", self.minit.stage1_flag)
        self.process = self.minit.start(*words, stderr=subprocess.PIPE)
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        assert line.startswith(b"cri: serving "), line + self.process.stderr.read()

    def end(self, *, kill: bool = False) -> int:
        """End it, by force or as systemd does; return its exit code."""
        assert self.process is not None
        self.process.kill() if kill else self.process.terminate()
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

    @asynccontextmanager
    async def node(self, package: str = "runtime.v1") -> AsyncIterator[CriNode]:
        """Connect to it."""
        stream = await trio.open_unix_socket(os.fspath(self.socket))
        async with grpc_client(stream) as client:
            yield CriNode(client, package)
