"""
Texts in an app's arguments and variables that stand for addresses, which only the start of the pod decides.

The annotation minit/expand is a JSON object of texts, chosen by the author, and the meaning of each.
"""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.annotations import Annotation
from minit.manifest.pod import RuntimeApp
from minit.manifest.reader import Node, read_json

POD_IP = "pod-ip"
POD_IPS = "pod-ips"
HOST_IP = "host-ip"
POD_UUID = "pod-uuid"

Texts = tuple[tuple[str, str], ...]

_LOOPBACK = "127.0.0.1"
_MOST_TEXTS = 100


class Addresses(Value):
    """The addresses of a pod, and the address of the host as the pod sees the host; without any, the loopback's."""

    uuid: str
    pod: tuple[str, ...] = ()
    host: str | None = None

    def texts(self) -> dict[str, str]:
        """Return what each word stands for."""
        pod = self.pod or (_LOOPBACK,)
        return {
            POD_IP: pod[0],
            POD_IPS: ",".join(pod),
            HOST_IP: self.host or _LOOPBACK,
            POD_UUID: self.uuid,
        }


def plan_expansion(runtime: RuntimeApp) -> Texts:
    """Return the texts to replace, each with its meaning; ManifestError for a bad annotation."""
    text = runtime.annotation(Annotation.EXPAND)
    if text is None:
        return ()
    root = read_json(text.encode(errors="surrogateescape"), f'app "{runtime.name}": annotation {Annotation.EXPAND}')
    value = root.raw()
    if not isinstance(value, dict) or not 0 < len(value) <= _MOST_TEXTS or "" in value:
        raise root.error("an object of texts and what they stand for")
    return tuple((name, Node(word, root, name).one_of(*Addresses(uuid="").texts())) for name, word in value.items())


def expand(text: str, texts: Texts, addresses: Addresses) -> str:
    """Return a text with every marker replaced; replacements are not searched for markers again."""
    if not texts:
        return text
    known = addresses.texts()
    first = min(((text.find(name), -len(name), name) for name, _ in texts if name in text), default=None)
    if first is None:
        return text
    at, _, name = first
    return text[:at] + known[dict(texts)[name]] + expand(text[at + len(name) :], texts, addresses)
