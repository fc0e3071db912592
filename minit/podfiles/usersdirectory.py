"""
The directory for what lives as long as pods do, beside the pods: /run/minit for root, and for a user without root a
directory in the data directory, named by a variable in the environment of everything in the user's namespace. In that
namespace alone a file system in memory is mounted there.
"""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from minit.base.errors import MinitError

RUNTIME_VARIABLE = "MINIT_RUNTIME_DIRECTORY"
RUNTIME = "runtime"
"""In the data directory of a user without root: the directory for running pods."""
NAMESPACE_RECORD = "namespace"
"""
The record of the keeper of the user's namespace, and the link to the record in the directory for running pods. A shared
lock on the file, flock(2), makes the keeper stay.
"""

_OF_ROOT = "/run/minit"
_PROGRAMS = Path("/var/cache/minit")


def is_of_user() -> bool:
    """Tell whether this process belongs to a user without root, in the user's namespace or not."""
    return os.geteuid() != 0 or is_own_directory(os.environ.get(RUNTIME_VARIABLE, ""))


def is_own_directory(path: str, *, others: int = 0o055) -> bool:
    """Tell whether a path is this user's directory, and no link, with at most the mode `others` for other users."""
    with suppress(OSError):
        state = os.lstat(path)
        return stat.S_ISDIR(state.st_mode) and state.st_uid == os.geteuid() and not state.st_mode & 0o077 & ~others
    return False


def require_own(data: Path) -> None:
    """
    Raise MinitError if another user owns the data directory: neither could remove the files of the other.

    The data directory of a user without root is closed to all others, who can put nothing in its place either.
    """
    with suppress(FileNotFoundError):
        state = data.stat()
        if state.st_uid != os.geteuid():
            # What has no id in the user's namespace is somebody else's too.
            owner = _describe_user(state.st_uid)
            raise MinitError(f"{data} is a data directory of {owner}: run minit as that user, or give another --dir")
        if os.geteuid() != 0 and state.st_mode & 0o077:
            raise MinitError(f"{data} is open to other users: run chmod 0700 {data}, or give another --dir")
    if os.geteuid() != 0:
        require_safe_way(data, "give another --dir")


def require_safe_way(path: Path, remedy: str) -> None:
    """Raise MinitError if somebody else than root and this user can put something in the place of a path."""
    trusted = {os.geteuid(), os.stat("/").st_uid}
    for directory in path.parents:
        try:
            state = directory.stat()
        except FileNotFoundError:
            continue
        if state.st_uid not in trusted:
            raise MinitError(f"{directory} is {_describe_user(state.st_uid)}'s, who could replace {path}: {remedy}")
        is_open = state.st_mode & 0o002 or (state.st_mode & 0o020 and not _is_private_group(state.st_gid))
        if is_open and not state.st_mode & stat.S_ISVTX:
            raise MinitError(f"others can write to {directory}, and could replace {path}: {remedy}")


def _describe_user(uid: int) -> str:
    return name_of_user(uid) or f"user {uid}"


def _is_private_group(gid: int) -> bool:
    """Tell whether a group is root's, or the user's alone: many users have a group of their own name, adduser(8)."""
    return gid == 0 or (gid == os.getgid() and _name_in("/etc/group", gid) == name_of_user(os.getuid()) != "")


def name_of_user(uid: int) -> str:
    """Return the name of a user, empty for none."""
    return _name_in("/etc/passwd", uid)


def _name_in(path: str, number: int) -> str:
    """Return the name of a number in a file of users or groups, empty for none."""
    # getpwuid(3) loads libraries, which a static program cannot.
    with suppress(OSError):
        for line in Path(path).read_text("utf-8", "replace").splitlines():
            fields = line.split(":")
            if len(fields) > 2 and fields[2] == str(number):
                return fields[0]
    return ""


def data_directory() -> Path:
    """Return the default data directory of a user without root; MinitError without a home."""
    return _of_user("XDG_DATA_HOME", ".local/share")


def config_directory() -> Path:
    """Return the directory of local configuration of a user without root; MinitError without a home."""
    return _of_user("XDG_CONFIG_HOME", ".config")


def program_directory() -> Path:
    """Return the directory with the command's own programs."""
    return _of_user("XDG_CACHE_HOME", ".cache") if is_of_user() else _PROGRAMS


def _of_user(variable: str, default: str) -> Path:
    """Return minit's directory below a base directory of the user (XDG Base Directory Specification)."""
    top = os.environ.get(variable, "")
    if not top.startswith("/"):
        home = os.environ.get("HOME", "")
        if not home.startswith("/"):
            raise MinitError(f"HOME is not set: set HOME or {variable}")
        top = f"{home}/{default}"
    return Path(top) / "minit"


def runtime_directory() -> str:
    """Return the directory for this process."""
    return os.environ.get(RUNTIME_VARIABLE, _OF_ROOT)


def pod_names() -> str:
    """Return the directory with the pods' addresses on the networks, and hosts files made of these."""
    return f"{runtime_directory()}/names"


def hosts_of_pod(uuid: str) -> str:
    """Return the hosts file of a pod whose networks have names, on the host."""
    return f"{pod_names()}/{uuid}.hosts"


def network_namespaces() -> str:
    """Return the directory with the names of network namespaces, ip-netns(8)."""
    return f"{runtime_directory()}/netns" if is_of_user() else "/var/run/netns"


def network_leases() -> str:
    """Return the directory with the leases of host-local, of the CNI."""
    return f"{runtime_directory()}/leases" if is_of_user() else "/var/lib/cni/networks"


def tuning_directory() -> str:
    """Return the directory with settings before the plugin tuning, of the CNI."""
    return f"{runtime_directory()}/tuning" if is_of_user() else "/run/cni/tuning"


def user_network() -> str | None:
    """Return the network namespace that has the place of the machine's for the pods of a user; None for root."""
    return f"{network_namespaces()}/user" if is_of_user() else None


def hold_namespace() -> int | None:
    """Return a descriptor that makes the keeper of the user's namespace stay; None outside such a namespace."""
    if RUNTIME_VARIABLE not in os.environ:
        return None
    with suppress(OSError):
        fd = os.open(f"{runtime_directory()}/{NAMESPACE_RECORD}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return fd
    return None
