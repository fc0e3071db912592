"""
The tree store: rendered images below `cas/tree`, where rkt finds, runs and collects them too.

A tree is complete if and only if it has the file `rendered`, and never changes afterwards: pods use it as the
lower layer of their overlays.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from minit import syscalls
from minit.errors import StoreError
from minit.progress import Progress, silent
from minit.stage0.files.diskerrors import disk_errors
from minit.stage0.files.durable import create_file, make_directory, remove_file, sync_directory
from minit.stage0.files.locks import drop_key_locks, key_lock
from minit.stage0.files.temporary import collect_leftovers, scratch_directory
from minit.stage0.images.extract import extract_layers
from minit.stage0.images.rendering import flatten, tree_id
from minit.stage0.images.store import Store
from minit.stage0.images.treehash import HASH, OWN_HASH, own_hash, tree_hash

_TREE_MODE = 0o755
_STORE_MODE = 0o770
_FILE_MODE = 0o644
_TREES = Path("cas/tree")
_TREE_ID = re.compile(r"deps-sha512-[0-9a-f]{64}")


def tree_path(data: Path, tree_id: str) -> Path:
    """Return the directory of a tree below the data directory `data`, rendered or not; StoreError if it is no ID."""
    if not _TREE_ID.fullmatch(tree_id):
        raise StoreError(f'"{tree_id}" is no tree ID (expected deps-sha512- and 64 hex digits)')
    return data / _TREES / tree_id


class TreeStore:
    """The rendered images below the data directory `data`."""

    def __init__(self, data: Path, store: Store) -> None:
        self._data = data
        self._store = store
        self._trees = data / _TREES
        self._locks = data / "cas" / "treestorelocks"
        # As rkt's own, on the file system of the trees; a half-made one among them would look like a tree to
        # rkt.
        self._scratch = data / "cas" / "tmp"
        with disk_errors(f"open the tree store in {data}", data):
            make_directory(self._trees, _TREE_MODE)
            make_directory(self._locks, _STORE_MODE)

    def path(self, tree_id: str) -> Path:
        """Return the directory of a tree, rendered or not."""
        return tree_path(self._data, tree_id)

    def tree_id_of(self, image_id: str) -> str:
        """Return the ID of the tree that an image renders to with the dependencies the store has now."""
        return tree_id(flatten(self._store.get(image_id), self._store.find_dependency))

    def is_rendered(self, tree_id: str) -> bool:
        """Return whether the tree is there and complete."""
        return (self.path(tree_id) / "rendered").exists()

    def render(self, image_id: str, progress: Progress = silent) -> str:
        """
        Make sure the tree of an image is there, and return its ID.

        Of several processes one renders and the others wait for it. Reports bytes of the image.
        """
        image = self._store.get(image_id)
        layers = flatten(image, self._store.find_dependency)
        tree = tree_id(layers)
        target = self.path(tree)
        with disk_errors(f"render image {image.name}", self._trees):
            with self._locked(tree, exclusive=False):
                if self.is_rendered(tree):
                    return tree
            with self._locked(tree, exclusive=True), scratch_directory(self._scratch) as scratch:
                if self.is_rendered(tree):  # by the process we waited for
                    return tree
                work = scratch / "tree"
                work.mkdir()
                os.chmod(work, _TREE_MODE)
                size_bytes = extract_layers(self._store, layers, work, progress, link=True)
                _complete(work, image_id)
                if target.exists():  # half rendered by a program that died
                    shutil.rmtree(target)
                os.rename(work, target)
                sync_directory(self._trees)
                self._store.record_tree_size(image_id, size_bytes)
        return tree

    def ids(self) -> list[str]:
        """Return the IDs of all trees, half-rendered ones too."""
        return sorted(name for name in os.listdir(self._trees) if _TREE_ID.fullmatch(name))

    def has_image(self, tree_id: str) -> bool:
        """Return whether the store still has the image of a tree, as far as the tree tells."""
        try:
            return self._store.has((self.path(tree_id) / "image").read_text())
        except FileNotFoundError:
            return True

    def verify(self, tree_id: str) -> None:
        """Raise StoreError if a tree that minit or rkt rendered was changed since; rkt's may have other attributes."""
        target = self.path(tree_id)
        with disk_errors(f"verify tree {tree_id}", self._trees), self._locked(tree_id, exclusive=False):
            for name, compute in ((HASH, tree_hash), (OWN_HASH, own_hash)):
                path = target / name
                if name == OWN_HASH and not path.exists():
                    continue  # rendered by rkt
                recorded, found = path.read_text(), compute(target)
                if recorded != found:
                    raise StoreError(f"tree {target} was changed: its {name} is {found}, recorded was {recorded}")

    def remove(self, tree_id: str) -> None:
        """Remove a tree, which no pod may be using; no error if there is none."""
        with self.removal() as remove:
            remove(tree_id)

    @contextmanager
    def removal(self) -> Iterator[Callable[[str], None]]:
        """
        Yield a function that removes a tree of this ID, as `remove` does.

        It only takes the tree away; what takes time, deleting the files, is done when the with block has ended.
        """
        with scratch_directory(self._scratch) as scratch:

            def remove(tree_id: str) -> None:
                target = self.path(tree_id)
                with disk_errors(f"remove tree {tree_id}", self._trees), self._locked(tree_id, exclusive=True):
                    if not target.exists():
                        return
                    remove_file(target / "rendered")
                    if (target / "image").exists():
                        self._store.forget_tree_size((target / "image").read_text())
                    os.rename(target, scratch / tree_id)
                    sync_directory(self._trees)

            yield remove

    def collect_leftovers(self) -> None:
        """Remove what was left by processes that died while they rendered or removed, and the locks of gone trees."""
        collect_leftovers(self._scratch)
        drop_key_locks(self._locks, lambda name: (self._trees / name).exists())

    def _locked(self, tree_id: str, *, exclusive: bool) -> AbstractContextManager[int]:
        return key_lock(self._locks, tree_id, exclusive=exclusive)


def _complete(work: Path, image_id: str) -> None:
    """Add what a tree has beside manifest and rootfs; `rendered` only when these are on the disk."""
    # In this order, since the second covers the first.
    create_file(work / OWN_HASH, own_hash(work).encode("ascii"), _FILE_MODE)
    create_file(work / HASH, tree_hash(work).encode("ascii"), _FILE_MODE)
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.syncfs(fd)
        create_file(work / "rendered", b"", _FILE_MODE)
        create_file(work / "image", image_id.encode("ascii"), _FILE_MODE)
        os.fsync(fd)
    finally:
        os.close(fd)
