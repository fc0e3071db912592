"""
OCI layouts and docker archives, written byte by byte from layers that `tests.tars` makes.

Everything that a test wants to be wrong can be: documents are dicts, and what descriptors say may be changed.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests import tars

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"
REF_NAME = "org.opencontainers.image.ref.name"

Json = dict[str, object]


def sha256(data: bytes) -> str:
    """The digest of data, as descriptors have it."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def layer(*entries: bytes) -> bytes:
    """The tar of a layer."""
    return b"".join(entries) + tars.END


def whiteout(path: str) -> bytes:
    """The entry that hides `path` of lower layers."""
    directory, slash, name = path.rpartition("/")
    return tars.file(f"{directory}{slash}.wh.{name}")


def opaque(directory: str) -> bytes:
    """The entry that hides all that lower layers have in a directory."""
    return tars.file(f"{directory}/.wh..wh..opq")


def config_document(layers: Sequence[bytes], config: Mapping[str, object] | None = None, **fields: object) -> Json:
    """The configuration of an image of these uncompressed layers, for this machine unless told otherwise."""
    return {
        "architecture": "amd64",
        "os": "linux",
        "config": dict(config or {}),
        "rootfs": {"type": "layers", "diff_ids": [sha256(data) for data in layers]},
        **fields,
    }


class Layout:
    """The files of an OCI layout, and its index."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}
        self.index: list[Json] = []

    def blob(self, data: bytes, media_type: str, **fields: object) -> Json:
        """Add a blob and return its descriptor."""
        digest = sha256(data)
        self.files["blobs/" + digest.replace(":", "/")] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data), **fields}

    def document(self, document: Json, media_type: str, **fields: object) -> Json:
        """Add a document and return its descriptor."""
        return self.blob(json.dumps(document).encode(), media_type, **fields)

    def manifest(
        self,
        *layers: bytes,
        config: Mapping[str, object] | None = None,
        compress: Callable[[bytes], bytes] = bytes,
        suffix: str = "",
        media_type: str = MANIFEST,
        more: Mapping[str, object] | None = None,
        **fields: object,
    ) -> Json:
        """Add an image and return the descriptor of its manifest; `fields` go into its configuration."""
        document: Json = {
            "schemaVersion": 2,
            "mediaType": media_type,
            "config": self.document(config_document(layers, config, **fields), CONFIG),
            "layers": [self.blob(compress(data), LAYER + suffix) for data in layers],
            **(more or {}),
        }
        return self.document(document, media_type)

    def add(self, *layers: bytes, tag: str | None = None, **settings: object) -> Json:
        """Add an image to the index, under a tag, and return its descriptor there."""
        descriptor = self.manifest(*layers, **settings)  # type: ignore[arg-type]
        if tag is not None:
            descriptor["annotations"] = {REF_NAME: tag}
        self.index.append(descriptor)
        return descriptor

    def contents(self) -> dict[str, bytes]:
        """All files, with the index."""
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": self.index}
        return {"index.json": json.dumps(index).encode(), **self.files}

    def write_directory(self, path: Path) -> Path:
        """Write the layout as a directory."""
        for name, data in self.contents().items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path

    def write_archive(self, path: Path, compress: Callable[[bytes], bytes] = bytes) -> Path:
        """Write the layout as an archive."""
        path.write_bytes(compress(archive(self.contents())))
        return path


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar of files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def docker_files(*layers: bytes, tags: Sequence[str] = ("busybox:1",), config: Json | None = None) -> dict[str, bytes]:
    """The files of an archive of docker save with one image."""
    document = json.dumps(config_document(layers) if config is None else config).encode()
    name = hashlib.sha256(document).hexdigest() + ".json"
    paths = [f"{hashlib.sha256(data).hexdigest()}/layer.tar" for data in layers]
    listing = [{"Config": name, "RepoTags": list(tags), "Layers": paths}]
    return {name: document, **dict(zip(paths, layers, strict=True)), "manifest.json": json.dumps(listing).encode()}


def busybox_layer() -> bytes:
    """A layer with a shell, the machine's busybox."""
    program = Path("/usr/bin/busybox").read_bytes()
    return layer(
        tars.directory("bin/"),
        tars.file("bin/busybox", program, mode=0o755),
        tars.symlink("bin/sh", "busybox"),
        tars.directory("etc/"),
        tars.file("etc/passwd", b"root:x:0:0::/:/bin/sh\napp:x:7:8::/:/bin/sh\n"),
        tars.file("etc/group", b"root:x:0:\napp:x:8:\n"),
    )


def gzipped(data: bytes) -> bytes:
    """Data as gzip compresses it, the same each time."""
    return gzip.compress(data, mtime=0)
