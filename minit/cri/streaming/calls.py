"""The calls that ask for streams: each is answered with a URL, at which its client finds them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext

from minit.base.errors import PodError
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Container, Node, Sandbox
from minit.cri.openfiles import failure_pipe
from minit.cri.refusal import refuse_impossible_words
from minit.cri.streaming.attachments import attached
from minit.cri.streaming.portforward import LARGEST_PORT, PortForward
from minit.cri.streaming.processes import Streams, Terminal, running_process
from minit.cri.streaming.remotecommand import Ready, RemoteCommand
from minit.cri.streaming.server import Wanted
from minit.cri.streaming.tokens import Tokens

# Of a command with a limit nothing is left at its end, whoever ends it. The longest that poll(2) can wait is 24 days.
_LIMIT_SECONDS = 20 * 24 * 3600.0


class StreamingCalls:
    """Exec, Attach and PortForward; `base` is what URLs begin with, `http://ADDRESS:PORT`."""

    def __init__(self, node: Node, tokens: Tokens[Wanted], base: str) -> None:
        self._node = node
        self._tokens = tokens
        self._base = base

    async def exec(self, request: api.ExecRequest) -> api.StreamingUrl:
        """Have a command run in a container when its client comes, for as long as that stays."""
        container = self._node.running_container(request.container_id)
        if not request.cmd:
            raise CallError(Code.INVALID_ARGUMENT, "cmd: expected a command")
        refuse_impossible_words(request.cmd)

        wanted = RemoteCommand(
            streams=_streams(request),
            is_terminal=request.tty,
            get_ready=lambda: self._ready_to_execute(container, request.cmd, is_terminal=request.tty),
        )
        return self._url("exec", wanted)

    async def attach(self, request: api.AttachRequest) -> api.StreamingUrl:
        """Connect a client to the streams of a container, until either ends."""
        container = self._node.running_container(request.container_id)
        if request.tty and not container.config.tty:
            raise CallError(Code.INVALID_ARGUMENT, f"tty: container {container.id} has none")
        streams = _streams(request)
        wanted = RemoteCommand(
            streams=streams,
            is_terminal=request.tty,
            get_ready=lambda: attached(self._node, container, streams, is_terminal=request.tty),
        )
        return self._url("attach", wanted)

    async def port_forward(self, request: api.PortForwardRequest) -> api.StreamingUrl:
        """Let a client connect to ports of a sandbox."""
        sandbox = self._node.sandbox(request.pod_sandbox_id)
        if not sandbox.is_ready:
            raise CallError(Code.FAILED_PRECONDITION, f"sandbox {sandbox.uuid} does not run")
        for number, port in enumerate(request.port):
            if not 0 < port <= LARGEST_PORT:
                raise CallError(Code.INVALID_ARGUMENT, f"port[{number}]: expected a number up to {LARGEST_PORT}")
        wanted = PortForward(ports=tuple(request.port), open_process=lambda: self._open_process(sandbox))
        return self._url("portforward", wanted)

    @asynccontextmanager
    async def _ready_to_execute(
        self, container: Container, command: Sequence[str], *, is_terminal: bool
    ) -> AsyncIterator[Ready]:
        """Be ready to have a command run, when its client has made all streams."""
        with Terminal() if is_terminal else nullcontext() as terminal, failure_pipe() as failures:

            async def run(streams: Streams) -> int:
                program = self._node.enter(container, command, _LIMIT_SECONDS, failures.theirs)
                names = [name for name, channel in streams.items() if channel is not None]
                async with running_process(program, names, terminal, pass_fds=(failures.theirs,)) as process:
                    code = await process.serve(streams)
                if (reason := failures.reason()) is not None:
                    raise PodError(f"cannot enter container {container.id}: {reason}")
                return code

            yield Ready(run=run, terminal=terminal)

    def _open_process(self, sandbox: Sandbox) -> int:
        """Return a pidfd of the pod's PID 1; PodError if the pod does not run."""
        while sandbox.pid is not None:
            pid = sandbox.pid
            try:
                process = os.pidfd_open(pid)
            except ProcessLookupError:
                break
            # A pod that still has this PID 1 had it when it was opened.
            self._node.follow(sandbox)
            if sandbox.pid == pid:
                return process
            os.close(process)
        raise PodError(f"sandbox {sandbox.uuid} does not run")

    def _url(self, kind: str, wanted: Wanted) -> api.StreamingUrl:
        return api.StreamingUrl(url=f"{self._base}/{kind}/{self._tokens.put(wanted)}")


def _streams(request: api.ExecRequest | api.AttachRequest) -> tuple[str, ...]:
    """Return the streams that a request asks for; CallError if they cannot be had."""
    if request.tty and request.stderr:
        raise CallError(Code.INVALID_ARGUMENT, "stderr: a terminal has only one output, stdout")
    streams = tuple(name for name in ("stdin", "stdout", "stderr") if getattr(request, name))
    if not streams:
        raise CallError(Code.INVALID_ARGUMENT, "expected at least one of stdin, stdout and stderr")
    return streams
