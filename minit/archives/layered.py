"""An image of layers, whatever it was read from: what all readers give and the conversion takes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from io import RawIOBase

from minit.archives.imageconfig import ImageConfig
from minit.archives.imagenames import ImageName
from minit.base.errors import ImageError
from minit.base.value import Value

_CHUNK = 1 << 20
_DIGITS = {"sha256": 64, "sha512": 128}


class Layer(Value):
    """
    One layer's tar, perhaps compressed; `open` gives the file.

    `digest` and `size_bytes` are those of the file, None if nobody recorded them; `diff_id` is the digest of the tar.
    """

    name: str
    open: Callable[[], RawIOBase]
    size_bytes: int
    diff_id: str
    digest: str | None = None


class LayeredImage(Value):
    """
    An image of a layout or an archive, its layers lowest first.

    `document` is its configuration as it came, `id` the digest of that, which is Docker's image ID, `manifest_digest`
    that by which a registry gave it, None if none did. `source` names it in errors.
    """

    source: str
    name: ImageName
    id: str
    config: ImageConfig
    document: bytes
    layers: tuple[Layer, ...]
    manifest_digest: str | None = None


def check_digest(text: str, where: str) -> str:
    """Return `text` if it is a digest that can be computed here, `sha256:` or `sha512:` and the hex digits."""
    algorithm, _, digits = text.partition(":")
    if algorithm not in _DIGITS:
        raise ImageError(f'{where}: the digest "{text[:80]}" is of an unknown kind (sha256 and sha512 are known)')
    if len(digits) != _DIGITS[algorithm] or digits.strip("0123456789abcdef"):
        raise ImageError(f'{where}: "{text[:160]}" is no digest')
    return text


def hasher(digest: str) -> hashlib._Hash:
    """Return what computes a digest of the kind of `digest`."""
    return hashlib.sha256() if digest.startswith("sha256:") else hashlib.sha512()


def digest_of_file(layer: Layer) -> str:
    """Return the digest of a layer's file, of the kind of its digest, or of its diff_id if it has none."""
    kind = layer.digest or layer.diff_id
    computed = hasher(kind)
    with layer.open() as file:
        while data := file.read(_CHUNK):
            computed.update(data)
    return digest_text(kind, computed)


def digest_text(digest: str, computed: hashlib._Hash) -> str:
    """Return a computed digest as text of the kind of `digest`."""
    return f"{digest.partition(':')[0]}:{computed.hexdigest()}"
