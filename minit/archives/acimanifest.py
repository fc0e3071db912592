"""
An image's configuration as the manifest of an ACI: exec, user, ports, volumes and annotations as docker2aci made them.

Beyond docker2aci, the stop signal becomes minit's annotation, and labels become user labels whatever the image was read
from. An image of one name is the same ACI on every way that it can take, so nothing is noted that the way decides: the
words of the user, the digests of documents, and what programs drop that rewrite an image for another format. The
annotation `appc.io/docker/chainid` stands for all layers instead, OCI config.md.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from posixpath import join, normpath

from minit.archives.imageconfig import ImageConfig
from minit.archives.imagenames import sanitize_ac_identifier
from minit.archives.layered import LayeredImage
from minit.archives.platforms import choose_platform, platform_text
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError
from minit.base.processors import PROCESSORS, Processor, this_processor
from minit.manifest.annotations import Annotation
from minit.manifest.image import APPC_VERSION
from minit.manifest.names import is_variable_name, sanitize_ac_name

_DOCKER = "appc.io/docker/"
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_PORT = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/([A-Za-z]+))?")
_PORT_LIMIT = 65535
_SIGNAL = re.compile(r"[A-Z0-9+-]{1,20}")

Json = dict[str, object]


def convert_manifest(image: LayeredImage) -> bytes:
    """Return the manifest of the ACI that an image becomes; ImageError for what appc has no words for."""
    manifest: Json = {
        "acKind": "ImageManifest",
        "acVersion": APPC_VERSION,
        "name": sanitize_ac_identifier(image.name.whole),
        "labels": _pairs(_labels(image)),
        "app": _app(image),
        "annotations": _pairs(_annotations(image)),
    }
    return jsontext.dump(manifest)


def check_processor(image: LayeredImage, processor: Processor) -> None:
    """Raise ImageError unless a machine with that processor can run the image."""
    platform = image.config.platform
    if choose_platform([platform], processor) is not None:
        return
    other = f"this machine is {platform_text(processor)}"
    remedy = f"copy it with: skopeo --override-os linux --override-arch {processor.architecture} copy"
    if processor != this_processor():
        other = f"not for {platform_text(processor)}"
    else:
        fitting = next((one.name for one in PROCESSORS if choose_platform([platform], one) is not None), None)
        remedy += f", or take it for another machine with: --arch={fitting}" if fitting is not None else ""
    raise ImageError(f"{image.source}: the image is for {platform.text or 'an unknown platform'}, {other}: {remedy}")


def _labels(image: LayeredImage) -> Iterable[tuple[str, str]]:
    platform = image.config.platform
    if image.name.tag is not None:
        yield "version", image.name.tag
    if platform.os:
        yield "os", platform.os
    if platform.architecture:
        yield "arch", platform.appc_architecture


def _annotations(image: LayeredImage) -> Iterable[tuple[str, str]]:
    config, name = image.config, image.name
    found = {
        "authors": config.author,
        "created": config.created if _CREATED.fullmatch(config.created) else "",
        _DOCKER + "originalname": name.canonical if name.registry else "",
        _DOCKER + "registryurl": name.registry,
        _DOCKER + "repository": name.repository,
        _DOCKER + "tag": name.tag or "",
        _DOCKER + "chainid": _chain_id(config.diff_ids),
        _DOCKER + "entrypoint": _word_list(config.entrypoint),
        _DOCKER + "cmd": _word_list(config.command),
        Annotation.STOP_SIGNAL: _stop_signal(image),
    }
    return ((key, value) for key, value in found.items() if value)


def _chain_id(diff_ids: tuple[str, ...]) -> str:
    """Return the digest of all layers as they lie upon one another."""
    chain = ""
    for diff_id in diff_ids:
        chain = f"sha256:{hashlib.sha256(f'{chain} {diff_id}'.encode()).hexdigest()}" if chain else diff_id
    return chain


def _app(image: LayeredImage) -> Json:
    config = image.config
    user, colon, group = config.user.partition(":")
    app: Json = {
        "exec": [*config.entrypoint, *config.command],
        "user": user or "0",
        # Which groups a user has is known only inside the image; rkt took the user's name for the group's.
        "group": (group if colon else user) or "0",
    }
    optional: Json = {
        "environment": _pairs(_environment(image)),
        "workingDirectory": normpath(join("/", config.working_directory)) if config.working_directory else "",
        "mountPoints": _mount_points(config),
        "ports": _ports(image),
        "userLabels": dict(sorted(config.labels)),
    }
    return {**app, **{key: value for key, value in optional.items() if value}}


def _environment(image: LayeredImage) -> Iterable[tuple[str, str]]:
    variables: dict[str, str] = {}
    for text in image.config.environment:
        name, equals, value = text.partition("=")
        if not equals:
            continue  # means nothing, to docker as well
        if not is_variable_name(name):
            raise ImageError(
                f"{image.source}: the environment variable {jsontext.quote(name)[:80]} cannot be given to an app:"
                " expected printable ASCII"
            )
        variables[name] = value
    return variables.items()


def _mount_points(config: ImageConfig) -> list[Json]:
    points: dict[str, Json] = {}
    for path in config.volumes:
        base = name = _ac_name(f"volume{join('/', path)}", "volume")
        number = 0
        while name in points:
            number += 1
            name = f"{base}-{number}"
        points[name] = {"name": name, "path": normpath(join("/", path))}
    return [points[name] for name in sorted(points)]


def _ports(image: LayeredImage) -> list[Json]:
    ports: dict[str, Json] = {}
    for text in image.config.exposed_ports:
        match = _PORT.fullmatch(text)
        first = int(match[1]) if match else 0
        last = int(match[2] or first) if match else 0
        if match is None or not 0 < first <= last <= _PORT_LIMIT:
            raise ImageError(
                f"{image.source}: cannot expose {jsontext.quote(text)[:80]}: expected PORT or PORT/PROTOCOL"
            )
        name = _ac_name(text, "port")
        count: Json = {"count": last - first + 1} if last > first else {}
        ports[name] = {"name": name, "protocol": (match[3] or "tcp").lower(), "port": first, **count}
    return [ports[name] for name in sorted(ports)]


def _stop_signal(image: LayeredImage) -> str:
    signal = image.config.stop_signal.upper()
    if signal and not _SIGNAL.fullmatch(signal):
        raise ImageError(f"{image.source}: {jsontext.quote(image.config.stop_signal)[:80]} is no stop signal")
    return signal


def _ac_name(text: str, otherwise: str) -> str:
    try:
        return sanitize_ac_name(text)
    except ManifestError:
        return otherwise


def _word_list(words: tuple[str, ...]) -> str:
    return jsontext.dump(list(words)).decode() if words else ""


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[Json]:
    return [{"name": name, "value": value} for name, value in pairs]
