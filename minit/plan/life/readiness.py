"""The readiness of an app, told by sd_notify(3), or by a descriptor as s6 has it."""

from __future__ import annotations

from minit.base.errors import PlanError
from minit.base.goflags import BOOLEANS
from minit.manifest.annotations import Annotation
from minit.manifest.image import ImageManifest
from minit.manifest.pod import RuntimeApp
from minit.podfiles.paths import ANNOTATION_NOTIFY

NOTIFY_SOCKET = "/run/systemd/notify"
"""The socket's path in an app, the same as with rkt's stage1."""

_FIRST_FD = 3
# An app may have opened files up to 1024 at a time, unless its limits say otherwise.
_LAST_FD = 1023


def plan_readiness(runtime: RuntimeApp, image: ImageManifest, sockets: int) -> tuple[bool, int | None]:
    """
    Return whether an app tells by the socket that it is ready, and the descriptor by which it does.

    `sockets` is how many descriptors from 3 on are taken.
    """
    own = runtime.annotation(ANNOTATION_NOTIFY)
    notifies = BOOLEANS.get((own if own is not None else image.annotation(ANNOTATION_NOTIFY)) or "", False)
    text = runtime.annotation(Annotation.NOTIFY_FD)
    if text is None:
        return notifies, None
    first = _FIRST_FD + sockets
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_LAST_FD)) else 0
    if not first <= number <= _LAST_FD:
        expected = f"expected the number of a descriptor from {first} to {_LAST_FD}"
        raise PlanError(f'app "{runtime.name}": annotation {Annotation.NOTIFY_FD}: {expected}, got "{text}"')
    return notifies, number
