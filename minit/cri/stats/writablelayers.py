"""The room that what containers have written takes, measured beside all else: it may be a million files."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from weakref import WeakKeyDictionary

import trio

from minit.base.errors import MinitError
from minit.base.value import Value
from minit.cri.node import Container
from minit.stage0.apps.writablelayer import writable_layer
from minit.stage0.files.untrusted import DiskUsage, disk_usage

_FRESH_SECONDS = 60.0
_REST_FACTOR = 20
"""What takes long to measure is left alone for so many times as long."""
_PATIENCE_SECONDS = 0.5


class LayerUsage(Value):
    """A measurement; `time_ns` since 1970, `due_seconds` the time of the next one, of trio's clock."""

    usage: DiskUsage
    time_ns: int
    due_seconds: float


class WritableLayers:
    """The writable layers of the containers in a data directory; they are measured one after another, by a thread."""

    def __init__(self, data: Path, nursery: trio.Nursery) -> None:
        self._data = data
        self._nursery = nursery
        self._measured: WeakKeyDictionary[Container, LayerUsage] = WeakKeyDictionary()
        self._pending: dict[Container, trio.Event] = {}
        self._one = trio.CapacityLimiter(1)

    async def read(self, containers: Sequence[Container]) -> dict[Container, LayerUsage]:
        """Return what is known, measured within the last minute or so; of a new one that takes long nothing yet."""
        now = trio.current_time()
        known = {one: self._measured.get(one) for one in containers}
        due = [one for one, last in known.items() if last is None or last.due_seconds <= now]
        started = {one: trio.Event() for one in due if one not in self._pending}
        if started:
            self._pending |= started
            self._nursery.start_soon(self._measure, started)
        with trio.move_on_after(_PATIENCE_SECONDS):
            for one, last in known.items():
                if last is None and one in self._pending:
                    await self._pending[one].wait()
        return {one: self._measured[one] for one in containers if one in self._measured}

    async def _measure(self, containers: dict[Container, trio.Event]) -> None:
        for one, is_done in containers.items():
            begin = trio.current_time()
            usage = await trio.to_thread.run_sync(
                _measure, self._data, one.sandbox.uuid, one.app, abandon_on_cancel=True, limiter=self._one
            )
            end = trio.current_time()
            if usage is not None:
                rest = max(_FRESH_SECONDS, _REST_FACTOR * (end - begin))
                self._measured[one] = LayerUsage(usage=usage, time_ns=time.time_ns(), due_seconds=end + rest)
            del self._pending[one]
            is_done.set()


def _measure(data: Path, uuid: str, app: str) -> DiskUsage | None:
    try:
        return disk_usage(writable_layer(data, uuid, app))
    except (MinitError, OSError):
        return None  # it was removed meanwhile
