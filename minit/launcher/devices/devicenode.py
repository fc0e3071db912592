"""A device of the host for a pod with a user namespace, where the host's own node belongs to nobody."""

from __future__ import annotations

import os
import stat

from minit import syscalls
from minit.idrange import IdRange
from minit.plan.root.mountoperations import MountFilesystem
from minit.plan.root.volumes import VolumeMount
from minit.supervisor.root.applymounts import new_filesystem

_NODE = "node"
_FILESYSTEM = MountFilesystem(fstype="tmpfs", target="/", options=(("mode", "0700"), ("size", "64k")), nodev=False)


def make_node(volume: VolumeMount, mapped: IdRange) -> int:
    """
    Return a detached mount of a node for the device that is the source of `volume`.

    Its mode is that of the host's node, and its owner and group have the same numbers in the pod, or 0 if the pod does
    not have them. Nothing that the pod does to it reaches the host's.
    """
    status = os.lstat(volume.source)
    directory = new_filesystem(_FILESYSTEM)
    try:
        os.mknod(_NODE, stat.S_IFMT(status.st_mode), status.st_rdev, dir_fd=directory)
        owner, group = (mapped.to_host(number) or mapped.shift for number in (status.st_uid, status.st_gid))
        os.chown(_NODE, owner, group, dir_fd=directory)
        os.chmod(_NODE, stat.S_IMODE(status.st_mode), dir_fd=directory)
        tree = syscalls.open_tree(directory, _NODE, syscalls.OPEN_TREE_CLONE)
    finally:
        os.close(directory)
    read_only = syscalls.MOUNT_ATTR_RDONLY if volume.read_only else 0
    syscalls.mount_setattr(tree, set=read_only, propagation=syscalls.MS_PRIVATE)
    return tree
