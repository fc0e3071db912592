"""
A record of the store's image for each source, so that an OCI image, or one of a registry, need not be converted again.

A file in `$DATA/minit/cas/known` for each, named by the SHA-256 of what it came of, holds the image's ID.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from pathlib import Path

from minit.base.errors import MinitError
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.durable import create_file, make_directory, move_into_place, remove_file
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage

_RULES = b"1"  # to be changed with the rules of conversion, or what older ones made would be taken for today's
_ID_LIMIT_BYTES = 100


def recall(store: Store, origin: bytes) -> StoredImage | None:
    """Return the image that came of `origin`, None if it is not, or no longer, in the store."""
    try:
        with open(_file(store, origin), "rb") as file:
            image_id = file.read(_ID_LIMIT_BYTES).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    try:
        return store.get(image_id)
    except MinitError:
        return None


def remember(store: Store, origin: bytes, image: StoredImage) -> None:
    """Note that `image` came of `origin`; forget what came to images that are gone."""
    target = _file(store, origin)
    with disk_errors(f"remember image {image.id}", store.temporary):
        make_directory(target.parent, 0o770)
        for path in target.parent.iterdir():
            with suppress(FileNotFoundError):
                _forget_if_gone(store, path)
        with scratch_directory(store.temporary) as scratch:
            create_file(scratch / "known", image.id.encode("ascii"), 0o640)
            move_into_place(scratch / "known", target)


def _forget_if_gone(store: Store, path: Path) -> None:
    try:
        store.get(path.read_bytes()[:_ID_LIMIT_BYTES].decode("ascii", "replace"))
    except MinitError:
        remove_file(path)


def _file(store: Store, origin: bytes) -> Path:
    return store.data / "minit" / "cas" / "known" / hashlib.sha256(_RULES + b"\n" + origin).hexdigest()
