"""
Volumes of the host that have in a pod with a user namespace the owners they have on the disk: idmapped mounts.

The kernel wants a user namespace for that, mount_setattr(2). It is not that of the pod, which does not exist yet: a
filesystem that cannot map owners is found out before anything of the pod is there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from minit import syscalls
from minit.errors import LaunchError, describe
from minit.idmapping import open_user_namespace
from minit.idrange import IdRange
from minit.plan.appplan import AppPlan
from minit.plan.root.volumes import VolumeMount
from minit.stdio import complain


def map_owners(apps: Sequence[AppPlan], trees: Sequence[Sequence[int]], mapped: IdRange) -> None:
    """
    Map the owners of the volumes that ask for it to the host's ids of a pod.

    `trees` are the mounts of each app's volumes, attached nowhere yet. LaunchError names a volume that cannot be. Says
    which of them are no place for files that the pod's root makes.
    """
    namespace = open_user_namespace(mapped)
    try:
        for app, opened in zip(apps, trees):
            for volume, tree in zip(app.volumes, opened):
                if volume.idmap:
                    _map(volume, tree, namespace)
                    if not volume.read_only and _is_in_reach(volume.source):
                        complain(
                            f'stage1: warning: {volume.place}: volume "{volume.volume}": whoever can reach'
                            f" {volume.source} on the host can run setuid programs that root of the pod leaves there:"
                            " put it in a directory of root's alone, or on a filesystem that is mounted nosuid"
                        )
    finally:
        os.close(namespace)


def _map(volume: VolumeMount, tree: int, namespace: int) -> None:
    try:
        syscalls.mount_setattr(
            tree, flags=syscalls.AT_RECURSIVE, set=syscalls.MOUNT_ATTR_IDMAP, user_namespace=namespace
        )
    except OSError as error:
        which = " or one that is mounted below it" if volume.recursive else ""
        raise LaunchError(
            f'{volume.place}: volume "{volume.volume}": minit/idmap: the filesystem of {volume.source}{which}'
            f" cannot map owners: {describe(error)}"
        ) from error


def _is_in_reach(source: str) -> bool:
    """Tell whether a program in a directory of the host can be run by others than root, with the owner's rights."""
    if os.statvfs(source).f_flag & os.ST_NOSUID:
        return False
    path = os.path.realpath(source)
    while _lets_others_pass(path):
        if path == "/":
            return True
        path = os.path.dirname(path)
    return False


def _lets_others_pass(path: str) -> bool:
    status = os.stat(path)
    mode = status.st_mode
    return bool(mode & stat.S_IXOTH or mode & stat.S_IXGRP and status.st_gid or mode & stat.S_IXUSR and status.st_uid)
