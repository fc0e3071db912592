"""The meaning of isolators about capabilities."""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import ManifestError
from minit.manifest.app import CAPABILITIES_REMOVE, CAPABILITIES_RETAIN, Isolator
from minit.manifest.capabilities import NAMES, capability_mask
from minit.manifest.reader import Node


def read_capability_sets(isolators: Sequence[Isolator], where: Node) -> tuple[int, int]:
    """
    Return the masks of what isolators retain and remove, 0 without such an isolator; sets of one name add up.

    `where` is the place of the list in its manifest. ManifestError for a bad value, or if the list has both.
    """
    masks = {CAPABILITIES_RETAIN: 0, CAPABILITIES_REMOVE: 0}
    for index, isolator in enumerate(isolators):
        if isolator.name in masks:
            masks[isolator.name] |= _read_set(Node({"value": isolator.value}, where, index)["value"])
    if all(masks.values()):
        raise ManifestError(f"{where.where}: cannot have both {CAPABILITIES_RETAIN} and {CAPABILITIES_REMOVE}")
    return masks[CAPABILITIES_RETAIN], masks[CAPABILITIES_REMOVE]


def _read_set(value: Node) -> int:
    # In any case, as systemd reads them, to which rkt hands what it finds.
    names = value["set"].each(lambda node: node.matching(_is_capability, "the name of a capability").upper())
    if not names:
        raise value["set"].error("at least one capability")
    return capability_mask(*names)


def _is_capability(text: str) -> bool:
    # Letters beyond ASCII have upper cases within it.
    return text.isascii() and text.upper() in NAMES
