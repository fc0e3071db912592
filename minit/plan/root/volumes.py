"""
The volumes of each app and their targets, from the mounts of the pod and the mount points of the apps.

The rules come from rkt's stage1 (stage1 contract 8.1). Mount points of an image count only if the pod has no `app`
section for the app, since such a section replaces the image's as a whole.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import Value, replace
from minit.manifest.app import App, MountPoint
from minit.manifest.image import ImageManifest
from minit.manifest.pod import PodManifest, Volume
from minit.plan.inputs.runflags import RunFlags
from minit.podfiles import paths
from minit.podfiles.usersdirectory import hosts_of_pod

HOSTS = "/etc/hosts"
HOST = "host"
EMPTY = "empty"
MEMORY = "memory"

_IMPLICIT = (
    'warning: no volume specified for mount point "{}", implicitly creating an "empty" volume.'
    " This volume will be removed when the pod is garbage-collected."
)


class VolumeMount(Value):
    """A volume's place in an app."""

    volume: str
    kind: str
    source: str
    """A path of the host; of an empty volume relative to the pod directory, of a memory volume in the stage1 root."""
    target: str
    place: str
    """The origin of the mount, a JSON path or a flag."""
    read_only: bool = False
    recursive: bool = False
    idmap: bool = False
    """Whether the owners on the disk are ids of the pod."""
    by_image: bool = False
    """Whether the image has chosen the target."""
    mode: int = 0o755
    """The mode of the directory that is made for an empty volume; so with `uid` and `gid`."""
    uid: int = 0
    gid: int = 0
    implicit: bool = False
    copy_up: bool = False
    """Whether an empty volume begins as a copy of the image's files at `target`."""
    sub_path: str = ""
    """The path of the used part in the volume, empty for the whole volume."""
    propagation: str | None = None
    """PRIVATE, SLAVE or SHARED, None for a suitable one."""
    flat_read_only: bool = False
    """Whether mounts below a read-only volume can be written."""
    options: tuple[str, ...] = ()
    """Options of mount(8) for the whole mount."""
    device_access: str = ""
    """The access to devices, as in a DeviceRule; empty for a suitable one."""

    def describe(self) -> str:
        """Return the mount as a line for --debug."""
        names = ("read_only", "flat_read_only", "recursive", "idmap", "implicit", "copy_up")
        words = [name for name in names if getattr(self, name)]
        words += [*([self.propagation] if self.propagation else []), *self.options]
        words += [f"devices {self.device_access}"] if self.device_access else []
        flags = f" ({','.join(words)})" if words else ""
        part = f" at {self.sub_path}" if self.sub_path else ""
        return f"volume {self.volume}: {self.kind} {self.source}{part} on {self.target}{flags}"


def plan_volumes(
    manifest: PodManifest, sections: Sequence[App], images: Sequence[ImageManifest]
) -> tuple[list[tuple[VolumeMount, ...]], list[str]]:
    """
    Return the volumes of each app of the pod, in the manifest's order, and the warnings to show.

    `sections` are the apps' own sections. PlanError has the JSON path of what cannot be.
    """
    volumes = {volume.name: volume for volume in manifest.volumes}
    warnings: list[str] = []
    planned = []
    for index in range(len(manifest.apps)):
        mounts, notes = _plan_app(manifest, index, sections[index], images[index], volumes)
        planned.append(mounts)
        warnings += notes
    used = {mount.volume for mounts in planned for mount in mounts if not mount.implicit}
    for index, volume in enumerate(manifest.volumes):
        # In a mutable pod it may be mounted by an app that is added later.
        if volume.name not in used and not manifest.is_mutable:
            warnings.append(f'warning: pod: volumes[{index}]: volume "{volume.name}" is mounted by no app')
    return planned, warnings + _warn_of_shared_directories(planned)


def names_file(uuid: str, mounts: Sequence[VolumeMount]) -> tuple[VolumeMount, ...]:
    """Return the mount of the hosts file of pods on the same networks, unless the app has a mount there."""
    targets = (posixpath.normpath(f"/./{mount.target}") for mount in mounts)
    if any(target in ("/", posixpath.dirname(HOSTS), HOSTS) for target in targets):
        return ()
    source = hosts_of_pod(uuid)
    return (VolumeMount(volume="hosts", kind=HOST, source=source, target=HOSTS, place="pod names", read_only=True),)


def host_files(flags: RunFlags) -> tuple[VolumeMount, ...]:
    """Return the mounts of the host's own files that --dns-conf-mode asks for, which come after all volumes."""
    return tuple(
        VolumeMount(
            volume=path.rpartition("/")[2],
            kind=HOST,
            source=path,
            target=path,
            place=f"--dns-conf-mode={key}=host",
            read_only=True,
        )
        for key, mode, path in (
            ("resolv", flags.resolv_mode, "/etc/resolv.conf"),
            ("hosts", flags.hosts_mode, HOSTS),
        )
        if mode == "host"
    )


def _plan_app(
    manifest: PodManifest, index: int, app: App, image: ImageManifest, volumes: dict[str, Volume]
) -> tuple[tuple[VolumeMount, ...], list[str]]:
    runtime = manifest.apps[index]
    planned: list[VolumeMount] = []
    warnings: list[str] = []
    of_points = {point.name: point.read_only for point in reversed(app.mount_points)}
    for number, mount in enumerate(runtime.mounts):
        place = f"pod: apps[{index}].mounts[{number}]"
        volume = mount.app_volume or volumes.get(mount.volume)
        if volume is None:
            raise PlanError(f'{place}.volume: could not find volume "{mount.volume}"')
        planned.append(_plan_mount(volume, mount.path, place, of_points.get(mount.volume, False)))
    origin = f"pod: apps[{index}].app" if runtime.app else f"{paths.app_manifest(runtime.name)}: app"
    of_image = {point.path for point in image.app.mount_points} if image.app else set()
    for number, point in runtime.points_without_mount(app.mount_points):
        place = f"{origin}.mountPoints[{number}]"
        if point.name in volumes:
            wanted = _plan_mount(volumes[point.name], point.path, place, point.read_only)
        else:
            warnings.append(_IMPLICIT.format(point.name))
            wanted = _plan_implicit(runtime.implicit_volume(point), point, place, image.from_docker)
        planned.append(replace(wanted, by_image=point.path in of_image))
    return tuple(planned), warnings + _warn_of_hidden_mounts(planned)


def _plan_mount(volume: Volume, target: str, place: str, read_only: bool) -> VolumeMount:
    """Return the mount of a volume, whose own setting about writing counts first."""
    _check_target(target, place)
    if volume.read_only is not None:
        read_only = volume.read_only
    if volume.kind == HOST:
        assert volume.source is not None
        return VolumeMount(
            volume=volume.name,
            kind=HOST,
            source=volume.source,
            target=target,
            place=place,
            read_only=read_only,
            recursive=volume.recursive is not False,
        )
    assert volume.mode is not None and volume.uid is not None and volume.gid is not None
    return VolumeMount(
        volume=volume.name,
        kind=EMPTY,
        source=_shared(volume.name),
        target=target,
        place=place,
        read_only=read_only,
        mode=int(volume.mode, 8),
        uid=volume.uid,
        gid=volume.gid,
    )


def _plan_implicit(name: str, point: MountPoint, place: str, from_docker: bool) -> VolumeMount:
    _check_target(point.path, place)
    return VolumeMount(
        volume=name,
        kind=EMPTY,
        source=_shared(name),
        target=point.path,
        place=place,
        read_only=point.read_only,
        implicit=True,
        copy_up=from_docker,
    )


def _shared(name: str) -> str:
    return f"{paths.POD_SHARED_VOLUMES}/{name}"


def _check_target(target: str, place: str) -> None:
    if not _components(target):
        raise PlanError(f'{place}.path: expected a path below "/", got "{target}"')


def _components(target: str) -> tuple[str, ...]:
    """Return the names of a path as written, without a look at symlinks."""
    names: list[str] = []
    for name in target.split("/"):
        if name == "..":
            names = names[:-1]
        elif name not in ("", "."):
            names.append(name)
    return tuple(names)


def _warn_of_hidden_mounts(planned: Sequence[VolumeMount]) -> list[str]:
    seen: dict[tuple[str, ...], VolumeMount] = {}
    warnings = []
    for mount in planned:
        hidden = seen.get(_components(mount.target))
        if hidden is not None:
            what = f'volume "{hidden.volume}", which is mounted there too'
            warnings.append(f'warning: {mount.place}.path: "{mount.target}" hides {what}')
        seen[_components(mount.target)] = mount
    return warnings


def _warn_of_shared_directories(planned: Sequence[Sequence[VolumeMount]]) -> list[str]:
    # "a-b" and "c" of one app, "a" and "b-c" of another make the same name; so may a volume of the pod.
    seen: dict[str, VolumeMount] = {}
    warnings = []
    for mount in (mount for mounts in planned for mount in mounts if mount.kind == EMPTY):
        other = seen.setdefault(mount.source, mount)
        if other is not mount and (mount.implicit or other.implicit):
            what = f'the directory of volume "{mount.volume}"'
            warnings.append(f"warning: {mount.place} shares {what} with {other.place}")
    return warnings
