"""
Kubernetes' protocol of remote commands: channels for the streams of a command or container, and one for its outcome.

Since the fourth version the outcome is a Status object of Kubernetes, in JSON; before that a text, if it failed. Since
the third there are sizes of terminals, each a JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager

import trio

from minit.base.errors import MinitError, describe
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.cri.streaming.channels import Channel, ChannelReset
from minit.cri.streaming.processes import Streams, Terminal

PROTOCOLS = {"v4.channel.k8s.io": 4, "v3.channel.k8s.io": 3, "v2.channel.k8s.io": 2, "channel.k8s.io": 1}
"""The protocols over SPDY, and their versions."""

MOST_STREAMS = 8
"""How many streams a client may have at a time."""

_STATUS_SINCE = 4
_SIZES_SINCE = 3
_LARGEST_CELLS = 0xFFFF
_LARGEST_SIZES_BYTES = 1 << 12
_INTERNAL_ERROR = 500


class Ready(Value):
    """
    All that can be had ready before a client has made its streams.

    `run` connects these and returns the exit code at the end; `terminal` is between them, None without one.
    """

    run: Callable[[Streams], Awaitable[int]]
    terminal: Terminal | None = None


class RemoteCommand(Value):
    """
    What a client may have streams of: `streams` are some of stdin, stdout and stderr, the last not with a terminal.

    `get_ready` is entered before the client is told that it is served, and left when it has been.
    """

    streams: tuple[str, ...]
    is_terminal: bool
    get_ready: Callable[[], AbstractAsyncContextManager[Ready]]

    def channels(self, version: int) -> tuple[str, ...]:
        """Return the names of all channels that a client of a version has."""
        return ("error", *self.streams, *(["resize"] if self.is_terminal and version >= _SIZES_SINCE else []))

    async def serve(self, ready: Ready, channels: Mapping[str, Channel], version: int) -> None:
        """Run it with the channels of a client, and tell the end."""
        streams = Streams(**{name: channels[name] for name in self.streams})
        async with trio.open_nursery() as nursery:
            if ready.terminal is not None and "resize" in channels:
                nursery.start_soon(_resize, ready.terminal, channels["resize"])
            try:
                status = _exit_status(await ready.run(streams))
            except (MinitError, OSError) as error:
                status = _failure(describe(error))
            nursery.cancel_scope.cancel()
        await _tell(channels["error"], status, version)
        for channel in channels.values():
            channel.finish()


async def take_streams(opened: trio.MemoryReceiveChannel[Channel], names: tuple[str, ...]) -> dict[str, Channel]:
    """Return the streams of these names when a client has made them all; others are ended, later ones refused."""
    found: dict[str, Channel] = {}
    with opened:
        while len(found) < len(names):
            channel = await opened.receive()
            name = channel.headers.get("streamtype", "")
            if name in names and name not in found:
                found[name] = channel
            else:
                channel.give_up()
    return found


async def _resize(terminal: Terminal, channel: Channel) -> None:
    """Give a terminal the sizes that a client sends; what is none is left out, with all that follows."""
    try:
        text, decoder = "", json.JSONDecoder()
        while data := await channel.receive_some():
            text = (text + data.decode("ascii")).lstrip()
            while text:
                try:
                    size, end = decoder.raw_decode(text)
                except ValueError:
                    if len(text) > _LARGEST_SIZES_BYTES:
                        raise
                    break  # the rest of it follows
                text = text[end:].lstrip()
                rows, columns = _cells(size, "Height"), _cells(size, "Width")
                if rows and columns:
                    terminal.resize(rows, columns)
    except (ChannelReset, ValueError, RecursionError):
        pass
    finally:
        channel.discard()


def _cells(size: object, name: str) -> int:
    count = size.get(name) if isinstance(size, dict) else None
    return count if type(count) is int and 0 < count <= _LARGEST_CELLS else 0


def _exit_status(code: int) -> dict[str, object]:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with exit code {code}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }


def _failure(text: str) -> dict[str, object]:
    return {
        "metadata": {},
        "status": "Failure",
        "message": harmless(text),
        "reason": "InternalError",
        "details": {"causes": [{"message": harmless(text)}]},
        "code": _INTERNAL_ERROR,
    }


async def _tell(channel: Channel, status: Mapping[str, object], version: int) -> None:
    try:
        if version >= _STATUS_SINCE:
            await channel.send_all(json.dumps(status).encode())
        elif status["status"] != "Success":
            await channel.send_all(str(status["message"]).encode())
    except ChannelReset:
        pass  # it does not want to know
