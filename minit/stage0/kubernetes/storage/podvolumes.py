"""Volumes of a Kubernetes pod: empty directories, paths of the host, and files of ConfigMaps and the like."""

from __future__ import annotations

import posixpath

from minit.base.value import Value, replace
from minit.manifest.pod import Volume
from minit.manifest.reader import Node
from minit.stage0.images.treestore import IMAGE
from minit.stage0.kubernetes.container.containers import PULL_POLICIES
from minit.stage0.kubernetes.reading.fields import Fields, Findings, read_name
from minit.stage0.kubernetes.references.configmaps import CONFIG_MAP, SECRET
from minit.stage0.kubernetes.references.resources import read_amount
from minit.stage0.kubernetes.storage.volumefields import (
    Sources,
    VolumeFile,
    read_config_files,
    read_default_mode,
    read_pod_files,
    read_projected,
)
from minit.stage0.volumes import NAME_FORM, NAMED, is_volume_name

_HOST_TYPES = ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")
_KINDS = ("emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected", "persistentVolumeClaim", "image")


class PodVolume(Value):
    """
    A volume, and what has to be there before the pod runs.

    `files` are written into an empty volume, and `group` may read them if it is not None; a named volume is given to
    it. `host_type` is what Kubernetes calls that which is to be at a path of the host, or is to be made there; empty
    for anything. An empty one that is `in_memory` has at most `size`, a quantity, if that is not None. An image is
    fetched by a `pull_policy`, None for the usual one.
    """

    volume: Volume
    files: tuple[VolumeFile, ...] = ()
    group: int | None = None
    host_type: str = ""
    in_memory: bool = False
    size: str | None = None
    pull_policy: str | None = None


def read_volume(node: Node, findings: Findings, sources: Sources) -> PodVolume:
    """Read one of `spec.volumes`, which belongs to the group of `sources` if there is one and it is not the host's."""
    with Fields(node, findings) as fields:
        name = read_name(fields["name"])
        kinds = [kind for kind in _KINDS if fields[kind].raw() is not None]
        if len(kinds) > 1:
            raise node.error("a volume of one kind", " and ".join(kinds))
        if not kinds:
            return _empty(name, None)
        of_kind = fields.within(kinds[0])
        if kinds == ["emptyDir"]:
            return _read_empty(name, of_kind, sources.group)
        if kinds == ["hostPath"]:
            return _read_host(name, of_kind)
        if kinds == ["image"]:
            return _read_image(name, of_kind)
        if kinds == ["persistentVolumeClaim"]:
            return _read_claim(name, of_kind, sources.group)
        return _with_files(name, _read_files(kinds[0], of_kind, sources), sources.group)


def _read_files(kind: str, fields: Fields, sources: Sources) -> tuple[VolumeFile, ...]:
    if kind == "projected":
        return read_projected(fields, sources)
    mode = read_default_mode(fields)
    if kind == "downwardAPI":
        return read_pod_files(fields, sources, mode)
    if kind == "secret":
        return read_config_files(fields, sources, SECRET, key="secretName", usual=mode)
    return read_config_files(fields, sources, CONFIG_MAP, usual=mode)


def _with_files(name: str, files: tuple[VolumeFile, ...], group: int | None) -> PodVolume:
    mode = "0755" if group is None else "2775"
    volume = Volume(name=name, kind="empty", read_only=True, mode=mode, uid=0, gid=group or 0)
    return PodVolume(volume=volume, files=files, group=group)


def _read_empty(name: str, fields: Fields, group: int | None) -> PodVolume:
    with fields:
        medium = fields["medium"].optional(Node.string) or ""
        in_memory = medium == "Memory"
        if medium and not in_memory:
            fields.findings.refuse(fields["medium"], "the disk and Memory are known")
        size = fields["sizeLimit"].optional(read_amount)
        if size is not None and not in_memory:
            fields.findings.skip(fields["sizeLimit"], "not enforced on the disk")
        return replace(_empty(name, group), in_memory=in_memory, size=size)


def _empty(name: str, group: int | None) -> PodVolume:
    # Everybody may write, as in Kubernetes.
    mode = "0777" if group is None else "2777"
    return PodVolume(volume=Volume(name=name, kind="empty", mode=mode, uid=0, gid=group or 0))


def _read_claim(name: str, fields: Fields, group: int | None) -> PodVolume:
    with fields:
        claim = fields["claimName"].matching(is_volume_name, NAME_FORM)
        read_only = fields["readOnly"].optional(Node.boolean) or None
        volume = Volume(name=name, kind=NAMED, source=claim, read_only=read_only)
        return PodVolume(volume=volume, group=None if read_only else group)


def _read_image(name: str, fields: Fields) -> PodVolume:
    with fields:
        reference = fields["reference"].non_empty()
        policy = fields["pullPolicy"].optional(lambda given: given.one_of(*PULL_POLICIES))
        return PodVolume(volume=Volume(name=name, kind=IMAGE, source=reference, read_only=True), pull_policy=policy)


def _read_host(name: str, fields: Fields) -> PodVolume:
    with fields:
        path = fields["path"].absolute_path()
        kind = fields["type"].optional(lambda node: node.one_of(*_HOST_TYPES)) or ""
        return PodVolume(volume=Volume(name=name, kind="host", source=posixpath.normpath(path)), host_type=kind)
