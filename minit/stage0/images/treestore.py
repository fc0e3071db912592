"""
The tree store: rendered images below `cas/tree`, where rkt finds, runs and collects them too.

A tree with the file `rendered` is complete, and never changes afterwards: overlays of pods have trees as lower layers.

Two hashes show changes of a tree. `hash` is rkt's own (store/treestore): SHA-512 over a walk of the tree in the order
of names, for each file a JSON object of some fields of a tar header and then the data. The JSON is Go's, byte by byte.
rkt leaves out the manifest and all extended attributes; `minit-hash` covers both, and `hash` covers `minit-hash`.

Volumes that are images are trees, too: in a manifest such a volume is a directory of the host, the rootfs of a tree.
Pods have the tree read-only, and the tree stays as long as a pod refers to it.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

from minit.archives.streams import ReadAhead, joined
from minit.archives.tarentry import is_kept_attribute
from minit.base.errors import StoreError
from minit.base.progress import Progress, silent
from minit.base.value import replace
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.manifest.pod import Mount, PodManifest, Volume
from minit.podfiles.paths import tree_of_source
from minit.stage0.files.durable import create_file, disk_errors, make_directory, remove_file, sync_directory
from minit.stage0.files.locks import drop_key_locks, key_lock
from minit.stage0.files.temporary import collect_leftovers, scratch_directory
from minit.stage0.images.extract import extract_layers
from minit.stage0.images.rendering import flatten, tree_id
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage

_TREE_MODE = 0o755
_STORE_MODE = 0o770
_FILE_MODE = 0o644
_TREES = Path("cas/tree")
_TREE_ID = re.compile(r"deps-sha512-[0-9a-f]{64}")

_HASH = "hash"
_OWN_HASH = "minit-hash"

_MANIFEST = "manifest"
_OUTSIDE = frozenset({_MANIFEST, _HASH, "rendered", "image"})  # left out by rkt's walk
_CHUNK = 1 << 20
_DIGITS = 64

# archive/tar's type flags, as the numbers that Go's JSON has.
_TYPES = {
    stat.S_IFREG: ord("0"),
    stat.S_IFLNK: ord("2"),
    stat.S_IFCHR: ord("3"),
    stat.S_IFBLK: ord("4"),
    stat.S_IFDIR: ord("5"),
    stat.S_IFIFO: ord("6"),
}
_HARD_LINK = ord("1")

_ESCAPED = re.compile('["\\\\<>&\x00-\x1f\u2028\u2029\ud800-\udfff]')
_SHORT = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

IMAGE = "image"
"""The kind of a volume whose source is an image, outside of manifests."""


def tree_path(data: Path, tree_id: str) -> Path:
    """Return the directory of a tree below the data directory `data`, rendered or not; StoreError for no tree ID."""
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
        # rkt's own, on the file system of the trees; among the trees a half-made tree would look complete to rkt.
        self._scratch = data / "cas" / "tmp"
        with disk_errors(f"open the tree store in {data}", data):
            make_directory(self._trees, _TREE_MODE)
            make_directory(self._locks, _STORE_MODE)

    def path(self, tree_id: str) -> Path:
        """Return the directory of a tree, rendered or not."""
        return tree_path(self._data, tree_id)

    def tree_id_of(self, image_id: str) -> str:
        """Return the ID of the tree of an image with the present dependencies in the store."""
        return tree_id(flatten(self._store.get(image_id), self._store.find_dependency), read_held_ids())

    def is_rendered(self, tree_id: str) -> bool:
        """Return whether the tree is there and complete."""
        return (self.path(tree_id) / "rendered").exists()

    def render(self, image_id: str, progress: Progress = silent) -> str:
        """
        Render the tree of an image, if the tree is not there, and return the tree's ID.

        Of several processes one renders and the others wait. Reports bytes of the image.
        """
        image = self._store.get(image_id)
        layers = flatten(image, self._store.find_dependency)
        tree = tree_id(layers, read_held_ids())
        target = self.path(tree)
        with disk_errors(f"render image {image.name}", self._trees):
            with self._locked(tree, exclusive=False):
                if self.is_rendered(tree):
                    return tree
            with self._locked(tree, exclusive=True), scratch_directory(self._scratch) as scratch:
                if self.is_rendered(tree):  # by the process that had the lock
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
        """Return whether the store still has the image of a tree; True for a tree without a record."""
        try:
            return self._store.has((self.path(tree_id) / "image").read_text())
        except FileNotFoundError:
            return True

    def verify(self, tree_id: str) -> None:
        """Raise StoreError for a changed tree of minit or rkt; attributes in rkt's trees are not checked."""
        target = self.path(tree_id)
        with disk_errors(f"verify tree {tree_id}", self._trees), self._locked(tree_id, exclusive=False):
            for name, compute in ((_HASH, tree_hash), (_OWN_HASH, _own_hash)):
                path = target / name
                if name == _OWN_HASH and not path.exists():
                    continue  # rendered by rkt
                recorded, found = path.read_text(), compute(target)
                if recorded != found:
                    raise StoreError(f"tree {target} was changed: its {name} is {found}, recorded was {recorded}")

    def remove(self, tree_id: str) -> None:
        """Remove a tree, which no pod may be using; no error for a missing tree."""
        with self.removal() as remove:
            remove(tree_id)

    @contextmanager
    def removal(self) -> Iterator[Callable[[str], None]]:
        """
        Yield a function that removes a tree by ID, as `remove` does.

        The function only moves the tree away; the files, which take time, are deleted at the end of the with block.
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
        """Remove the traces of processes that died while rendering or removing, and the locks of gone trees."""
        collect_leftovers(self._scratch)
        drop_key_locks(self._locks, lambda name: (self._trees / name).exists())

    def _locked(self, tree_id: str, *, exclusive: bool) -> AbstractContextManager[int]:
        return key_lock(self._locks, tree_id, exclusive=exclusive)


def _complete(work: Path, image_id: str) -> None:
    """Add the hashes, and `rendered` and `image` when all other files are on the disk."""
    # In this order, since the second covers the first.
    create_file(work / _OWN_HASH, _own_hash(work).encode("ascii"), _FILE_MODE)
    create_file(work / _HASH, tree_hash(work).encode("ascii"), _FILE_MODE)
    fd = os.open(work, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        syscalls.syncfs(fd)
        create_file(work / "rendered", b"", _FILE_MODE)
        create_file(work / "image", image_id.encode("ascii"), _FILE_MODE)
        os.fsync(fd)
    finally:
        os.close(fd)


def tree_hash(tree: Path) -> str:
    """Return rkt's hash: `sha512-` and 64 hex digits over everything but the manifest and attributes."""
    digest = hashlib.sha512()
    with ReadAhead(joined(_pieces(tree))) as ahead:
        for chunk in ahead.chunks():
            digest.update(chunk)
    return _text(digest)


def _own_hash(tree: Path) -> str:
    """Return minit's hash, over the manifest and the extended attributes of all files."""
    digest = hashlib.sha512()
    for data in _data(str(tree / _MANIFEST)):
        digest.update(data)
    for name, path, status in _walk(tree):
        if stat.S_ISREG(status.st_mode):
            for attribute in sorted(filter(is_kept_attribute, os.listxattr(path, follow_symlinks=False))):
                value = os.getxattr(path, attribute, follow_symlinks=False)
                digest.update(repr((os.fsencode(name), os.fsencode(attribute), value)).encode("ascii"))
    return _text(digest)


def go_string(text: str) -> str:
    """Return the JSON string of Go's encoding/json for `text`, which may have bytes that are no UTF-8."""
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _SHORT:
        return _SHORT[character]
    code = ord(character)
    if 0xD800 <= code <= 0xDFFF:
        code = 0xFFFD  # Go's replacement for a byte that is no UTF-8, for which os.fsdecode() has a surrogate
    return f"\\u{code:04x}"


def _pieces(tree: Path) -> Iterator[bytes]:
    first_names: dict[int, str] = {}
    for name, path, status in _walk(tree):
        kind = _TYPES.get(stat.S_IFMT(status.st_mode))
        if kind is None:
            continue  # a socket
        size = status.st_size if kind == _TYPES[stat.S_IFREG] else 0
        link = os.readlink(path) if kind == _TYPES[stat.S_IFLNK] else ""
        first = first_names.setdefault(status.st_ino, name)
        if first != name:
            kind, size, link = _HARD_LINK, 0, first
        is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
        device = status.st_rdev if is_device else 0
        yield (
            f'{{"Name":{go_string(name)},"Mode":{stat.S_IMODE(status.st_mode)},"UID":{status.st_uid}'
            f',"GID":{status.st_gid},"Size":{size},"Typeflag":{kind},"Linkname":{go_string(link)}'
            f',"Devmajor":{os.major(device)},"Devminor":{os.minor(device)},"Xattrs":[]}}'.encode()
        )
        if kind == _TYPES[stat.S_IFREG]:
            yield from _data(path)


def _walk(tree: Path) -> Iterator[tuple[str, str, os.stat_result]]:
    """Yield name, path and status of all files of the tree, a directory before its content, by names as bytes."""
    pending = [name for name in os.listdir(tree) if name not in _OUTSIDE]
    pending.sort(key=os.fsencode, reverse=True)
    while pending:
        name = pending.pop()
        path = f"{tree}/{name}"
        status = os.lstat(path)
        yield name, path, status
        if stat.S_ISDIR(status.st_mode):
            inside = sorted(os.listdir(path), key=os.fsencode, reverse=True)
            pending.extend(f"{name}/{entry}" for entry in inside)


def _data(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := file.read(_CHUNK):
            yield data


def _text(digest: hashlib._Hash) -> str:
    return f"sha512-{digest.hexdigest()[:_DIGITS]}"


class ImageVolumes:
    """Makes volumes of images; `find` returns the image of a source."""

    def __init__(self, store: Store, trees: TreeStore, find: Callable[[str], StoredImage], progress: Progress) -> None:
        self._store = store
        self._trees = trees
        self._find = find
        self._progress = progress

    def provide(self, volumes: Sequence[Volume]) -> tuple[Volume, ...]:
        """Return volumes in the form of a manifest, with rendered trees of images; StoreError for a failure."""
        return tuple(self._provide(volume) for volume in volumes)

    def provide_mounts(self, mounts: Sequence[Mount]) -> tuple[Mount, ...]:
        """Return mounts with own volumes in the form of a manifest."""
        return tuple(
            mount if mount.app_volume is None else replace(mount, app_volume=self._provide(mount.app_volume))
            for mount in mounts
        )

    def _provide(self, volume: Volume) -> Volume:
        if volume.kind != IMAGE:
            return volume
        assert volume.source is not None
        image = self._find(volume.source)
        self._store.mark_used(image.id)
        tree = self._trees.path(self._trees.render(image.id, self._progress))
        return replace(volume, kind="host", source=str(tree / "rootfs"), read_only=True)


def trees_in(manifest: PodManifest) -> frozenset[str]:
    """Return the IDs of the trees that a pod has as volumes, mounted or not."""
    declared = [*manifest.volumes]
    declared += [mount.app_volume for app in manifest.apps for mount in app.mounts if mount.app_volume]
    found = (tree_of_source(volume.source or "") for volume in declared)
    return frozenset(tree for tree in found if tree is not None)


def images_in(manifest: PodManifest, data: Path) -> frozenset[str]:
    """Return the IDs of the images that a pod has as volumes."""
    images = set()
    for tree in trees_in(manifest):
        with suppress(FileNotFoundError):
            images.add((data / "cas/tree" / tree / "image").read_text())
    return frozenset(images)


def require_trees(manifest: PodManifest, trees: TreeStore) -> None:
    """Raise StoreError if an image that is a pod's volume was removed; to be called where no image can be removed."""
    for tree in trees_in(manifest):
        if not trees.is_rendered(tree):
            raise StoreError(f"an image that is a volume of the pod was removed meanwhile: its tree {tree} is gone")
