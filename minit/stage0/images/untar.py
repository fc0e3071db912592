"""
The extractor's child process: writes entries of images into a directory that the process cannot leave.

The code of the confined child is apart from extract.py, the code of the parent.

The process pivots into the directory in a mount namespace of its own before it reads a single byte of an image, and
still resolves every parent with openat2(2) below the new root, following no link. From that moment on nothing can be
imported, or a python file of the image would run with minit's privileges.

The parent, `minit.stage0.images.extract`, gets lines of `minit.stage0.images.workers`: PROGRESS with the bytes read of
all layers together, and DONE with the written bytes of regular files.

A tree of layers has hard links to the files of the layers. One process makes the links in directories of `_TOGETHER`
links, so that both processes seldom need the same directory; the confined process gives the links their names. No name
of an image is used before the second process is confined.
"""

from __future__ import annotations

import errno
import hashlib
import io
import os
from collections.abc import Sequence
from contextlib import suppress

from minit.archives.aci import MANIFEST_LIMIT_BYTES, image_id
from minit.archives.filecontent import (
    DISK_ERRNOS,
    DiskFault,
    copy_file,
    set_status,
    shift_capabilities,
    with_held_owner,
    write_content,
)
from minit.archives.recipe import OpenBlob, Recipe
from minit.archives.streams import Tee
from minit.archives.tar import TarReader, shown
from minit.archives.tarentry import CAPABILITIES, DEVICES, Entry, Kind
from minit.base.errors import EXIT_FAILURE, ImageError, reason_of
from minit.base.idrange import HeldIds, IdRange
from minit.linux import syscalls
from minit.linux.idmapping import read_held_ids
from minit.stage0.images import workers
from minit.stage0.images.rendering import ROOTFS, Layer, Selection

_TOGETHER = 2048
# The layers are on another file system, a file has the most links of the file system, or the file system has no links.
_NO_LINK = (errno.EXDEV, errno.EMLINK, errno.EPERM)

MANIFEST = "manifest"
LINKS = "links"  # beside the manifest, where no entry gets

_CHUNK = 1 << 20
_PROGRESS_STEP_BYTES = 4 << 20
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_REASONS = {
    errno.ELOOP: "a directory of its path is a symbolic link",
    errno.ENOTDIR: "a directory of its path is none",
    errno.ENOTEMPTY: "it would replace a directory that has entries",
}


def link_contents(recipe: Recipe, layers: Sequence[int], links: int, made: int) -> None:
    """
    Make a link to each file of the recipe for `MadeLinks`; `layers` and `links` are open directories.

    Writes a byte to `made` for each full directory, and for the last. A file that cannot be linked is copied.
    """
    directory = -1
    for number, (_, _, layer, file) in enumerate(recipe.files()):
        batch, place = divmod(number, _TOGETHER)
        if place == 0:
            if batch:
                _close(directory, made)
            os.mkdir(str(batch), 0o700, dir_fd=links)
            directory = os.open(str(batch), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=links)
        try:
            _link(layers[layer], str(file), directory, str(place))
        except OSError as error:
            if error.errno not in _NO_LINK:
                raise
            copy_file(layers[layer], str(file), directory, str(place))
    if directory >= 0:
        _close(directory, made)


class MadeLinks:
    """The links of `link_contents`, in order; the descriptor `links` is the directory in any root."""

    def __init__(self, links: int, made: int) -> None:
        self._links = links
        self._made = made
        self._moved = 0
        self._batch: int | None = None
        self._directory = -1

    def move(self, to_directory: int, to_name: str) -> None:
        """Move the next link, as soon as the link is there; SystemExit, without a word, if the other process failed."""
        batch, place = divmod(self._moved, _TOGETHER)
        if batch != self._batch:
            if not os.read(self._made, 1):
                raise SystemExit(EXIT_FAILURE)  # the other process has reported the reason
            self._remove_directory()
            self._directory = os.open(str(batch), os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._links)
            self._batch = batch
        os.rename(str(place), to_name, src_dir_fd=self._directory, dst_dir_fd=to_directory)
        self._moved += 1

    def end(self) -> None:
        """Empty the directory; OSError for an unexpected file."""
        self._remove_directory()

    def _remove_directory(self) -> None:
        if self._batch is not None:
            os.close(self._directory)
            os.rmdir(str(self._batch), dir_fd=self._links)
            self._batch = None


def _close(directory: int, made: int) -> None:
    os.close(directory)
    with suppress(BrokenPipeError):
        os.write(made, b"\n")


def _link(from_directory: int, from_name: str, to_directory: int, to_name: str) -> None:
    os.link(from_name, to_name, src_dir_fd=from_directory, dst_dir_fd=to_directory, follow_symlinks=False)


def extract(
    destination: str,
    layers: Sequence[Layer],
    blobs: Sequence[OpenBlob],
    ids: IdRange | None,
    report: int,
    linked: tuple[Recipe, int] | None = None,
) -> None:
    """
    Extract the layers, whose tars are `blobs`, into `destination`, and tell `report`.

    With `ids` the owners are shifted. `linked` is the recipe of a single image whose files are links to the files of
    its layers, and the descriptor by which another process tells that the links are in `LINKS`, as in `MadeLinks`; then
    the caller checks the image. The process is of no other use afterwards: the directory is its root.
    """
    digests = [hashlib.sha512() for _ in layers]  # made before the pivot: OpenSSL may read files at first use
    hashlib.sha256()
    held = read_held_ids()
    if linked is None:
        workers.confine(destination)
        _extract(_Tree(ids, held), layers, blobs, digests, report)
    else:
        recipe, made = linked
        headers = recipe.headers()
        workers.confine(destination)
        _extract_linked(ids, held, layers[0], headers, report, made)


def damaged(layer: Layer) -> str:
    """Return the message about an image with a wrong digest."""
    source = f"image {layer.name} ({layer.image_id})"
    return f"{source}: the stored blob is damaged: import the image again with: minit fetch FILE"


def tell(report: int, layer: Layer, destination: str, error: BaseException) -> None:
    """Tell `report` the reason of a failed extraction of the image with the first layer `layer`."""
    if isinstance(error, MemoryError):
        error = ImageError(f"image {layer.name}: needs more than {workers.MEMORY_LIMIT_BYTES} bytes of memory")
    workers.tell_error(report, error, destination)


def _extract(
    tree: _Tree,
    layers: Sequence[Layer],
    blobs: Sequence[OpenBlob],
    digests: Sequence[hashlib._Hash],
    report: int,
) -> None:
    selection = Selection(layers)
    read_bytes = reported_bytes = 0

    def count(data: memoryview) -> None:
        nonlocal read_bytes, reported_bytes
        read_bytes += len(data)
        if read_bytes - reported_bytes >= _PROGRESS_STEP_BYTES:
            reported_bytes = read_bytes
            workers.tell(report, workers.PROGRESS, read_bytes)

    tree.make_parent(ROOTFS)
    for layer, blob, digest in zip(layers, blobs, digests, strict=True):
        source = f"image {layer.name} ({layer.image_id})"
        stream = io.BufferedReader(Tee(blob, digest.update, count), _CHUNK)
        tar = TarReader(stream, source)
        for entry in tar:
            if layer is layers[0] and entry.path == MANIFEST:
                _check_manifest(entry, source)
            elif not selection.takes(layer, entry):
                continue
            tree.place(entry, tar)
        while stream.read(_CHUNK):
            pass
        selection.next_layer()
        if image_id(digest) != layer.image_id:
            raise ImageError(damaged(layer))
    _finish(tree, layers[0], report)


def _extract_linked(
    ids: IdRange | None, held: HeldIds | None, layer: Layer, headers: bytes, report: int, made: int
) -> None:
    source = f"image {layer.name} ({layer.image_id})"
    links = MadeLinks(os.open(f"/{LINKS}", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC), made)
    tree = _Tree(ids, held, links)
    tree.make_parent(ROOTFS)
    reported_bytes = 0
    tar = TarReader(io.BytesIO(headers), source, has_data=lambda path: path == MANIFEST)
    for entry in tar:
        if entry.path == MANIFEST:
            _check_manifest(entry, source)
        tree.place(entry, tar)
        if tree.written_bytes - reported_bytes >= _PROGRESS_STEP_BYTES:
            reported_bytes = tree.written_bytes
            workers.tell(report, workers.PROGRESS, reported_bytes)
    links.end()
    os.rmdir(f"/{LINKS}")
    _finish(tree, layer, report)


def _finish(tree: _Tree, layer: Layer, report: int) -> None:
    tree.restore_directory_times()
    if not tree.has_manifest:
        raise ImageError(f"image {layer.name} ({layer.image_id}): no manifest")
    workers.tell(report, workers.DONE, tree.written_bytes)


def _check_manifest(entry: Entry, source: str) -> None:
    # A second check after the import's: rkt's store has images that minit did not import.
    if entry.kind is not Kind.FILE or entry.size_bytes > MANIFEST_LIMIT_BYTES:
        raise ImageError(f"{source}: manifest is no regular file of at most {MANIFEST_LIMIT_BYTES} bytes")


class _Tree:
    """
    The directory that is filled, which is the root of this process.

    `ids` are those of a pod on the host, `held` those of this user namespace, None in the first one. Elsewhere device
    nodes are left out: nobody makes nodes there, or could use any.
    `links`, if given, has the files of the image, in the order of the entries.
    """

    def __init__(self, ids: IdRange | None, held: HeldIds | None, links: MadeLinks | None = None) -> None:
        self.written_bytes = 0
        self._links = links
        self.has_manifest = False
        self._ids = ids
        self._held = held
        self._root_id = 0 if ids is None else ids.shift
        self._root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self._parent_path = ""
        self._parent_fd = os.dup(self._root)
        self._directory_times: dict[str, tuple[int, int]] = {}

    def place(self, entry: Entry, tar: TarReader) -> None:
        """Create the file of `entry`, in the place of the file of an earlier entry with the same path."""
        if self._held is not None and entry.kind in DEVICES:
            return
        try:
            self._place(entry, tar)
        except DiskFault:
            raise
        except OSError as error:
            if error.errno in DISK_ERRNOS:
                raise DiskFault(error.errno, os.strerror(error.errno), shown(entry.path)) from error
            number = error.errno or 0
            what = entry.kind.value
            if entry.kind is Kind.HARD_LINK:
                what += f" to {shown(entry.link_target)}"
            reason = _REASONS.get(number) or reason_of(number)
            raise tar.fault(entry.path, f"cannot create {what}: {reason}") from error
        if entry.path == MANIFEST:
            self.has_manifest = True

    def restore_directory_times(self) -> None:
        """Set the times of all directories, which new files have changed."""
        for path, times in self._directory_times.items():
            fd = self._open_directory(path, os.O_RDONLY)
            try:
                os.utime(fd, ns=times)
            finally:
                os.close(fd)

    def make_parent(self, path: str) -> int:
        """Return a descriptor, owned by this object, of the directory `path`, which is made, 0755, if missing."""
        if path != self._parent_path:
            fd = self._open_or_make(path)
            os.close(self._parent_fd)
            self._parent_path, self._parent_fd = path, fd
        return self._parent_fd

    def _place(self, entry: Entry, tar: TarReader) -> None:
        if self._ids is not None:
            entry = self._shift(entry, self._ids, tar)
        else:
            entry = with_held_owner(entry, self._held, tar.fault)
        directory, _, name = entry.path.rpartition("/")
        parent = self.make_parent(directory)
        if entry.kind is Kind.DIRECTORY:
            self._directory(entry, parent, name)
            return
        try:
            self._create(entry, parent, name, tar)
        except FileExistsError:
            self._make_room(entry.path, parent, name)
            self._create(entry, parent, name, tar)

    def _shift(self, entry: Entry, ids: IdRange, tar: TarReader) -> Entry:
        """Return an entry with the owners on the host."""
        uid, gid = ids.to_host(entry.uid), ids.to_host(entry.gid)
        if uid is None or gid is None:
            unmapped = f"uid {entry.uid}" if uid is None else f"gid {entry.gid}"
            raise tar.fault(entry.path, f"unmapped {unmapped}: {ids.describe()}")
        xattrs = []
        for key, value in entry.xattrs:
            if key == CAPABILITIES:
                shifted = shift_capabilities(value, ids)
                if shifted is None:
                    rootid = int.from_bytes(value[-4:], "little")
                    raise tar.fault(entry.path, f"capabilities of the unmapped root {rootid}: {ids.describe()}")
                value = shifted
            xattrs.append((key, value))
        return entry._replace(uid=uid, gid=gid, xattrs=tuple(xattrs))

    def _directory(self, entry: Entry, parent: int, name: str) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            if not _is_directory(name, parent):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:
            os.fchown(fd, entry.uid, entry.gid)
            os.fchmod(fd, entry.mode)
        finally:
            os.close(fd)
        self._directory_times[entry.path] = (entry.atime_ns, entry.mtime_ns)

    def _create(self, entry: Entry, parent: int, name: str, tar: TarReader) -> None:
        if entry.kind is Kind.FILE:
            self._file(entry, parent, name, tar)
            return
        if entry.kind is Kind.HARD_LINK:
            self._hard_link(entry, parent, name, tar)
            return
        if entry.kind is Kind.SYMLINK:
            os.symlink(entry.link_target, name, dir_fd=parent)
        elif entry.kind is Kind.FIFO:
            os.mkfifo(name, entry.mode, dir_fd=parent)
        elif entry.kind is Kind.CHARACTER_DEVICE:
            os.mknod(name, entry.mode | 0o020000, entry.device, dir_fd=parent)
        elif entry.kind is Kind.BLOCK_DEVICE:
            os.mknod(name, entry.mode | 0o060000, entry.device, dir_fd=parent)
        os.chown(name, entry.uid, entry.gid, dir_fd=parent, follow_symlinks=False)
        os.utime(name, ns=(entry.atime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)

    def _file(self, entry: Entry, parent: int, name: str, tar: TarReader) -> None:
        if self._links is not None and entry.path != MANIFEST:
            self._links.move(parent, name)
            self.written_bytes += entry.size_bytes
            return
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            self.written_bytes += entry.size_bytes
            if self.written_bytes > workers.SIZE_LIMIT_BYTES:
                raise tar.fault(entry.path, f"more than {workers.SIZE_LIMIT_BYTES} bytes in all files")
            write_content(fd, entry, tar)
            set_status(fd, entry, tar)
        finally:
            os.close(fd)

    def _hard_link(self, entry: Entry, parent: int, name: str, tar: TarReader) -> None:
        # A hard link to the manifest beside the rootfs would let the app change the manifest.
        if not entry.link_target.startswith(ROOTFS + "/"):
            raise tar.fault(entry.path, f"a hard link to {shown(entry.link_target)}, which is not below {ROOTFS}")
        directory, _, target = entry.link_target.rpartition("/")
        target_parent = self._open_directory(directory, os.O_PATH)
        try:
            os.link(target, name, src_dir_fd=target_parent, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(target_parent)

    def _make_room(self, path: str, parent: int, name: str) -> None:
        if not _is_directory(name, parent):
            os.unlink(name, dir_fd=parent)
            return
        os.rmdir(name, dir_fd=parent)
        self._directory_times.pop(path, None)

    def _open_directory(self, path: str, flags: int) -> int:
        return syscalls.openat2(self._root, path or ".", flags | os.O_DIRECTORY, resolve=_BENEATH)

    def _open_or_make(self, path: str) -> int:
        try:
            return self._open_directory(path, os.O_PATH)
        except FileNotFoundError:
            directory, _, name = path.rpartition("/")
            parent = self.make_parent(directory)
            os.mkdir(name, 0o755, dir_fd=parent)
            # A set-group-ID directory above would pass on the group.
            os.chown(name, self._root_id, self._root_id, dir_fd=parent, follow_symlinks=False)
            os.chmod(name, 0o755, dir_fd=parent)
            return self._open_directory(path, os.O_PATH)


def _is_directory(name: str, parent: int) -> bool:
    return os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode & 0o170000 == 0o040000
