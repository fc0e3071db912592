"""
The status of a pod, from the directory: times, pids, networks, readiness, states of apps.

Only reads, through the open directory, and trusts no content: another stage0 may have made the pod, and stage1 is
writing meanwhile.
"""

from __future__ import annotations

import os
import re
import stat
from functools import lru_cache

from minit.base import jsontext
from minit.base.errors import ManifestError, MinitError, PodError
from minit.base.value import Value
from minit.linux import syscalls
from minit.manifest.image import ImageManifest, parse_image_manifest
from minit.manifest.pod import PodManifest, RuntimeApp, parse_pod_manifest
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import ENDED_STATES, Pod, PodState, read_name

NETWORK_FIELDS = ("netName", "netConf", "pluginPath", "ifName", "ip", "args", "mask")

_NET_INFO = "net-info.json"
_FIELDS_OF_SOME = ("ip6",)  # which rkt's record has not
_MAX_SMALL_FILE_BYTES = 4096
_NUMBER = re.compile(rb"[ \t\n\v\f\r]*([+-]?[0-9]+)")

_WITHOUT_MANIFEST = frozenset({PodState.EMBRYO, PodState.PREPARING, PodState.ABORTED_PREPARE, PodState.DELETING})
_WITH_NETWORKS = frozenset({PodState.RUNNING, PodState.EXITED})
_STARTED_STATES = ENDED_STATES | {PodState.RUNNING}
_WITH_PID = _STARTED_STATES | {PodState.DELETING}

# rkt's words for the states of apps.
APP_UNKNOWN = "unknown"
APP_CREATED = "created"
APP_RUNNING = "running"
APP_EXITED = "exited"
# And minit's own.
APP_PAUSED = "paused"

_APP_STATES = {
    PodState.PREPARED: APP_CREATED,
    PodState.RUNNING: APP_RUNNING,
    **dict.fromkeys(ENDED_STATES, APP_EXITED),
}
_AFTER_RUN = ENDED_STATES | {PodState.DELETING, PodState.GARBAGE}
_UNREADABLE_EXIT_CODE = 1


class AppMount(Value):
    """A volume as seen by an app."""

    name: str
    container_path: str
    host_path: str
    read_only: bool


class AppLife(Value):
    """The progress of an app; times in nanoseconds since 1970, None if not yet or unknown."""

    state: str
    created_ns: int | None = None
    started_ns: int | None = None
    finished_ns: int | None = None
    exit_code: int | None = None


class AppStatus(Value):
    """Known facts about one app of a pod; times in nanoseconds since 1970."""

    name: str
    state: str
    image_id: str | None
    image_name: str | None
    """`name` or `name:version`; None if its manifest cannot be read."""
    created_ns: int | None = None
    started_ns: int | None = None
    finished_ns: int | None = None
    exit_code: int | None = None
    mounts: tuple[AppMount, ...] = ()
    user_annotations: tuple[tuple[str, str], ...] = ()
    user_labels: tuple[tuple[str, str], ...] = ()


class PodStatus(Value):
    """Known facts about a pod; times in nanoseconds since 1970."""

    uuid: str
    state: PodState
    created_ns: int | None
    started_ns: int | None
    pid: int | None
    networks: tuple[tuple[tuple[str, str], ...], ...]
    """One per network: its NETWORK_FIELDS with their values."""
    apps: tuple[AppStatus, ...]
    user_annotations: tuple[tuple[str, str], ...] = ()
    user_labels: tuple[tuple[str, str], ...] = ()
    name: str | None = None
    version: str | None = None
    """Of minit's stage1; None for another kind of stage1."""


def read_pod_status(pod: Pod) -> PodStatus:
    """Return all facts that the pod directory has in the pod's present state; PodError if unreadable."""
    manifest = None if pod.state in _WITHOUT_MANIFEST else read_pod_manifest(pod)
    created_ns = read_created_ns(pod)
    started_ns = read_started_ns(pod) if pod.state in _STARTED_STATES else None
    return PodStatus(
        uuid=pod.uuid,
        state=pod.state,
        created_ns=created_ns,
        started_ns=started_ns,
        pid=read_shown_pid(pod) if pod.state in _WITH_PID else None,
        networks=read_networks(pod) if pod.state in _WITH_NETWORKS else (),
        apps=() if manifest is None else _read_apps(pod, manifest, created_ns, started_ns),
        user_annotations=() if manifest is None else manifest.user_annotations,
        user_labels=() if manifest is None else manifest.user_labels,
        name=read_name(pod.fd),
        version=read_version(pod),
    )


def read_pod_manifest(pod: Pod) -> PodManifest:
    """Return the pod's manifest; PodError while there is none, ManifestError for a bad manifest."""
    data = read_manifest_bytes(pod)
    try:
        return _parse_manifest(data)
    except ManifestError:
        return parse_pod_manifest(data, f'pod "{pod.uuid}"')  # which names the pod in the error


@lru_cache(maxsize=128)
def _parse_manifest(data: bytes) -> PodManifest:
    """Return the manifest in `data`, which pods of one command line have in common."""
    return parse_pod_manifest(data, "manifest")


def read_manifest_bytes(pod: Pod) -> bytes:
    """Return the pod's manifest as written; PodError while the pod has no manifest."""
    try:
        return pod.read_file(paths.POD_MANIFEST)
    except FileNotFoundError as error:
        raise PodError(f'pod "{pod.uuid}" is {pod.state} and has no manifest') from error


def read_version(pod: Pod) -> str | None:
    """Return the version of a pod's stage1, None for a stage1 that is not minit's, or for an unreadable manifest."""
    try:
        return _own_version(pod.read_file(paths.POD_STAGE1_MANIFEST))
    except (OSError, MinitError):
        return None


@lru_cache(maxsize=8)
def _own_version(manifest: bytes) -> str | None:
    """Return the version in the manifest of a stage1 image, which most pods have in common."""
    image = parse_image_manifest(manifest, "manifest")
    return image.label("version") if image.name == paths.STAGE1_NAME else None


def read_app_image(pod: Pod, app: str) -> ImageManifest:
    """Return the manifest of the image an app was made from."""
    name = f"appsinfo/{app}/manifest"
    return parse_image_manifest(pod.read_file(name), str(pod.path / name))


def read_created_ns(pod: Pod) -> int | None:
    """Return when the pod was prepared, None before."""
    if pod.state in (PodState.EMBRYO, PodState.PREPARING, PodState.ABORTED_PREPARE):
        return None
    # rkt before 1.20 wrote no marker.
    created_ns = _modified_ns(pod, paths.POD_CREATED)
    return _modified_ns(pod, paths.POD_MANIFEST) if created_ns is None else created_ns


def read_started_ns(pod: Pod) -> int | None:
    """Return when stage1 reported the pod's pid, None without a report."""
    started_ns = _modified_ns(pod, paths.POD_PID)
    return _modified_ns(pod, paths.POD_PPID) if started_ns is None else started_ns


def _read_gc_marked_ns(pod: Pod) -> int | None:
    """Return when an ended pod was marked for removal, None without a mark."""
    if pod.state not in (PodState.EXITED_GARBAGE, PodState.EXITED_DELETING):
        return None
    return os.fstat(pod.fd).st_ctime_ns


def read_shown_pid(pod: Pod) -> int | None:
    """Return the pid to show for a pod, without asking whether the pod can be entered."""
    pid = _read_number(pod, paths.POD_PID)
    return _read_number(pod, paths.POD_PPID) if pid is None else pid


def read_pid_to_enter(pod: Pod) -> int | None:
    """
    Return the pid of the process with the pod's namespaces, None before stage1 has reported a pid.

    A pod with `ppid` instead of `pid` names the parent of the process; the parent must have no other child.
    """
    pid = _read_number(pod, paths.POD_PID)
    if pid is not None:
        return pid
    if not pod.has_file(paths.POD_PPID):
        return None
    parent = _read_number(pod, paths.POD_PPID)
    if parent is None:
        raise PodError(f'pod "{pod.uuid}": {paths.POD_PPID} holds no number')
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            children = file.read().split()
    except OSError:
        return None
    if len(children) > 1:
        raise PodError(f"too many children of pid {parent}")
    return int(children[0]) if children else None


def read_networks(pod: Pod) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return the pod's networks as stage1 recorded them; PodError if the record is broken."""
    try:
        data = pod.read_file(_NET_INFO)
    except FileNotFoundError:
        return ()
    source = str(pod.path / _NET_INFO)
    networks = jsontext.parse(data, source)
    if networks is None:
        return ()
    if not isinstance(networks, list) or not all(isinstance(network, dict) for network in networks):
        raise PodError(f"{source}: expected a list of networks")
    return tuple(
        (
            *((field, str(network.get(field) or "")) for field in NETWORK_FIELDS),
            *((field, str(network[field])) for field in _FIELDS_OF_SOME if network.get(field)),
        )
        for network in networks
    )


def read_exit_code(pod: Pod, app: str) -> int | None:
    """Return the exit code stage1 recorded for an app, None without a readable code."""
    return _read_number(pod, f"{status_root(pod)}/{paths.STATUS_DIRECTORY}/{app}")


def read_app_life(pod: Pod, app: str) -> AppLife:
    """Return the state of an app of a mutable pod, by the markers of stage0 and stage1."""
    root = status_root(pod)
    created_ns = _modified_ns(pod, f"{root}{paths.created_marker(app)}")
    started_ns = None if created_ns is None else _modified_ns(pod, f"{root}{paths.started_marker(app)}")
    finished_ns = None if started_ns is None else _modified_ns(pod, f"{root}{paths.status_file(app)}")
    if finished_ns is not None:
        exit_code = read_exit_code(pod, app)
        return AppLife(
            state=APP_EXITED,
            created_ns=created_ns,
            started_ns=started_ns,
            finished_ns=finished_ns,
            exit_code=_UNREADABLE_EXIT_CODE if exit_code is None else exit_code,
        )
    if pod.state in _AFTER_RUN:  # by force, so that nothing was written any more
        state, finished_ns = APP_EXITED, _read_gc_marked_ns(pod)
    elif created_ns is None:
        state = APP_UNKNOWN
    else:
        state = APP_CREATED if started_ns is None else APP_RUNNING
    return AppLife(state=state, created_ns=created_ns, started_ns=started_ns, finished_ns=finished_ns)


def is_ready(pod: Pod) -> bool:
    """Return whether the pod's supervisor reports that commands are accepted."""
    try:
        target = os.readlink(f"{status_root(pod)}{paths.STAGE1_READY}", dir_fd=pod.fd)
    except OSError:
        return False
    return target == paths.READY_TARGET


def status_root(pod: Pod) -> str:
    """Return the path of stage1's root without the mount, relative to the pod directory."""
    if not pod.has_file(paths.POD_OVERLAY_PREPARED):
        return paths.POD_STAGE1_ROOTFS
    return f"overlay/{read_stage1_tree_id(pod)}/upper"


def read_stage1_tree_id(pod: Pod) -> str:
    """Return the tree store id of the pod's stage1; PodError if the pod names no stage1."""
    return _read_tree_id(pod, paths.POD_STAGE1_TREE_ID)


def read_upgrade_tree_ids(pod: Pod) -> tuple[str, ...]:
    """Return the tree store ids of images that the pod's stage1 was upgraded to, the latest last."""
    try:
        return tuple(pod.read_file(paths.POD_UPGRADES).decode("ascii").split())
    except FileNotFoundError:
        return ()


def read_app_tree_id(pod: Pod, app: str) -> str:
    """Return the tree store id of an app of an overlay pod."""
    return _read_tree_id(pod, f"appsinfo/{app}/treeStoreID")


def _read_tree_id(pod: Pod, name: str) -> str:
    try:
        tree_id = pod.read_file(name).decode("ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError) as error:
        raise PodError(f'pod "{pod.uuid}" has no readable {name}: it was not prepared completely') from error
    if not re.fullmatch(r"[a-z0-9-]+", tree_id):
        raise PodError(f'pod "{pod.uuid}": {name} holds no tree store id')
    return tree_id


def _read_apps(
    pod: Pod, manifest: PodManifest, created_ns: int | None, started_ns: int | None
) -> tuple[AppStatus, ...]:
    return tuple(_read_app(pod, manifest, app, created_ns, started_ns) for app in manifest.apps)


def _read_app(
    pod: Pod, manifest: PodManifest, app: RuntimeApp, created_ns: int | None, started_ns: int | None
) -> AppStatus:
    if manifest.is_mutable and pod.state in _STARTED_STATES:
        life = read_app_life(pod, app.name)
    else:
        exit_code = read_exit_code(pod, app.name) if pod.state in _STARTED_STATES else None
        life = AppLife(
            state=_APP_STATES.get(pod.state, APP_UNKNOWN) if exit_code is None else APP_EXITED,
            created_ns=created_ns,
            started_ns=started_ns,
            finished_ns=_read_gc_marked_ns(pod),
            exit_code=exit_code,
        )
    is_paused = life.state == APP_RUNNING and _is_paused(pod, app.name)
    return AppStatus(
        name=app.name,
        state=APP_PAUSED if is_paused else life.state,
        image_id=app.image_id,
        image_name=_image_name(pod, app.name),
        created_ns=life.created_ns,
        started_ns=life.started_ns,
        finished_ns=life.finished_ns,
        exit_code=life.exit_code,
        mounts=_app_mounts(manifest, app),
        user_annotations=() if app.app is None else app.app.user_annotations,
        user_labels=() if app.app is None else app.app.user_labels,
    )


def _is_paused(pod: Pod, app: str) -> bool:
    """Return whether minit's PID 1 has noted that the processes of a running app are frozen."""
    path = f"{status_root(pod)}{paths.state_file(app)}"
    try:
        record = jsontext.parse(pod.read_file(path), path)
    except (OSError, MinitError):
        return False
    return isinstance(record, dict) and "finished" not in record and record.get("paused") is True


def _image_name(pod: Pod, app: str) -> str | None:
    try:
        return _name_in(pod.read_file(f"appsinfo/{app}/manifest"))
    except (OSError, MinitError):
        return None


@lru_cache(maxsize=128)
def _name_in(manifest: bytes) -> str:
    """Return the name and version in an image manifest, which many pods of a list have in common."""
    image = parse_image_manifest(manifest, "manifest")
    version = image.label("version")
    return image.name if version is None else f"{image.name}:{version}"


def _app_mounts(manifest: PodManifest, app: RuntimeApp) -> tuple[AppMount, ...]:
    volumes = {volume.name: volume for volume in manifest.volumes}
    points = {point.name: point for point in (app.app.mount_points if app.app else ())}
    mounts = []
    for mount in app.mounts:
        volume = mount.app_volume or volumes.get(mount.volume)
        if volume is None:
            continue
        point = points.get(mount.volume)
        mounts.append(
            AppMount(
                name=mount.volume,
                container_path=mount.path,
                host_path=volume.source or "",
                read_only=bool(volume.read_only if volume.read_only is not None else point and point.read_only),
            )
        )
    return tuple(mounts)


def _modified_ns(pod: Pod, name: str) -> int | None:
    try:
        return os.stat(name, dir_fd=pod.fd, follow_symlinks=False).st_mtime_ns
    except FileNotFoundError:
        return None


def _read_number(pod: Pod, name: str) -> int | None:
    """Return the number a file starts with, as scanf's %d finds it; None without file or number."""
    try:
        # The pod's own processes write below the status root: no link may lead the reader out of the pod directory.
        fd = syscalls.openat2(
            pod.fd,
            name,
            os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK,
            resolve=syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS,
        )
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return None
        number = _NUMBER.match(os.read(fd, _MAX_SMALL_FILE_BYTES))
    finally:
        os.close(fd)
    return int(number[1]) if number else None
