"""
Layers to one ACI: read twice, written once.

The first reading checks all digests and learns which entry of which layer wins; the second writes those. Memory holds
names only, and nothing but the ACI is written.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minit.archives.aci import image_id
from minit.archives.compression import DEFAULT_LIMITS, Limits, Tee, Uncompressed
from minit.archives.conversion import convert_manifest
from minit.archives.layered import Layer, LayeredImage, digest_text, hasher
from minit.archives.layertree import LayerTree, Plan
from minit.archives.tar import Entry, Kind, TarReader
from minit.archives.tarheader import END, encode_header, padding
from minit.errors import ImageError
from minit.progress import Progress, silent
from minit.value import replace

ROOTFS = "rootfs"
MANIFEST = "manifest"

_CHUNK = 1 << 20
# What programs in Docker's images expect to find, with docker2aci's targets.
_STDIO_LINKS = (
    ("dev/fd", "/proc/self/fd"),
    ("dev/stderr", "/dev/console"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/dev/console"),
)


def write_aci(
    image: LayeredImage,
    write: Callable[[memoryview], object],
    progress: Progress = silent,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[str, bytes]:
    """
    Hand an image as one uncompressed ACI to `write`, and return image ID and manifest.

    The same image gives the same bytes. Fails with an ImageError, perhaps after part of it was written, if a layer is
    damaged, is not what its digest says, or cannot be applied. Reports bytes of layers read, each counted twice.
    """
    manifest = convert_manifest(image)
    meter = _Meter(progress, f"importing {image.name.whole}", 2 * sum(layer.size_bytes for layer in image.layers))
    plan = _read_layers(image, meter, limits)
    output = _Output(write, limits.size_bytes, image.source)
    output.add(_entry(MANIFEST, Kind.FILE, 0o644, size_bytes=len(manifest)), MANIFEST)
    output.data(manifest)
    output.end_data(len(manifest))
    # The layers may have an entry for it, which then says how it looks.
    output.add(_entry(ROOTFS, Kind.DIRECTORY, 0o755), ROOTFS)
    for number, layer in enumerate(image.layers):
        with _open_layer(layer, limits, meter, again=True) as content:
            _write_layer(number, content.tar, plan, output)
    for path in plan.bare_directories:
        output.add(_entry(path, Kind.DIRECTORY, 0o755), f"{ROOTFS}/{path}")
    for path, target in plan.additions:
        output.add(_entry(path, Kind.SYMLINK, 0o777, link_target=target), f"{ROOTFS}/{path}")
    return output.finish(), manifest


def _read_layers(image: LayeredImage, meter: _Meter, limits: Limits) -> Plan:
    tree = LayerTree()
    left_bytes = limits.size_bytes
    for layer in image.layers:
        tree.begin_layer()
        with _open_layer(layer, replace(limits, size_bytes=left_bytes), meter, again=False) as content:
            for entry in content.tar:
                tree.add(entry, content.tar)
        tree.end_layer()
        left_bytes -= content.size_bytes
    return tree.plan([(path, target) for path, target in _STDIO_LINKS])


def _write_layer(number: int, tar: TarReader, plan: Plan, output: _Output) -> None:
    kept, paths, hard_links = plan.kept[number], plan.paths, plan.hard_links
    first_key = number << 32
    for index, entry in enumerate(tar):
        if index >= len(kept):
            return  # the layer has changed since it was read first, as its digest will tell
        if not kept[index]:
            continue
        key = first_key | index
        path = paths.get(key, entry.path)
        target = hard_links.get(key)
        name = f"{ROOTFS}/{path}" if path else ROOTFS
        if target is not None:
            output.add(entry, name, f"{ROOTFS}/{target}")
            continue
        output.add(entry, name)
        if entry.size_bytes:
            while data := tar.read(_CHUNK):
                output.data(data)
            output.end_data(entry.size_bytes)


def _entry(path: str, kind: Kind, mode: int, *, size_bytes: int = 0, link_target: str = "") -> Entry:
    """Return an entry that no layer has: root's, from the beginning of time."""
    return Entry(
        path=path,
        kind=kind,
        mode=mode,
        uid=0,
        gid=0,
        size_bytes=size_bytes,
        mtime_ns=0,
        atime_ns=0,
        link_target=link_target,
    )


class _Meter:
    """Counts the bytes of layers read."""

    def __init__(self, progress: Progress, step: str, total: int) -> None:
        self._progress = progress
        self._step = step
        self._total = total
        self._done = 0

    def __call__(self, data: memoryview) -> None:
        self._done += len(data)
        self._progress(self._step, self._done, self._total)


class _Content:
    """A layer, uncompressed, and the digests of what was read of it."""

    def __init__(self, layer: Layer, file: io.RawIOBase, limits: Limits, meter: _Meter, *, again: bool) -> None:
        self._layer = layer
        self.size_bytes = 0
        self._digest = None if layer.digest is None else hasher(layer.digest)
        # The same digest stands for the same content, which need not be checked twice.
        self._diff_id = hasher(layer.diff_id) if layer.digest is None or not again else None
        sinks = [digest.update for digest in (self._digest,) if digest is not None]
        self._file = Tee(file, meter, *sinks)
        sinks = [digest.update for digest in (self._diff_id,) if digest is not None]
        self._stream = io.BufferedReader(Tee(Uncompressed(self._file, layer.name, limits), self._count, *sinks), _CHUNK)
        self.tar = TarReader(self._stream, layer.name, rooted=True)

    def check(self) -> None:
        """Read what is left and compare the digests; ImageError if one is wrong."""
        while self._stream.read(_CHUNK):
            pass
        self.check_file()
        _check(self._layer, "diff_id", self._layer.diff_id, self._diff_id)

    def check_file(self) -> None:
        """Read what is left of the file itself, whatever is in it, and compare its digest."""
        while self._file.read(_CHUNK):
            pass
        _check(self._layer, "digest", self._layer.digest, self._digest)

    def _count(self, data: memoryview) -> None:
        self.size_bytes += len(data)


@contextmanager
def _open_layer(layer: Layer, limits: Limits, meter: _Meter, *, again: bool) -> Iterator[_Content]:
    """Yield the content of a layer, and check it after the with block."""
    with layer.open() as file:
        content = _Content(layer, file, limits, meter, again=again)
        try:
            yield content
            content.check()
        except ImageError:
            content.check_file()  # if the file is damaged that is what to say, whatever came of it
            raise


def _check(layer: Layer, what: str, expected: str | None, computed: hashlib._Hash | None) -> None:
    if expected is None or computed is None:
        return
    found = digest_text(expected, computed)
    if found != expected:
        raise ImageError(f"{layer.name} has the {what} {found}, expected {expected}: damaged, copy the image again")


class _Output:
    """The tar that is written, in pieces of some size."""

    def __init__(self, write: Callable[[memoryview], object], limit_bytes: int, source: str) -> None:
        self._write = write
        self._digest = hashlib.sha512()
        self._buffer = bytearray()
        self._left_bytes = limit_bytes
        self._limit_bytes = limit_bytes
        self._source = source

    def add(self, entry: Entry, name: str, hard_link_to: str | None = None) -> None:
        """Write the header of an entry."""
        self.data(encode_header(entry, name, hard_link_to))

    def data(self, data: bytes) -> None:
        """Write data of the entry."""
        self._buffer += data
        if len(self._buffer) >= _CHUNK:
            self._flush()

    def end_data(self, size_bytes: int) -> None:
        """Fill the last block of the entry's data, of which there was so much."""
        self._buffer += padding(size_bytes)

    def finish(self) -> str:
        """Write the end and return the image ID."""
        self._buffer += END
        self._flush()
        return image_id(self._digest)

    def _flush(self) -> None:
        self._left_bytes -= len(self._buffer)
        if self._left_bytes < 0:
            raise ImageError(f"{self._source}: more than {self._limit_bytes} bytes when uncompressed")
        with memoryview(self._buffer) as view:
            self._digest.update(view)
            self._write(view)
        self._buffer = bytearray()
