"""
Pod manifests: from images and a user's settings to the JSON for stage1.

Pure. Every app has a complete `app` section, because rkt crashes on pods that leave the section to the image.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence

from minit.base import jsontext
from minit.base.errors import ManifestError, PodError
from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.excess import excess_of
from minit.manifest.image import ANNOTATION_HEALTHCHECK, APPC_VERSION, ImageManifest
from minit.manifest.names import is_ac_name, sanitize_ac_name
from minit.manifest.pod import ExposedPort, Mount, PodManifest, Volume, parse_pod_manifest
from minit.podfiles import paths
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.appsection import (
    AppOverrides,
    Json,
    Pairs,
    PodDefaults,
    app_json,
    pairs_json,
    plan_app_section,
    port_json,
    refuse_excess,
)
from minit.stage0.pods.exposedports import check_ports
from minit.stage0.volumes import NAMED, located

# For every pod made here: the pod meets users of today, not rkt's.
DEFAULT_ANNOTATIONS = (
    (Annotation.DNS, "host"),
    (Annotation.POD_NAMES, "true"),
    (Annotation.SECCOMP_ERRNO, "EPERM"),
)
"""What a new pod of images has unless its user says otherwise."""

HOST_PIDS = (Annotation.PID_NAMESPACE, "host")
"""What a pod has that sees the processes of the host."""

# In this order, after the annotations of --annotation.
_STREAMS = ("stdin", "stdout", "stderr")


class PlannedApp(Value):
    """An app of a new pod, and the app's image."""

    name: str
    image: StoredImage


_CHECK_FIELDS = {"exec", "interval", "timeout", "delay", "failures"}
_DOCKERS_CHECK = {"asApp": True, "interval": "30s", "timeout": "30s", "failures": 3, "action": "none"}
"""The fields of a check of Docker's that says no more than its command."""


def plan_apps(
    images: Sequence[tuple[StoredImage, AppOverrides]], defaults: PodDefaults
) -> tuple[tuple[PlannedApp, ...], bytes]:
    """Return the apps of a new pod and the manifest; PodError for an impossible pod."""
    apps: list[PlannedApp] = []
    entries: list[Json] = []
    for image, overrides in images:
        check_platform(image.manifest)
        name = _app_name(image, overrides)
        if any(name == app.name for app in apps):
            raise PodError(f'several apps are named "{name}": give them different names with --name')
        apps.append(PlannedApp(name=name, image=image))
        entries.append(_runtime_app_json(name, image, overrides, defaults))
    return tuple(apps), _new_manifest(entries, defaults)


def _annotations(defaults: PodDefaults) -> Pairs:
    # Whether a pod is mutable is not the user's to say.
    chosen = {paths.ANNOTATION_MUTABLE: "true" if defaults.is_mutable else "false"}
    usual = (*DEFAULT_ANNOTATIONS, *((HOST_PIDS,) if defaults.host_pids else ()))
    for name, value in (dict(usual) | dict(defaults.annotations)).items():
        chosen.setdefault(name, value)
    return tuple(chosen.items())


def plan_added_app(
    manifest: PodManifest, image: StoredImage, overrides: AppOverrides, defaults: PodDefaults
) -> tuple[PlannedApp, Json]:
    """Return a new app of a running pod, and the app's entry in the pod's manifest; PodError for an impossible app."""
    check_platform(image.manifest)
    name = _app_name(image, overrides)
    if any(name == app.name for app in manifest.apps):
        raise PodError(f"multiple apps with name {name}: give it another one with --name")
    for app in manifest.apps:
        # The markers of app `x` lie beside the statuses: `x-created` would look like the end of an app of that name.
        if _marks(name, app.name) or _marks(app.name, name):
            raise PodError(f'app "{name}" cannot be in a pod with app "{app.name}": give it another name with --name')
    volumes = {volume.name for volume in manifest.volumes}
    targets = [mount_target(mount) for mount in overrides.mounts]
    for mount, target in zip(overrides.mounts, targets):
        if mount.app_volume is None and mount.volume not in volumes:
            raise PodError(
                f'--mount: the pod has no volume "{mount.volume}" (its target is {mount.path}): --mnt-volume gives the'
                " app one of its own"
            )
        if targets.count(target) > 1:
            raise PodError(f"several mounts of the app have the target {target}")
    return PlannedApp(name=name, image=image), _runtime_app_json(name, image, overrides, defaults)


def with_app(data: bytes, source: str, entry: Json) -> bytes:
    """Return a pod's manifest with one more app; all other fields stay, known or not."""
    manifest, apps = _apps_of(data, source)
    apps.append(entry)
    changed = jsontext.dump(manifest)
    parse_pod_manifest(changed, source)
    return changed


def without_app(data: bytes, source: str, name: str) -> bytes:
    """Return a pod's manifest without an app; all else stays, known or not."""
    manifest, apps = _apps_of(data, source)
    apps[:] = [entry for entry in apps if _field(entry, "name") != name]
    return jsontext.dump(manifest)


def merge_mounts(own: Sequence[Mount], shared: Sequence[Mount]) -> tuple[Mount, ...]:
    """Return the mounts of one app: the app's own, then the pod's whose target is still free."""
    taken = {mount_target(mount) for mount in own}
    return (*own, *(mount for mount in shared if mount_target(mount) not in taken))


def mount_target(mount: Mount) -> str:
    """Return the canonical path of a mount's target in an app."""
    # Two slashes at the start would stay two.
    return posixpath.normpath(f"/./{mount.path}")


def unused_volumes(data: bytes) -> tuple[str, ...]:
    """Return the names of the volumes in a pod manifest that no app mounts."""
    pod = parse_pod_manifest(data, "new pod")
    used = {mount.volume for app in pod.apps for mount in app.mounts}
    used |= {point.name for app in pod.apps if app.app for point in app.app.mount_points}
    return tuple(volume.name for volume in pod.volumes if volume.name not in used)


def image_ids(data: bytes, source: str) -> tuple[tuple[str, str], ...]:
    """Return the apps of a user's pod manifest as (app name, image id) pairs; PodError for an app without image id."""
    pairs = []
    for app in parse_pod_manifest(data, source).apps:
        if app.image_id is None:
            raise PodError(f'{source}: app "{app.name}" has no image.id: name an image of the store')
        pairs.append((app.name, app.image_id))
    return tuple(pairs)


def complete_manifest(
    data: bytes, source: str, images: Mapping[str, StoredImage], insecure: frozenset[str] = frozenset()
) -> bytes:
    """
    Return a valid pod manifest of a user with the `app` section of every app present.

    `images` holds each app's image by the app's name; `insecure` is as in PodDefaults. A manifest that is complete
    already stays byte for byte.
    """
    manifest = jsontext.parse(data, source)
    completed = False
    entries = _field(manifest, "apps")
    for entry in entries if isinstance(entries, list) else []:
        if _field(entry, "app") is not None:
            continue
        name = str(_field(entry, "name"))
        app = images[name].manifest.app
        if app is None:
            raise PodError(f'{source}: app "{name}" has no "app" section, and its image has none either')
        refuse_excess(images[name].manifest, app.isolators, insecure)
        for key in [key for key in entry if key.lower() == "app"]:
            del entry[key]
        entry["app"] = app_json(app)
        if excess_of(name, app.isolators):
            _annotate(entry, Annotation.TRUSTED_ISOLATORS, "true")
        completed = True
    return jsontext.dump(manifest) if completed else data


def check_platform(image: ImageManifest) -> None:
    """Raise PodError unless the image names Linux and a machine, as every app's image must."""
    missing = [label for label in ("os", "arch") if image.label(label) is None]
    if missing:
        raise PodError(f'image "{image.name}" has no label "{missing[0]}": the image of an app needs "os" and "arch"')
    if image.label("os") != "linux":
        raise PodError(f'image "{image.name}" is for {image.label("os")}: apps run on linux only')


def _marks(app: str, other: str) -> bool:
    """Return whether a marker of an app has the name of another one's status."""
    return paths.status_file(other) in (paths.created_marker(app), paths.started_marker(app))


def _app_name(image: StoredImage, overrides: AppOverrides) -> str:
    name = overrides.name or sanitize_ac_name(image.name.rsplit("/", 1)[-1])
    if not is_ac_name(name):
        raise ManifestError(f'--name: expected lower-case letters, digits and inner dashes, got "{name}"')
    return name


def _new_manifest(entries: Sequence[Json], defaults: PodDefaults) -> bytes:
    user: Json = {"userAnnotations": dict(defaults.user_annotations), "userLabels": dict(defaults.user_labels)}
    manifest = {
        "acVersion": APPC_VERSION,
        "acKind": "PodManifest",
        "apps": entries,
        "volumes": [_volume_json(located(volume, defaults.data)) for volume in defaults.volumes] or None,
        "isolators": None,
        "annotations": pairs_json(_annotations(defaults)),
        "ports": [_port_json(port) for port in defaults.ports] or None,
        **{key: value for key, value in user.items() if value},
    }
    data = jsontext.dump(manifest)
    # Text that no reader would accept, such as bytes of the command line, is better refused now.
    check_ports(parse_pod_manifest(data, "new pod"), defaults.ports_place)
    return data


def _annotate(entry: dict[str, object], name: str, value: str) -> None:
    key = next((key for key in entry if key.lower() == "annotations"), "annotations")
    entries = entry.get(key)
    entry[key] = [*(entries if isinstance(entries, list) else ()), {"name": name, "value": value}]


def _apps_of(data: bytes, source: str) -> tuple[dict[str, object], list[object]]:
    """Return a pod's manifest and the manifest's list of apps."""
    manifest = jsontext.parse(data, source)
    if not isinstance(manifest, dict):
        raise ManifestError(f"{source}: expected an object")
    key = next((key for key in manifest if key.lower() == "apps"), "apps")
    apps = manifest.get(key)
    if not isinstance(apps, list):  # none is null to Go
        apps = manifest[key] = []
    return manifest, apps


def _runtime_app_json(name: str, image: StoredImage, overrides: AppOverrides, defaults: PodDefaults) -> Json:
    section = plan_app_section(image.manifest, overrides, defaults)
    of_image = [isolator for isolator in section.isolators if isolator not in overrides.isolators]
    refuse_excess(image.manifest, of_image, defaults.insecure)
    mounts = merge_mounts(overrides.mounts, defaults.mounts)
    modes = {f"{paths.ANNOTATION_STREAM}{stream}": getattr(overrides, stream) for stream in _STREAMS}
    annotations = dict(overrides.annotations) | {key: mode for key, mode in modes.items() if mode is not None}
    if not overrides.ignores_healthcheck and not defaults.is_mutable:
        annotations |= _healthcheck(image.manifest, annotations)
    if defaults.private_users:
        # Shared files have the owners of the disk: each pod has other ids.
        named = _named_volumes(mounts, section, defaults)
        annotations |= {Annotation.IDMAP: named} if named else {}
    if excess_of(name, section.isolators):
        annotations[Annotation.TRUSTED_ISOLATORS] = "true"
    optional: Json = {
        "readOnlyRootFS": overrides.read_only_root_fs,
        "mounts": [_mount_json(mount, defaults) for mount in mounts],
        "annotations": pairs_json(tuple(annotations.items())),
    }
    return {
        "name": name,
        "image": _image_json(image),
        "app": app_json(section),
        **{field: value for field, value in optional.items() if value},
    }


def _healthcheck(image: ImageManifest, annotations: dict[str, str]) -> dict[str, str]:
    """
    Return the annotation for a check as Docker has it: of the image, with the fields that the user has chosen.

    A check of the user's of another kind, or with a way of its own, is no such check. A failure is told, and no more.
    """
    of_image = _check_of_image(image)
    text = annotations.get(Annotation.HEALTH)
    own = {} if text is None else jsontext.parse(text.encode(), Annotation.HEALTH)
    if not isinstance(own, dict) or not own.keys() <= {"liveness"} or not isinstance(own.get("liveness", {}), dict):
        return {}
    chosen = own.get("liveness", {})
    if (not chosen and not of_image) or (chosen and "asApp" not in chosen):
        return {}
    check = {**_DOCKERS_CHECK, **of_image, **chosen}
    return {Annotation.HEALTH: jsontext.dump({"liveness": check}).decode()}


def _check_of_image(image: ImageManifest) -> dict[str, object]:
    """Return the fields of the check of an image, which may be hostile."""
    text = image.annotation(ANNOTATION_HEALTHCHECK)
    if text is None:
        return {}
    place = f'image "{image.name}": annotation {ANNOTATION_HEALTHCHECK}'
    check = jsontext.parse(text.encode(), place)
    if not isinstance(check, dict) or not check.keys() <= _CHECK_FIELDS:
        raise PodError(f"{place}: expected an object with some of {', '.join(sorted(_CHECK_FIELDS))}")
    return check


def _named_volumes(mounts: Sequence[Mount], section: App, defaults: PodDefaults) -> str:
    """Return the named volumes that an app mounts, separated by commas."""
    volumes = [mount.app_volume for mount in mounts if mount.app_volume]
    mounted = {mount.volume for mount in mounts} | {point.name for point in section.mount_points}
    volumes += [volume for volume in defaults.volumes if volume.name in mounted]
    return ",".join(sorted({volume.name for volume in volumes if volume.kind == NAMED}))


def _image_json(image: StoredImage) -> Json:
    labels = pairs_json(image.manifest.labels)
    return {"name": image.name, "id": image.id, **({"labels": labels} if labels else {})}


def _mount_json(mount: Mount, defaults: PodDefaults) -> Json:
    volume = mount.app_volume
    own: Json = {} if volume is None else {"appVolume": _volume_json(located(volume, defaults.data))}
    return {"volume": mount.volume, "path": mount.path, **own}


def _volume_json(volume: Volume) -> Json:
    fields: Json = {
        "name": volume.name,
        "kind": volume.kind,
        "source": volume.source,
        "readOnly": volume.read_only,
        "recursive": volume.recursive,
        "mode": volume.mode,
        "uid": volume.uid,
        "gid": volume.gid,
    }
    return {field: value for field, value in fields.items() if value is not None}


def _port_json(port: ExposedPort) -> Json:
    optional: Json = {} if port.host_ip is None else {"hostIP": port.host_ip}
    if port.pod_port is not None:
        optional["podPort"] = port_json(port.pod_port)
    return {"name": port.name, "hostPort": port.host_port, **optional}


def _field(value: object, key: str) -> object:
    """Return a field of a JSON object by a key in any case, as Go finds it."""
    if not isinstance(value, dict):
        return None
    return next((item for name, item in value.items() if name.lower() == key), None)
