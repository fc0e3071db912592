"""Which image a user means: a file to import, or one of the store by id or name."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from minit.errors import StoreError
from minit.progress import Progress
from minit.stage0.store import Store, StoredImage

_REMOTE_SCHEMES = ("http://", "https://", "docker://")


def resolve_image(store: Store, reference: str, progress: Progress) -> StoredImage:
    """Return the image `reference` means, imported (again) if it is a file; StoreError if there is none."""
    if reference.startswith(_REMOTE_SCHEMES):
        raise StoreError(
            f'cannot fetch "{reference}": minit does not download images (download it, then give the file)'
        )
    path = image_file(reference)
    return store.find(reference) if path is None else store.import_file(path, progress)


def image_file(reference: str) -> Path | None:
    """Return the file an image argument means, None if it means an image of the store."""
    if reference.startswith("file://"):
        return Path(unquote(urlsplit(reference).path))
    if reference.startswith("sha512-"):
        return None
    path = Path(reference)
    is_file = (
        path.is_absolute()
        or "./" in reference
        or (reference.endswith(".aci") and ":" not in reference)
        or path.is_file()
    )
    return path if is_file else None
