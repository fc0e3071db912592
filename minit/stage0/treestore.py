"""
The tree store: rendered images below `cas/tree`, where rkt finds, runs and collects them too.

A tree is complete if and only if it has the file `rendered`, and never changes afterwards: pods use it as the
lower layer of their overlays.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from contextlib import AbstractContextManager
from pathlib import Path

from minit import syscalls
from minit.errors import StoreError
from minit.progress import Progress, silent
from minit.stage0.diskerrors import disk_errors
from minit.stage0.durable import create_file, make_directory, remove_file, sync_directory
from minit.stage0.extract import extract_layers
from minit.stage0.locks import key_lock
from minit.stage0.rendering import ROOTFS, flatten, tree_id
from minit.stage0.store import Store
from minit.stage0.temporary import scratch_directory

_TREE_MODE = 0o755
_STORE_MODE = 0o770
_FILE_MODE = 0o644
_TREE_ID = re.compile(r"deps-sha512-[0-9a-f]{64}")
_CHUNK = 1 << 20


class TreeStore:
    """The rendered images below the data directory `data`."""

    def __init__(self, data: Path, store: Store) -> None:
        self._data = data
        self._store = store
        self._trees = data / "cas" / "tree"
        self._locks = data / "cas" / "treestorelocks"
        # As rkt's own, on the file system of the trees; a half-made one among them would look like a tree to
        # rkt.
        self._scratch = data / "cas" / "tmp"
        with disk_errors(f"open the tree store in {data}", data):
            make_directory(self._trees, _TREE_MODE)
            make_directory(self._locks, _STORE_MODE)

    def path(self, tree_id: str) -> Path:
        """Return the directory of a tree, rendered or not."""
        if not _TREE_ID.fullmatch(tree_id):
            raise StoreError(f'"{tree_id}" is no tree ID (expected deps-sha512- and 64 hex digits)')
        return self._trees / tree_id

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
        with disk_errors(f"render image {image.name}", self._data):
            with self._locked(tree, exclusive=False):
                if self.is_rendered(tree):
                    return tree
            with self._locked(tree, exclusive=True), scratch_directory(self._scratch) as scratch:
                if self.is_rendered(tree):  # by the process we waited for
                    return tree
                work = scratch / "tree"
                work.mkdir()
                os.chmod(work, _TREE_MODE)
                size_bytes = extract_layers(self._store, layers, work, progress)
                _complete(work, image_id)
                if target.exists():  # half rendered by a program that died
                    shutil.rmtree(target)
                os.rename(work, target)
                sync_directory(self._trees)
                self._store.record_tree_size(image_id, size_bytes)
        return tree

    def verify(self, tree_id: str) -> None:
        """Raise StoreError if a tree that minit rendered was changed since."""
        target = self.path(tree_id)
        with disk_errors(f"verify tree {tree_id}", self._data), self._locked(tree_id, exclusive=False):
            if (target / "hash").read_text() != _hash(target):
                raise StoreError(f"tree {target} was changed: stop the pods that use it and remove it")

    def remove(self, tree_id: str) -> None:
        """Remove a tree, which no pod may be using; no error if there is none."""
        target = self.path(tree_id)
        with disk_errors(f"remove tree {tree_id}", self._data), self._locked(tree_id, exclusive=True):
            if not target.exists():
                return
            remove_file(target / "rendered")
            if (target / "image").exists():
                self._store.forget_tree_size((target / "image").read_text())
            shutil.rmtree(target)

    def _locked(self, tree_id: str, *, exclusive: bool) -> AbstractContextManager[int]:
        return key_lock(self._locks, tree_id, exclusive=exclusive)


def _complete(work: Path, image_id: str) -> None:
    """Add what a tree has beside manifest and rootfs; `rendered` only when these are on the disk."""
    create_file(work / "hash", _hash(work).encode("ascii"), _FILE_MODE)
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.syncfs(fd)
        create_file(work / "rendered", b"", _FILE_MODE)
        create_file(work / "image", image_id.encode("ascii"), _FILE_MODE)
        os.fsync(fd)
    finally:
        os.close(fd)


def _hash(tree: Path) -> str:
    """
    Return a hash over manifest and rootfs: names, modes, owners, devices, xattrs, link targets and data.

    Times are left out, since not all of them come from the image. rkt writes a hash of its own kind into the
    same place, which nothing but its `image verify` reads.
    """
    digest = hashlib.sha512()
    pending = [tree / ROOTFS, tree / "manifest"]
    while pending:
        path = pending.pop()
        status = path.lstat()
        is_file, is_link = stat.S_ISREG(status.st_mode), stat.S_ISLNK(status.st_mode)
        fields = (
            os.fsencode(path.relative_to(tree)),
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_rdev,
            status.st_size if is_file else 0,
            os.fsencode(os.readlink(path)) if is_link else b"",
            [(name, os.getxattr(path, name)) for name in sorted(os.listxattr(path))] if is_file else [],
        )
        digest.update(repr(fields).encode("ascii") + b"\n")
        if is_file:
            with open(path, "rb", buffering=0) as file:
                while data := file.read(_CHUNK):
                    digest.update(data)
        elif stat.S_ISDIR(status.st_mode):
            pending.extend(sorted(path.iterdir(), reverse=True))
    return f"sha512-{digest.hexdigest()[:64]}"
