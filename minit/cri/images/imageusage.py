"""How much room the images take, measured again only when there are others: there may be a million files."""

from __future__ import annotations

from pathlib import Path

import trio

from minit.stage0.files.untrusted import DiskUsage, disk_usage

_PLACES = ("minit/cas", "cas")
_CHANGING = ("minit/cas/layer", "cas/tree", "minit/cas/imageManifest/sha512/*")


class ImageUsage:
    """The room that the images of a data directory take, with what was unpacked of them."""

    def __init__(self, data: Path) -> None:
        self._data = data
        self._measuring = trio.Lock()
        self._state: object = None
        self._usage = DiskUsage()

    async def read(self) -> DiskUsage:
        """Return how much it is; who asks while that is measured waits for it."""
        async with self._measuring:
            state = self._read_state()
            if state != self._state:
                self._usage = await trio.to_thread.run_sync(self._measure)
                self._state = state
            return self._usage

    def _read_state(self) -> object:
        """Return something else whenever an image, a layer or a tree has come or gone."""
        paths = sorted(path for pattern in _CHANGING for path in self._data.glob(pattern))
        return [(path, path.stat().st_mtime_ns) for path in paths]

    def _measure(self) -> DiskUsage:
        seen: set[int] = set()
        parts = [disk_usage(self._data / place, seen) for place in _PLACES]
        return DiskUsage(size_bytes=sum(part.size_bytes for part in parts), inodes=sum(part.inodes for part in parts))
