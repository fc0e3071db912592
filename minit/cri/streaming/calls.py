"""The calls that ask for streams: each is answered with a URL, at which its client finds them."""

from __future__ import annotations

import os
from datetime import UTC, datetime

import trio

from minit.cri.api import cri_pb2 as api
from minit.cri.failurepipe import failure_pipe
from minit.cri.grpc.framing import CallError, Code
from minit.cri.node import Container, Node, Sandbox
from minit.cri.owncommands import OwnCommands, refuse_nul
from minit.cri.streaming.portforward import LARGEST_PORT, PortForward
from minit.cri.streaming.processes import Input, Streams, Terminal, run_process
from minit.cri.streaming.remotecommand import RemoteCommand
from minit.cri.streaming.server import Wanted
from minit.cri.streaming.tokens import Tokens
from minit.errors import AttachError, PodError

# Of a command with a limit nothing is left at its end, whoever ends it. The longest that poll(2) can wait is 24 days.
_LIMIT_SECONDS = 20 * 24 * 3600.0


class StreamingCalls:
    """Exec, Attach and PortForward; `base` is what URLs begin with, `http://ADDRESS:PORT`."""

    def __init__(self, node: Node, commands: OwnCommands, tokens: Tokens[Wanted], base: str) -> None:
        self._node = node
        self._commands = commands
        self._tokens = tokens
        self._base = base

    async def exec(self, request: api.ExecRequest) -> api.StreamingUrl:
        """Have a command run in a container when its client comes, for as long as that stays."""
        container = self._node.running_container(request.container_id)
        if not request.cmd:
            raise CallError(Code.INVALID_ARGUMENT, "cmd: expected a command")
        refuse_nul(request.cmd)

        async def run(streams: Streams, terminal: Terminal | None) -> int:
            with failure_pipe() as failures:
                entered = self._node.enter(container, request.cmd, _LIMIT_SECONDS, failures.theirs)
                code = await run_process(
                    entered.words, streams, terminal, directory=entered.directory, pass_fds=(failures.theirs,)
                )
                if (reason := failures.reason()) is not None:
                    raise PodError(f"cannot enter container {container.id}: {reason}")
                return code

        wanted = RemoteCommand(streams=_streams(request), is_terminal=request.tty, run=run)
        return self._url("exec", wanted)

    async def attach(self, request: api.AttachRequest) -> api.StreamingUrl:
        """Connect a client to the streams of a container, until either ends."""
        container = self._node.running_container(request.container_id)
        if request.tty and not container.config.tty:
            raise CallError(Code.INVALID_ARGUMENT, f"tty: container {container.id} has none")
        run = self._attach_terminal if container.config.tty else self._attach_streams

        async def run_attached(streams: Streams, terminal: Terminal | None) -> int:
            if not container.config.stdin and streams.stdin is not None:
                streams.stdin.discard()
                streams = Streams(stdout=streams.stdout, stderr=streams.stderr)
            await run(container, streams, terminal)
            return 0

        wanted = RemoteCommand(streams=_streams(request), is_terminal=request.tty, run=run_attached)
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

    async def _attach_terminal(self, container: Container, streams: Streams, terminal: Terminal | None) -> None:
        mode = ["--mode=tty-out"] if streams.stdin is None else ["--mode=tty", "--take-stdin"]
        end = Input.WITH_CHANNEL if container.config.stdin_once else Input.NEVER
        code = await run_process(self._attach_words(container, *mode), streams, terminal, end)
        if code != 0:
            raise AttachError(f"attaching to container {container.id} failed")

    async def _attach_streams(self, container: Container, streams: Streams, _: Terminal | None) -> None:
        """Connect the input of a container, and show its log from now on: what it writes goes there alone."""
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        follow = ("logs", "--follow", f"--since={now}", f"--app={container.app}", container.sandbox.uuid)
        outputs = [(name, channel) for name, channel in streams.outputs().items() if channel is not None]
        end = Input.WITH_CLIENT if container.config.stdin_once else Input.NEVER
        async with trio.open_nursery() as feeding:
            if streams.stdin is not None:
                words = self._attach_words(container, "--mode=stdin", "--take-stdin")
                feeding.start_soon(run_process, words, Streams(stdin=streams.stdin), None, end)
            async with trio.open_nursery() as following:
                for name, channel in outputs:
                    words = self._commands.words(*follow, f"--stream={name}")
                    following.start_soon(run_process, words, Streams(stdout=channel))
            if outputs:
                feeding.cancel_scope.cancel()

    def _attach_words(self, container: Container, *mode: str) -> list[str]:
        usual = ("--detach-keys=none", "--no-replay", f"--app={container.app}", container.sandbox.uuid)
        return self._commands.words("attach", *mode, *usual)

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
