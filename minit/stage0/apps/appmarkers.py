"""
Files of stage0 in stage1's root for an app that is added: its environment, and the markers of its life.

The markers' times are when it was added and started, and together with its status they are its state. rkt removes only
the status of an app, so that another one of its name begins as a running one.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from minit.base.errors import PodError, describe
from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.stage1.calls import DEFAULT_PATH
from minit.stage0.start.appfiles import remove_directory, stage1_root

_WITHIN = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS
_FILE_MODE = 0o644

# rkt's value for an app that does not set it, to be found by `enter` of its own stage1.
_DEFAULT_ENVIRONMENT = (
    ("PATH", DEFAULT_PATH),
    ("SHELL", "/bin/sh"),
    ("USER", "root"),
    ("LOGNAME", "root"),
    ("HOME", "/root"),
)


def _environment_lines(app: str, environment: Sequence[tuple[str, str]]) -> bytes:
    """Return the file of an app's environment: what it has by default, what it sets, and its name."""
    own = {name: value for name, value in environment if name != "AC_APP_NAME"}
    defaults = {name: value for name, value in _DEFAULT_ENVIRONMENT if name not in own}
    variables = {**defaults, **own, "AC_APP_NAME": app}
    return "".join(f"{name}={value}\n" for name, value in variables.items()).encode(errors="surrogateescape")


def write_environment(pod: Pod, app: str, environment: Sequence[tuple[str, str]], ids: IdRange | None) -> None:
    """Write the environment of an app."""
    _write(pod, paths.env_file(app), _environment_lines(app, environment), ids)


def mark_created(pod: Pod, app: str, ids: IdRange | None) -> None:
    """Mark an app as added now."""
    _write(pod, paths.created_marker(app), b"", ids)


def mark_started(pod: Pod, app: str, ids: IdRange | None) -> None:
    """Mark an app as started now, and forget how it ended before."""
    _remove(pod, paths.started_marker(app))
    _remove(pod, paths.status_file(app))
    _write(pod, paths.started_marker(app), b"", ids)


def unmark_started(pod: Pod, app: str) -> None:
    """Forget that an app was started."""
    _remove(pod, paths.started_marker(app))


def remove_markers(pod: Pod, app: str) -> None:
    """Remove the environment and the markers of an app."""
    for name in (paths.status_file(app), paths.started_marker(app), paths.created_marker(app), paths.env_file(app)):
        _remove(pod, name)


def remove_records(pod: Pod, app: str, *, keep_logs: bool) -> None:
    """Remove what minit's stage1 has written about an app of a pod that ended, its logs too unless they are kept."""
    _remove(pod, paths.state_file(app))
    remove_directory(pod, f"{stage1_root(pod)}{paths.iottymux_directory(app)}")
    if keep_logs:
        return
    _remove(pod, paths.log_end_marker(app))
    log = paths.log_file(app)
    directory, _, name = log.rpartition("/")
    try:
        fd = _open_directory(pod, directory)
    except OSError:
        return
    try:
        for entry in os.listdir(fd):
            if entry == name or (entry.startswith(f"{name}.") and entry.removeprefix(f"{name}.").isdecimal()):
                os.unlink(entry, dir_fd=fd)
    finally:
        os.close(fd)


def _write(pod: Pod, path: str, data: bytes, ids: IdRange | None) -> None:
    """Write a new file in stage1's root, owned by the root of the pod, in the place of any old one."""
    directory, _, name = path.rpartition("/")
    try:
        parent = _open_directory(pod, directory)
    except OSError as error:
        raise PodError(f"cannot open stage1's {directory}: {describe(error)}") from error
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _FILE_MODE, dir_fd=parent)
        with open(fd, "wb") as file:
            os.fchmod(fd, _FILE_MODE)
            if ids is not None:
                os.fchown(fd, ids.shift, ids.shift)
            file.write(data)
    finally:
        os.close(parent)


def _remove(pod: Pod, path: str) -> None:
    directory, _, name = path.rpartition("/")
    try:
        parent = _open_directory(pod, directory)
    except FileNotFoundError:
        return
    try:
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)


def _open_directory(pod: Pod, path: str) -> int:
    # By no link: with private users PID 1, which could make some, is not root.
    return syscalls.openat2(pod.fd, f"{stage1_root(pod)}{path}", os.O_RDONLY | os.O_DIRECTORY, resolve=_WITHIN)
