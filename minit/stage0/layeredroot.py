"""
The root of an image in the making: the tree of an image, and above the tree a directory of changes for each new layer.

The directories are the upper directories of overlays: of the pods whose commands make the changes, or of an overlay
that is mounted nowhere. A layer of the store becomes such a directory, too, with links to the files of the store.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath

from minit.archives.filecontent import copy_file, with_held_owner
from minit.archives.layered import Layer
from minit.archives.layertree import OPAQUE, WHITEOUT_PREFIX
from minit.archives.tar import TarReader
from minit.archives.tarentry import DEVICES, Entry, Kind
from minit.archives.unpackedlayer import FILES, ROOTFS, UnpackedLayer
from minit.base.errors import ImageError, PodError, describe
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.stage0.apps.applayer import mark_opaque, spool_overlay
from minit.stage0.apps.changes import NOT_THE_APPS
from minit.stage0.files.untrusted import remove_content
from minit.stage0.images.making import LIMITS
from minit.stage0.images.store import Store
from minit.stage0.pods.poddirectory import Note

_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_TREE = "tree"
_WORK = "work"
# fsconfig(2) takes names of 255 bytes together: so many short ones.
_MOST_LAYERS = 60
_END_OF_TAR = bytes(1024)


class LayeredRoot:
    """Layers above the directory `tree`, in the directory `scratch`, which is the caller's to remove."""

    def __init__(self, scratch: Path, tree: Path) -> None:
        self._scratch = scratch
        self._names: list[str] = []
        self._made: Collection[str] = ()
        (scratch / _TREE).symlink_to(tree)

    @property
    def between(self) -> tuple[Path, ...]:
        """The directories of changes, the highest first."""
        return tuple(self._scratch / name for name in reversed(self._names))

    @contextmanager
    def reading(self) -> Iterator[int]:
        """Yield a descriptor of the root; nothing can be written there."""
        with self._mounted(self._names, None) as root:
            yield root

    @contextmanager
    def changing(self) -> Iterator[int]:
        """Yield a descriptor of the root; what the with block writes is the highest layer, if the block ends well."""
        name = self._new_name()
        upper, work = self._scratch / name, self._scratch / _WORK
        work.mkdir()
        upper.mkdir()
        try:
            self._dress(upper)
            with self._mounted(self._names, name) as root:
                yield root
        except BaseException:
            self._drop(name)
            raise
        finally:
            self._drop(_WORK)
        self._names.append(name)
        self._made = ()

    def take(self, upper: Path, places: Iterable[str]) -> None:
        """
        Take the directory of changes of a pod over these layers, which becomes the highest one.

        `places` are the absolute paths of the app's mounts: a pod makes what is missing for these.
        """
        name = self._new_name()
        os.rename(upper, self._scratch / name)
        self._names.append(name)
        relative = [PurePosixPath(place).relative_to("/") for place in places]
        self._made = NOT_THE_APPS.union(str(path) for place in relative for path in (place, *place.parents))

    def add(self, layer: UnpackedLayer) -> None:
        """Put a layer of the store above the others."""
        name = self._new_name()
        directory = self._scratch / name
        directory.mkdir()
        self._dress(directory)
        unfold(layer, directory)
        self._names.append(name)

    def spool(self, store: Store, note: Note) -> Layer | None:
        """Return the highest layer, added to the store; without any change None, and the layer is gone."""
        name = self._names[-1]
        with ExitStack() as stack:
            root = stack.enter_context(self.reading())
            lower = stack.enter_context(self._mounted(self._names[:-1], None))
            upper = os.open(self._scratch / name, _DIRECTORY)
            stack.callback(os.close, upper)
            file = stack.enter_context(store.temporary_file())
            layer = spool_overlay(root, upper, lower, file, made=self._made, note=note)
            if layer.size_bytes > len(_END_OF_TAR):
                if not store.layers.has(layer.diff_id):
                    store.layers.add([layer], LIMITS, lambda *_: None)
                return layer
        self._drop(self._names.pop())
        return None

    def _drop(self, name: str) -> None:
        fd = os.open(self._scratch / name, _DIRECTORY | os.O_NOFOLLOW)
        try:
            remove_content(fd)
        finally:
            os.close(fd)
        os.rmdir(self._scratch / name)

    def _new_name(self) -> str:
        if len(self._names) >= _MOST_LAYERS:
            raise ImageError(f"more than {_MOST_LAYERS} steps of one stage change files: join some of them")
        return str(len(self._names))

    def _dress(self, directory: Path) -> None:
        """Give a new directory of changes the owner and the mode of the root below."""
        status = (self._scratch / (self._names[-1] if self._names else _TREE)).stat()
        os.chown(directory, status.st_uid, status.st_gid)
        os.chmod(directory, stat.S_IMODE(status.st_mode))

    @contextmanager
    def _mounted(self, layers: Sequence[str], upper: str | None) -> Iterator[int]:
        names = [*reversed(layers), _TREE]
        if upper is None and len(names) == 1:
            root = os.open(self._scratch / _TREE, _DIRECTORY)
        else:
            try:
                root = self._mount(names, upper)
            except OSError as error:
                raise PodError(f"cannot mount an overlay of the image's layers: {describe(error)}") from error
        try:
            yield root
        finally:
            os.close(root)

    def _mount(self, names: list[str], upper: str | None) -> int:
        """Return the root of an overlay that is mounted nowhere; the names are relative, to be short."""
        here = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        context = syscalls.fsopen("overlay")
        try:
            os.chdir(self._scratch)
            syscalls.fsconfig_set_string(context, "lowerdir", ":".join(names))
            if upper is not None:
                syscalls.fsconfig_set_string(context, "upperdir", upper)
                syscalls.fsconfig_set_string(context, "workdir", _WORK)
            # Or the kernel would refuse a layer that was the upper one of another mount.
            syscalls.fsconfig_set_string(context, "index", "off")
            syscalls.fsconfig_create(context)
            mount = syscalls.fsmount(context)
        finally:
            os.fchdir(here)
            os.close(here)
            os.close(context)
        try:
            return os.open(".", _DIRECTORY, dir_fd=mount)
        finally:
            os.close(mount)


def unfold(layer: UnpackedLayer, directory: Path) -> None:
    """
    Make an empty directory the upper directory of an overlay that does what a layer does.

    Regular files are links to those of the store, which no overlay changes, or copies where the store's have other
    owners than files get here.
    """
    held = read_held_ids()
    is_linked = layer.fits(held)
    reader = TarReader(
        io.BytesIO(layer.headers() + _END_OF_TAR), str(layer.path), rooted=True, has_data=lambda path: False
    )
    files = os.open(layer.path / FILES, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    root = os.open(directory, _DIRECTORY)
    times: list[tuple[str, int]] = []
    try:
        for number, entry in enumerate(reader):
            path = entry.path.removeprefix(ROOTFS).lstrip("/")
            above, _, name = path.rpartition("/")
            parent = syscalls.openat2(root, above or ".", _DIRECTORY, resolve=_BENEATH)
            try:
                if held is not None and entry.kind in DEVICES:
                    continue
                entry = with_held_owner(entry, held, reader.fault)
                if entry.kind is Kind.FILE and not is_linked:
                    copy_file(files, str(number), parent, name, owner=(entry.uid, entry.gid))
                else:
                    _unfold(entry, number, name, parent, files, root)
            finally:
                os.close(parent)
            if entry.kind is Kind.DIRECTORY:
                times.append((path, entry.mtime_ns))
        for path, mtime_ns in reversed(times):
            fd = syscalls.openat2(root, path or ".", _DIRECTORY, resolve=_BENEATH)
            try:
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
    finally:
        os.close(root)
        os.close(files)


def _unfold(entry: Entry, number: int, name: str, parent: int, files: int, root: int) -> None:
    if name == OPAQUE:
        mark_opaque(parent)
    elif name.startswith(WHITEOUT_PREFIX):
        os.mknod(name.removeprefix(WHITEOUT_PREFIX), stat.S_IFCHR, 0, dir_fd=parent)
    elif entry.kind is Kind.FILE:
        os.link(str(number), name, src_dir_fd=files, dst_dir_fd=parent, follow_symlinks=False)
    elif entry.kind is Kind.HARD_LINK:
        directory, _, target = entry.link_target.removeprefix(ROOTFS).lstrip("/").rpartition("/")
        other = syscalls.openat2(root, directory or ".", _DIRECTORY, resolve=_BENEATH)
        try:
            os.link(target, name, src_dir_fd=other, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(other)
    else:
        if entry.kind is Kind.DIRECTORY:
            if name:
                os.mkdir(name, 0o700, dir_fd=parent)
        elif entry.kind is Kind.SYMLINK:
            os.symlink(entry.link_target, name, dir_fd=parent)
        else:
            os.mknod(name, _TYPES[entry.kind] | 0o600, entry.device, dir_fd=parent)
        os.chown(name or ".", entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        if entry.kind is not Kind.SYMLINK:
            os.chmod(name or ".", entry.mode, dir_fd=parent)
        if entry.kind is not Kind.DIRECTORY:
            os.utime(name, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)


_TYPES = {
    Kind.CHARACTER_DEVICE: stat.S_IFCHR,
    Kind.BLOCK_DEVICE: stat.S_IFBLK,
    Kind.FIFO: stat.S_IFIFO,
}
