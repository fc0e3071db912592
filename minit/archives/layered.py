"""Images of layers, as all readers of archives return them: platform, configuration, layers, digests. OCI config.md"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from io import RawIOBase

from minit.archives.imagenames import ImageName
from minit.base.errors import ImageError, ManifestError
from minit.base.goduration import format_duration
from minit.base.processors import PROCESSORS, Processor
from minit.base.value import Value
from minit.manifest.reader import Node, read_json

_LINUX = "linux"

_CHUNK = 1 << 20
_DIGITS = {"sha256": 64, "sha512": 128}


class Platform(Value):
    """The platform of an image, as OCI and Docker spell it: `linux`, `arm`, `v7`."""

    os: str
    architecture: str
    variant: str = ""

    @property
    def text(self) -> str:
        """The platform in the form of docker and skopeo: `linux/arm/v7`."""
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @property
    def appc_architecture(self) -> str:
        """The appc name of the architecture, or else OCI's; the names of systems are the same."""
        if self.os != _LINUX:
            return self.architecture
        fitting = [processor for processor in PROCESSORS if processor.architecture == self.architecture]
        exact = [processor for processor in fitting if processor.name == f"{self.architecture}/{self.variant}"]
        # Without a known variant the least of the processors, as docker2aci had for every arm.
        return next((processor.appc for processor in (*exact, *reversed(fitting))), self.architecture)


def read_platform(node: Node) -> Platform:
    """Read `os`, `architecture` and `variant` of an object; missing texts are empty."""
    return Platform(
        os=node["os"].optional(Node.string) or "",
        architecture=node["architecture"].optional(Node.string) or "",
        variant=node["variant"].optional(Node.string) or "",
    )


def platform_text(processor: Processor) -> str:
    """Return the platform of a Linux machine with the processor, as docker and skopeo show platforms."""
    return f"{_LINUX}/{processor.name}"


def choose_platform(offered: list[Platform], processor: Processor) -> int | None:
    """Return the index of the best platform for a Linux machine with the processor, None if no platform fits."""
    for variant in processor.variants:
        for index, platform in enumerate(offered):
            found = (platform.os, platform.architecture, platform.variant)
            if found == (_LINUX, processor.architecture, variant):
                return index
    return None


_MOST_NANOSECONDS = 24 * 3600 * 10**9
_MOST_RETRIES = 1000
_SHORTEST_CHECK_SECONDS = 0.1


class ImageConfig(Value):
    """
    The default start of a container of the image, and the digests of the uncompressed layers.

    `user` is `USER[:GROUP]` or empty. `diff_ids` has the lowest layer first.
    """

    platform: Platform
    diff_ids: tuple[str, ...]
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    user: str = ""
    working_directory: str = ""
    volumes: tuple[str, ...] = ()
    exposed_ports: tuple[str, ...] = ()
    labels: tuple[tuple[str, str], ...] = ()
    stop_signal: str = ""
    healthcheck: tuple[tuple[str, object], ...] = ()
    """Fields of a check of minit/health."""
    author: str = ""
    created: str = ""


def parse_image_config(data: bytes, source: str) -> ImageConfig:
    """Return the configuration in `data`; ImageError calls the file `source`."""
    try:
        return _read(read_json(data, source))
    except ManifestError as error:
        raise ImageError(str(error)) from error


def _read_healthcheck(node: Node) -> Iterator[tuple[str, object]]:
    """Yield the fields of a check of minit/health, none for an image without a HEALTHCHECK."""
    kind, *words = _words(node["Test"]) or ("NONE",)
    if kind == "NONE" or not any(words):
        return
    if kind not in ("CMD", "CMD-SHELL"):
        raise node["Test"].error("NONE, CMD or CMD-SHELL and words")
    yield "exec", ["/bin/sh", "-c", words[0]] if kind == "CMD-SHELL" else words
    for field, name in (("Interval", "interval"), ("Timeout", "timeout"), ("StartPeriod", "delay")):
        nanoseconds = node[field].optional(lambda each: each.integer(0, _MOST_NANOSECONDS)) or 0
        if nanoseconds:
            yield name, format_duration(max(nanoseconds / 1e9, _SHORTEST_CHECK_SECONDS))
    retries = node["Retries"].optional(lambda each: each.integer(0, _MOST_RETRIES)) or 0
    if retries:
        yield "failures", retries


def _read(root: Node) -> ImageConfig:
    rootfs, config = root["rootfs"], root["config"]
    if rootfs["type"].given:
        rootfs["type"].one_of("layers")
    return ImageConfig(
        platform=read_platform(root),
        diff_ids=rootfs["diff_ids"].each(Node.string),
        entrypoint=_words(config["Entrypoint"]),
        command=_words(config["Cmd"]),
        environment=config["Env"].each(Node.string),
        user=_text(config["User"]),
        working_directory=_text(config["WorkingDir"]),
        volumes=_keys(config["Volumes"]),
        exposed_ports=_keys(config["ExposedPorts"]),
        labels=config["Labels"].string_map(),
        stop_signal=_text(config["StopSignal"]),
        healthcheck=tuple(_read_healthcheck(config["Healthcheck"])),
        author=_text(root["author"]),
        created=_text(root["created"]),
    )


def _text(node: Node) -> str:
    return node.optional(Node.string) or ""


def _words(node: Node) -> tuple[str, ...]:
    return node.each(Node.string)


def _keys(node: Node) -> tuple[str, ...]:
    """Return the keys of an object, which is used as a set, in order."""
    value = node.raw()
    if value is None:
        return ()
    if not isinstance(value, dict) or any("\0" in key for key in value):
        raise node.error("an object")
    return tuple(sorted(value))


class Layer(Value):
    """
    One layer's tar, perhaps compressed; `open` gives the file.

    `digest`, None without a record, and `size_bytes` describe the file; `diff_id` is the digest of the tar.
    """

    name: str
    open: Callable[[], RawIOBase]
    size_bytes: int
    diff_id: str
    digest: str | None = None


class Document(Value):
    """A document of an image, byte by byte, and the media type."""

    media_type: str
    data: bytes

    @property
    def digest(self) -> str:
        """The digest of the document."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}"


class LayeredImage(Value):
    """
    An image of a layout or an archive, the lowest layer first.

    `document` is the configuration, byte by byte, `id` the digest of the configuration, which is Docker's image ID,
    `manifest_digest` the digest in a registry, None without a registry. `manifest` is the manifest, if there is one.
    Errors call the image `source`.
    """

    source: str
    name: ImageName
    id: str
    config: ImageConfig
    document: bytes
    layers: tuple[Layer, ...]
    manifest_digest: str | None = None
    manifest: Document | None = None


def check_digest(text: str, where: str) -> str:
    """Return `text`, a digest that can be computed here: `sha256:` or `sha512:` and hex digits; else ImageError."""
    algorithm, _, digits = text.partition(":")
    if algorithm not in _DIGITS:
        raise ImageError(f'{where}: the digest "{text[:80]}" is of an unknown kind (sha256 and sha512 are known)')
    if len(digits) != _DIGITS[algorithm] or digits.strip("0123456789abcdef"):
        raise ImageError(f'{where}: "{text[:160]}" is no digest')
    return text


def hasher(digest: str) -> hashlib._Hash:
    """Return a hash object for the kind of `digest`."""
    return hashlib.sha256() if digest.startswith("sha256:") else hashlib.sha512()


def digest_of_file(layer: Layer) -> str:
    """Return the digest of a layer's file, of the kind of the recorded digest, or else of the diff_id."""
    kind = layer.digest or layer.diff_id
    computed = hasher(kind)
    with layer.open() as file:
        while data := file.read(_CHUNK):
            computed.update(data)
    return digest_text(kind, computed)


def digest_text(digest: str, computed: hashlib._Hash) -> str:
    """Return a computed digest as text of the kind of `digest`."""
    return f"{digest.partition(':')[0]}:{computed.hexdigest()}"
