"""When an image that the store may have already is fetched, or converted, again."""

from __future__ import annotations

from enum import Enum


class PullPolicy(Enum):
    """rkt's words for it."""

    NEW = "new"  # if the store does not have it
    UPDATE = "update"  # always
    NEVER = "never"  # not at all, if it is one of a registry
