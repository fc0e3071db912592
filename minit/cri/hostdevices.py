"""Devices of the host that a container is to have, one by one."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code


def with_devices(asked: api.ContainerConfig) -> api.ContainerConfig:
    """
    Return a container with the nodes that its devices stand for now: links are followed, a directory is all below it.

    CallError if one is not there, or is neither.
    """
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    found: list[api.Device] = []
    for number, device in enumerate(config.devices):
        try:
            found += _find(device)
        except OSError as error:
            message = f"devices[{number}].host_path: {device.host_path}: {error.strerror}"
            raise CallError(Code.INVALID_ARGUMENT, message) from error
    del config.devices[:]
    config.devices.extend(found)
    return config


def _find(asked: api.Device) -> Iterator[api.Device]:
    source = os.path.realpath(asked.host_path, strict=True)
    place = asked.container_path or asked.host_path
    status = os.stat(source)
    if not stat.S_ISDIR(status.st_mode):
        if not _is_device(status):
            raise OSError(0, "not a device")
        yield api.Device(host_path=source, container_path=place, permissions=asked.permissions)
        return
    for directory, inner, names in os.walk(source):
        # What is mounted below, /dev/pts say, is no device of the host.
        inner[:] = sorted(name for name in inner if os.lstat(f"{directory}/{name}").st_dev == status.st_dev)
        for name in sorted(names):
            path = f"{directory}/{name}"
            if _is_device(os.lstat(path)):
                target = f"{place}/{path.removeprefix(source).lstrip('/')}"
                yield api.Device(host_path=path, container_path=target, permissions=asked.permissions)


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
