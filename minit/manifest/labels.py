"""Labels and annotations: lists of {name, value} objects, kept as pairs in the file's order."""

from __future__ import annotations

from minit.base.jsontext import quote
from minit.manifest.reader import Node

Pairs = tuple[tuple[str, str], ...]

# appc spec/aci.md, "labels": the values of `arch` that go with each `os`
ARCHITECTURES = {
    "linux": "amd64 i386 aarch64 aarch64_be armv6l armv7l armv7b ppc64 ppc64le s390x",
    "freebsd": "amd64 i386 arm",
    "darwin": "x86_64 i386",
}


def read_annotations(node: Node) -> Pairs:
    """Read annotations, which have unique names."""
    return node.each_named("annotation", _read_pair)


def read_labels(node: Node) -> Pairs:
    """Read labels, which have unique names other than `name` and, if they name a platform, a known one."""
    labels = node.each_named("label", _read_label)
    system, architecture = find(labels, "os"), find(labels, "arch")
    if system is not None:
        known = ARCHITECTURES.get(system, "").split()
        if not known or (architecture is not None and architecture not in known):
            platform = system if architecture is None else f"{system}/{architecture}"
            raise node.error("an os and arch that appc knows", quote(platform)[:60])
    return labels


def find(pairs: Pairs, name: str) -> str | None:
    """Return the value of the pair called `name`."""
    for key, value in pairs:
        if key == name:
            return value
    return None


def _read_pair(node: Node) -> tuple[str, str]:
    return node["name"].ac_identifier(), node["value"].string()


def _read_label(node: Node) -> tuple[str, str]:
    name, value = _read_pair(node)
    if name == "name":
        raise node["name"].error("a label other than the image's name")
    return name, value
