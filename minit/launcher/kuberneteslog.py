"""The directory of the host that rkt's log mode k8s-plain writes to."""

from __future__ import annotations

from minit import syscalls
from minit.errors import LaunchError, SourceMissing, describe

_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC


def open_kubernetes_log(directory: str) -> int:
    """Return a detached mount of the directory; SourceMissing if there is none, LaunchError if it cannot be mounted."""
    try:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, f"{directory}/.", syscalls.OPEN_TREE_CLONE)
        syscalls.mount_setattr(tree, set=_ATTRIBUTES, propagation=syscalls.MS_PRIVATE)
    except FileNotFoundError as error:
        # systemd-nspawn's words, as for volumes.
        raise SourceMissing(f"Failed to stat {directory}: No such file or directory (kubernetes-log-dir)") from error
    except OSError as error:
        raise LaunchError(f"kubernetes-log-dir: {describe(error)}") from error
    return tree
