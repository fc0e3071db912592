"""The configuration of an image, which OCI and Docker keep beside its layers; pure. OCI config.md"""

from __future__ import annotations

from minit.archives.platforms import Platform, read_platform
from minit.base.errors import ImageError, ManifestError
from minit.base.value import Value
from minit.manifest.reader import Node, read_json


class ImageConfig(Value):
    """
    The default start of a container of the image, and the digests of its uncompressed layers.

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
    author: str = ""
    created: str = ""


def parse_image_config(data: bytes, source: str) -> ImageConfig:
    """Return the configuration in `data`; ImageError calls the file `source`."""
    try:
        return _read(read_json(data, source))
    except ManifestError as error:
        raise ImageError(str(error)) from error


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
        author=_text(root["author"]),
        created=_text(root["created"]),
    )


def _text(node: Node) -> str:
    return node.optional(Node.string) or ""


def _words(node: Node) -> tuple[str, ...]:
    return node.each(Node.string)


def _keys(node: Node) -> tuple[str, ...]:
    """Return the keys of an object that serves as a set, in order."""
    value = node.raw()
    if value is None:
        return ()
    if not isinstance(value, dict) or any("\0" in key for key in value):
        raise node.error("an object")
    return tuple(sorted(value))
