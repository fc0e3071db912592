"""
The layers of images, each unpacked once, below `$DATA/minit/cas/layer`, by their diff_ids.

A process that needs layers to stay holds a shared lock of the directory: readers, and imports until the image of the
layers is in the store. Layers of no image are removed under an exclusive lock. Trees have hard links to the files of
layers, and need no lock. Forked processes unpack the layers of one image side by side, each in a directory of its own,
in which no name of an image is used, so that none of them reaches the files of another.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from pathlib import Path

from minit.archives.filecontent import set_status
from minit.archives.layered import Layer, check_digest, digest_of_file
from minit.archives.recipe import AssembledAci, Recipe, open_layers, read_recipe
from minit.archives.streams import Limits
from minit.archives.unpackedlayer import PACKED, UnpackedLayer, read_unpacked, unpack_layer
from minit.base.errors import ImageError, StoreError
from minit.linux import syscalls
from minit.linux.forks import UNPACKER, fork
from minit.linux.idmapping import read_held_ids
from minit.linux.loop import wait_readable
from minit.stage0.files.durable import make_directory, sync_directory
from minit.stage0.files.locks import directory_lock, lock_directory
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images import workers

Tell = Callable[[int, int, int], None]
"""Takes the number of a layer, the bytes that were read of the file, and the uncompressed bytes so far."""

SMALL_BYTES = 4 << 20  # packed; a process costs more than unpacking a small image
_PROCESSES_LIMIT = 4  # each reads ahead in a thread, and takes up to 200 MB
_STEP_BYTES = 4 << 20
_REPORT_BYTES = 1 << 16

_MODE = 0o700  # files of layers may have a set-user-ID bit


def unpack_layers(layers: Sequence[Layer], directories: Sequence[Path], limits: Limits, tell: Tell) -> None:
    """
    Unpack each layer into an own empty directory, as many at a time as there are processors.

    The calling process unpacks the layers of a small image. The first error, also of `tell`, is raised, and all
    processes are ended.
    """
    if sum(layer.size_bytes for layer in layers) < SMALL_BYTES:
        for number, (layer, directory) in enumerate(zip(layers, directories, strict=True)):
            unpack_layer(layer, directory, limits, set_status, partial(tell, number), keep=True, held=read_held_ids())
        return
    # The largest first, so that no process works alone at the end.
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
    """The process that unpacks a layer; the descriptor `reports` becomes readable."""

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
                tell=lambda error: workers.tell_error(report, error),
            )
        except BaseException:
            os.close(self.reports)
            raise
        finally:
            os.close(report)

    def listen(self, tell: Tell) -> bool:
        """Read reports of the process, and return whether more may come; raises the error of the process."""
        data = os.read(self.reports, _REPORT_BYTES)
        *lines, self._said = (self._said + data).split(b"\n")
        for line in lines:
            try:
                word, numbers = workers.numbers_of(line.decode("utf-8", "replace"))
            except workers.DefectError as error:
                raise StoreError(f"{self._layer.name}: {error}") from error
            if word == workers.DONE:
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
            workers.tell(report, workers.PROGRESS, read_bytes, size_bytes)

    unpack_layer(layer, directory, limits, set_status, tell, keep=True, held=read_held_ids())
    workers.tell(report, workers.DONE)


class LayerStore:
    """The layers in the directory `path`; `scratch` is a directory on the same file system."""

    def __init__(self, path: Path, scratch: Path) -> None:
        self._path = path
        self._scratch = scratch

    def kept(self) -> AbstractContextManager[int]:
        """Keep all layers for the length of a with block."""
        make_directory(self._path, _MODE)
        return directory_lock(self._path, exclusive=False)

    def get(self, diff_id: str) -> UnpackedLayer:
        """Return the layer of a digest; ImageError for a missing or damaged layer."""
        path = self._place(diff_id)
        try:
            return read_unpacked(path)
        except FileNotFoundError as error:
            raise ImageError(f"layer {diff_id} is gone from {self._path}") from error

    def has(self, diff_id: str) -> bool:
        """Tell whether the layer of a digest is there."""
        return self._place(diff_id).exists()

    def proves(self, layer: Layer, vouched: Container[str]) -> bool:
        """
        Tell whether the layer is here with the bytes of the same file that the image has.

        An image that only names a layer has no right to the layer's files, and may be damaged. So the image's file is
        read, unless the digest is `vouched` for.
        """
        if not self.has(layer.diff_id):
            return False
        known = self.get(layer.diff_id)
        digest = layer.digest if layer.digest is not None and layer.digest in vouched else digest_of_file(layer)
        return known.brings(digest) and layer.digest in (None, digest)

    def add(self, layers: Sequence[Layer], limits: Limits, tell: Tell) -> set[str]:
        """
        Unpack all layers or, after an error, none; unpacked layers are durable.

        Return the diff_ids of layers that are new. `limits` bound each layer, `tell` is as in `unpack_layers`.
        """
        added = set()
        with scratch_directory(self._scratch) as scratch:
            works = [scratch / str(number) for number in range(len(layers))]
            for work in works:
                work.mkdir(mode=_MODE)
            unpack_layers(layers, works, limits, tell)
            fd = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                syscalls.syncfs(fd)
            finally:
                os.close(fd)
            for layer, work in zip(layers, works, strict=True):
                try:
                    os.rename(work, self._place(layer.diff_id))
                    added.add(layer.diff_id)
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                    self._add_packed(work, self._place(layer.diff_id))
            sync_directory(self._path)
        return added

    def _add_packed(self, work: Path, place: Path) -> None:
        """Move the bytes of a layer to the same layer that is there, which may have others, or none."""
        make_directory(place / PACKED, _MODE)
        for path in (work / PACKED).iterdir():
            os.rename(path, place / PACKED / path.name)
        sync_directory(place / PACKED)

    def layers(self) -> Iterator[UnpackedLayer]:
        """Yield all complete layers."""
        with suppress(FileNotFoundError):
            for path in sorted(self._path.iterdir()):
                with suppress(ImageError, FileNotFoundError):
                    yield read_unpacked(path)

    def leave_out(self, layout: Path, diff_ids: Container[str]) -> set[str]:
        """
        Make stand-ins for the blobs of some layers in an OCI layout, and return the digests of the blobs.

        skopeo fetches no blob that is there. A stand-in has the size of the blob, and a wrong digest.
        """
        digests = set()
        for layer in self.layers():
            if layer.diff_id not in diff_ids or not layer.has_bytes:
                continue
            sizes = {digest: path.stat().st_size for digest, path in layer.packed().items()}
            for digest, size_bytes in {**sizes, layer.diff_id: layer.tar_bytes}.items():
                path = layout / "blobs" / check_digest(digest, "the store of layers").replace(":", "/")
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
                os.truncate(path, size_bytes)
                digests.add(digest)
        return digests

    def remove(self, diff_id: str) -> None:
        """Remove a layer; no error for a missing layer."""
        with scratch_directory(self._scratch) as scratch, suppress(FileNotFoundError):
            os.rename(self._place(diff_id), scratch / "layer")
            sync_directory(self._path)

    def assemble(self, recipe: Recipe) -> AssembledAci:
        """Open the ACI that a recipe makes of layers; an open ACI keeps the layers."""
        make_directory(self._path, _MODE)
        lock = lock_directory(self._path, exclusive=False)
        try:
            return AssembledAci(recipe, open_layers([self.get(diff_id) for diff_id in recipe.layers], lock))
        except BaseException:
            os.close(lock)
            raise

    def collect(self, recipes: Callable[[], Iterable[Path]], others: Callable[[], Container[str]]) -> None:
        """
        Remove the layers without a recipe, unless another process keeps all layers, or a recipe is damaged.

        `others` are the digests of layers that stay without a recipe.
        """
        if not self._path.exists():
            return
        with suppress(BlockingIOError, ImageError), directory_lock(self._path, exclusive=True, blocking=False):
            places = {self._place(diff_id) for path in recipes() for diff_id in read_recipe(path).layers}
            with scratch_directory(self._scratch) as scratch:
                kept = others()
                for path in set(self._path.iterdir()) - places:
                    if path.name.replace("-", ":", 1) in kept:
                        continue
                    os.rename(path, scratch / path.name)
                sync_directory(self._path)

    def _place(self, diff_id: str) -> Path:
        return self._path / check_digest(diff_id, "the store of layers").replace(":", "-")
