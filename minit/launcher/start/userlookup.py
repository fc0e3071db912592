"""
Looking up an app's user and group in its root, from the host, before anything of the pod runs.

The image decides what is there. Every path is resolved inside the root, wherever its symlinks lead, and what is opened
is known to be a regular file: opening a fifo would wait, and opening a device may set something off.
"""

from __future__ import annotations

import os
import stat

from minit import paths, syscalls
from minit.boundedfile import read_bounded
from minit.errors import LaunchError, describe
from minit.manifest.app import App
from minit.plan.rights.users import AppLookups, Lookup, is_path, parse_id
from minit.userdatabase import DATABASES, GROUP, USER

_MAXIMUM_DATABASE_BYTES = 1 << 20
_RESOLVE = syscalls.RESOLVE_IN_ROOT | syscalls.RESOLVE_NO_MAGICLINKS


def look_up_ids(name: str, app: App, *, has_own_user: bool, has_groups: bool) -> AppLookups:
    """
    Return what the root of app `name` says about its user and group; the working directory is the pod directory.

    With `has_own_user` the user is not the one that the image says; with `has_groups` it has groups of the image.
    """
    path = f"{paths.POD_STAGE1_ROOTFS}/{paths.app_rootfs(name)}"
    root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        return AppLookups(
            user=_look_up(root, USER, app.user),
            group=_look_up(root, GROUP, app.group),
            passwd=_read_database(root, USER) if has_own_user else None,
            accounts=_read_database(root, USER) if has_groups else b"",
            memberships=_read_database(root, GROUP) if has_groups else b"",
        )
    finally:
        os.close(root)


def _look_up(root: int, kind: str, text: str) -> Lookup:
    if parse_id(text) is not None:
        return Lookup()
    path = text if is_path(text) else DATABASES[kind]
    try:
        if is_path(text):
            uid, gid = _owner(root, path)
            return Lookup(owner=uid if kind == USER else gid)
        return Lookup(database=_read_regular_file(root, path))
    except OSError as error:
        # fstat(2) knows no name.
        error.filename = path
        return Lookup(failure=describe(error))
    except LaunchError as error:
        return Lookup(failure=describe(error))


def _read_database(root: int, kind: str) -> bytes:
    try:
        return _read_regular_file(root, DATABASES[kind])
    except (OSError, LaunchError):
        return b""  # as if the user were not in it: the app runs all the same


def _read_regular_file(root: int, path: str) -> bytes:
    found = syscalls.openat2(root, path, os.O_PATH, resolve=_RESOLVE)
    try:
        if not stat.S_ISREG(os.fstat(found).st_mode):
            raise LaunchError(f"{path}: not a regular file")
        fd = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    finally:
        os.close(found)
    return read_bounded(fd, path, _MAXIMUM_DATABASE_BYTES)


def _owner(root: int, path: str) -> tuple[int, int]:
    # Of what is there itself, as with lstat(2): a link at the end is not followed.
    found = syscalls.openat2(root, path.rstrip("/") or "/", os.O_PATH | os.O_NOFOLLOW, resolve=_RESOLVE)
    try:
        status = os.fstat(found)
    finally:
        os.close(found)
    return status.st_uid, status.st_gid
