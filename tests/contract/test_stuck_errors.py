"""A standard error that nobody reads any more, and that takes nothing: PID 1 goes on, whatever it has to say there."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable

import pytest

from tests.support.pods import PRIVATE_USERS, TIMEOUT_SECONDS, MakePod, shell


def make_pipe() -> tuple[int, int]:
    """Return both ends of a pipe."""
    return os.pipe()


def make_sockets() -> tuple[int, int]:
    """Return two ends of a stream, as services of systemd have one to its journal."""
    ours, theirs = socket.socketpair()
    return ours.detach(), theirs.detach()


def fill(fd: int) -> None:
    """Write until nothing more is taken."""
    os.set_blocking(fd, False)
    for size in (4096, 1):
        try:
            while True:
                os.write(fd, bytes(size))
        except BlockingIOError:
            pass
    os.set_blocking(fd, True)


@pytest.mark.parametrize("private_users", [None, PRIVATE_USERS], ids=["host-users", "private-users"])
@pytest.mark.parametrize("make", [make_pipe, make_sockets])
def test_a_pod_whose_errors_nobody_reads(
    make_pod: MakePod, make: Callable[[], tuple[int, int]], private_users: tuple[int, int] | None
) -> None:
    """A line about an app that is not started any more is lost; the pod ends with its status."""
    policy = {"restart": "on-failure", "restart-limit": "1", "restart-delay": "10ms"}
    annotations = [{"name": f"minit/{name}", "value": value} for name, value in policy.items()]
    app = shell("until [ -e /tmp/go ]; do sleep 0.1; done; exit 3", annotations=annotations)
    pod = make_pod({"a": app}, private_users=private_users)
    reader, writer = make()
    try:
        process = pod.start(stdout=subprocess.DEVNULL, stderr=writer)
        pod.wait_ready()
        fill(writer)
        pod.file("a", "/tmp/go").touch()
        try:
            assert process.wait(TIMEOUT_SECONDS) == 3
        finally:
            process.kill()
    finally:
        os.close(reader)
        os.close(writer)
