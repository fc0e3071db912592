"""Deciding the environment of an app."""

from __future__ import annotations

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Given to an app that does not set them; USER is root whoever the app runs as (rkt stage1).
DEFAULT_ENVIRONMENT = (
    ("PATH", DEFAULT_PATH),
    ("SHELL", "/bin/sh"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("HOME", "/root"),
)

# For an app with the pod's console, if its caller has no TERM.
DEFAULT_TERM = "vt100"
# For an app with a terminal of its own: nobody knows who will attach to it, and this is what most terminals are like.
TTY_TERM = "xterm"

_METADATA_PORT = 18112  # where rkt's metadata service listens
_METADATA_URL = "AC_METADATA_URL"


def plan_environment(
    name: str, own: tuple[tuple[str, str], ...], term: str | None = None
) -> tuple[tuple[str, str], ...]:
    """
    Return the environment of an app: defaults it does not set, its own, then what the executor sets.

    `term` is the default of TERM, None for an app without a terminal.
    """
    set_here = (("AC_APP_NAME", name), ("container", "rkt"))
    names = {key for key, _ in own}
    forced = {key for key, _ in set_here}
    offered = DEFAULT_ENVIRONMENT if term is None else (*DEFAULT_ENVIRONMENT, ("TERM", term))
    defaults = tuple(pair for pair in offered if pair[0] not in names)
    return (*defaults, *(pair for pair in own if pair[0] not in forced), *set_here)


def with_metadata(environment: tuple[tuple[str, str], ...], token: str, host: str) -> tuple[tuple[str, str], ...]:
    """Return the environment of an app that finds rkt's metadata service at an address, whatever its image says."""
    url = f"http://{host}:{_METADATA_PORT}/{token}"
    return (*(pair for pair in environment if pair[0] != _METADATA_URL), (_METADATA_URL, url))
