"""
`export`: the root filesystem of an ended app, with all that the app made of it, as an image.

An overlay is looked at through a mount of its own that lies nowhere and cannot be written to, so nothing is left
mounted whatever happens. What the app left there is read by descriptors, and no link of it is followed.
"""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from minit import jsontext, paths, syscalls
from minit.errors import PodError, describe
from minit.idrange import IdRange, parse_id_range
from minit.mountinfo import read_mountinfo
from minit.progress import Progress, silent
from minit.stage0.attributes import CAPABILITIES, is_kept_attribute
from minit.stage0.filecapabilities import unshift_capabilities
from minit.stage0.holes import SparseContent, find_segments
from minit.stage0.locks import flock
from minit.stage0.output import output_file
from minit.stage0.pods import Note, Pod, PodState
from minit.stage0.podstatus import read_app_tree_id, read_pod_manifest
from minit.stage0.treestore import TreeStore

# A file of zeros must not shrink so much that whoever imports the image takes it for a bomb.
_GZIP_LEVEL = 1
_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

_TYPES = {
    stat.S_IFREG: tarfile.REGTYPE,
    stat.S_IFDIR: tarfile.DIRTYPE,
    stat.S_IFLNK: tarfile.SYMTYPE,
    stat.S_IFCHR: tarfile.CHRTYPE,
    stat.S_IFBLK: tarfile.BLKTYPE,
    stat.S_IFIFO: tarfile.FIFOTYPE,
}


def export_app(
    pod: Pod,
    app: str | None,
    trees: TreeStore,
    output: Path,
    *,
    overwrite: bool,
    note: Note,
    progress: Progress = silent,
) -> None:
    """
    Write the root filesystem of an app (None: the only one) of an ended pod to a compressed ACI.

    PodError if the pod has not ended, or something is mounted in an app without overlay. `note` is told what was left
    out.
    """
    with _kept(pod):
        name = _choose_app(pod, app, note)
        ids = _read_ids(pod)
        manifest = _complete_manifest(pod.read_file(f"appsinfo/{name}/manifest"), f'pod "{pod.uuid}": image of {name}')
        with (
            _open_rootfs(pod, name, trees) as root,
            output_file(output, overwrite=overwrite, exists="target file exists (try --overwrite)") as file,
            gzip.GzipFile("", "wb", _GZIP_LEVEL, file, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as tar,
        ):
            _Writer(tar, ids, note, lambda count: progress(f"exporting {name}", count, None)).add_all(root)
            entry = tarfile.TarInfo("manifest")
            entry.size, entry.mode = len(manifest), 0o644
            tar.addfile(entry, io.BytesIO(manifest))


@contextmanager
def _kept(pod: Pod) -> Iterator[None]:
    """Keep an ended pod from being deleted."""
    # Of a descriptor of its own: looking for the pod's state takes the lock by the pod's, and gives it up.
    fd = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=pod.fd)
    try:
        try:
            flock(fd, exclusive=False, blocking=False)
        except BlockingIOError:
            gone = False
        else:
            gone = not pod.refresh()
        if gone or pod.state not in (PodState.EXITED, PodState.EXITED_GARBAGE):
            raise PodError("pod is not exited. Only exited pods can be exported")
        yield
    finally:
        os.close(fd)


def _choose_app(pod: Pod, wanted: str | None, note: Note) -> str:
    names = [app.name for app in read_pod_manifest(pod).apps]
    if wanted is not None:
        if wanted not in names:
            raise PodError(f"app {wanted} is not present in pod")
        return wanted
    if not names:
        raise PodError("pod contains zero apps")
    if len(names) > 1:
        note("pod contains multiple apps:")
        for name in names:
            note(f"\t{name}")
        raise PodError('specify app using "minit export --app= ..."')
    return names[0]


def _read_ids(pod: Pod) -> IdRange | None:
    try:
        record = pod.read_file(paths.POD_PRIVATE_USERS).decode("ascii", "replace")
    except FileNotFoundError:
        return None
    ids = parse_id_range(record)
    if ids is None and record:
        raise PodError(f'pod "{pod.uuid}": {paths.POD_PRIVATE_USERS} holds no range of ids: {record!r}')
    return ids


def _complete_manifest(manifest: bytes, source: str) -> bytes:
    """Return the image's manifest for a root filesystem that needs no other image, and all of which counts."""
    document = jsontext.parse(manifest, source)
    assert isinstance(document, dict)
    if not (document.get("dependencies") or document.get("pathWhitelist")):
        return manifest
    # Kept, they would bring back what the app removed, and lose what it made.
    return jsontext.dump(
        {key: value for key, value in document.items() if key not in ("dependencies", "pathWhitelist")}
    )


@contextmanager
def _open_rootfs(pod: Pod, app: str, trees: TreeStore) -> Iterator[int]:
    """Yield a descriptor of an app's root filesystem as the app left it."""
    with ExitStack() as stack:

        def opened(directory: int, path: str) -> int:
            fd = syscalls.openat2(directory, path, _DIRECTORY, resolve=_INSIDE)
            stack.callback(os.close, fd)
            return fd

        if not pod.has_file(paths.POD_OVERLAY_PREPARED):
            rootfs = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app)}"
            if any(mount.mount_point.startswith(f"{pod.path}/{rootfs}/") for mount in read_mountinfo()):
                raise PodError(
                    "pod has remaining mountpoints. Only pods using overlayfs or with no mountpoints can be exported"
                )
            yield opened(pod.fd, rootfs)
            return
        tree_id = read_app_tree_id(pod, app)
        lower = os.open(trees.path(tree_id) / "rootfs", _DIRECTORY)
        stack.callback(os.close, lower)
        try:
            upper = opened(pod.fd, f"overlay/{tree_id}/upper/{app}")
        except FileNotFoundError as error:
            raise PodError(f'app "{app}" of pod "{pod.uuid}" was never started: {describe(error)}') from error
        mount = _merge(upper, lower)
        stack.callback(os.close, mount)
        yield opened(mount, ".")


def _merge(upper: int, lower: int) -> int:
    """Return a detached, read-only overlay mount of two directories."""
    context = syscalls.fsopen("overlay")
    try:
        # Both as lower layers: the pod's own overlay may be mounted still, and two must not have one upper layer.
        syscalls.fsconfig_set_string(context, "lowerdir", f"/proc/self/fd/{upper}:/proc/self/fd/{lower}")
        # Or the kernel would refuse a layer that is the upper one of another mount.
        syscalls.fsconfig_set_string(context, "index", "off")
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context)
    except OSError as error:
        raise PodError(f"cannot mount the app's overlay: {describe(error)}") from error
    finally:
        os.close(context)


class _Writer:
    """Adds a directory to a tar, depth first and sorted by names; a file's second name is a hard link."""

    def __init__(self, tar: tarfile.TarFile, ids: IdRange | None, note: Note, count: Callable[[int], None]) -> None:
        self._tar = tar
        self._ids = ids
        self._note = note
        self._count = count
        self._bytes = 0
        self._names: dict[tuple[int, int], str] = {}

    def add_all(self, root: int) -> None:
        """Add everything below the directory `root`, as `rootfs`."""
        self._add_entry("rootfs", os.fstat(root), "", None)
        parent, fd = ".", os.dup(root)
        pending = _entries(fd, parent)
        try:
            while pending:
                directory, entry = pending.pop()
                if directory != parent:
                    # By its path each time, not by one descriptor for each level: apps nest deeper than that.
                    os.close(fd)
                    parent, fd = directory, -1
                    fd = syscalls.openat2(root, directory, _DIRECTORY, resolve=_INSIDE)
                path = f"{directory}/{entry}"
                if self._add(fd, entry, f"rootfs{path[1:]}"):
                    os.close(fd)
                    parent, fd = path, -1
                    fd = syscalls.openat2(root, path, _DIRECTORY, resolve=_INSIDE)
                    pending += _entries(fd, path)
        finally:
            if fd >= 0:
                os.close(fd)

    def _add(self, directory: int, entry: str, name: str) -> bool:
        """Add one entry of a directory; return whether it is a directory to look into."""
        status = os.stat(entry, dir_fd=directory, follow_symlinks=False)
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            return self._add_entry(name, status, "", None)
        if kind == stat.S_IFREG:
            fd = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
            with open(fd, "rb") as file:
                self._add_entry(name, os.fstat(fd), "", file)
        elif kind in _TYPES:
            self._add_entry(name, status, os.readlink(entry, dir_fd=directory) if kind == stat.S_IFLNK else "", None)
        return False  # as a socket, too, which means nothing without its process

    def _add_entry(self, name: str, status: os.stat_result, target: str, file: BinaryIO | None) -> bool:
        header = tarfile.TarInfo(name)
        owner = self._owner(name, status)
        if owner is None:
            return False
        header.uid, header.gid = owner
        header.type = _TYPES[stat.S_IFMT(status.st_mode)]
        header.mode = stat.S_IMODE(status.st_mode)
        header.linkname = target
        seconds, nanoseconds = divmod(status.st_mtime_ns, 1_000_000_000)
        header.mtime = seconds
        headers = {"mtime": f"{seconds}.{nanoseconds:09d}"} if seconds >= 0 and nanoseconds else {}
        if header.type in (tarfile.CHRTYPE, tarfile.BLKTYPE):
            header.devmajor, header.devminor = os.major(status.st_rdev), os.minor(status.st_rdev)
        first = name
        # Not of a link to a link: rkt cannot extract that.
        if header.type not in (tarfile.DIRTYPE, tarfile.SYMTYPE) and status.st_nlink > 1:
            first = self._names.setdefault((status.st_dev, status.st_ino), name)
        if first != name:
            header.type, header.linkname, file = tarfile.LNKTYPE, first, None
        content: BinaryIO | SparseContent | None = file
        if file is not None:
            header.size = status.st_size
            headers.update(self._attributes(file))
            segments = find_segments(file.fileno(), status.st_size)
            if segments is not None:
                content = SparseContent(file.fileno(), name, status.st_size, segments)
                header.size = content.size_bytes
                headers.update(content.headers)
        header.pax_headers = headers
        self._tar.addfile(header, content)
        self._bytes += header.size
        self._count(self._bytes)
        return True

    def _owner(self, name: str, status: os.stat_result) -> tuple[int, int] | None:
        """Return the owner in the image; None, and a note, for one that the pod does not know."""
        if self._ids is None or (status.st_uid, status.st_gid) == (0, 0):
            return status.st_uid, status.st_gid  # stage0's own files, like etc/mtab, are root's in any pod
        uid, gid = self._ids.from_host(status.st_uid), self._ids.from_host(status.st_gid)
        if uid is None or gid is None:
            self._note(f"left out {name}: its owner {status.st_uid}:{status.st_gid} is none of the pod's ({self._ids})")
            return None
        return uid, gid

    def _attributes(self, file: BinaryIO) -> dict[str, str]:
        """Return the pax headers of the attributes that images keep, by the keys of GNU tar and Go's archive/tar."""
        try:
            names = sorted(filter(is_kept_attribute, os.listxattr(file.fileno())))
        except OSError:
            return {}  # the filesystem has none
        headers = {}
        for name in names:
            value: bytes | None = os.getxattr(file.fileno(), name)
            if name == CAPABILITIES and self._ids is not None and value is not None:
                value = unshift_capabilities(value, self._ids)
            if value:
                headers[f"SCHILY.xattr.{name}"] = value.decode("utf-8", "surrogateescape")
        return headers


def _entries(fd: int, path: str) -> list[tuple[str, str]]:
    """Return the entries of a directory with its path, last name first."""
    return [(path, entry) for entry in sorted(os.listdir(fd), key=os.fsencode, reverse=True)]
