"""
minit's own stage1 image: built at the first need, or brought by a package, and kept in the image store from then on.

`image gc` keeps the image of the latest fingerprint, the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import StoreError
from minit.base.progress import Progress
from minit.stage0.files.durable import create_file, make_directory, move_into_place
from minit.stage0.files.locks import key_lock
from minit.stage0.files.temporary import scratch_directory
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage

_RECORD = "default-stage1"


def default_stage1(
    data: Path, store: Store, fingerprint: str, provide: Callable[[Path, Progress], Path], progress: Progress
) -> StoredImage:
    """
    Return the image of the file that `provide` returns, from the store if the store has the image.

    `provide` may write the file into the directory of the argument. `fingerprint` is a word that changes with an image.
    """
    own = data / "minit"
    make_directory(own, 0o770)
    # Two first pods at once would build two images.
    with key_lock(own / "locks", _RECORD, exclusive=True):
        known = known_stage1(data, store, fingerprint)
        if known is not None:
            return known
        with scratch_directory(own / "tmp") as scratch:
            image = store.import_file(provide(scratch, progress), progress)
            create_file(scratch / _RECORD, f"{fingerprint} {image.id}\n".encode(), 0o640)
            move_into_place(scratch / _RECORD, own / _RECORD)
        return image


def known_stage1(data: Path, store: Store, fingerprint: str) -> StoredImage | None:
    """Return the image of a fingerprint, None if no image was built, or the image was removed."""
    words = _record(data)
    if len(words) == 2 and words[0] == fingerprint:
        with suppress(StoreError):
            return store.get(words[1])
    return None


@contextmanager
def stage1_kept(data: Path, store: Store) -> Iterator[StoredImage | None]:
    """Yield the latest image, or None; no process makes another image during the with block."""
    own = data / "minit"
    make_directory(own, 0o770)
    with key_lock(own / "locks", _RECORD, exclusive=True):
        words = _record(data)
        yield known_stage1(data, store, words[0]) if words else None


def _record(data: Path) -> list[str]:
    """Return the words of the record: a fingerprint and an image ID."""
    try:
        return (data / "minit" / _RECORD).read_text().split()
    except FileNotFoundError:
        return []
