"""Volumes of a Kubernetes pod: empty directories, paths of the host, and files of ConfigMaps and Secrets."""

from __future__ import annotations

import posixpath

from minit.manifest.pod import Volume
from minit.manifest.reader import Node
from minit.stage0.kubernetes.configmaps import CONFIG_MAP, SECRET, Config, find_config
from minit.stage0.kubernetes.fields import Fields, Findings, read_name
from minit.value import Value

_MODE_MAX = 0o777
_HOST_TYPES = ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")


class VolumeFile(Value):
    """A file of a volume: its path below it, what it holds and its mode."""

    path: str
    data: bytes
    mode: int


class PodVolume(Value):
    """
    A volume, and what has to be there before the pod runs.

    `files` are written into an empty volume. `host_type` is what Kubernetes calls that which is to be at a path of the
    host, or is to be made there; empty for anything.
    """

    volume: Volume
    files: tuple[VolumeFile, ...] = ()
    host_type: str = ""


def read_volume(node: Node, findings: Findings, configs: tuple[Config, ...], group: int | None) -> PodVolume:
    """Read one of `spec.volumes`; empty directories belong to `group`, if there is one."""
    with Fields(node, findings) as fields:
        name = read_name(fields["name"])
        kinds = [kind for kind in ("emptyDir", "hostPath", "configMap", "secret") if fields[kind].raw() is not None]
        if kinds == ["emptyDir"]:
            return _read_empty(name, fields.within("emptyDir"), group)
        if kinds == ["hostPath"]:
            return _read_host(name, fields.within("hostPath"))
        if kinds == ["configMap"]:
            return _read_files(name, fields.within("configMap"), configs, CONFIG_MAP, "name")
        if kinds == ["secret"]:
            return _read_files(name, fields.within("secret"), configs, SECRET, "secretName")
        if len(kinds) > 1:
            raise node.error("a volume of one kind", " and ".join(kinds))
    return PodVolume(volume=Volume(name=name, kind="empty", mode="0777", uid=0, gid=0))


def _read_empty(name: str, fields: Fields, group: int | None) -> PodVolume:
    with fields:
        fields.only("medium", "")
        # Everybody may write, as in Kubernetes.
        mode = "0777" if group is None else "2777"
        return PodVolume(volume=Volume(name=name, kind="empty", mode=mode, uid=0, gid=group or 0))


def _read_host(name: str, fields: Fields) -> PodVolume:
    with fields:
        path = fields["path"].absolute_path()
        kind = fields["type"].optional(lambda node: node.one_of(*_HOST_TYPES)) or ""
        return PodVolume(volume=Volume(name=name, kind="host", source=posixpath.normpath(path)), host_type=kind)


def _read_files(name: str, fields: Fields, configs: tuple[Config, ...], kind: str, key: str) -> PodVolume:
    with fields:
        optional = fields["optional"].optional(Node.boolean) or False
        mode = fields["defaultMode"].optional(_read_mode)
        config = find_config(configs, kind, fields[key], optional)
        usual = 0o644 if mode is None else mode
        if fields["items"].given:
            found = fields.each("items", lambda node, findings: _read_item(node, findings, config, usual, optional))
            files = tuple(file for file in found if file is not None)
        else:
            data = () if config is None else config.data
            files = tuple(VolumeFile(path=path, data=content, mode=usual) for path, content in data)
        volume = Volume(name=name, kind="empty", read_only=True, mode="0755", uid=0, gid=0)
        return PodVolume(volume=volume, files=files)


def _read_item(node: Node, findings: Findings, config: Config | None, mode: int, optional: bool) -> VolumeFile | None:
    with Fields(node, findings) as fields:
        path = fields["path"].matching(_is_inner, "a relative path without .. in it")
        own = fields["mode"].optional(_read_mode)
        key = fields["key"].non_empty()
        data = config.get(key) if config is not None else None
        if data is None:
            if optional or config is None:
                return None
            raise fields["key"].error(f"a key of {config.kind} {config.name}")
        return VolumeFile(path=posixpath.normpath(path), data=data, mode=mode if own is None else own)


def _read_mode(node: Node) -> int:
    return node.integer(0, _MODE_MAX)


def _is_inner(path: str) -> bool:
    return bool(path) and not path.startswith("/") and ".." not in path.split("/") and posixpath.normpath(path) != "."
