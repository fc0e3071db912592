"""
App Container Images as files: the image ID, the required content, and the manifest of a converted image.

appc spec/aci.md; rkt adds nothing but xz. A converted manifest is docker2aci's, but the stop signal becomes minit's
annotation, and labels become user labels, whatever the source. An image of one name is the same ACI by every source, so
nothing is noted that depends on the source: the words of the user, the digests of documents, and fields that programs
drop when they rewrite an image for another format. The annotation `appc.io/docker/chainid` stands for all layers
instead, OCI config.md.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from posixpath import join, normpath

from minit.archives.imagenames import sanitize_ac_identifier
from minit.archives.layered import ImageConfig, LayeredImage, choose_platform, platform_text
from minit.archives.streams import DEFAULT_LIMITS, Limits, Readable, Tee, Uncompressed
from minit.archives.tar import TarReader
from minit.archives.tarentry import Kind
from minit.base import jsontext
from minit.base.errors import ImageError, ManifestError
from minit.base.processors import PROCESSORS, Processor, processor_of_appc, this_processor
from minit.manifest.annotations import Annotation
from minit.manifest.app import App
from minit.manifest.image import (
    ANNOTATION_ENTRYPOINT,
    ANNOTATION_HEALTHCHECK,
    APPC_VERSION,
    ImageManifest,
    parse_image_manifest,
)
from minit.manifest.names import is_variable_name, sanitize_ac_name

MANIFEST_LIMIT_BYTES = 4 << 20
_ID_PREFIX = "sha512-"
_ID_DIGITS = 64  # rkt keeps half of SHA-512's 128 hex digits, everywhere

# Files that show archives of other kinds.
_MARKERS = {"oci-layout": "oci-archive", "manifest.json": "docker-archive"}
_CHUNK = 256 << 10

_DOCKER = "appc.io/docker/"
_COMMAND = f"{_DOCKER}cmd"
_CREATED = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(\.[0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})")
_PORT = re.compile(r"([0-9]{1,5})(?:-([0-9]{1,5}))?(?:/([A-Za-z]+))?")
_PORT_LIMIT = 65535
_SIGNAL = re.compile(r"[A-Z0-9+-]{1,20}")

Json = dict[str, object]


def image_id(digest: hashlib._Hash) -> str:
    """Return the image ID for a SHA-512 over the uncompressed tar."""
    return _ID_PREFIX + digest.hexdigest()[:_ID_DIGITS]


def copy_image(
    file: Readable, source: str, write: Callable[[memoryview], object], limits: Limits = DEFAULT_LIMITS
) -> tuple[str, bytes]:
    """
    Read an image file to the end, hand the uncompressed tar to `write`, and return image ID and manifest.

    Fails with an ImageError, perhaps after part of the tar was written, if the file is no valid ACI.
    """
    digest = hashlib.sha512()
    tee = Tee(Uncompressed(file, source, limits), digest.update, write)
    stream = io.BufferedReader(tee, _CHUNK)
    manifest = _check_layout(TarReader(stream, source), source)
    while stream.read(_CHUNK):
        pass
    _parse(manifest, source)
    return image_id(digest), manifest


def _check_layout(tar: TarReader, source: str) -> bytes:
    manifest: bytes | None = None
    has_rootfs = False
    transport: str | None = None
    for entry in tar:
        if entry.path == "manifest":
            if manifest is not None:
                raise ImageError(f"{source}: two entries named manifest")
            if entry.kind is not Kind.FILE:
                raise ImageError(f"{source}: manifest is a {entry.kind.value}, expected a regular file")
            if entry.size_bytes > MANIFEST_LIMIT_BYTES:
                raise ImageError(f"{source}: a manifest of {entry.size_bytes} bytes (at most {MANIFEST_LIMIT_BYTES})")
            manifest = tar.read(entry.size_bytes)
        elif entry.path == "rootfs":
            if entry.kind is not Kind.DIRECTORY:
                raise ImageError(f"{source}: rootfs is a {entry.kind.value}, expected a directory")
            has_rootfs = True
        else:
            transport = _MARKERS.get(entry.path, transport)
    if manifest is None and transport is not None:
        raise ImageError(f"{source}: no app container image: give it as {transport}:{source}")
    if manifest is None:
        raise ImageError(f"{source}: no manifest: not an app container image")
    if not has_rootfs:
        raise ImageError(f"{source}: no rootfs directory: not an app container image")
    return manifest


def _parse(manifest: bytes, source: str) -> ImageManifest:
    try:
        return parse_image_manifest(manifest, f"{source}: manifest")
    except ManifestError as error:
        raise ImageError(str(error)) from error


def convert_manifest(image: LayeredImage) -> bytes:
    """Return the manifest of the ACI of an image; ImageError for a configuration that appc cannot express."""
    manifest: Json = {
        "acKind": "ImageManifest",
        "acVersion": APPC_VERSION,
        "name": sanitize_ac_identifier(image.name.whole),
        "labels": _pairs(_labels(image)),
        "app": _app(image),
        "annotations": _pairs(_annotations(image)),
    }
    return jsontext.dump(manifest)


def image_configuration(manifest: ImageManifest, diff_ids: Sequence[str]) -> Json:
    """Return the configuration that OCI has for an image that never had one. OCI config.md"""
    processor = processor_of_appc(manifest.label("arch") or "")
    created, author = manifest.annotation("created"), manifest.annotation("authors")
    config = {} if manifest.app is None else _image_config(manifest, manifest.app)
    return {
        **({} if created is None else {"created": created}),
        **({} if author is None else {"author": author}),
        "architecture": processor.architecture,
        **({"variant": variant} if (variant := processor.name.partition("/")[2]) else {}),
        "os": manifest.label("os") or "",
        "config": {name: value for name, value in config.items() if value},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids)},
    }


def beyond_oci(manifest: ImageManifest) -> list[str]:
    """Return the parts of a manifest that a configuration of OCI cannot have."""
    app = manifest.app
    own = [] if app is None else [name for name, value in _beyond_oci_in(app) if value]
    kept = {Annotation.STOP_SIGNAL, "created", "authors"}
    own += [
        f"annotation {name}" for name, _ in manifest.annotations if not name.startswith(_DOCKER) and name not in kept
    ]
    return own + [f"label {name}" for name, _ in manifest.labels if name not in ("version", "os", "arch")]


def _beyond_oci_in(app: App) -> Iterable[tuple[str, object]]:
    yield "eventHandlers", app.event_handlers
    yield "supplementaryGIDs", app.supplementary_gids
    yield "userAnnotations", app.user_annotations
    for isolator in app.isolators:
        yield f"isolator {isolator.name}", True
    for point in app.mount_points:
        yield f"read-only mount point {point.name}", point.read_only
    for port in app.ports:
        yield f"socket activation of port {port.name}", port.socket_activated


def _image_config(manifest: ImageManifest, app: App) -> Json:
    entrypoint, command = _words(manifest, ANNOTATION_ENTRYPOINT), _words(manifest, _COMMAND)
    if [*entrypoint, *command] != list(app.exec):
        entrypoint, command = [], list(app.exec)
    user = app.user if app.group in (app.user, "0") else f"{app.user}:{app.group}"
    return {
        "User": user,
        "ExposedPorts": {
            f"{number}/{port.protocol}": {} for port in app.ports for number in range(port.port, port.port + port.count)
        },
        "Env": [f"{name}={value}" for name, value in app.environment],
        "Entrypoint": entrypoint,
        "Cmd": command,
        "Volumes": {point.path: {} for point in app.mount_points},
        "WorkingDir": app.working_directory,
        "Labels": dict(app.user_labels),
        "StopSignal": manifest.annotation(Annotation.STOP_SIGNAL),
    }


def _words(manifest: ImageManifest, annotation: str) -> list[str]:
    text = manifest.annotation(annotation)
    words: object = None
    with suppress(ManifestError):
        words = jsontext.parse(text.encode(), annotation) if text else None
    return [str(word) for word in words] if isinstance(words, list) else []


def check_processor(image: LayeredImage, processor: Processor) -> None:
    """Raise ImageError unless a machine with the processor can run the image."""
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
        ANNOTATION_HEALTHCHECK: jsontext.dump(dict(config.healthcheck)).decode() if config.healthcheck else "",
        Annotation.STOP_SIGNAL: _stop_signal(image),
    }
    return ((key, value) for key, value in found.items() if value)


def _chain_id(diff_ids: tuple[str, ...]) -> str:
    """Return the digest of the whole chain of layers."""
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
        # The groups of a user are known only inside the image; rkt used the user's name as the group's.
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
