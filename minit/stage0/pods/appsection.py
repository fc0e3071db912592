"""
The `app` section of an app: the image's section with a user's settings, and the JSON.

Pure. Precedence, order of fields and omitted fields are those of rkt's stage0.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from minit.base import jsontext
from minit.base.errors import PodError
from minit.base.value import Value, replace
from minit.manifest.app import (
    CAPABILITIES_REMOVE,
    CAPABILITIES_RETAIN,
    CPU,
    CPU_SHARES,
    MEMORY,
    NO_NEW_PRIVILEGES,
    OOM_SCORE_ADJ,
    SECCOMP_REMOVE,
    SECCOMP_RETAIN,
    App,
    Isolator,
    MountPoint,
    Port,
)
from minit.manifest.excess import excess_of
from minit.manifest.image import ANNOTATION_ENTRYPOINT, ImageManifest
from minit.manifest.pod import ExposedPort, Mount, Volume

Pairs = tuple[tuple[str, str], ...]
Json = dict[str, object]


# The isolators of options, in rkt's order. Isolators of the image with the same names are replaced, but limits of
# resources are only added: stage1 takes the last limit.
_ADDED_ISOLATORS = ((MEMORY,), (CPU,))
_REPLACED_ISOLATORS = (
    (CPU_SHARES,),
    (OOM_SCORE_ADJ,),
    (CAPABILITIES_RETAIN, CAPABILITIES_REMOVE),
    (SECCOMP_RETAIN, SECCOMP_REMOVE),
    (NO_NEW_PRIVILEGES,),
)

IMAGE_ISOLATORS = "image-isolators"
PROFILE_FILE = "profile="
"""What stands before the path in AppOverrides.seccomp."""
# The options by which a user gives settings that an image may not have.
_OPTIONS = {
    OOM_SCORE_ADJ: "--oom-score-adj",
    CPU_SHARES: "--cpu-shares",
    CAPABILITIES_RETAIN: "--caps-retain",
    SECCOMP_RETAIN: "--seccomp",
    SECCOMP_REMOVE: "--seccomp",
}


class Device(Value):
    """A device of the host, or a directory with devices, the place in an app, and the uses there, letters of `rwm`."""

    source: str
    target: str
    access: str = "rwm"


class AppOverrides(Value):
    """A user's settings for one app beside its image; None, or nothing, leaves the image's own."""

    name: str | None = None
    exec: str | None = None
    command: str | None = None
    """In the place of an image's command in Docker's sense, after its entrypoint."""
    arguments: tuple[str, ...] = ()
    only_arguments: bool = False
    """True if `arguments`, if there are any, stand in the place of those of the image instead of after them."""
    is_command_line: bool = False
    """True if `arguments` are Docker's: in the place of the command of an image of Docker's, or behind the program."""
    user: str | None = None
    group: str | None = None
    working_directory: str | None = None
    supplementary_gids: tuple[int, ...] | None = None
    environment: Pairs = ()
    read_only_root_fs: bool = False
    mount_points: tuple[MountPoint, ...] = ()
    """Before those of the image: the first of several for a volume decides."""
    mounts: tuple[Mount, ...] = ()
    devices: tuple[Device | str, ...] = ()
    """Some by the name that their vendor's file has for them, `vendor/class=name`."""
    added_capabilities: frozenset[str] = frozenset()
    """Beside the default ones; CAP_ALL for all."""
    dropped_capabilities: frozenset[str] = frozenset()
    """Of the default ones; with CAP_ALL only the added ones stay."""
    ignores_healthcheck: bool = False
    """True if the check that the image asks for is left out."""
    isolators: tuple[Isolator, ...] = ()
    """Of several for one purpose the last counts."""
    seccomp: str | None = None
    """In the place of the default list of system calls: a word of the annotation minit/seccomp, or `profile=FILE`."""
    annotations: Pairs = ()
    user_annotations: Pairs = ()
    user_labels: Pairs = ()
    signature: str | None = None
    """A file with the signature of an image in a file."""
    stdin: str | None = None
    stdout: str | None = None
    stderr: str | None = None


class PodSettings(Value):
    """A user's settings for all apps of a pod or for the pod as a whole."""

    host_pids: bool = False
    is_mutable: bool = False
    """Apps are added while the pod runs."""
    inherited: Pairs = ()
    """Environment, only for names that nothing else sets."""
    from_file: Pairs = ()
    environment: Pairs = ()
    volumes: tuple[Volume, ...] = ()
    mounts: tuple[Mount, ...] = ()
    ports: tuple[ExposedPort, ...] = ()
    ports_place: str = "--port"
    """The words of the user for ports, which errors name."""
    annotations: Pairs = ()
    user_annotations: Pairs = ()
    user_labels: Pairs = ()


class PodDefaults(PodSettings):
    """A user's settings, with the user's ids and rights."""

    uid: int
    gid: int
    data: Path
    """The data directory, where named volumes are."""
    private_users: bool = False
    insecure: frozenset[str] = frozenset()
    """Words of --insecure-options."""


def plan_app_section(image: ImageManifest, overrides: AppOverrides, defaults: PodDefaults) -> App:
    """Return the app section of a new pod's app; PodError if there is nothing to execute."""
    app = image.app
    if app is None:
        if overrides.exec is None:
            raise PodError(f'image "{image.name}" has no "app" section (try --exec=BINARY)')
        app = App(exec=(), user=str(defaults.uid), group=str(defaults.gid))
    command = app.exec if overrides.exec is None else (overrides.exec,)
    if overrides.command is not None:
        command = (*_entrypoint(image), overrides.command)
    elif overrides.is_command_line and overrides.exec is None and image.from_docker:
        command = _entrypoint(image)
    if not command and not (overrides.is_command_line and overrides.arguments):
        raise PodError(f'image "{image.name}" has an empty "exec" (try --exec=BINARY)')
    if overrides.only_arguments and overrides.arguments and overrides.command is None:
        command = command[:1]
    changes: dict[str, Any] = {
        "user": overrides.user,
        "group": overrides.group,
        "working_directory": overrides.working_directory,
        "supplementary_gids": _supplementary_gids(overrides),
        "user_annotations": tuple(dict(overrides.user_annotations).items()) or None,
        "user_labels": tuple(dict(overrides.user_labels).items()) or None,
    }
    return replace(
        app,
        exec=command + overrides.arguments,
        environment=merge_environment(app.environment, overrides.environment, defaults),
        mount_points=(*overrides.mount_points, *app.mount_points),
        isolators=merge_isolators(app.isolators, overrides.isolators),
        **{field: value for field, value in changes.items() if value is not None},
    )


def _entrypoint(image: ImageManifest) -> tuple[str, ...]:
    """Return the entrypoint of an image of Docker's format; PodError for another one, which does not tell it apart."""
    if not image.from_docker:
        raise PodError(
            f'image "{image.name}" has no command apart from its entrypoint, as it is none of Docker or OCI: --exec'
            " replaces all of its program"
        )
    text = image.annotation(ANNOTATION_ENTRYPOINT)
    words = [] if text is None else jsontext.parse(text.encode(), f'image "{image.name}": {ANNOTATION_ENTRYPOINT}')
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise PodError(f'image "{image.name}": annotation {ANNOTATION_ENTRYPOINT}: expected a list of words')
    return tuple(words)


def refuse_excess(image: ImageManifest, isolators: Sequence[Isolator], insecure: frozenset[str]) -> None:
    """Raise PodError if the image's own isolators give more than the default, unless `insecure` allows more."""
    excess = [each for each in excess_of(image.name, isolators) if each.kind not in insecure]
    if excess and IMAGE_ISOLATORS not in insecure:
        wanted = " and ".join(each.describe() for each in excess)
        options = ", ".join(_OPTIONS[each.isolator] for each in excess)
        raise PodError(
            f'image "{image.name}" asks for more than an app has by default: {wanted}: say it yourself ({options}), or'
            f" trust the image (--insecure-options={IMAGE_ISOLATORS})"
        )


def _supplementary_gids(overrides: AppOverrides) -> tuple[int, ...] | None:
    """Return the groups instead of the image's; None keeps the image's groups."""
    if overrides.supplementary_gids is None and (overrides.user, overrides.group) != (None, None):
        return ()  # whom the user has chosen is in no group of the image's choice
    return overrides.supplementary_gids


def merge_environment(image: Pairs, app: Pairs, defaults: PodDefaults) -> Pairs:
    """Return one app's environment: later sources win, and a replaced variable keeps its place."""
    merged: dict[str, str] = {}
    for source in (image, app, defaults.from_file, defaults.environment):
        merged.update(source)
    for name, value in defaults.inherited:
        merged.setdefault(name, value)
    return tuple(merged.items())


def merge_isolators(image: Sequence[Isolator], own: Sequence[Isolator]) -> tuple[Isolator, ...]:
    """Return the image's isolators and the user's, in rkt's order."""
    merged = list(image)
    for names in (*_ADDED_ISOLATORS, *_REPLACED_ISOLATORS):
        chosen = [isolator for isolator in own if isolator.name in names]
        if chosen and names in _REPLACED_ISOLATORS:
            merged = [isolator for isolator in merged if isolator.name not in names]
        merged += chosen[-1:]
    return tuple(merged)


def app_json(app: App) -> Json:
    """Return an app section in rkt's order of fields, without the empty fields that rkt omits."""
    optional: Json = {
        "eventHandlers": [{"name": event.name, "exec": list(event.exec)} for event in app.event_handlers],
        "supplementaryGIDs": list(app.supplementary_gids),
        "workingDirectory": app.working_directory,
        "environment": pairs_json(app.environment),
        "mountPoints": [
            {"name": point.name, "path": point.path, **({"readOnly": True} if point.read_only else {})}
            for point in app.mount_points
        ],
        "ports": [port_json(port) for port in app.ports],
        "isolators": [{"name": isolator.name, "value": isolator.value} for isolator in app.isolators],
        "userAnnotations": dict(app.user_annotations),
        "userLabels": dict(app.user_labels),
    }
    required: Json = {"exec": list(app.exec), "user": app.user, "group": app.group}
    return {**required, **{field: value for field, value in optional.items() if value}}


def port_json(port: Port) -> Json:
    """Return a port of an app, or of a pod, as appc has it."""
    return {
        "name": port.name,
        "protocol": port.protocol,
        "port": port.port,
        "count": port.count,
        "socketActivated": port.socket_activated,
    }


def pairs_json(pairs: Sequence[tuple[str, str]]) -> list[Json]:
    """Return names and values as appc's lists have them."""
    return [{"name": name, "value": value} for name, value in pairs]
