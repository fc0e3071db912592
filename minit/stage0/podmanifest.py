"""
Pod manifests: from images and what the user overrides to the JSON that stage1 reads.

Pure. Every app gets its `app` section written out in full, because rkt crashes on pods that leave it to the image.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit import jsontext, paths
from minit.errors import ManifestError, PodError
from minit.manifest.app import App
from minit.manifest.image import APPC_VERSION, ImageManifest
from minit.manifest.names import is_ac_name, sanitize_ac_name
from minit.manifest.pod import parse_pod_manifest
from minit.stage0.store import StoredImage
from minit.value import Value, replace

Environment = tuple[tuple[str, str], ...]
Json = dict[str, object]


class AppOverrides(Value):
    """What a user asks for one app beside its image; None leaves the image's own."""

    name: str | None = None
    exec: str | None = None
    arguments: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None
    working_directory: str | None = None
    supplementary_gids: tuple[int, ...] | None = None
    environment: Environment = ()


class PodDefaults(Value):
    """What holds for every app of a pod: the environment a user asks for, and the ids of who asks."""

    uid: int
    gid: int
    inherited: Environment = ()
    """Only for names that nothing else sets."""
    from_file: Environment = ()
    set: Environment = ()


class PlannedApp(Value):
    """An app of a pod to be, and the image it is made from."""

    name: str
    image: StoredImage


def plan_apps(
    images: Sequence[tuple[StoredImage, AppOverrides]], defaults: PodDefaults
) -> tuple[tuple[PlannedApp, ...], bytes]:
    """Return the apps of a new immutable pod and its manifest; PodError for what cannot be one."""
    apps: list[PlannedApp] = []
    entries: list[Json] = []
    for image, overrides in images:
        check_platform(image.manifest)
        name = overrides.name or sanitize_ac_name(image.name.rsplit("/", 1)[-1])
        if not is_ac_name(name):
            raise ManifestError(f'--name: expected lower-case letters, digits and inner dashes, got "{name}"')
        if any(name == app.name for app in apps):
            raise PodError(f'several apps are named "{name}": give them different names with --name')
        apps.append(PlannedApp(name=name, image=image))
        app = _overridden(image.manifest, overrides, defaults)
        entries.append({"name": name, "image": _image_json(image), "app": _app_json(app)})
    manifest = {
        "acVersion": APPC_VERSION,
        "acKind": "PodManifest",
        "apps": entries,
        "volumes": None,
        "isolators": None,
        "annotations": [{"name": paths.ANNOTATION_MUTABLE, "value": "false"}],
        "ports": None,
    }
    data = jsontext.dump(manifest)
    # What no reader would take, such as bytes of the command line that are no text, is better refused now.
    parse_pod_manifest(data, "new pod")
    return tuple(apps), data


def image_ids(data: bytes, source: str) -> tuple[tuple[str, str], ...]:
    """Return the apps of a user's pod manifest as (app name, image id) pairs; PodError if one has no image id."""
    pairs = []
    for app in parse_pod_manifest(data, source).apps:
        if app.image_id is None:
            raise PodError(f'{source}: app "{app.name}" has no image.id: name an image of the store')
        pairs.append((app.name, app.image_id))
    return tuple(pairs)


def complete_manifest(data: bytes, source: str, images: Mapping[str, StoredImage]) -> bytes:
    """
    Return a valid pod manifest of a user with the `app` section of every app present.

    `images` holds each app's image by the app's name. A manifest that is complete already stays byte for byte.
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
        for key in [key for key in entry if key.lower() == "app"]:
            del entry[key]
        entry["app"] = _app_json(app)
        completed = True
    return jsontext.dump(manifest) if completed else data


def check_platform(image: ImageManifest) -> None:
    """Raise PodError unless the image says that it is for Linux, and for which machine, as every app's image must."""
    missing = [label for label in ("os", "arch") if image.label(label) is None]
    if missing:
        raise PodError(f'image "{image.name}" has no label "{missing[0]}": the image of an app needs "os" and "arch"')
    if image.label("os") != "linux":
        raise PodError(f'image "{image.name}" is for {image.label("os")}: apps run on linux only')


def merge_environment(image: Environment, app: Environment, defaults: PodDefaults) -> Environment:
    """Return one app's environment: later sources win, and what they replace keeps its place."""
    merged: dict[str, str] = {}
    for source in (image, app, defaults.from_file, defaults.set):
        merged.update(source)
    for name, value in defaults.inherited:
        merged.setdefault(name, value)
    return tuple(merged.items())


def _overridden(image: ImageManifest, overrides: AppOverrides, defaults: PodDefaults) -> App:
    app = image.app
    if app is None:
        if overrides.exec is None:
            raise PodError(f'image "{image.name}" has no "app" section (try --exec=BINARY)')
        app = App(exec=(), user=str(defaults.uid), group=str(defaults.gid))
    command = app.exec if overrides.exec is None else (overrides.exec,)
    if not command:
        raise PodError(f'image "{image.name}" has an empty "exec" (try --exec=BINARY)')
    changes = {
        "user": overrides.user,
        "group": overrides.group,
        "working_directory": overrides.working_directory,
        "supplementary_gids": overrides.supplementary_gids,
    }
    return replace(
        app,
        exec=command + overrides.arguments,
        environment=merge_environment(app.environment, overrides.environment, defaults),
        **{field: value for field, value in changes.items() if value is not None},
    )


def _image_json(image: StoredImage) -> Json:
    labels = _pairs_json(image.manifest.labels)
    return {"name": image.name, "id": image.id, **({"labels": labels} if labels else {})}


def _app_json(app: App) -> Json:
    """Return an app section in rkt's order of fields, leaving out the empty ones that rkt leaves out."""
    optional: Json = {
        "eventHandlers": [{"name": event.name, "exec": list(event.exec)} for event in app.event_handlers],
        "supplementaryGIDs": list(app.supplementary_gids),
        "workingDirectory": app.working_directory,
        "environment": _pairs_json(app.environment),
        "mountPoints": [
            {"name": point.name, "path": point.path, **({"readOnly": True} if point.read_only else {})}
            for point in app.mount_points
        ],
        "ports": [
            {
                "name": port.name,
                "protocol": port.protocol,
                "port": port.port,
                "count": port.count,
                "socketActivated": port.socket_activated,
            }
            for port in app.ports
        ],
        "isolators": [{"name": isolator.name, "value": isolator.value} for isolator in app.isolators],
        "userAnnotations": dict(app.user_annotations),
        "userLabels": dict(app.user_labels),
    }
    required: Json = {"exec": list(app.exec), "user": app.user, "group": app.group}
    return {**required, **{field: value for field, value in optional.items() if value}}


def _pairs_json(pairs: Sequence[tuple[str, str]]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in pairs]


def _field(value: object, key: str) -> object:
    """Return a field of a JSON object by a key in any case, as Go finds it."""
    if not isinstance(value, dict):
        return None
    return next((item for name, item in value.items() if name.lower() == key), None)
