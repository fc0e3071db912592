"""The device nodes of the host, for apps that get all of them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from minit.plan.inputs.hostfacts import HostNode
from minit.plan.root.mountoperations import DEV


def find_host_nodes() -> tuple[HostNode, ...]:
    """Return the nodes in the host's /dev as they are now, but for those on other file systems there, as /dev/pts."""
    return tuple(sorted(_find_below(DEV, os.lstat(DEV).st_dev), key=lambda node: node.path))


def _find_below(directory: str, file_system: int) -> Iterator[HostNode]:
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        return  # devices come and go
    for name in names:
        path = f"{directory}/{name}"
        try:
            status = os.lstat(path)
        except FileNotFoundError:
            continue
        if status.st_dev != file_system:
            continue
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFDIR:
            yield from _find_below(path, file_system)
        elif kind in (stat.S_IFCHR, stat.S_IFBLK):
            yield HostNode(
                path=path,
                is_block=kind == stat.S_IFBLK,
                major=os.major(status.st_rdev),
                minor=os.minor(status.st_rdev),
                mode=stat.S_IMODE(status.st_mode),
                owner=(status.st_uid, status.st_gid),
            )
