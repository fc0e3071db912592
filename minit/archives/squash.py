"""
Layers to one ACI: read once, into a temporary file, of which then only what counts is copied.

Each layer is decompressed and checked once; what it holds goes into the temporary file as entries of an ACI already.
When the last layer has been read it is known which of them count. Memory holds names and positions only.
"""

from __future__ import annotations

import hashlib
import io
import os
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from minit.archives.aci import image_id
from minit.archives.acimanifest import convert_manifest
from minit.archives.blobs import Section
from minit.archives.compression import DEFAULT_LIMITS, Limits, Tee, Uncompressed
from minit.archives.layered import Layer, LayeredImage, digest_text, hasher
from minit.archives.layertree import LayerTree, Plan
from minit.archives.tar import TarReader
from minit.archives.tarentry import Entry, Kind
from minit.archives.tarwriter import TarWriter, new_entry, padding
from minit.errors import ImageError
from minit.progress import Progress, silent
from minit.value import replace

ROOTFS = "rootfs"
MANIFEST = "manifest"

_CHUNK = 1 << 20
# Links that programs in Docker's images expect to find, with docker2aci's targets.
_STDIO_LINKS = (
    ("dev/fd", "/proc/self/fd"),
    ("dev/stderr", "/dev/console"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/dev/console"),
)


def write_aci(
    image: LayeredImage,
    write: Callable[[memoryview], object],
    make_spool: Callable[[], BinaryIO],
    progress: Progress = silent,
    limits: Limits = DEFAULT_LIMITS,
) -> tuple[str, bytes]:
    """
    Hand an image as one uncompressed ACI to `write`, and return image ID and manifest.

    `make_spool` gives an empty file, open for reading and writing, that takes all layers uncompressed. The same image
    gives the same bytes. Fails with an ImageError, before anything is written, if a layer is damaged, is not what its
    digest says, or cannot be applied. Reports bytes of layers read, then bytes written.
    """
    manifest = convert_manifest(image)
    with make_spool() as spool:
        spooled = _Spooled(spool)
        plan = _read_layers(image, spooled, progress, limits)
        digest = hashlib.sha512()

        def write_digested(data: memoryview) -> None:
            digest.update(data)
            write(data)

        output = TarWriter(write_digested)
        output.add(new_entry(MANIFEST, Kind.FILE, 0o644), data=manifest)
        # The layers may have an entry for it, which then says how it looks.
        output.add(new_entry(ROOTFS, Kind.DIRECTORY, 0o755), ROOTFS)
        for number in range(len(image.layers)):
            for start, end in _kept(number, spooled, plan, output):
                spooled.copy(start, end, output)
                progress(f"writing {image.name.whole}", end, spooled.size_bytes)
    for path in plan.bare_directories:
        output.add(new_entry(path, Kind.DIRECTORY, 0o755), f"{ROOTFS}/{path}")
    for path, target in plan.additions:
        output.add(new_entry(path, Kind.SYMLINK, 0o777, link_target=target), f"{ROOTFS}/{path}")
    output.finish()
    return image_id(digest), manifest


def _read_layers(image: LayeredImage, spooled: _Spooled, progress: Progress, limits: Limits) -> Plan:
    total = sum(layer.size_bytes for layer in image.layers)
    meter = _Meter(progress, f"importing {image.name.whole}", total)
    tree = LayerTree()
    left_bytes = limits.size_bytes
    for layer in image.layers:
        tree.begin_layer()
        spooled.begin_layer()
        with _open_layer(layer, replace(limits, size_bytes=left_bytes), meter) as content:
            for entry in content.tar:
                content.count_holes(entry.hole_bytes)
                tree.add(entry, content.tar)
                spooled.add(entry, content.tar)
        spooled.end_layer()
        tree.end_layer()
        left_bytes -= content.size_bytes
    return tree.plan(_STDIO_LINKS)


def _kept(number: int, spooled: _Spooled, plan: Plan, output: TarWriter) -> Iterator[tuple[int, int]]:
    """Yield which parts of the spool are to be copied, and write in their place headers that are to change."""
    first_key = number << 32
    # Most entries are neither moved nor links.
    changed = {key & 0xFFFFFFFF for key in (*plan.paths, *plan.hard_links) if key >> 32 == number}
    positions = spooled.positions[number]
    start = end = positions[0]
    for index, kept in enumerate(plan.kept[number]):
        if kept and index not in changed:
            if positions[index] != end:
                yield start, end
                start = positions[index]
            end = positions[index + 1]
        elif kept:
            yield start, end
            entry, data = spooled.entry(positions[index], positions[index + 1])
            name = plan.paths.get(first_key | index)
            target = plan.hard_links.get(first_key | index)
            link = None if target is None else f"{ROOTFS}/{target}"
            output.add(entry, entry.path if name is None else f"{ROOTFS}/{name}", hard_link_to=link)
            start, end = data, positions[index + 1]
    yield start, end


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

    def __init__(self, layer: Layer, file: io.RawIOBase, limits: Limits, meter: _Meter) -> None:
        self._layer = layer
        self.size_bytes = 0
        self._digest = None if layer.digest is None else hasher(layer.digest)
        self._diff_id = hasher(layer.diff_id)
        sinks = [self._digest.update] if self._digest is not None else []
        self._file = Tee(file, meter, *sinks)
        self._uncompressed = Uncompressed(self._file, layer.name, limits)
        content = Tee(self._uncompressed, self._count, self._diff_id.update)
        self._stream = io.BufferedReader(content, _CHUNK)
        self.tar = TarReader(self._stream, layer.name, rooted=True)

    def count_holes(self, size_bytes: int) -> None:
        """Count the holes of a sparse file, which are zeros in the ACI; ImageError if they are too large."""
        self._uncompressed.count_holes(size_bytes)
        self.size_bytes += size_bytes

    def check(self) -> None:
        """Read what is left and compare the digests; ImageError if one is wrong."""
        while self._stream.read(_CHUNK):
            pass
        self.check_file()
        self._check("diff_id", self._layer.diff_id, self._diff_id)

    def check_file(self) -> None:
        """Read what is left of the file itself, whatever is in it, and compare its digest."""
        if self._digest is not None and self._layer.digest is not None:
            while self._file.read(_CHUNK):
                pass
            self._check("digest", self._layer.digest, self._digest)

    def _check(self, what: str, expected: str, computed: hashlib._Hash) -> None:
        found = digest_text(expected, computed)
        if found != expected:
            raise ImageError(
                f"{self._layer.name} has the {what} {found}, expected {expected}: damaged, copy the image again"
            )

    def _count(self, data: memoryview) -> None:
        self.size_bytes += len(data)


@contextmanager
def _open_layer(layer: Layer, limits: Limits, meter: _Meter) -> Iterator[_Content]:
    """Yield the content of a layer, and check it after the with block."""
    with layer.open() as file:
        content = _Content(layer, file, limits, meter)
        try:
            yield content
            content.check()
        except ImageError:
            content.check_file()  # if the file is damaged that is what to say, whatever came of it
            raise


class _Spooled:
    """All entries of all layers, as those of an ACI, in a temporary file, and where each begins."""

    def __init__(self, spool: BinaryIO) -> None:
        self._spool = spool
        self._tar = TarWriter(spool.write)
        self.positions: list[array[int]] = []
        """For each layer the positions of its entries, and the end of the last one."""

    @property
    def size_bytes(self) -> int:
        """The size of all of it."""
        return self._tar.position

    def begin_layer(self) -> None:
        """Say that the next entries are those of the next layer."""
        self.positions.append(array("Q"))

    def add(self, entry: Entry, tar: TarReader) -> None:
        """Add an entry with its data."""
        self.positions[-1].append(self._tar.position)
        name = f"{ROOTFS}/{entry.path}" if entry.path else ROOTFS
        self._tar.add(entry, name, hard_link_to=ROOTFS if entry.kind is Kind.HARD_LINK else None)
        self._tar.copy(entry.size_bytes, tar.read)

    def end_layer(self) -> None:
        """Say that a layer is complete."""
        self.positions[-1].append(self._tar.position)
        self._tar.flush()
        self._spool.flush()

    def entry(self, start: int, end: int) -> tuple[Entry, int]:
        """Return an entry again, and where its data begins."""
        section = io.BufferedReader(Section(self._spool.fileno(), start, end - start, close_fd=False))
        for entry in TarReader(section, "the temporary file"):
            return entry, end - entry.size_bytes - len(padding(entry.size_bytes))
        raise ImageError("the temporary file has lost an entry; try again")

    def copy(self, start: int, end: int, output: TarWriter) -> None:
        """Copy a part of the file to the output."""
        while start < end:
            data = os.pread(self._spool.fileno(), min(end - start, _CHUNK), start)
            if not data:
                raise ImageError("the temporary file has become shorter; try again")
            output.put(data)
            start += len(data)
