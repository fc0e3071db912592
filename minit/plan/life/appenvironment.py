"""Deciding the environment of an app."""

from __future__ import annotations

import os

from minit.base.userdatabase import find_account, parse_decimal

Variables = tuple[tuple[str, str], ...]

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# USER is root whoever the app runs as (rkt stage1), unless somebody else than the image has chosen the user.
ROOT_VARIABLES = (("USER", "root"), ("LOGNAME", "root"), ("HOME", "/root"))
_DEFAULTS = (("PATH", DEFAULT_PATH), ("SHELL", "/bin/sh"))
_LOST_HOME = "/"
_PLAIN = ("PATH", "HOME", "TERM")

# For an app with the pod's console, if its caller has no TERM.
DEFAULT_TERM = "vt100"
# For an app with an own terminal: nobody knows the terminal of a later client; most terminals are like xterm.
TTY_TERM = "xterm"

_METADATA_PORT = 18112  # where rkt's metadata service listens
_METADATA_URL = "AC_METADATA_URL"


def plan_environment(
    name: str,
    own: Variables,
    term: str | None = None,
    user_variables: Variables = ROOT_VARIABLES,
    *,
    plain: bool = False,
) -> Variables:
    """
    Return the environment of an app: defaults for unset variables, the app's own, then those of the executor.

    `term` is the default of TERM, None for an app without a terminal. `user_variables` name the user. A `plain`
    environment has no more than other runtimes of nodes set: PATH, HOME and TERM, and nothing of the executor.
    """
    set_here = () if plain else (("AC_APP_NAME", name), ("container", "rkt"))
    names = {key for key, _ in own}
    forced = {key for key, _ in set_here}
    offered = (*_DEFAULTS, *user_variables, *(() if term is None else (("TERM", term),)))
    defaults = tuple(pair for pair in offered if pair[0] not in names and not (plain and pair[0] not in _PLAIN))
    return (*defaults, *(pair for pair in own if pair[0] not in forced), *set_here)


def user_variables(user: str, uid: int, passwd: bytes | None) -> Variables:
    """
    Return the variables for the name and home of an app's user, by the passwd file of the image.

    `passwd` None means the user of the image, who gets the variables of root. As with docker, a user without an entry
    has the home `/`; a user without a name has no variable for a name.
    """
    if passwd is None:
        return ROOT_VARIABLES
    name = None if parse_decimal(user) is not None or user.startswith("/") else user
    account = find_account(passwd, None if name is None else os.fsencode(name), uid)
    if account is None:
        if uid == 0:
            return ROOT_VARIABLES
        return (*_names(name), ("HOME", _LOST_HOME))
    text, home = os.fsdecode(account.name), os.fsdecode(account.home)
    return (*_names(name or text), ("HOME", home if home.startswith("/") and "\0" not in home else _LOST_HOME))


def _names(name: str | None) -> Variables:
    return () if name is None or "\0" in name else (("USER", name), ("LOGNAME", name))


def with_metadata(environment: Variables, token: str, host: str) -> Variables:
    """Return the environment with the address of rkt's metadata service, even against the image."""
    url = f"http://{host}:{_METADATA_PORT}/{token}"
    return (*(pair for pair in environment if pair[0] != _METADATA_URL), (_METADATA_URL, url))
