"""
The resource limits of getrlimit(2): RESOURCES has a row for each, with docker's name and the limits of every app.

The limits of an app are these however the pod was started, and others only by the annotation `minit/ulimits`. They are
the kernel's for its first process (include/asm-generic/resource.h), with the two changes that systemd makes for
services, which the apps of rkt were: more open files, and as much locked memory under any kernel.
"""

from __future__ import annotations

import resource
from collections.abc import Mapping

from minit.base.value import Value
from minit.linux.attributes import UNLIMITED
from minit.manifest.reader import Node, read_json

Bounds = tuple[int, int]
"""A soft and a hard limit."""

HOST = "host"
"""In place of a name: all limits are those of the process that starts the pod (podman)."""

_MOST = (1 << 63) - 1
_WORDS = ("-1", "unlimited")
_RLIMIT_LOCKS = 10  # which Python does not name


class Resource(Value):
    """A resource of getrlimit(2), and its limits; None stands for half of the kernel's threads."""

    number: int
    bounds: Bounds | None = (UNLIMITED, UNLIMITED)

    def usual(self, threads_max: int) -> Bounds:
        """Return the limits where the kernel has so many threads at most."""
        return (threads_max // 2,) * 2 if self.bounds is None else self.bounds


RESOURCES: Mapping[str, Resource] = {
    "as": Resource(number=resource.RLIMIT_AS),
    # No files of dead processes in the root of an app that nobody asked for; an app may raise the limit.
    "core": Resource(number=resource.RLIMIT_CORE, bounds=(0, UNLIMITED)),
    "cpu": Resource(number=resource.RLIMIT_CPU),
    "data": Resource(number=resource.RLIMIT_DATA),
    "fsize": Resource(number=resource.RLIMIT_FSIZE),
    "locks": Resource(number=_RLIMIT_LOCKS),
    # The kernel's from 5.16 on, systemd's before.
    "memlock": Resource(number=resource.RLIMIT_MEMLOCK, bounds=(8 << 20, 8 << 20)),
    "msgqueue": Resource(number=resource.RLIMIT_MSGQUEUE, bounds=(819200, 819200)),
    "nice": Resource(number=resource.RLIMIT_NICE, bounds=(0, 0)),
    # systemd's: select(2) takes no descriptor from 1024 on, and programs that do without raise the limit themselves.
    "nofile": Resource(number=resource.RLIMIT_NOFILE, bounds=(1024, 524288)),
    "nproc": Resource(number=resource.RLIMIT_NPROC, bounds=None),
    "rss": Resource(number=resource.RLIMIT_RSS),
    "rtprio": Resource(number=resource.RLIMIT_RTPRIO, bounds=(0, 0)),
    "rttime": Resource(number=resource.RLIMIT_RTTIME),
    "sigpending": Resource(number=resource.RLIMIT_SIGPENDING, bounds=None),
    "stack": Resource(number=resource.RLIMIT_STACK, bounds=(8 << 20, UNLIMITED)),
}


def read_ulimits(text: str | None, where: str) -> tuple[Mapping[str, Bounds], bool]:
    """
    Return the limits by name in an annotation, and whether the others are those of the process that starts the pod.

    ManifestError, with `where`, for a bad value.
    """
    if text is None:
        return {}, False
    root = read_json(text.encode(errors="surrogateescape"), where)
    given = root.raw()
    if not isinstance(given, dict) or not set(given) <= {*RESOURCES, HOST}:
        raise root.error(f"an object with some of {', '.join((*RESOURCES, HOST))}")
    form = "SOFT[:HARD], each a number, -1 or unlimited, the first no more than the second"
    asked = {name: root[name].parsed(parse_bounds, form) for name in given if name != HOST}
    return asked, bool(root[HOST].optional(Node.boolean))


def parse_bounds(text: str) -> Bounds:
    """Return the limits of `SOFT[:HARD]`, both the same without the second; ValueError for another text."""
    soft, colon, hard = text.partition(":")
    first = _parse_limit(soft)
    second = _parse_limit(hard) if colon else first
    if second != UNLIMITED and not 0 <= first <= second:
        raise ValueError(f'the soft limit is above the hard one in "{text}"')
    return first, second


def spell_bounds(bounds: Bounds) -> str:
    """Return limits as parse_bounds reads them."""
    soft, hard = ("unlimited" if limit == UNLIMITED else str(limit) for limit in bounds)
    return soft if soft == hard else f"{soft}:{hard}"


def _parse_limit(text: str) -> int:
    if text in _WORDS:
        return UNLIMITED
    if not (text.isascii() and text.isdigit()) or len(text) > len(str(_MOST)) or int(text) > _MOST:
        raise ValueError(f'expected a number up to {_MOST}, -1 or unlimited, got "{text}"')
    return int(text)
