"""The manifest of an image that is made of another one: that image's, with what a user says instead. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base import jsontext
from minit.base.value import Value
from minit.manifest.image import parse_image_manifest

Pairs = Sequence[tuple[str, str]]

# Of the converted image alone: which one it was, in Docker's words.
_OF_THE_SOURCE = ("originalname", "imageid", "parentimageid", "manifesthash")
_COMMANDS = ("entrypoint", "cmd")
_DOCKER = "appc.io/docker/"


class ImageChanges(Value):
    """What an image has instead of that of the image it is made from; None, or nothing, leaves the other's."""

    name: str
    exec: tuple[str, ...] = ()
    user: str | None = None
    group: str | None = None
    environment: tuple[tuple[str, str], ...] = ()
    working_directory: str | None = None
    ports: tuple[tuple[str, str, int], ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    labels: tuple[tuple[str, str], ...] = ()


def built_manifest(base: bytes, changes: ImageChanges) -> bytes:
    """Return the manifest of an image that has all files of its own; ManifestError for what cannot be one."""
    document = jsontext.parse(base, "image manifest")
    assert isinstance(document, dict)
    # The files that these are about are in the image now.
    manifest = {key: value for key, value in document.items() if key not in ("dependencies", "pathWhitelist")}
    manifest["name"] = changes.name
    version = [] if any(name == "version" for name, _ in changes.labels) else ["version"]
    manifest["labels"] = _merged(manifest.get("labels"), changes.labels, dropped=version)
    dropped = [*_OF_THE_SOURCE, *(_COMMANDS if changes.exec else ())]
    manifest["annotations"] = _merged(manifest.get("annotations"), (), dropped=[f"{_DOCKER}{word}" for word in dropped])
    app = dict(manifest.get("app") or {"exec": [], "user": "0", "group": "0"})
    given = {"user": changes.user, "group": changes.group, "workingDirectory": changes.working_directory}
    app |= {key: value for key, value in given.items() if value is not None}
    if changes.exec:
        app["exec"] = list(changes.exec)
    app["environment"] = _merged(app.get("environment"), changes.environment)
    ports = [{"name": name, "protocol": protocol, "port": port} for name, protocol, port in changes.ports]
    points = [{"name": name, "path": path} for name, path in changes.mounts]
    for key, added in (("ports", ports), ("mountPoints", points)):
        names = {entry["name"] for entry in added}
        app[key] = [entry for entry in app.get(key) or () if entry["name"] not in names] + added
    manifest["app"] = app
    data = jsontext.dump(manifest)
    parse_image_manifest(data, "new image")
    return data


def _merged(pairs: object, changes: Pairs, dropped: Sequence[str] = ()) -> list[dict[str, str]]:
    """Return name-value pairs of a manifest with changes of them, each at its place."""
    entries = pairs if isinstance(pairs, list) else []
    values = {entry["name"]: entry["value"] for entry in entries if entry["name"] not in dropped} | dict(changes)
    return [{"name": name, "value": value} for name, value in values.items()]
