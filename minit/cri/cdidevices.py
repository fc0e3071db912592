"""
Devices by the Container Device Interface: what a vendor's file says that a container with its device is to have.

The files are the host's, and root's. They are read each time that a container asks for one of their devices.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from minit import jsontext
from minit.cri.api import cri_pb2 as api
from minit.cri.grpc.framing import CallError, Code
from minit.errors import ManifestError, describe
from minit.manifest.reader import Node
from minit.value import Value

_ANNOTATIONS = "cdi.k8s.io/"
_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)=([A-Za-z0-9][A-Za-z0-9._:-]*)")
_EDITS = "containerEdits"
_REFUSED_EDITS = ("hooks", "netDevices", "intelRdt")
_USUAL_ACCESS = "rwm"
_NODE_KINDS = ("c", "b", "u")
_PROPAGATIONS = {
    "private": api.PROPAGATION_PRIVATE,
    "slave": api.PROPAGATION_HOST_TO_CONTAINER,
    "shared": api.PROPAGATION_BIDIRECTIONAL,
}
_OPTIONS = ("nodev", "noexec", "nosuid")
_NO_OPTIONS = ("bind", "rbind", "rw", "dev", "exec", "suid")  # what a mount is without them


class _File(Value):
    """A vendor's file; `priority` is that of its directory."""

    path: str
    priority: int
    root: Node


def with_cdi_devices(asked: api.ContainerConfig, directories: Sequence[Path]) -> api.ContainerConfig:
    """
    Return a container with what the files in `directories` say of the CDI devices that it asks for.

    Those in a later directory count more. CallError if there is no such device, or it takes what minit has not.
    """
    names = _names(asked)
    config = api.ContainerConfig()
    config.CopyFrom(asked)
    if not names:
        return config
    files, faults = _read_files(directories)
    edited: set[str] = set()
    for name in names:
        try:
            file, device = _find(files, name)
            if file.path not in edited:
                _edit(config, file.root[_EDITS])
                edited.add(file.path)
            _edit(config, device[_EDITS])
        except ManifestError as error:
            raise CallError(Code.INVALID_ARGUMENT, f"CDI device {'; '.join([f'{name}: {error}', *faults])}") from error
    return config


def _names(config: api.ContainerConfig) -> list[str]:
    """Return the devices that a container asks for, each once."""
    names = [device.name for device in config.CDI_devices]
    for key, value in config.annotations.items():
        names += value.split(",") if key.startswith(_ANNOTATIONS) else []
    return [*dict.fromkeys(names)]


def _read_files(directories: Sequence[Path]) -> tuple[list[_File], list[str]]:
    """Return the files, and what is wrong with those that cannot be read."""
    files, faults = [], []
    for priority, directory in enumerate(directories):
        if not directory.is_dir():
            continue
        for path in sorted(directory.iterdir()):
            if path.suffix not in (".json", ".yaml"):
                continue
            try:
                files.append(_File(path=str(path), priority=priority, root=_read(path)))
            except (ManifestError, OSError) as error:
                faults.append(describe(error))
    return files, faults


def _read(path: Path) -> Node:
    data = path.read_bytes()
    if path.suffix == ".json":
        value = jsontext.parse(data, str(path))
    else:
        from minit.stage0.kubernetes.reading.yamltext import parse_documents  # of which few nodes have a file

        documents = parse_documents(data, str(path))
        if len(documents) != 1:
            raise ManifestError(f"{path}: expected one document, got {len(documents)}")
        value = documents[0]
    root = Node(value, None, str(path))
    root["kind"].non_empty()
    for device in root["devices"].elements():
        device["name"].non_empty()
    return root


def _find(files: Sequence[_File], name: str) -> tuple[_File, Node]:
    """Return the device of a name, and its file; ManifestError if there is none, or files disagree."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ManifestError("expected VENDOR/CLASS=NAME")
    found = [
        (file, device)
        for file in files
        if file.root["kind"].string() == match[1]
        for device in file.root["devices"].elements()
        if device["name"].string() == match[2]
    ]
    priority = max((file.priority for file, _ in found), default=0)
    found = [(file, device) for file, device in found if file.priority == priority]
    if not found:
        raise ManifestError("no file has it")
    if len(found) > 1:
        raise ManifestError(f"{' and '.join(file.path for file, _ in found)} have it")
    return found[0]


def _edit(config: api.ContainerConfig, edits: Node) -> None:
    """Change a container as a file says; an absent node says nothing."""
    if not edits.given:
        return
    for field in _REFUSED_EDITS:
        if edits[field].raw():
            raise edits[field].error("none: minit has nothing for it")
    for variable in edits["env"].each(lambda node: node.matching(lambda text: "=" in text[1:], "NAME=VALUE")):
        name, _, value = variable.partition("=")
        config.envs.append(api.KeyValue(key=name, value=os.fsencode(value)))
    config.devices.extend(edits["deviceNodes"].each(_device))
    config.mounts.extend(edits["mounts"].each(_mount))
    groups = edits["additionalGids"].each(lambda node: node.integer(0, (1 << 32) - 2))
    config.linux.security_context.supplemental_groups.extend(groups)


def _device(node: Node) -> api.Device:
    # Its mode and owner are those of the host's node.
    node["type"].optional(lambda given: given.one_of("", *_NODE_KINDS))
    path = node["path"].absolute_path()
    return api.Device(
        container_path=path,
        host_path=node["hostPath"].optional(_optional_path) or path,
        permissions=node["permissions"].optional(Node.string) or _USUAL_ACCESS,
    )


def _optional_path(node: Node) -> str:
    return node.matching(lambda text: not text or text.startswith("/"), "an absolute path")


def _mount(node: Node) -> api.Mount:
    node["type"].optional(lambda given: given.one_of("", "none", "bind"))
    mount = api.Mount(container_path=node["containerPath"].absolute_path(), host_path=node["hostPath"].absolute_path())
    for option in node["options"].elements():
        _set_option(mount, option)
    return mount


def _set_option(mount: api.Mount, option: Node) -> None:
    text = option.string()
    if text in ("ro", "rro"):
        mount.readonly = True
        mount.recursive_read_only = text == "rro"
    elif text.removeprefix("r") in _PROPAGATIONS:
        mount.propagation = _PROPAGATIONS[text.removeprefix("r")]
    elif text in _OPTIONS:
        mount.mount_options.append(text)
    elif text not in _NO_OPTIONS:
        raise option.error("an option of a bind mount that minit has")
