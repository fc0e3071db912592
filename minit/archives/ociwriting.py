"""
Writes an image as an OCI layout, a directory or an archive, or as an archive like `docker save`'s. OCI image-layout.md

Nothing in the output depends on the time or the machine: the same image gives the same bytes. Every layer is compared
with its digest on the way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Protocol

from minit.archives.imagenames import DOCKER_ARCHIVE, OCI, OCI_ARCHIVE
from minit.archives.layered import Document, Layer, digest_text, hasher
from minit.archives.oci import CONFIG_TYPE, INDEX_TYPE, LAYER_TYPE, MANIFEST_TYPE, REF_NAME
from minit.archives.streams import Pieces, compression_of
from minit.archives.tarentry import Kind, TarWriter, new_entry
from minit.archives.unpackedlayer import UnpackedLayer
from minit.base import jsontext
from minit.base.errors import ImageError
from minit.base.progress import Progress
from minit.base.value import Value

FORMATS = (OCI_ARCHIVE, OCI, DOCKER_ARCHIVE)
"""The formats of written images, in skopeo's words."""

_CONTAINERD_NAME = "io.containerd.image.name"
_COMPRESSIONS = {"gzip": "+gzip", "zstd": "+zstd"}
_CHUNK = 1 << 20
_MAGIC_BYTES = 16


class Blob(Value):
    """A file of an image: a kind, a digest, a size, `open`, and a file with just these bytes, if there is one."""

    media_type: str
    digest: str
    size_bytes: int
    open: Callable[[], RawIOBase]
    path: Path | None = None

    @property
    def descriptor(self) -> dict[str, object]:
        """The description in a document. OCI descriptor.md"""
        return {"mediaType": self.media_type, "digest": self.digest, "size": self.size_bytes}


class OutgoingLayer(Value):
    """A layer: the file, perhaps compressed, and the tar, which may be one."""

    file: Blob
    tar: Blob


class OutgoingImage(Value):
    """
    An image to be written, the lowest layer first.

    `name` is the name in full, with a tag, empty for an image without. `manifest` is the original one, which fits
    configuration and layers, or None.
    """

    name: str
    configuration: bytes
    layers: tuple[OutgoingLayer, ...]
    original: Document | None = None

    @property
    def manifest(self) -> Document:
        """The original manifest, or else a new one."""
        if self.original is not None:
            return self.original
        document = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": _blob_of(_config(self)).descriptor,
            "layers": [layer.file.descriptor for layer in self.layers],
        }
        return Document(media_type=MANIFEST_TYPE, data=jsontext.dump(document))


def stored_layer(layer: UnpackedLayer, digest: str | None = None) -> OutgoingLayer:
    """Return a layer of the store, as the file of a digest if that is given; ImageError if the bytes are not kept."""
    tar = Blob(media_type=LAYER_TYPE, digest=layer.diff_id, size_bytes=layer.tar_bytes, open=layer.open_tar)
    packed = layer.packed()
    for found, path in packed.items() if digest is None else [(digest, packed[digest])] if digest in packed else ():
        with open(path, "rb") as file:
            compression = compression_of(file.read(_MAGIC_BYTES))
        # OCI knows no other compressions; without one the layer is the same.
        if compression in _COMPRESSIONS or digest is not None:
            media_type = LAYER_TYPE + _COMPRESSIONS.get(compression or "", "")
            size_bytes, opener = path.stat().st_size, partial(_open, path)
            blob = Blob(media_type=media_type, digest=found, size_bytes=size_bytes, open=opener, path=path)
            return OutgoingLayer(file=blob, tar=tar)
    if not layer.has_bytes:
        layer.open_tar()
    return OutgoingLayer(file=tar, tar=tar)


def new_layer(layer: Layer) -> OutgoingLayer:
    """Return a layer that is a plain tar."""
    tar = Blob(media_type=LAYER_TYPE, digest=layer.diff_id, size_bytes=layer.size_bytes, open=layer.open)
    return OutgoingLayer(file=tar, tar=tar)


def write_archive(image: OutgoingImage, kind: str, write: Callable[[memoryview], object], progress: Progress) -> None:
    """Hand an archive of a kind of FORMATS to `write`; ImageError if a layer is damaged. Reports bytes of layers."""
    tar = TarWriter(write)
    sink = _Archive(tar)
    if kind == DOCKER_ARCHIVE:
        _write_docker(image, sink, progress)
    else:
        _write_layout(image, sink, progress)
    tar.finish()


def write_directory(image: OutgoingImage, directory: Path, progress: Progress, *, link: bool = False) -> None:
    """
    Fill an empty directory with an OCI layout; ImageError if a layer is damaged. Reports bytes of layers.

    With `link` files of the store are linked, and not read: whoever reads the layout has to compare the digests.
    """
    _write_layout(image, _Directory(directory, link=link), progress)


class _Sink(Protocol):
    """The place of the files of an image."""

    def directory(self, path: str) -> None: ...
    def file(self, path: str, size_bytes: int, pieces: Iterator[bytes], same: Path | None = None) -> None: ...


class _Archive:
    """A tar."""

    def __init__(self, tar: TarWriter) -> None:
        self._tar = tar

    def directory(self, path: str) -> None:
        self._tar.add(new_entry(path, Kind.DIRECTORY, 0o755))

    def file(self, path: str, size_bytes: int, pieces: Iterator[bytes], same: Path | None = None) -> None:
        self._tar.add(new_entry(path, Kind.FILE, 0o644, size_bytes=size_bytes))
        if not self._tar.copy(size_bytes, lambda _: next(pieces, b"")):
            raise ImageError(f"{path}: less than {size_bytes} bytes")
        next(pieces, None)  # the check


class _Directory:
    """A directory."""

    def __init__(self, path: Path, *, link: bool) -> None:
        self._path = path
        self._link = link

    def directory(self, path: str) -> None:
        (self._path / path).mkdir(mode=0o755)

    def file(self, path: str, size_bytes: int, pieces: Iterator[bytes], same: Path | None = None) -> None:
        if self._link and same is not None:
            with suppress(OSError):  # too many links: a copy
                os.link(same, self._path / path)
                return
        with open(self._path / path, "xb", buffering=0) as file:
            os.fchmod(file.fileno(), 0o644)
            for piece in pieces:
                file.write(piece)
            os.fsync(file.fileno())


class _Meter:
    """Reports the bytes of layers."""

    def __init__(self, image: OutgoingImage, blobs: list[Blob], progress: Progress) -> None:
        self._step = f"writing {image.name or 'the image'}"
        self._total = sum(blob.size_bytes for blob in blobs)
        self._progress = progress
        self._done = 0

    def pieces(self, blob: Blob) -> Iterator[bytes]:
        """Yield the bytes of a file; ImageError at the end if they are others."""
        digest, size_bytes = hasher(blob.digest), 0
        with blob.open() as file:
            while size_bytes < blob.size_bytes and (data := file.read(min(_CHUNK, blob.size_bytes - size_bytes))):
                digest.update(data)
                size_bytes += len(data)
                self._done += len(data)
                self._progress(self._step, self._done, self._total)
                yield data
        if digest_text(blob.digest, digest) != blob.digest:
            raise ImageError(f"layer {blob.digest} of the store is damaged: fetch the image again")


def _write_layout(image: OutgoingImage, sink: _Sink, progress: Progress) -> None:
    manifest = image.manifest
    names = {REF_NAME: image.name, _CONTAINERD_NAME: image.name} if image.name else {}
    entry = {**_blob_of(manifest).descriptor, **({"annotations": names} if names else {})}
    index = {"schemaVersion": 2, "mediaType": INDEX_TYPE, "manifests": [entry]}
    _put(sink, "oci-layout", jsontext.dump({"imageLayoutVersion": "1.0.0"}))
    _put(sink, "index.json", jsontext.dump(index))
    documents = {blob.digest: blob for blob in (_blob_of(manifest), _blob_of(_config(image)))}
    blobs = {layer.file.digest: layer.file for layer in image.layers}
    meter = _Meter(image, list(blobs.values()), progress)
    sink.directory("blobs")
    for algorithm in sorted({digest.partition(":")[0] for digest in (*documents, *blobs)}):
        sink.directory(f"blobs/{algorithm}")
    for blob in (*documents.values(), *blobs.values()):
        sink.file("blobs/" + blob.digest.replace(":", "/"), blob.size_bytes, meter.pieces(blob), blob.path)


def _write_docker(image: OutgoingImage, sink: _Sink, progress: Progress) -> None:
    config = _config(image)
    config_path = f"{config.digest.partition(':')[2]}.json"
    paths = {layer.tar.digest: f"{layer.tar.digest.partition(':')[2]}.tar" for layer in image.layers}
    entry = {
        "Config": config_path,
        "RepoTags": [image.name] if image.name else None,
        "Layers": [paths[layer.tar.digest] for layer in image.layers],
    }
    _put(sink, "manifest.json", jsontext.dump([entry]))
    _put(sink, config_path, image.configuration)
    blobs = {layer.tar.digest: layer.tar for layer in image.layers}
    meter = _Meter(image, list(blobs.values()), progress)
    for digest, blob in blobs.items():
        sink.file(paths[digest], blob.size_bytes, meter.pieces(blob), blob.path)


def _config(image: OutgoingImage) -> Document:
    return Document(media_type=CONFIG_TYPE, data=image.configuration)


def _blob_of(document: Document) -> Blob:
    data = document.data
    return Blob(
        media_type=document.media_type, digest=document.digest, size_bytes=len(data), open=lambda: Pieces(iter([data]))
    )


def _put(sink: _Sink, path: str, data: bytes) -> None:
    sink.file(path, len(data), iter([data]))


def _open(path: Path) -> RawIOBase:
    return open(path, "rb", buffering=0)
