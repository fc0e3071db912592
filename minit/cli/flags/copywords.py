"""The operands of `cp`: places in pods, files of this machine, and `-` for a tar on a standard stream. Pure."""

from __future__ import annotations

from minit.cli.flagwords import FlagError
from minit.value import Value

STREAM = "-"


class PodPath(Value):
    """An absolute path in an app of a pod; `app` None is the pod's only one."""

    pod: str
    app: str | None
    path: str


def parse_copy_words(source: str, target: str) -> tuple[PodPath | str, PodPath | str]:
    """Return both operands of a copy, of which exactly one is in a pod; FlagError."""
    words = _parse(source), _parse(target)
    if isinstance(words[0], PodPath) == isinstance(words[1], PodPath):
        what = "a file of this machine or -" if isinstance(words[0], PodPath) else "POD[:APP]:/PATH"
        raise FlagError(f'one of the two is POD[:APP]:/PATH: expected {what}, got "{target}"')
    return words


def _parse(text: str) -> PodPath | str:
    """Return a place in a pod, or a path of this machine, which may have a colon if it begins with `.` or `/`."""
    if text.startswith((".", "/")) or ":" not in text:
        return text
    pod, _, rest = text.partition(":")
    app, colon, path = rest.partition(":")
    if pod and rest.startswith("/"):
        return PodPath(pod=pod, app=None, path=rest)
    if not (pod and app and colon and path.startswith("/")):
        raise FlagError(f'expected POD:/PATH or POD:APP:/PATH with an absolute path, got "{text}"')
    return PodPath(pod=pod, app=app, path=path)
