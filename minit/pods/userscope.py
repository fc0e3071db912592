"""
A control group for the pods of a user without root by the user's systemd: a scope with Delegate=yes.

A login shell is in a scope that is not delegated. systemd-run(1) puts the calling process into a new scope and executes
the command again, as the same process.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from minit.base.value import Value
from minit.linux.mountinfo import find_mounts
from minit.podfiles.usersdirectory import is_own_directory

SCOPE_VARIABLE = "MINIT_SCOPE"
"""In the environment of a command that was executed again, which is once enough."""

_PROGRAM = "systemd-run"
_OPTIONS = ("--user", "--scope", "--quiet", "--collect", "--property=Delegate=yes", "--")
_SOCKETS = ("systemd/private", "bus")
# Of systemd 251 and newer, on the group of a delegated unit.
_MARK = "user.delegate"
_CONNECT_SECONDS = 5.0


class ScopeFacts(Value):
    """The facts about this process and the user's systemd; `program` is the path of systemd-run, None without one."""

    was_moved: bool
    is_delegated: bool
    has_manager: bool
    program: str | None


def scope_words(facts: ScopeFacts, words: Sequence[str]) -> tuple[str, ...] | None:
    """Return the command line that runs `words` in a delegated scope; None if that need not be, or cannot be."""
    if facts.was_moved or facts.is_delegated or not facts.has_manager or facts.program is None:
        return None
    return (facts.program, *_OPTIONS, *words)


def enter_scope() -> None:
    """Execute the present command line again in a scope of the user's, if need be."""
    words = scope_words(_look(), _own_words())
    if words is not None:
        os.environ[SCOPE_VARIABLE] = "1"
        os.execv(words[0], words)


def _look() -> ScopeFacts:
    if SCOPE_VARIABLE in os.environ:
        return ScopeFacts(was_moved=True, is_delegated=False, has_manager=False, program=None)
    return ScopeFacts(
        was_moved=False,
        is_delegated=_is_delegated(),
        has_manager=_has_manager(),
        program=shutil.which(_PROGRAM),
    )


def _own_words() -> list[str]:
    return os.fsdecode(Path("/proc/self/cmdline").read_bytes()).split("\0")[:-1]


def _is_delegated() -> bool:
    """Tell whether systemd has delegated the group of this process in the hierarchy that systemd uses."""
    own = dict(line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines())
    for mount in find_mounts("cgroup"):
        named = "name=systemd" in mount.super_options.split(",")
        path = own.get("name=systemd" if named else "") if named or mount.fstype == "cgroup2" else None
        with suppress(OSError):
            if path is not None and os.getxattr(f"{mount.mount_point}{path}", _MARK) == b"1":
                return True
    return False


def _has_manager() -> bool:
    """Tell whether the user's systemd takes connections."""
    top = os.environ.get("XDG_RUNTIME_DIR", "")
    # su(1) leaves the directory of another user there.
    for name in _SOCKETS if top.startswith("/") and is_own_directory(top) else ():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock, suppress(OSError):
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(f"{top}/{name}")
            return True
    return False
