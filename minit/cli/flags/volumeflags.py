"""`--volume` and `--mount`: storage of a pod, and the places in the apps. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from urllib.parse import unquote

from minit.base.errors import ManifestError
from minit.base.goflags import BOOLEANS
from minit.base.jsontext import dump
from minit.cli.flagwords import FlagError, parse_number
from minit.manifest.annotations import Annotation
from minit.manifest.app import MAX_ID
from minit.manifest.limits import docker_quantity
from minit.manifest.names import is_ac_name, sanitize_ac_name
from minit.manifest.pod import Mount, Volume, is_volume_mode
from minit.stage0.images.treestore import IMAGE
from minit.stage0.pods.podmanifest import mount_target
from minit.stage0.volumes import NAME_FORM, NAMED, is_volume_name

VOLUME_FORM = (
    "NAME,kind=host,source=PATH, NAME,kind=named, NAME,kind=image,source=IMAGE, NAME,kind=empty or SOURCE:TARGET[:ro]"
)
MOUNT_FORM = "volume=NAME,target=PATH"

_NAME_FORM = "a name of lower-case letters, digits and inner dashes"
MOUNTED_VOLUME_FORM = "name=NAME,kind=KIND,target=PATH,..."

_EMPTY_DEFAULTS = {"mode": "0755", "uid": "0", "gid": "0"}
# The fields of a volume of each kind beside readOnly and recursive.
_KIND_FIELDS = {"host": ("source",), "named": ("source",), IMAGE: ("source",), "empty": tuple(_EMPTY_DEFAULTS)}
# z and Z are for SELinux, whose contexts are left as they are.
_SHORT_OPTIONS = {"ro": True, "rw": False, "z": False, "Z": False}
# A file system in memory has or may have these options anyway.
_TMPFS_WORDS = ("rw", "noexec", "nosuid", "nodev", "exec")
_VOLUME_FIELDS = ("kind", "source", "readOnly", "recursive", *_EMPTY_DEFAULTS)


def parse_volume(flag: str, text: str) -> Volume:
    """Return the volume of `NAME,kind=KIND,...`, with the schema's defaults; FlagError, naming `flag`."""
    name, _, rest = text.partition(",")
    if not is_ac_name(name):
        raise FlagError(f'{flag}: expected {VOLUME_FORM}, with {_NAME_FORM}, got "{text}"')
    place = f"{flag} {name}"
    return _make_volume(place, name, _read_fields(place, rest, _VOLUME_FIELDS))


def is_short(text: str) -> bool:
    """Tell whether a volume is written as docker has it, `[SOURCE:]TARGET`: a name of rkt's form has no colon."""
    return ":" in text.partition(",")[0] or text.startswith(("/", "."))


def parse_storage(flag: str, texts: Sequence[str], directory: str) -> tuple[tuple[Volume, ...], tuple[Mount, ...]]:
    """
    Return the volumes of a pod, and the mounts in all apps for volumes of the short form; FlagError.

    Relative paths of the host begin in `directory`.
    """
    volumes: list[Volume] = []
    mounts: list[Mount] = []
    for text in texts:
        if not is_short(text):
            volumes.append(parse_volume(flag, text))
            continue
        volume, target = _parse_short(flag, text, directory)
        # One volume at several places.
        if volume not in volumes:
            volumes.append(volume)
        mounts.append(Mount(volume=volume.name, path=target))
    return tuple(volumes), tuple(mounts)


def _parse_short(flag: str, text: str, directory: str) -> tuple[Volume, str]:
    if ":" not in text:
        if not text.startswith("/"):
            raise FlagError(f'{flag}: expected SOURCE:TARGET[:ro], or an absolute TARGET alone, got "{text}"')
        return Volume(name=_short_name(flag, text), kind="empty", mode="0755", uid=0, gid=0), text
    source, target, *words = text.split(":")
    if source.startswith("."):
        source = posixpath.normpath(posixpath.join(directory, source))
    if len(words) > 1 or not target.startswith("/"):
        raise FlagError(f'{flag}: expected SOURCE:TARGET[:ro] with an absolute path as TARGET, got "{text}"')
    options = words[0].split(",") if words else []
    for option in options:
        if option not in _SHORT_OPTIONS:
            raise FlagError(f'{flag} {source}: expected {", ".join(_SHORT_OPTIONS)} after the target, got "{option}"')
    kind = "host" if source.startswith("/") else NAMED
    if kind == NAMED:
        _check_volume_name(flag, source)
    name = _short_name(flag, source)
    read_only = any(map(_SHORT_OPTIONS.__getitem__, options))
    name = f"{name}-ro" if read_only else name  # beside one that can be written
    return Volume(name=name, kind=kind, source=source, read_only=read_only), target


def _short_name(flag: str, source: str) -> str:
    try:
        return sanitize_ac_name(source)
    except ManifestError as error:
        raise FlagError(f"{flag} {source}: {error}") from error


def parse_tmpfs(flag: str, texts: Sequence[str]) -> tuple[tuple[Volume, ...], tuple[Mount, ...], dict[str, str]]:
    """Return the volumes in memory of `PATH[:OPTIONS]`, the mounts in all apps, and the annotation of the pod."""
    volumes: list[Volume] = []
    mounts: list[Mount] = []
    sizes: dict[str, dict[str, str]] = {}
    for text in texts:
        path, _, words = text.partition(":")
        if not path.startswith("/"):
            raise FlagError(f'{flag}: expected PATH[:OPTIONS] with an absolute path, got "{text}"')
        place, name = f"{flag} {path}", f"tmpfs-{len(volumes)}"
        plain = [word for word in words.split(",") if word in _TMPFS_WORDS]
        fields = _read_fields(place, ",".join(word for word in words.split(",") if word not in plain), ("size", "mode"))
        mode = _read_mode(place, {"mode": fields.get("mode", "1777").zfill(4)})
        volumes.append(Volume(name=name, kind="empty", mode=mode, uid=0, gid=0))
        mounts.append(Mount(volume=name, path=path))
        sizes[name] = {"size": docker_quantity(fields["size"])} if "size" in fields else {}
    return tuple(volumes), tuple(mounts), {Annotation.MEMORY_VOLUMES: dump(sizes).decode()} if sizes else {}


def _check_volume_name(place: str, name: str) -> None:
    if not is_volume_name(name):
        raise FlagError(f'{place}: expected {NAME_FORM}, or an absolute path, got "{name}"')


def parse_mounted_volume(flag: str, text: str) -> Mount:
    """Return the mount of an app's volume from `name=NAME,kind=KIND,target=PATH,...`; FlagError."""
    fields = _read_fields(flag, text, ("name", "target", *_VOLUME_FIELDS))
    name, target = fields.pop("name", ""), fields.pop("target", "")
    if not name or not target:
        raise FlagError(f'{flag}: expected {MOUNTED_VOLUME_FORM}, got "{text}"')
    if not is_ac_name(name):
        raise FlagError(f'{flag}: name: expected {_NAME_FORM}, got "{name}"')
    return Mount(volume=name, path=target, app_volume=_make_volume(f"{flag} {name}", name, fields))


def _make_volume(place: str, name: str, fields: dict[str, str]) -> Volume:
    kind = fields.get("kind", "")
    if kind not in _KIND_FIELDS:
        raise FlagError(f'{place}: expected kind=host, kind=named, kind=image or kind=empty, got "{kind}"')
    foreign = [key for key in fields if key in ("source", *_EMPTY_DEFAULTS) and key not in _KIND_FIELDS[kind]]
    if foreign:
        raise FlagError(f"{place}: a volume of kind {kind} has no {foreign[0]}")
    if kind == "empty":
        fields = _EMPTY_DEFAULTS | fields
    elif kind == NAMED:
        fields = {"source": name} | fields
        _check_volume_name(place, fields["source"])
    elif kind == IMAGE:
        if not fields.get("source"):
            raise FlagError(f"{place}: expected source=IMAGE")
        if _read_boolean(place, "readOnly", fields) is False:
            raise FlagError(f"{place}: readOnly: an image is always read-only")
    elif not (source := fields.get("source", "")).startswith("/"):
        raise FlagError(f'{place}: expected source=PATH with an absolute path, got "{source}"')
    return Volume(
        name=name,
        kind=kind,
        source=fields.get("source"),
        read_only=_read_boolean(place, "readOnly", fields),
        recursive=_read_boolean(place, "recursive", fields),
        mode=_read_mode(place, fields),
        uid=_read_id(place, "uid", fields),
        gid=_read_id(place, "gid", fields),
    )


def parse_mount(flag: str, text: str) -> Mount:
    """Return the mount of `volume=NAME,target=PATH`; FlagError, naming `flag`."""
    fields = _read_fields(flag, text, ("volume", "target"))
    volume, target = fields.get("volume", ""), fields.get("target", "")
    if not volume or not target:
        raise FlagError(f'{flag}: expected {MOUNT_FORM}, got "{text}"')
    if not is_ac_name(volume):
        raise FlagError(f'{flag}: volume: expected {_NAME_FORM}, got "{volume}"')
    return Mount(volume=volume, path=target)


def check_volumes(volumes: Sequence[Volume], shared: Sequence[Mount], own: Sequence[Sequence[Mount]]) -> None:
    """
    Raise FlagError for volumes and mounts that contradict each other.

    `shared` are the mounts for all apps, `own` those of each app.
    """
    names = [volume.name for volume in volumes]
    for name in names:
        if names.count(name) > 1:
            raise FlagError(f'--volume: several volumes are named "{name}"')
    for mounts in (shared, *own):
        targets = [mount_target(mount) for mount in mounts]
        for mount, target in zip(mounts, targets):
            if mount.volume not in names:
                raise FlagError(f'--mount: no --volume is named "{mount.volume}" (its target is {mount.path})')
            if targets.count(target) > 1:
                raise FlagError(f"--mount: several mounts of one app have the target {target}")


def _read_fields(place: str, text: str, known: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE pairs that are separated by commas, with %2C for a comma of a value, as rkt has it."""
    fields: dict[str, str] = {}
    for word in text.split(",") if text else ():
        key, separator, value = word.partition("=")
        if not separator or key not in known:
            raise FlagError(f'{place}: expected {", ".join(f"{key}=..." for key in known)}, got "{word}"')
        if key in fields:
            raise FlagError(f"{place}: {key} is given twice")
        fields[key] = unquote(value)
    return fields


def _read_boolean(place: str, key: str, fields: dict[str, str]) -> bool | None:
    text = fields.get(key)
    if text is None:
        return None
    if text not in BOOLEANS:
        raise FlagError(f'{place}: {key}: expected true or false, got "{text}"')
    return BOOLEANS[text]


def _read_mode(place: str, fields: dict[str, str]) -> str | None:
    text = fields.get("mode")
    if text is not None and not is_volume_mode(text):
        raise FlagError(f'{place}: mode: expected an octal mode like "0755", got "{text}"')
    return text


def _read_id(place: str, key: str, fields: dict[str, str]) -> int | None:
    text = fields.get(key)
    return None if text is None else parse_number(f"{place}: {key}", text, 0, MAX_ID)
