"""
App Container Images as files: the image ID, and what every ACI must contain.

appc spec/aci.md; rkt adds nothing but xz.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable

from minit.archives.compression import DEFAULT_LIMITS, Limits, Readable, Tee, Uncompressed
from minit.archives.tar import TarReader
from minit.archives.tarentry import Kind
from minit.base.errors import ImageError, ManifestError
from minit.manifest.image import ImageManifest, parse_image_manifest

MANIFEST_LIMIT_BYTES = 4 << 20
_ID_PREFIX = "sha512-"
_ID_DIGITS = 64  # rkt keeps half of SHA-512's 128 hex digits, everywhere

# Files by which archives of other kinds are known.
_MARKERS = {"oci-layout": "oci-archive", "manifest.json": "docker-archive"}
_CHUNK = 256 << 10


def image_id(digest: hashlib._Hash) -> str:
    """Return the image ID for a SHA-512 over the uncompressed tar."""
    return _ID_PREFIX + digest.hexdigest()[:_ID_DIGITS]


def copy_image(
    file: Readable, source: str, write: Callable[[memoryview], object], limits: Limits = DEFAULT_LIMITS
) -> tuple[str, bytes]:
    """
    Read an image file to its end, hand the uncompressed tar to `write`, and return image ID and manifest.

    Fails with an ImageError, perhaps after part of the tar was written, if the file is no valid ACI.
    """
    digest = hashlib.sha512()
    tee = Tee(Uncompressed(file, source, limits), digest.update, write)
    stream = io.BufferedReader(tee, _CHUNK)
    manifest = _check_layout(TarReader(stream, source), source)
    while stream.read(_CHUNK):
        pass
    _parse(manifest, source)
    return image_id(digest), manifest


def _check_layout(tar: TarReader, source: str) -> bytes:
    manifest: bytes | None = None
    has_rootfs = False
    transport: str | None = None
    for entry in tar:
        if entry.path == "manifest":
            if manifest is not None:
                raise ImageError(f"{source}: two entries named manifest")
            if entry.kind is not Kind.FILE:
                raise ImageError(f"{source}: manifest is a {entry.kind.value}, expected a regular file")
            if entry.size_bytes > MANIFEST_LIMIT_BYTES:
                raise ImageError(f"{source}: a manifest of {entry.size_bytes} bytes (at most {MANIFEST_LIMIT_BYTES})")
            manifest = tar.read(entry.size_bytes)
        elif entry.path == "rootfs":
            if entry.kind is not Kind.DIRECTORY:
                raise ImageError(f"{source}: rootfs is a {entry.kind.value}, expected a directory")
            has_rootfs = True
        else:
            transport = _MARKERS.get(entry.path, transport)
    if manifest is None and transport is not None:
        raise ImageError(f"{source}: no app container image: give it as {transport}:{source}")
    if manifest is None:
        raise ImageError(f"{source}: no manifest: not an app container image")
    if not has_rootfs:
        raise ImageError(f"{source}: no rootfs directory: not an app container image")
    return manifest


def _parse(manifest: bytes, source: str) -> ImageManifest:
    try:
        return parse_image_manifest(manifest, f"{source}: manifest")
    except ManifestError as error:
        raise ImageError(str(error)) from error
