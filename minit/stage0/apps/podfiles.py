"""
The files of an app of a pod as the app has them: the root with the volumes, parts and options of both, nothing else.

Of an app of a running pod, stage1 hands out the root in the app's mount namespace. Of an ended pod, root and volumes
are mounted again, in a mount namespace without a program. The kernel resolves paths within the root (openat2,
RESOLVE_IN_ROOT): no link of the app's leads out.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import ManifestError, PodError, describe
from minit.base.idrange import IdRange
from minit.base.value import Value
from minit.linux import syscalls
from minit.linux.forks import APP_MOUNTER, Kept, fork
from minit.linux.messages import Socket, receive_message, send_message, socket_pair
from minit.linux.process import enter_own_mounts
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp, Volume
from minit.podfiles import paths
from minit.stage0.apps.enter import open_app_root
from minit.stage0.apps.export import keep, open_rootfs
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods import overlay
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState, open_pod
from minit.stage0.pods.podstatus import read_app_tree_id, read_pod_manifest
from minit.stage0.pods.privateusers import read_ids

_IN_ROOT = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS
_IN_VOLUME = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_MAGICLINKS
_BENEATH = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_DIRECTORY = os.O_PATH | os.O_DIRECTORY
# The image's files there are hidden while the app runs.
_OF_THE_KERNEL = frozenset({"dev", "proc", "sys"})
_HOST = "host"


class AppPlace(Value):
    """
    A path in an app: `path`, relative, from the directory `root` on.

    `ids` are those that its owners on the disk are among, None if they are the app's own. `read_only` says why nothing
    can be written there, empty if writing is possible.
    """

    root: int
    path: str
    ids: IdRange | None
    read_only: str = ""

    def open(self, path: str, flags: int) -> int:
        """
        Open a path from the root on; links are followed as the app would follow links.

        PodError for files of the kernel's: an app may have a link to a file that only this process may write.
        """
        fd = syscalls.openat2(self.root, path or ".", flags, resolve=_IN_ROOT)
        if syscalls.is_kernel_filesystem(fd):
            os.close(fd)
            raise PodError(f"/{path} leads to files of the kernel's, which are nobody's to copy")
        return fd

    def left_out(self) -> list[os.stat_result]:
        """Return the directories left out of a copy of the whole root: the devices of a running app."""
        try:
            devices = os.stat("dev", dir_fd=self.root, follow_symlinks=False)
        except OSError:
            return []
        return [devices] if devices.st_dev != os.fstat(self.root).st_dev else []


class _AppVolume(Value):
    """A volume and the place in an app, from the app's annotation minit/mounts."""

    target: str
    volume: Volume
    sub_path: str = ""
    read_only: bool = False


@contextmanager
def app_place(pod: Pod, app: str | None, path: str, trees: TreeStore) -> Iterator[AppPlace]:
    """
    Yield a place in an app (None: the only app) of a pod that runs or has ended, by an absolute path.

    An ended pod is kept from being deleted meanwhile. PodError without such an app, or for an app never started.
    """
    _refuse_others(pod)
    manifest = read_pod_manifest(pod)
    chosen = choose_app(manifest, app)
    # Two slashes at the start would stay two. The end of a path has a meaning for copies.
    end = next((end for end in ("/.", "/") if path.endswith(end)), "")
    path = posixpath.normpath(f"/./{path}")
    if path.split("/")[1] in _OF_THE_KERNEL:
        raise PodError(f"{path}: /{path.split('/')[1]} is the kernel's in an app, and its files are nobody's to copy")
    volumes = _app_volumes(manifest, chosen)
    here = _innermost(volumes, path)
    with ExitStack() as stack:
        given = open_app_root(pod, trees.path, chosen.name) if pod.state is PodState.RUNNING else []
        is_mapped = bool(given) and _is_mapped(manifest, chosen, here)
        read_only = f'the root of app "{chosen.name}" is read-only' if chosen.read_only_root_fs else ""
        if not given:
            base, reason = stack.enter_context(_app_base(pod, chosen, trees))
            read_only = reason or read_only
            given = _mount(pod, manifest, chosen, base, volumes, here, stack)
        for fd in given:
            stack.callback(os.close, fd)
        if here is not None:
            read_only = f'volume "{here.volume.name}" is read-only' if here.read_only else ""
        is_hosts = here is not None and here.volume.kind == _HOST
        ids = None if is_hosts and not is_mapped else read_ids(pod)
        yield AppPlace(root=given[0], path=path.lstrip("/") + end, ids=ids, read_only=read_only)


@contextmanager
def app_root(pod: Pod, app: RuntimeApp, trees: TreeStore) -> Iterator[int]:
    """Yield the root of an app of a pod that runs or has ended, without volumes; PodError without a root."""
    _refuse_others(pod)
    with _app_base(pod, app, trees) as (root, _):
        yield root


def choose_app(manifest: PodManifest, wanted: str | None) -> RuntimeApp:
    """Return an app of a pod by name, or the only app; PodError."""
    names = ", ".join(app.name for app in manifest.apps)
    if wanted is None and len(manifest.apps) != 1:
        raise PodError(f"the pod has several apps: choose one of {names}" if names else "the pod has no apps")
    for app in manifest.apps:
        if wanted in (None, app.name):
            return app
    raise PodError(f'the pod has no app "{wanted}", only {names}')


def _refuse_others(pod: Pod) -> None:
    if pod.state is not PodState.RUNNING and pod.state not in ENDED_STATES:
        raise PodError(f'pod "{pod.uuid}" is {pod.state}: only pods that run or have ended have files')


def _app_volumes(manifest: PodManifest, app: RuntimeApp) -> list[_AppVolume]:
    """Return the volumes of an app, the outer ones first, as stage1 attaches them."""
    details = _read_object(app.annotation(Annotation.MOUNTS))
    found = []
    for target, volume in manifest.volumes_of(app):
        detail = details.get(target)
        given = detail if isinstance(detail, dict) else {}
        found.append(
            _AppVolume(
                target=posixpath.normpath(f"/./{target}"),
                volume=volume,
                sub_path=str(given.get("subPath") or ""),
                read_only=bool(volume.read_only or given.get("readOnly")),
            )
        )
    return sorted(found, key=lambda each: each.target.count("/"))


def _read_object(text: str | None) -> dict[str, object]:
    """Return the content of an annotation, which stage1 has read before, or nothing."""
    try:
        value = {} if text is None else jsontext.parse(text.encode(errors="surrogateescape"), "annotation")
    except ManifestError:
        value = {}
    return value if isinstance(value, dict) else {}


def _innermost(volumes: Sequence[_AppVolume], path: str) -> _AppVolume | None:
    """Return the innermost volume that is mounted on a path or above it."""
    found = [each for each in volumes if path == each.target or path.startswith(f"{each.target.rstrip('/')}/")]
    return max(reversed(found), key=lambda each: each.target.count("/"), default=None)


def _is_mapped(manifest: PodManifest, app: RuntimeApp, place: _AppVolume | None) -> bool:
    """Tell whether a volume shows a running app its own ids; stage1 has the rules (minit/idmap)."""
    own = app.annotation(Annotation.IDMAP)
    text = manifest.annotation(Annotation.IDMAP) if own is None else own
    return place is not None and text is not None and (text == "true" or place.volume.name in text.split(","))


@contextmanager
def _app_base(pod: Pod, app: RuntimeApp, trees: TreeStore) -> Iterator[tuple[int, str]]:
    """Yield an app's root without its volumes, and why it can only be read, if so; an ended pod is kept meanwhile."""
    with ExitStack() as stack:
        if pod.state in ENDED_STATES:
            stack.enter_context(keep(pod))
        rootfs = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(app.name)}"
        if pod.has_file(paths.POD_OVERLAY_PREPARED) and not overlay.is_mounted_at(pod.path / rootfs):
            # Mounts would not show what is written to the layers.
            reason = f'the root of app "{app.name}" is not mounted any more, and can only be read: start the pod first'
            yield stack.enter_context(open_rootfs(pod, app.name, trees)), reason
            return
        root = syscalls.openat2(pod.fd, rootfs, _DIRECTORY, resolve=_BENEATH)
        stack.callback(os.close, root)
        yield root, ""


def _mount(
    pod: Pod,
    manifest: PodManifest,
    app: RuntimeApp,
    base: int,
    volumes: Sequence[_AppVolume],
    here: _AppVolume | None,
    stack: ExitStack,
) -> list[int]:
    """
    Return descriptors of the root of an app with its volumes, and of what keeps these; `stack` closes what it needs.

    The requested volume, `here`, has to exist. Any other volume that is gone is an empty directory.
    """
    memory = _read_object(manifest.annotation(Annotation.MEMORY_VOLUMES))
    trees: list[tuple[str, int]] = []
    for each in volumes:
        try:
            if each.volume.name in memory:
                raise PodError("was in memory, and is gone")
            tree = _open_volume(pod, manifest, each)
        except (PodError, OSError) as error:
            if each is here:
                raise PodError(f'volume "{each.volume.name}" of app "{app.name}": {describe(error)}') from error
            tree = _empty_mount()
        stack.callback(os.close, tree)
        trees.append((each.target, tree))
    ours, theirs = socket_pair()
    with ours:
        with theirs:
            kept: Mapping[str, Kept] = {
                "link": theirs.fileno(),
                "root": base,
                "volumes": tuple(tree for _, tree in trees),
            }
            pid = fork(
                APP_MOUNTER,
                lambda: _mount_all(theirs, base, trees, read_only=app.read_only_root_fs),
                kept,
                tell=lambda error: send_message(theirs, {"error": describe(error)}),
            )
        try:
            message, descriptors = receive_message(ours)
        finally:
            os.waitpid(pid, 0)
    if not descriptors:
        reason = "its process was killed" if message is None else message.get("error")
        raise PodError(f'cannot mount the root and the volumes of app "{app.name}": {reason}')
    return descriptors


def _mount_all(link: Socket, base: int, trees: Sequence[tuple[str, int]], *, read_only: bool) -> None:
    """Mount an app's root and volumes in this process's own namespace, and send root and namespace."""
    try:
        root = syscalls.open_tree(base, "", syscalls.OPEN_TREE_CLONE)
    except OSError:
        root = base  # it is mounted nowhere yet, and itself can be
    syscalls.unshare(syscalls.CLONE_NEWNS)
    enter_own_mounts(syscalls.MS_PRIVATE)
    namespace = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    # pivot_root(2) refuses a shared root, such as a root on a machine with systemd.
    attributes = syscalls.MOUNT_ATTR_RDONLY if read_only else 0
    syscalls.mount_setattr(root, set=attributes, propagation=syscalls.MS_PRIVATE)
    syscalls.move_mount(root, syscalls.AT_FDCWD, to_path=".")
    os.fchdir(root)
    syscalls.pivot_root(".", ".")
    syscalls.umount2(".", syscalls.MNT_DETACH)
    os.chdir("/")
    top = os.open("/", _DIRECTORY)
    for target, tree in trees:
        try:
            place = syscalls.openat2(top, target, os.O_PATH, resolve=_IN_ROOT)
        except OSError:
            continue  # the app has never had it there
        with suppress(NotADirectoryError):  # an empty directory in the place of a file
            syscalls.move_mount(tree, place)
        os.close(place)
    send_message(link, {}, [top, namespace])


def _open_volume(pod: Pod, manifest: PodManifest, place: _AppVolume) -> int:
    """Return a detached mount of an app's part of a volume; OSError or PodError without one."""
    volume = place.volume
    if volume.source is None:
        whole = syscalls.openat2(pod.fd, f"{paths.POD_SHARED_VOLUMES}/{volume.name}", _DIRECTORY, resolve=_BENEATH)
    else:
        whole = _open_source(manifest, volume.source)
    try:
        of_image = volume.source is not None and paths.tree_of_source(volume.source) is not None
        resolve = _IN_ROOT if of_image else _IN_VOLUME
        part = syscalls.openat2(whole, place.sub_path, os.O_PATH, resolve=resolve) if place.sub_path else -1
        try:
            is_deep = volume.source is not None and volume.recursive is not False
            deep = syscalls.AT_RECURSIVE if is_deep else 0
            tree = syscalls.open_tree(whole if part < 0 else part, "", syscalls.OPEN_TREE_CLONE | deep)
        finally:
            if part >= 0:
                os.close(part)
    finally:
        os.close(whole)
    read_only = syscalls.MOUNT_ATTR_RDONLY if place.read_only else 0
    syscalls.mount_setattr(tree, flags=deep, set=read_only, propagation=syscalls.MS_PRIVATE)
    return tree


def _open_source(manifest: PodManifest, source: str) -> int:
    """
    Open the source of a volume of the host.

    An app decides on links in its volumes. So what lies in another volume of the pod is looked up from that one on, and
    PodError tells of a link that leads out.
    """
    others = set()
    declared = [*manifest.volumes, *(mount.app_volume for app in manifest.apps for mount in app.mounts)]
    for volume in declared:
        if volume is not None and volume.source is not None and volume.source != source:
            try:
                status = os.stat(volume.source)
            except OSError:
                continue
            others.add((status.st_dev, status.st_ino))
    names = [name for name in source.split("/") if name not in ("", ".")]
    for depth in range(1, len(names)):
        above = os.open("/" + "/".join(names[:depth]), os.O_PATH | os.O_CLOEXEC)
        try:
            status = os.fstat(above)
            if (status.st_dev, status.st_ino) in others:
                return syscalls.openat2(above, "/".join(names[depth:]), os.O_PATH, resolve=_IN_VOLUME)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise PodError(f"{source}: a link leads out of the volume that it lies in") from error
            raise
        finally:
            os.close(above)
    return os.open(source, os.O_PATH | os.O_CLOEXEC)


def _empty_mount() -> int:
    context = syscalls.fsopen("tmpfs")
    try:
        syscalls.fsconfig_create(context)
        return syscalls.fsmount(context, syscalls.MOUNT_ATTR_RDONLY)
    finally:
        os.close(context)


def writable_layer(data: Path, uuid: str, app: str) -> Path:
    """Return the upper layer of an app's overlay, the whole root of an app without overlay; PodError without a pod."""
    with open_pod(data, uuid) as pod:
        if not pod.has_file(paths.POD_OVERLAY_PREPARED):
            return pod.path / paths.POD_STAGE1_ROOTFS / paths.app_rootfs(app)
        return pod.path / "overlay" / read_app_tree_id(pod, app) / "upper" / app
