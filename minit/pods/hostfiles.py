"""Settings of an app that name files of the host: devices become volumes of the app, a profile an annotation."""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Sequence
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import LaunchError, PodError
from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.pod import Mount, Volume
from minit.manifest.seccomp import MAXIMUM_PROFILE_BYTES
from minit.podfiles.boundedfile import read_bounded
from minit.stage0.devices import CDI_DIRECTORIES, HostMount, find_edits, nodes_of
from minit.stage0.pods.appsection import PROFILE_FILE, AppOverrides, Device


def with_devices(overrides: AppOverrides) -> AppOverrides:
    """Return the settings of an app with the app's devices; MinitError for a device that cannot be had."""
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
    """Return the annotation about the mounts of an app with more details; PodError if some are there already."""
    given = {} if annotation is None else jsontext.parse(annotation.encode(), Annotation.MOUNTS)
    if not isinstance(given, dict):
        raise PodError(f"{Annotation.MOUNTS}: expected an object")
    if twice := sorted(given.keys() & details.keys()):
        raise PodError(f"--device: {Annotation.MOUNTS} says something about {twice[0]}, too")
    return jsontext.dump(given | details).decode()


def with_profile(overrides: AppOverrides) -> AppOverrides:
    """Return the settings of an app with the profile read; OSError or MinitError for an unreadable profile."""
    if overrides.seccomp is None:
        return overrides
    text = overrides.seccomp
    if text.startswith(PROFILE_FILE):
        text = read_profile(text.removeprefix(PROFILE_FILE))
    annotations = (*overrides.annotations, (Annotation.SECCOMP, text))
    return replace(overrides, seccomp=None, annotations=annotations)


def read_profile(path: str) -> str:
    """Return the annotation for the profile in a file; OSError or PodError for an unreadable profile."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise PodError(f"{path}: expected a regular file with a seccomp profile")
    try:
        data = read_bounded(fd, path, MAXIMUM_PROFILE_BYTES)
    except LaunchError as error:
        raise PodError(str(error)) from error
    return jsontext.dump(jsontext.parse(data, path)).decode()
