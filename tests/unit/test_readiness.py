"""minit.plan.lifeplan and minit.supervisor.apps.notifysocket: annotations, messages and passed descriptors."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import time
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.image import ImageManifest
from minit.manifest.pod import RuntimeApp
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.lifeplan import LifePlan, plan_readiness
from minit.plan.process import ProcessPlan
from minit.podfiles import paths
from minit.supervisor.apps.controlgroup import Group
from minit.supervisor.apps.notifysocket import Notification, Readiness, close_elsewhere, parse_notification


class Nobody:
    """A control group without processes."""

    def processes(self) -> list[int]:
        """Return none."""
        return []


NOBODY = cast(Group, Nobody())
IMAGE = ImageManifest(ac_version="0.8.11", name="example.com/web")


def notify_fd(text: str, sockets: int = 0) -> int | None:
    """Return the descriptor of an app with this annotation."""
    return plan_readiness(RuntimeApp(name="web", annotations=(("minit/notify-fd", text),)), IMAGE, sockets)[1]


def test_descriptors() -> None:
    """Any that is free: not one of the streams, nor one of the sockets that the app is started with."""
    assert plan_readiness(RuntimeApp(name="web"), IMAGE, 0) == (False, None)
    assert (notify_fd("3"), notify_fd("1023"), notify_fd("5", sockets=2)) == (3, 1023, 5)
    for text, sockets in (("2", 0), ("4", 2), ("1024", 0), ("x", 0), ("", 0), ("-3", 0), ("٣", 0)):
        with pytest.raises(PlanError, match=f"expected the number of a descriptor from {3 + sockets} to 1023, got"):
            notify_fd(text, sockets)


def test_messages() -> None:
    """Whole lines count, with anything beside them."""
    assert parse_notification(b"READY=1") == Notification(ready=True)
    assert parse_notification(b"X\n=\nSTATUS=a=b\nREADY=1\nSTOPPING=1\n") == Notification(
        ready=True, stopping=True, status="a=b"
    )
    for data in (b"", b"READY=0", b"READY=11", b"READY", b" READY=1", b"XREADY=1", b"READY=1\nREADY=0"):
        assert not parse_notification(data).ready


@given(st.binary(max_size=200))
def test_any_message_can_be_read(data: bytes) -> None:
    """A status is short, and can be written as JSON."""
    said = parse_notification(b"STATUS=" + data)
    assert said.status is not None
    assert len(said.status) <= 256
    said.status.encode()


@pytest.mark.skipif(os.geteuid() != 0, reason="open_tree needs root")
def test_an_app_that_says_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After some hundred messages a second the next ones should wait, and later may come again."""
    monkeypatch.setattr(paths, "STAGE1_NOTIFY", f"{tmp_path}/")
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    readiness = Readiness()
    ends = readiness.open(
        AppSpec(
            name="web", process=ProcessPlan(candidates=("/x",)), confinement=Confinement(), life=LifePlan(notifies=True)
        )
    )
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        for number in range(1, 251):
            sender.sendto(b"STATUS=%d" % number, ends.path)
            assert readiness.read_socket(os.getpid(), NOBODY) == (number < 200)
        now += 1
        sender.sendto(b"READY=1", ends.path)
        assert readiness.read_socket(os.getpid(), NOBODY)
    assert (readiness.status, readiness.is_ready, readiness.refused) == ("250", True, None)
    readiness.close()
    for fd in ends.descriptors():
        os.close(fd)


def test_descriptors_are_closed_by_another_process() -> None:
    """They are gone from here, and from there soon after."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    close_elsewhere([writer])
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(writer)
    poller = select.poll()
    poller.register(reader, select.POLLIN)
    assert [event for _, event in poller.poll(30_000)] == [select.POLLHUP]
    os.close(reader)
    os.wait()


def test_descriptors_are_closed_without_another_process() -> None:
    """A fork that fails leaves nothing open."""
    reader, writer = os.pipe2(os.O_CLOEXEC)

    def fail(*_: object) -> tuple[int, int]:
        raise OSError("no processes")

    before = len(os.listdir("/proc/self/fd"))
    close_elsewhere([reader, writer], fail)
    assert len(os.listdir("/proc/self/fd")) == before - 2


@pytest.mark.parametrize("missing", ["a process", "a descriptor"])
def test_a_socket_that_lingers_is_closed_at_once_without_another_process(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its close would wait until the other side, which reads nothing, has read everything."""

    def fail(*_: object) -> tuple[int, int]:
        raise OSError(f"no {missing}")

    listener = socket.create_server(("127.0.0.1", 0))
    sender = socket.create_connection(listener.getsockname())
    receiver, _ = listener.accept()
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            sender.send(bytes(1 << 20))
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    fd = os.dup(sender.fileno())
    try:
        if missing == "a descriptor":
            monkeypatch.setattr(os, "pipe2", fail)
        close_elsewhere([fd], fail)
        assert sender.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER) == 0
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)
    finally:
        receiver.close()
        sender.close()
        listener.close()
