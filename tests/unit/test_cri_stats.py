"""minit.cri: measuring what containers have written, and the pressures of control groups."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from minit.cri import statscalls
from minit.cri.statscalls import WritableLayers
from minit.stage0.files.untrusted import DiskUsage
from minit.stage0.reports.usage import Pressure, Stall, parse_pressure


class Container:
    """A container of an app."""

    def __init__(self, app: str) -> None:
        self.app = app
        self.sandbox = SimpleNamespace(uuid="2d381b2a")


def container(app: str) -> Any:
    """Return a container that has this app."""
    return Container(app)


@pytest.mark.trio
async def test_measuring_now_and_then(monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock) -> None:
    """A layer is measured when it is first asked for, and again after a minute; old figures are given meanwhile."""
    measured: list[str] = []

    def measure(_: Path, __: str, app: str) -> DiskUsage:
        measured.append(app)
        return DiskUsage(size_bytes=len(measured))

    monkeypatch.setattr(statscalls, "_measure", measure)
    one = container("one")
    async with trio.open_nursery() as nursery:
        layers = WritableLayers(Path("/nowhere"), nursery)

        async def size() -> int:
            return (await layers.read([one]))[one].usage.size_bytes

        assert [await size() for _ in range(3)] == [1, 1, 1]
        mock_clock.jump(60)
        assert await size() == 1
        while await size() == 1:
            await trio.lowlevel.checkpoint()
        assert [await size() for _ in range(3)] == [2, 2, 2]


@pytest.mark.trio
async def test_a_layer_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for it, and it is not measured twice at a time."""
    go = threading.Event()
    measured: list[str] = []

    def measure(_: Path, __: str, app: str) -> DiskUsage:
        measured.append(app)
        go.wait()
        return DiskUsage(size_bytes=7)

    monkeypatch.setattr(statscalls, "_measure", measure)
    monkeypatch.setattr(statscalls, "_PATIENCE_SECONDS", 0)
    slow = container("slow")
    async with trio.open_nursery() as nursery:
        layers = WritableLayers(Path("/nowhere"), nursery)
        for _ in range(3):
            assert await layers.read([slow]) == {}
        go.set()
    assert (await layers.read([slow]))[slow].usage.size_bytes == 7
    assert measured == ["slow"]


def test_pressure() -> None:
    """Shares are in percent, the total in nanoseconds; older kernels have no full stall of processors."""
    some = "some avg10=0.50 avg60=1.25 avg300=2.00 total=3\n"
    stall = Stall(avg10=0.5, avg60=1.25, avg300=2.0, total_ns=3000)
    nothing = Stall(avg10=0.0, avg60=0.0, avg300=0.0, total_ns=0)
    assert parse_pressure(some) == Pressure(some=stall, full=nothing)
    assert parse_pressure(f"{some}full{some[4:]}") == Pressure(some=stall, full=stall)
    assert parse_pressure("") is None
