"""
Layers unpacked side by side, each by a forked process: none of them needs another one.

Each has a directory of its own, in which no name of an image is used, so nothing that one does
reaches what another does.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from minit.archives.filecontent import set_status
from minit.archives.layered import Layer
from minit.archives.streams import Limits
from minit.archives.unpackedlayer import unpack_layer
from minit.base.errors import StoreError
from minit.linux.forks import UNPACKER, fork
from minit.linux.loop import wait_readable
from minit.stage0.images import workreport

Tell = Callable[[int, int, int], None]
"""Is told which of the layers has come how far: bytes of its file, and bytes that those have become so far."""

SMALL_BYTES = 4 << 20  # packed; a process costs more than some layers of a small image
_PROCESSES_LIMIT = 4  # each reads ahead in a thread, and takes up to 200 MB for that
_STEP_BYTES = 4 << 20
_REPORT_BYTES = 1 << 16


def unpack_layers(layers: Sequence[Layer], directories: Sequence[Path], limits: Limits, tell: Tell) -> None:
    """
    Unpack each layer into its own of the empty directories, as many at a time as there are processors.

    This process itself unpacks those of a small image.
    The first error is raised, what `tell` raises among them, and no process goes on then.
    """
    if sum(layer.size_bytes for layer in layers) < SMALL_BYTES:
        for number, (layer, directory) in enumerate(zip(layers, directories, strict=True)):
            unpack_layer(layer, directory, limits, set_status, partial(tell, number))
        return
    # The largest first, so that it is not what all others have to wait for at the end.
    waiting = sorted(range(len(layers)), key=lambda number: layers[number].size_bytes)
    running: dict[int, _Unpacking] = {}
    try:
        while waiting or running:
            while waiting and len(running) < min(len(os.sched_getaffinity(0)), _PROCESSES_LIMIT):
                number = waiting.pop()
                unpacking = _Unpacking(number, layers[number], directories[number], limits)
                running[unpacking.reports] = unpacking
            for reports in wait_readable(running):
                if not running[reports].listen(tell):
                    running.pop(reports).end()
    finally:
        for unpacking in running.values():
            unpacking.end()


class _Unpacking:
    """The process that unpacks a layer; `reports` is what is to be waited for."""

    def __init__(self, number: int, layer: Layer, directory: Path, limits: Limits) -> None:
        self._number = number
        self._layer = layer
        self._said = b""
        self._is_done = False
        self.reports, report = os.pipe()
        try:
            self._pid = fork(
                UNPACKER,
                lambda: _unpack(layer, directory, limits, report),
                tell=lambda error: workreport.tell_error(report, error),
            )
        except BaseException:
            os.close(self.reports)
            raise
        finally:
            os.close(report)

    def listen(self, tell: Tell) -> bool:
        """Take what the process says, and return whether it may say more; raises what it failed with."""
        data = os.read(self.reports, _REPORT_BYTES)
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            try:
                word, numbers = workreport.numbers_of(line.decode("utf-8", "replace"))
            except workreport.DefectError as error:
                raise StoreError(f"{self._layer.name}: {error}") from error
            if word == workreport.DONE:
                self._is_done = True
            else:
                tell(self._number, *numbers)
        if not data and not self._is_done:
            raise StoreError(f"{self._layer.name}: the process that unpacked it was killed; try again")
        return bool(data)

    def end(self) -> None:
        """Make sure that the process is gone."""
        os.close(self.reports)
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)


def _unpack(layer: Layer, directory: Path, limits: Limits, report: int) -> None:
    told = 0

    def tell(read_bytes: int, size_bytes: int) -> None:
        nonlocal told
        if size_bytes - told >= _STEP_BYTES:
            told = size_bytes
            workreport.tell(report, workreport.PROGRESS, read_bytes, size_bytes)

    unpack_layer(layer, directory, limits, set_status, tell)
    workreport.tell(report, workreport.DONE)
