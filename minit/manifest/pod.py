"""The pod manifest: the apps of a pod and everything shared by the apps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from socket import AF_INET, AF_INET6, inet_pton

from minit.base.goflags import BOOLEANS
from minit.base.value import Value
from minit.manifest.app import (
    App,
    Isolator,
    MountPoint,
    Port,
    read_app,
    read_id,
    read_isolators,
    read_port,
    read_port_number,
)
from minit.manifest.image import find, read_annotations, read_labels
from minit.manifest.reader import Node, read_document
from minit.podfiles.paths import ANNOTATION_MUTABLE


class Volume(Value):
    """
    Storage that apps mount: a path of the host (`host`), or a directory made for the pod (`empty`).

    `source` is None for `empty`; `mode` (an octal string), `uid` and `gid` are None for `host` and have the
    schema's defaults for `empty`. With a `read_only` of None the mount point decides, with a `recursive` of None
    the stage1. Outside of manifests the kind may be `named`: `source` is then the name of a volume of minit's.
    """

    name: str
    kind: str
    source: str | None = None
    read_only: bool | None = None
    recursive: bool | None = None
    mode: str | None = None
    uid: int | None = None
    gid: int | None = None


class Mount(Value):
    """A volume's place in an app; `app_volume`, if given, replaces the pod's volume of the same name."""

    volume: str
    path: str
    app_volume: Volume | None = None


class ExposedPort(Value):
    """A port of the host that leads to `pod_port`, else to the app port `name`; without `host_ip` at all addresses."""

    name: str
    host_port: int
    host_ip: str | None = None
    pod_port: Port | None = None


class RuntimeApp(Value):
    """An app of the pod; `app`, if given, replaces the image's own section entirely."""

    name: str
    image_id: str | None = None
    image_name: str | None = None
    image_labels: tuple[tuple[str, str], ...] = ()
    app: App | None = None
    read_only_root_fs: bool = False
    mounts: tuple[Mount, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()

    def annotation(self, name: str) -> str | None:
        """Return the value of an annotation."""
        return find(self.annotations, name)

    def points_without_mount(self, points: Sequence[MountPoint]) -> list[tuple[int, MountPoint]]:
        """Return the mount points of an app without a mount, each with its number."""
        # A mount at the path counts, and a mount of the volume of the same name at any path.
        given_paths = {mount.path for mount in self.mounts}
        given_volumes = {mount.volume for mount in self.mounts}
        return [
            (number, point)
            for number, point in enumerate(points)
            if point.path not in given_paths and point.name not in given_volumes
        ]

    def implicit_volume(self, point: MountPoint) -> str:
        """Return the name of the empty volume for a mount point without a volume of the pod."""
        return f"{self.name}-{point.name}"


class PodManifest(Value):
    """
    The apps of a pod, their volumes and everything else shared; only a mutable pod may be without apps.

    appc spec/pods.md.
    """

    ac_version: str
    apps: tuple[RuntimeApp, ...] = ()
    volumes: tuple[Volume, ...] = ()
    isolators: tuple[Isolator, ...] = ()
    annotations: tuple[tuple[str, str], ...] = ()
    ports: tuple[ExposedPort, ...] = ()
    user_annotations: tuple[tuple[str, str], ...] = ()
    user_labels: tuple[tuple[str, str], ...] = ()

    def annotation(self, name: str) -> str | None:
        """Return the value of an annotation."""
        return find(self.annotations, name)

    def volumes_of(self, app: RuntimeApp) -> Iterator[tuple[str, Volume]]:
        """Yield places and volumes of an app of the pod, mount points of the app's own section included."""
        volumes = {volume.name: volume for volume in self.volumes}
        for mount in app.mounts:
            volume = mount.app_volume or volumes.get(mount.volume)
            if volume is not None:
                yield mount.path, volume
        for _, point in app.points_without_mount(app.app.mount_points if app.app else ()):
            yield point.path, volumes.get(point.name) or Volume(name=app.implicit_volume(point), kind="empty")

    @property
    def is_mutable(self) -> bool:
        """Tell whether apps may be added to the pod while it runs, and removed."""
        return BOOLEANS.get(self.annotation(ANNOTATION_MUTABLE) or "", False)


def parse_pod_manifest(data: bytes, source: str) -> PodManifest:
    """Return the pod manifest in `data`; ManifestError calls the file `source`."""
    root = read_document(data, source, "PodManifest")
    pod = PodManifest(
        ac_version=root["acVersion"].string(),
        apps=root["apps"].each_named("app", _read_runtime_app),
        volumes=root["volumes"].each_named("volume", _read_volume),
        isolators=read_isolators(root["isolators"]),
        annotations=read_annotations(root["annotations"]),
        ports=root["ports"].each(_read_exposed_port),
        user_annotations=root["userAnnotations"].string_map(),
        user_labels=root["userLabels"].string_map(),
    )
    if not pod.apps and not pod.is_mutable:
        raise root["apps"].error("at least one app in a pod that is not mutable")
    return pod


def is_volume_mode(text: str) -> bool:
    """Tell whether `text` is the mode of an empty volume's directory, in octal."""
    return 0 < len(text) <= 5 and set(text) <= set("01234567") and int(text, 8) <= 0o7777


def _read_runtime_app(node: Node) -> RuntimeApp:
    name = node["name"].ac_name()
    image = node["image"]
    return RuntimeApp(
        name=name,
        image_id=image["id"].optional(Node.image_id),
        image_name=image["name"].optional(Node.ac_identifier),
        image_labels=read_labels(image["labels"]),
        app=node["app"].optional(read_app),
        read_only_root_fs=node["readOnlyRootFS"].optional(Node.boolean) or False,
        mounts=node["mounts"].each(_read_mount),
        annotations=read_annotations(node["annotations"]),
    )


def _read_mount(node: Node) -> Mount:
    return Mount(
        volume=node["volume"].ac_name(),
        path=node["path"].non_empty(),
        app_volume=node["appVolume"].optional(_read_volume),
    )


def _read_volume(node: Node) -> Volume:
    kind = node["kind"].one_of("host", "empty")
    name = node["name"].ac_name()
    read_only = node["readOnly"].optional(Node.boolean)
    recursive = node["recursive"].optional(Node.boolean)
    if kind == "host":
        for key in ("mode", "uid", "gid"):
            _forbid(node[key], kind)
        source = node["source"].absolute_path()
        return Volume(name=name, kind=kind, source=source, read_only=read_only, recursive=recursive)
    if node["source"].raw() != "":  # Go's encoding of no source
        _forbid(node["source"], kind)
    return Volume(
        name=name,
        kind=kind,
        read_only=read_only,
        recursive=recursive,
        mode=node["mode"].optional(_read_mode) or "0755",
        uid=node["uid"].optional(read_id) or 0,
        gid=node["gid"].optional(read_id) or 0,
    )


def _forbid(node: Node, kind: str) -> None:
    if node.given:
        raise node.error(f"nothing in a volume of kind {kind}")


def _read_mode(node: Node) -> str:
    return node.matching(is_volume_mode, 'an octal mode like "0755"')


def _read_exposed_port(node: Node) -> ExposedPort:
    return ExposedPort(
        name=node["name"].ac_name(),
        host_port=read_port_number(node["hostPort"]),
        host_ip=node["hostIP"].optional(_read_host_ip) or None,
        pod_port=node["podPort"].optional(read_port),
    )


def _read_host_ip(node: Node) -> str:
    return node.matching(_is_ip_address, "an IP address")


def _is_ip_address(text: str) -> bool:
    for family in (AF_INET, AF_INET6):
        try:
            inet_pton(family, text)
        except OSError:
            continue
        return True
    return text == ""  # Go's encoding of no address
