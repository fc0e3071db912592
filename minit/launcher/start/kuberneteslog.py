"""The directory of the host for logs, also for those of rkt's log mode k8s-plain."""

from __future__ import annotations

import os

from minit.base.errors import LaunchError, SourceMissing, describe
from minit.base.idrange import IdRange
from minit.linux import syscalls
from minit.linux.idmapping import open_user_namespace

_ATTRIBUTES = syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV | syscalls.MOUNT_ATTR_NOEXEC


def open_kubernetes_log(directory: str, mapped: IdRange | None) -> int:
    """
    Return a detached mount of the directory; SourceMissing if there is none, LaunchError if it cannot be mounted.

    With `mapped` ids, those of a pod with a user namespace, it is idmapped: the sidecars, which are of the pod, write
    there as root of the host, and no app sees it.
    """
    try:
        tree = syscalls.open_tree(syscalls.AT_FDCWD, f"{directory}/.", syscalls.OPEN_TREE_CLONE)
        syscalls.mount_setattr(tree, set=_ATTRIBUTES, propagation=syscalls.MS_PRIVATE)
        if mapped is not None:
            _map_owners(tree, mapped)
    except FileNotFoundError as error:
        # systemd-nspawn's words, as for volumes.
        raise SourceMissing(f"Failed to stat {directory}: No such file or directory (directory for logs)") from error
    except OSError as error:
        raise LaunchError(f"directory for logs: {describe(error)}") from error
    return tree


def _map_owners(tree: int, mapped: IdRange) -> None:
    namespace = open_user_namespace(mapped)
    try:
        syscalls.mount_setattr(tree, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace)
    finally:
        os.close(namespace)
