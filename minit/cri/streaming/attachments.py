"""Processes that are attached to a container, in front of its terminal or its streams."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext

import trio

from minit.base.errors import AttachError
from minit.cri.node import Container, Node
from minit.cri.openfiles import FailurePipe, failure_pipe
from minit.cri.streaming.processes import Input, Process, Streams, Terminal, running_process
from minit.cri.streaming.remotecommand import Ready


@asynccontextmanager
async def attached(
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
