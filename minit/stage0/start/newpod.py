"""
Preparing a pod: a new pod directory with all files that stage1 needs.

The directory is locked from the first moment. After any failure the directory is deleted. A dying process leaves a pod
in `prepare` without a lock, which gc collects.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from minit.base.errors import PodError, StoreError
from minit.base.idrange import IdRange
from minit.base.processors import MINIMUM_KERNEL, parse_kernel_release
from minit.base.progress import Progress
from minit.base.value import Value
from minit.linux import syscalls
from minit.manifest.pod import parse_pod_manifest
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors, make_directory
from minit.stage0.files.locks import key_lock
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.images.treestore import TreeStore, require_trees
from minit.stage0.pods import deletion
from minit.stage0.pods.poddirectory import PREPARE, PREPARED, Pod, create_pod, name_pod
from minit.stage0.pods.podmanifest import PlannedApp
from minit.stage0.pods.privateusers import claim_ids
from minit.stage0.stage1.entrypoints import interface_version, require_path
from minit.stage0.start.appfiles import provide_volumes, require_ids, write_app_files, write_new_file

_COPY_BYTES = 1 << 30  # at most this many per system call


class NewPod(Value):
    """A new pod; `private_users` are ids on the host, or whether ids are chosen."""

    stage1: StoredImage
    apps: tuple[PlannedApp, ...]
    manifest_bytes: bytes
    overlay: bool
    private_users: IdRange | bool = False
    name: str | None = None


def prepare_pod(
    data: Path,
    store: Store,
    trees: TreeStore,
    request: NewPod,
    progress: Progress,
    announce: Callable[[str], None],
) -> Pod:
    """
    Return a new pod, locked, in the state `preparing` and complete except for the move to the next place.

    `announce` gets the UUID as soon as the directory exists. On any failure the directory is deleted.
    """
    check_kernel()
    require_path(request.stage1.manifest, "run")
    interface_version(request.stage1.manifest)
    with disk_errors("prepare pod", data / "pods"):
        pod = create_pod(data)
        with discarded_on_failure(pod):
            if request.name is not None:
                name_pod(pod, request.name)
            announce(pod.uuid)
            with key_lock(data / "locks", "prepareLock", exclusive=False):
                _fill(pod, store, trees, request, progress)
    return pod


@contextmanager
def discarded_on_failure(pod: Pod) -> Iterator[None]:
    """Delete a pod in preparation when the with block fails; the failure travels on."""
    try:
        yield
    except BaseException:
        # A pod that cannot be deleted now can be collected later, and the first failure is the failure to tell.
        if pod.place == PREPARE:
            with pod, suppress(OSError, PodError):
                deletion.discard(pod)
        raise


def finish(pod: Pod) -> None:
    """Make a pod of `prepare_pod` durable, and a prepared pod ready to be run by anybody."""
    with disk_errors("prepare pod", pod.path), discarded_on_failure(pod):
        syscalls.syncfs(pod.fd)
        pod.move(PREPARED)
    pod.unlock()


def check_kernel() -> None:
    """Raise PodError on a kernel too old for minit's stage1."""
    release = os.uname().release
    if parse_kernel_release(release) < MINIMUM_KERNEL:
        needed = ".".join(map(str, MINIMUM_KERNEL))
        raise PodError(f"Linux {release} is too old: minit needs {needed} or newer")


def _fill(pod: Pod, store: Store, trees: TreeStore, request: NewPod, progress: Progress) -> None:
    """Write the files of a prepared pod, in rkt's order except for the ids, which no other pod gets from then on."""
    wanted = request.private_users
    ids = claim_ids(pod, wanted if isinstance(wanted, IdRange) else None) if wanted else None
    make_directory(pod.path / "appsinfo", 0o750)
    for image in {request.stage1.id, *(app.image.id for app in request.apps)}:
        store.mark_used(image)
    tree_id = trees.render(request.stage1.id, progress)
    _fill_stage1(pod, trees, request, tree_id, ids, progress)
    for app in request.apps:
        write_app_files(pod, store, trees, app, progress, overlay=request.overlay, ids=ids)
    manifest = parse_pod_manifest(request.manifest_bytes, "new pod")
    require_trees(manifest, trees)
    if ids is None:
        require_ids(pod, trees, manifest, request.apps, overlay=request.overlay)
    provide_volumes(pod, trees, manifest, overlay=request.overlay, ids=ids)
    write_new_file(pod.path / paths.POD_LOCK, b"", 0o600)
    write_new_file(pod.path / paths.POD_MANIFEST, request.manifest_bytes, 0o640)
    write_new_file(pod.path / paths.POD_CREATED, b"", 0o640)
    if request.overlay:
        write_new_file(pod.path / paths.POD_OVERLAY_PREPARED, b"", 0o644)


def _fill_stage1(
    pod: Pod, trees: TreeStore, request: NewPod, tree_id: str, ids: IdRange | None, progress: Progress
) -> None:
    rootfs = trees.path(tree_id) / "rootfs"
    if request.overlay and not (rootfs / paths.STATUS_DIRECTORY).is_dir():
        raise PodError(f'stage1 image "{request.stage1.name}" has no directory /{paths.STATUS_DIRECTORY}')
    make_directory(pod.path / paths.POD_STAGE1, 0o750)
    write_new_file(pod.path / paths.POD_STAGE1_MANIFEST, request.stage1.manifest_bytes, 0o640)
    if not request.overlay:
        progress("copying stage1", 0, None)
        copy_tree(rootfs, pod.path / paths.POD_STAGE1_ROOTFS, ids)
    write_new_file(pod.path / paths.POD_STAGE1_TREE_ID, tree_id.encode(), 0o640)


def copy_tree(source: Path, destination: Path, ids: IdRange | None = None) -> None:
    """
    Copy the directory `source`, which nobody may change meanwhile, to the new directory `destination`.

    Owners, modes, times, links, devices and fifos are kept, but no hard links and no attributes, as in rkt; with `ids`
    the owners are those of the pod, and become those of the host. StoreError if one is not mapped. After a failure
    `destination` is gone.
    """
    with disk_errors(f"copy {source} to {destination}", destination):
        os.mkdir(destination, 0o700)
        try:
            _copy_directory(source, destination, ids)
        except BaseException:
            shutil.rmtree(destination, ignore_errors=True)
            raise


def make_missing_directories(source: Path, destination: Path, left_out: str, ids: IdRange | None = None) -> None:
    """
    Make the directories of `source`, but for the one called `left_out`, that `destination` lacks, as `copy_tree` does.
    """
    pending = [entry.name for entry in source.iterdir() if entry.name != left_out]
    for name in pending:
        from_directory, to_directory = source / name, destination / name
        if from_directory.is_symlink() or not from_directory.is_dir():
            continue
        if not os.path.lexists(to_directory):
            os.mkdir(to_directory, 0o700)
            _copy_metadata(str(from_directory), str(to_directory), from_directory.lstat(), ids)
        if not to_directory.is_symlink():
            # Grows during the walk.
            pending += [f"{name}/{entry.name}" for entry in from_directory.iterdir()]


def _copy_directory(source: Path, destination: Path, ids: IdRange | None) -> None:
    directories = [(os.fspath(source), os.fspath(destination), source.lstat())]
    # Grows during the walk.
    for from_directory, to_directory, _ in directories:
        with os.scandir(from_directory) as entries:
            for entry in entries:
                target = f"{to_directory}/{entry.name}"
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISDIR(status.st_mode):
                    os.mkdir(target, 0o700)
                    directories.append((entry.path, target, status))
                else:
                    _copy_leaf(entry.path, target, status)
                    _copy_metadata(entry.path, target, status, ids)
    # Children change the parent's times, so directories come last, deepest first.
    for from_directory, to_directory, status in reversed(directories):
        _copy_metadata(from_directory, to_directory, status, ids)


def _copy_leaf(source: str, target: str, status: os.stat_result) -> None:
    if stat.S_ISREG(status.st_mode):
        _copy_data(source, target)
    elif stat.S_ISLNK(status.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
        os.mknod(target, stat.S_IFMT(status.st_mode) | 0o600, status.st_rdev)
    elif stat.S_ISFIFO(status.st_mode):
        os.mkfifo(target, 0o600)
    else:
        raise OSError(f"{source} is a socket, which no image can contain")


def _copy_data(source: str, target: str) -> None:
    from_fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        to_fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while os.sendfile(to_fd, from_fd, None, _COPY_BYTES):
                pass
        finally:
            os.close(to_fd)
    finally:
        os.close(from_fd)


def _copy_metadata(source: str, target: str, status: os.stat_result, ids: IdRange | None) -> None:
    uid, gid = status.st_uid, status.st_gid
    if ids is not None:
        uid, gid = _shift(source, "uid", uid, ids), _shift(source, "gid", gid, ids)
    os.chown(target, uid, gid, follow_symlinks=False)
    if not stat.S_ISLNK(status.st_mode):
        os.chmod(target, stat.S_IMODE(status.st_mode))  # after chown(2), which clears the set-id bits
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)


def _shift(source: str, kind: str, number: int, ids: IdRange) -> int:
    shifted = ids.to_host(number)
    if shifted is None:
        raise StoreError(f"copy {source}: unmapped {kind} {number}: {ids.describe()}")
    return shifted
