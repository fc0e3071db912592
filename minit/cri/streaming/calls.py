"""The calls for streams: a call is answered with a URL for the client. Attach has processes at the container."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import trio

from minit.base.errors import AttachError, PodError
from minit.cri.api import cri_pb2 as api
from minit.cri.failurepipe import FailurePipe, failure_pipe
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Container, Node, Sandbox
from minit.cri.refusal import refuse_impossible_words
from minit.cri.streaming.portforward import LARGEST_PORT, PortForward
from minit.cri.streaming.processes import Input, Process, Streams, Terminal, running_process
from minit.cri.streaming.remotecommand import Ready, RemoteCommand
from minit.cri.streaming.server import Tokens, Wanted

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
            get_ready=lambda: _attached(self._node, container, streams, is_terminal=request.tty),
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


@asynccontextmanager
async def _attached(
    node: Node, container: Container, names: Collection[str], *, is_terminal: bool
) -> AsyncIterator[Ready]:
    """
    Be attached to those streams of a container that are among `names`; nothing that it writes is missed any more.

    With `is_terminal` there is a terminal in front of that of the container. AttachError if it cannot be done.
    """
    has_input = "stdin" in names and container.config.stdin
    outputs = [name for name in names if name != "stdin"]
    end = Input.NEVER
    if container.config.tty:
        end = Input.WITH_CHANNEL if container.config.stdin_once else end
        wanted = {"tty" if has_input else "tty-out": ["stdin", *outputs] if has_input else outputs}
    else:
        # The end of the input is not that of the outputs.
        end = Input.WITH_CLIENT if container.config.stdin_once else end
        wanted = {**({"stdin": ["stdin"]} if has_input else {}), **({",".join(outputs): outputs} if outputs else {})}
    with Terminal() if is_terminal else nullcontext() as terminal, failure_pipe() as failures:
        async with AsyncExitStack() as stack:
            processes = [
                await _start(stack, node, container, mode, streams, terminal, end, failures)
                for mode, streams in wanted.items()
            ]

            async def run(streams: Streams) -> int:
                if streams.stdin is not None and not has_input:
                    streams.stdin.discard()
                code = 0
                async with trio.open_nursery() as nursery:
                    for process in processes[:-1]:
                        nursery.start_soon(process.serve, streams)
                    for process in processes[-1:]:
                        code = await process.serve(streams)
                    nursery.cancel_scope.cancel()
                if code != 0:
                    raise AttachError(f"container {container.id}: {failures.reason() or 'attach was killed'}")
                return 0

            yield Ready(run=run, terminal=terminal)


async def _start(
    stack: AsyncExitStack,
    node: Node,
    container: Container,
    mode: str,
    names: Collection[str],
    terminal: Terminal | None,
    end_of_input: Input,
    failures: FailurePipe,
) -> Process:
    """Return a process that is attached, until `stack` is left."""
    ready, theirs = os.pipe2(os.O_CLOEXEC)
    with open(ready, "rb", buffering=0) as told:
        with open(theirs, "wb", buffering=0):
            options = {"detach-keys": "none", "no-replay": "true"}
            options |= {"failure-fd": str(failures.theirs), "ready-fd": str(theirs)}
            options |= {"take-stdin": "true"} if "stdin" in names else {}
            program = node.attach(container, mode, options)
            process = await stack.enter_async_context(
                running_process(program, names, terminal, end_of_input, (failures.theirs, theirs))
            )
        await trio.lowlevel.wait_readable(told)
        if not told.read(1):
            raise AttachError(f"cannot attach to container {container.id}: {failures.reason() or 'it has ended'}")
    return process
