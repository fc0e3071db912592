"""Stops of containers that many calls may wait for, without a process for a call."""

from __future__ import annotations

import socket
from pathlib import Path

import trio

from minit.base.errors import MinitError
from minit.cri.node import Container
from minit.linux.loop import wait_readable
from minit.linux.messages import Socket, receive_message, send_message
from minit.podfiles import paths
from minit.podfiles.controlmessages import StopApp
from minit.stage0.pods.poddirectory import Pod, open_pod
from minit.stage0.stage1.entrypoints import read_stage1_manifest


class ContainerStops:
    """
    The stops that PID 1 of pods was asked for, with a task of `nursery` for each answer still to come.

    Calls for one container wait for the same answer, except a call that wants an earlier stop.
    """

    def __init__(self, nursery: trio.Nursery, data: Path) -> None:
        self._nursery = nursery
        self._data = data
        self._asked: dict[str, _Asked] = {}

    async def stop(self, container: Container, grace_seconds: int) -> bool | None:
        """
        Have a container stopped, and return when it has; the stop goes on without the call.

        False if PID 1 did not say that it has, since it has ended itself, say; None if PID 1 cannot be asked.
        """
        ends_at = trio.current_time() + grace_seconds
        asked = self._asked.get(container.id)
        if asked is None or ends_at < asked.ends_at:
            link = self._ask(container, grace_seconds)
            if link is None:
                return None
            asked = self._asked[container.id] = _Asked(ends_at)
            self._nursery.start_soon(self._hear, container.id, asked, link)
        await asked.is_answered.wait()
        return asked.has_stopped

    def _ask(self, container: Container, grace_seconds: int) -> Socket | None:
        request = StopApp(app=container.app, grace_seconds=float(grace_seconds))
        try:
            with open_pod(self._data, container.sandbox.uuid) as pod:
                if read_stage1_manifest(pod).annotation(paths.ANNOTATION_CONTROL):
                    return _begin_to_ask(pod, request)
        except (MinitError, OSError):
            pass  # the command tells why not
        return None

    async def _hear(self, container_id: str, asked: _Asked, link: Socket) -> None:
        try:
            with link:
                await trio.lowlevel.wait_readable(link)
                while not wait_readable([link.fileno()], 0):
                    await trio.lowlevel.wait_readable(link)
                reply, _ = receive_message(link)
            asked.has_stopped = reply is not None and reply.get("ok") is True
        except (OSError, ValueError):
            pass  # the pod has ended
        if self._asked.get(container_id) is asked:
            del self._asked[container_id]
        asked.is_answered.set()


def _begin_to_ask(pod: Pod, request: StopApp) -> Socket:
    """Return a connection to PID 1 with a request, to be answered later; OSError if no request is accepted at once."""
    link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        # Through the descriptor, so that the address has no more than sun_path's 108 bytes wherever pods lie.
        link.connect(f"/proc/self/fd/{pod.fd}/{paths.POD_CONTROL}")
        send_message(link, request.to_json())
    except OSError:
        link.close()
        raise
    return link


class _Asked:
    """A stop requested of PID 1, the latest time of the kill, and the answer."""

    def __init__(self, ends_at: float) -> None:
        self.ends_at = ends_at
        self.is_answered = trio.Event()
        self.has_stopped = False
