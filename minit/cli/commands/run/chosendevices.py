"""From the devices that --device names to volumes of an app, and what their vendors' files say beside."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import PodError
from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.pod import Mount, Volume
from minit.stage0.devices import CDI_DIRECTORIES, HostMount, find_edits, nodes_of
from minit.stage0.pods.appsection import AppOverrides, Device


def with_devices(overrides: AppOverrides) -> AppOverrides:
    """Return the settings of an app with the devices that it is to have; MinitError for one that cannot be had."""
    if not overrides.devices:
        return overrides
    names = [device for device in overrides.devices if isinstance(device, str)]
    edits = find_edits([*dict.fromkeys(names)], [Path(directory) for directory in CDI_DIRECTORIES])
    asked = (*edits.devices, *(device for device in overrides.devices if isinstance(device, Device)))
    nodes = [node for device in asked for node in _nodes(device)]
    own = dict(overrides.annotations)
    details: dict[str, object] = {}
    mounts: list[Mount] = []
    for mount in edits.mounts:
        mounts.append(_mount(f"cdi-{len(mounts)}", mount.source, mount.target, read_only=mount.read_only))
        details[mounts[-1].path] = _detail(mount)
    for node in nodes:
        mounts.append(_mount(f"device-{len(mounts)}", node.source, node.target, read_only="w" not in node.access))
        details[mounts[-1].path] = {"deviceAccess": node.access}
    groups = overrides.supplementary_gids
    if edits.gids:
        groups = (*(groups or ()), *edits.gids)
    return replace(
        overrides,
        devices=(),
        environment=(*edits.environment, *overrides.environment),
        mounts=(*overrides.mounts, *_last_of_each_place(mounts)),
        supplementary_gids=groups,
        annotations=tuple((own | {Annotation.MOUNTS: _merged(own.get(Annotation.MOUNTS), details)}).items()),
    )


def _nodes(device: Device) -> list[Device]:
    try:
        nodes = list(nodes_of(device))
    except OSError as error:
        raise PodError(f"--device: {device.source}: {error.strerror}") from error
    if not nodes:
        raise PodError(f"--device: {device.source}: no devices are in it")
    return nodes


def _mount(name: str, source: str, target: str, *, read_only: bool) -> Mount:
    volume = Volume(name=name, kind="host", source=source, read_only=read_only)
    return Mount(volume=name, path=posixpath.normpath(f"/./{target}"), app_volume=volume)


def _last_of_each_place(mounts: Sequence[Mount]) -> tuple[Mount, ...]:
    return tuple({mount.path: mount for mount in mounts}.values())


def _detail(mount: HostMount) -> dict[str, object]:
    detail: dict[str, object] = {"propagation": mount.propagation}
    detail |= {"recursiveReadOnly": mount.recursive_read_only} if mount.read_only else {}
    return detail | ({"options": list(mount.options)} if mount.options else {})


def _merged(annotation: str | None, details: dict[str, object]) -> str:
    """Return the annotation about the mounts of an app with more details; PodError if it has some of them."""
    given = {} if annotation is None else jsontext.parse(annotation.encode(), Annotation.MOUNTS)
    if not isinstance(given, dict):
        raise PodError(f"{Annotation.MOUNTS}: expected an object")
    if twice := sorted(given.keys() & details.keys()):
        raise PodError(f"--device: {Annotation.MOUNTS} says something about {twice[0]}, too")
    return jsontext.dump(given | details).decode()
