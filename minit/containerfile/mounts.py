"""The mounts of one RUN, as `--mount` names them; pure."""

from __future__ import annotations

import re

from minit.base.errors import ImageError
from minit.base.value import Value

BIND, CACHE, TMPFS = "bind", "cache", "tmpfs"

_OTHER_NAMES = {"dst": "target", "destination": "target", "src": "source", "readwrite": "rw", "readonly": "ro"}
# One build at a time has a cache, so that `sharing` says nothing.
_FIELDS = {
    BIND: ("from", "ro", "rw", "source"),
    CACHE: ("gid", "id", "mode", "rw", "sharing", "uid"),
    TMPFS: ("rw", "size"),
}
_OCTAL = re.compile(r"[0-7]{1,4}", re.ASCII)


class Mount(Value):
    """
    A mount of one RUN: `cache`, kept between builds by `identity`, `tmpfs`, or `bind`.

    A bind has a copy of `source` of the context, or of `origin`, a stage or an image.
    """

    kind: str
    target: str
    identity: str = ""
    mode: int = 0o755
    owner: tuple[int, int] = (0, 0)
    source: str = "/"
    origin: str | None = None
    is_writable: bool = True


def mount_fields(text: str) -> dict[str, str]:
    """Return the fields of a mount by their first names; a field without a value is empty."""
    parts = (part.partition("=") for part in text.split(","))
    return {_OTHER_NAMES.get(name, name): value for name, _, value in parts}


def parse_mount(text: str) -> Mount:
    """Return a mount, whose target may be relative; ImageError for what is wrong or not supported."""
    fields = mount_fields(text)
    kind = fields.get("type", BIND)
    if kind not in _FIELDS:
        raise ImageError(f"--mount=type={kind} is not supported: only {', '.join(_FIELDS)} are")
    unknown = fields.keys() - {"type", "target", *_FIELDS[kind]}
    if unknown:
        raise ImageError(f"--mount={text}: {min(unknown)} is not supported")
    target = fields.get("target")
    if not target:
        raise ImageError(f"--mount={text}: no target")
    mode = fields.get("mode", "0755")
    owner = fields.get("uid", "0"), fields.get("gid", "0")
    if not _OCTAL.fullmatch(mode) or not all(number.isascii() and number.isdigit() for number in owner):
        raise ImageError(f"--mount={text}: mode, uid and gid are numbers")
    return Mount(
        kind=kind,
        target=target,
        identity=fields.get("id", ""),
        mode=int(mode, 8),
        owner=(int(owner[0]), int(owner[1])),
        source=fields.get("source") or "/",
        origin=fields.get("from") or None,
        is_writable=kind != BIND or "rw" in fields,
    )
