"""Which extended attributes of files are part of an image. Pure."""

from __future__ import annotations

CAPABILITIES = "security.capability"


def is_kept_attribute(name: str) -> bool:
    """Return whether images keep an attribute of this name; the same two kinds as in rkt."""
    return name == CAPABILITIES or name.startswith("user.")
