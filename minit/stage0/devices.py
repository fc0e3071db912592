"""
Devices of the host for an app: device nodes by path, and devices of vendors by the Container Device Interface.

The vendors' files belong to the host and to root. The files are read for each app that asks for one of the devices. The
option --device and `minit cri` call this module.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from minit.base import jsontext
from minit.base.errors import ManifestError, describe
from minit.base.value import Value, replace
from minit.manifest.reader import Node
from minit.stage0.pods.appsection import Device

CDI_DIRECTORIES = ("/etc/cdi", "/var/run/cdi")

_NAME = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*)=([A-Za-z0-9][A-Za-z0-9._:-]*)")
_EDITS = "containerEdits"
_REFUSED_EDITS = ("hooks", "netDevices", "intelRdt")
_USUAL_ACCESS = "rwm"
_NODE_KINDS = ("c", "b", "u")
_PROPAGATIONS = ("private", "slave", "shared")
_OPTIONS = ("nodev", "noexec", "nosuid")
_NO_OPTIONS = ("bind", "rbind", "rw", "dev", "exec", "suid")  # the defaults of a mount


def nodes_of(device: Device) -> Iterator[Device]:
    """
    Yield the present nodes of a device: links are followed, a directory stands for all nodes below.

    OSError if the path is missing, or is neither a device nor a directory.
    """
    source = os.path.realpath(device.source, strict=True)
    status = os.stat(source)
    if not stat.S_ISDIR(status.st_mode):
        if not _is_device(status):
            raise OSError(0, "not a device")
        yield replace(device, source=source)
        return
    for directory, inner, names in os.walk(source):
        # Nodes of file systems that are mounted below, as /dev/pts, are no devices of the host.
        inner[:] = sorted(name for name in inner if os.lstat(f"{directory}/{name}").st_dev == status.st_dev)
        for name in sorted(names):
            path = f"{directory}/{name}"
            if _is_device(os.lstat(path)):
                target = f"{device.target}/{path.removeprefix(source).lstrip('/')}"
                yield replace(device, source=path, target=target)


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)


class HostMount(Value):
    """A path of the host, the place in an app, and the options of the mount."""

    source: str
    target: str
    read_only: bool = False
    recursive_read_only: bool = False
    propagation: str = "private"
    """`private`, `slave` or `shared`."""
    options: tuple[str, ...] = ()


class Edits(Value):
    """Additions to an app."""

    environment: tuple[tuple[str, str], ...] = ()
    devices: tuple[Device, ...] = ()
    mounts: tuple[HostMount, ...] = ()
    gids: tuple[int, ...] = ()

    def and_then(self, other: Edits) -> Edits:
        """Return the additions of both."""
        return Edits(**{field: getattr(self, field) + getattr(other, field) for field in Edits._fields})


class _File(Value):
    """A vendor's file; `priority` is the index of the directory."""

    path: str
    priority: int
    root: Node


def is_cdi_name(text: str) -> bool:
    """Return whether a device has a vendor's name: `vendor/class=name`."""
    return _NAME.fullmatch(text) is not None


def find_edits(names: Sequence[str], directories: Sequence[Path]) -> Edits:
    """
    Return the edits for devices, each named once, by the files in `directories`.

    Files in a later directory count more. ManifestError for an unknown device, or for edits that minit does not have.
    """
    found = Edits()
    if not names:
        return found
    files, faults = _read_files(directories)
    edited: set[str] = set()
    for name in names:
        try:
            file, device = _find(files, name)
            if file.path not in edited:
                found = found.and_then(_read_edits(file.root[_EDITS]))
                edited.add(file.path)
            found = found.and_then(_read_edits(device[_EDITS]))
        except ManifestError as error:
            raise ManifestError(f"CDI device {'; '.join([f'{name}: {error}', *faults])}") from error
    return found


def _read_files(directories: Sequence[Path]) -> tuple[list[_File], list[str]]:
    """Return the files, and the errors of unreadable files."""
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
        from minit.stage0.files.yamltext import parse_documents  # few hosts have a file in YAML

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
    """Return the device of a name, and the file; ManifestError for an unknown device, or if files disagree."""
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


def _read_edits(edits: Node) -> Edits:
    """Return the edits of a node; an absent node has none."""
    if not edits.given:
        return Edits()
    for field in _REFUSED_EDITS:
        if edits[field].raw():
            raise edits[field].error("none: minit has nothing for it")
    return Edits(
        environment=edits["env"].each(_variable),
        devices=edits["deviceNodes"].each(_device),
        mounts=edits["mounts"].each(_mount),
        gids=edits["additionalGids"].each(lambda node: node.integer(0, (1 << 32) - 2)),
    )


def _variable(node: Node) -> tuple[str, str]:
    name, _, value = node.matching(lambda text: "=" in text[1:], "NAME=VALUE").partition("=")
    return name, value


def _device(node: Node) -> Device:
    # The host's node has mode and owner.
    node["type"].optional(lambda given: given.one_of("", *_NODE_KINDS))
    path = node["path"].absolute_path()
    return Device(
        source=node["hostPath"].optional(_optional_path) or path,
        target=path,
        access=node["permissions"].optional(Node.string) or _USUAL_ACCESS,
    )


def _optional_path(node: Node) -> str:
    return node.matching(lambda text: not text or text.startswith("/"), "an absolute path")


def _mount(node: Node) -> HostMount:
    node["type"].optional(lambda given: given.one_of("", "none", "bind"))
    mount = HostMount(source=node["hostPath"].absolute_path(), target=node["containerPath"].absolute_path())
    for option in node["options"].elements():
        mount = _with_option(mount, option)
    return mount


def _with_option(mount: HostMount, option: Node) -> HostMount:
    text = option.string()
    if text in ("ro", "rro"):
        return replace(mount, read_only=True, recursive_read_only=text == "rro")
    if text.removeprefix("r") in _PROPAGATIONS:
        return replace(mount, propagation=text.removeprefix("r"))
    if text in _OPTIONS:
        return replace(mount, options=(*mount.options, text))
    if text not in _NO_OPTIONS:
        raise option.error("an option of a bind mount that minit has")
    return mount
