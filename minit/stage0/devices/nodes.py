"""The device nodes of the host that an app is to have, one by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from minit.base.value import replace
from minit.stage0.pods.appsection import Device


def nodes_of(device: Device) -> Iterator[Device]:
    """
    Give the nodes that a device stands for now: links are followed, a directory is all below it.

    OSError if it is not there, or is neither a device nor a directory.
    """
    source = os.path.realpath(device.source, strict=True)
    status = os.stat(source)
    if not stat.S_ISDIR(status.st_mode):
        if not _is_device(status):
            raise OSError(0, "not a device")
        yield replace(device, source=source)
        return
    for directory, inner, names in os.walk(source):
        # What is mounted below, /dev/pts say, is no device of the host.
        inner[:] = sorted(name for name in inner if os.lstat(f"{directory}/{name}").st_dev == status.st_dev)
        for name in sorted(names):
            path = f"{directory}/{name}"
            if _is_device(os.lstat(path)):
                target = f"{device.target}/{path.removeprefix(source).lstrip('/')}"
                yield replace(device, source=path, target=target)


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
