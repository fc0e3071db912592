"""ConfigMaps and Secrets of a file: names and what they hold."""

from __future__ import annotations

import base64
import binascii

from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_texts

CONFIG_MAP = "ConfigMap"
SECRET = "Secret"


class Config(Value):
    """A ConfigMap or a Secret; `data` are its keys in their order."""

    kind: str
    name: str
    data: tuple[tuple[str, bytes], ...]

    def get(self, key: str) -> bytes | None:
        """Return what a key holds, None if there is no such key."""
        return dict(self.data).get(key)


def read_config(root: Node, kind: str, findings: Findings) -> Config:
    """Read a whole document of one of the two kinds."""
    with Fields(root, findings) as fields:
        fields["apiVersion"].one_of("v1")
        fields["kind"].one_of(kind)
        fields["immutable"].optional(Node.boolean)
        with fields.within("metadata") as metadata:
            name = metadata["name"].matching(len, "a name")
            metadata.ignored("namespace", "labels", "annotations")
        data: dict[str, bytes] = {}
        if kind == SECRET:
            fields["type"].optional(Node.string)
            data.update({key: _decode(fields["data"], key, text) for key, text in read_texts(fields["data"])})
            data.update({key: text.encode() for key, text in read_texts(fields["stringData"])})
        else:
            data.update({key: text.encode() for key, text in read_texts(fields["data"])})
            binary = read_texts(fields["binaryData"])
            data.update({key: _decode(fields["binaryData"], key, text) for key, text in binary})
    for key in data:
        if not key or "/" in key or key in (".", "..") or "\0" in key or len(key) > 253:
            raise ManifestError(f'{root.where}: "{key[:60]}" is no key: expected the name of a file')
    return Config(kind=kind, name=name, data=tuple(data.items()))


def find_config(configs: tuple[Config, ...], kind: str, node: Node, optional: bool) -> Config | None:
    """Return the config of the name that a node holds, None for one that is missing and may be."""
    name = node.non_empty()
    found = next((config for config in configs if config.kind == kind and config.name == name), None)
    if found is None and not optional:
        raise node.error(f"the name of a {kind} of this file")
    return found


def _decode(node: Node, key: str, text: str) -> bytes:
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except binascii.Error as error:
        raise Node(text, node, key).error("base64") from error
