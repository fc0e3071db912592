"""Devices of the host that a container asks for: by their paths, and by the names of the Container Device Interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from minit.base.errors import ManifestError
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.stage0.devices import HostMount, find_edits, nodes_of
from minit.stage0.pods.appsection import Device

_ANNOTATIONS = "cdi.k8s.io/"
_PROPAGATIONS = {
    "private": api.PROPAGATION_PRIVATE,
    "slave": api.PROPAGATION_HOST_TO_CONTAINER,
    "shared": api.PROPAGATION_BIDIRECTIONAL,
}


def with_cdi_devices(asked: api.ContainerConfig, directories: Sequence[Path]) -> api.ContainerConfig:
    """
    Return a container with what the files in `directories` say of the CDI devices that it asks for.

    Those in a later directory count more. CallError if there is no such device, or it takes what minit has not.
    """
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    names = [device.name for device in asked.CDI_devices]
    for key, value in asked.annotations.items():
        names += value.split(",") if key.startswith(_ANNOTATIONS) else []
    try:
        edits = find_edits([*dict.fromkeys(names)], directories)
    except ManifestError as error:
        raise CallError(Code.INVALID_ARGUMENT, str(error)) from error
    config.envs.extend(api.KeyValue(key=name, value=os.fsencode(value)) for name, value in edits.environment)
    config.devices.extend(map(_message, edits.devices))
    config.mounts.extend(map(_mount, edits.mounts))
    config.linux.security_context.supplemental_groups.extend(edits.gids)
    return config


def with_devices(asked: api.ContainerConfig) -> api.ContainerConfig:
    """
    Return a container with the nodes that its devices stand for now: links are followed, a directory is all below it.

    CallError if one is not there, or is neither.
    """
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    found: list[api.Device] = []
    for number, one in enumerate(config.devices):
        target = one.container_path or one.host_path
        try:
            nodes = nodes_of(Device(source=one.host_path, target=target, access=one.permissions))
            found += map(_message, nodes)
        except OSError as error:
            message = f"devices[{number}].host_path: {one.host_path}: {error.strerror}"
            raise CallError(Code.INVALID_ARGUMENT, message) from error
    del config.devices[:]
    config.devices.extend(found)
    return config


def _message(device: Device) -> api.Device:
    return api.Device(host_path=device.source, container_path=device.target, permissions=device.access)


def _mount(mount: HostMount) -> api.Mount:
    return api.Mount(
        host_path=mount.source,
        container_path=mount.target,
        readonly=mount.read_only,
        recursive_read_only=mount.recursive_read_only,
        propagation=_PROPAGATIONS[mount.propagation],
        mount_options=mount.options,
    )
