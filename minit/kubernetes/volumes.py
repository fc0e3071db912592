"""
Files of volumes: keys of ConfigMaps and Secrets, fields of the Pod, and files needed before the pod runs.

The latter lie in directories of the pod and at paths of the host.
"""

from __future__ import annotations

import os
import posixpath
import stat
from collections.abc import Callable, Iterable
from pathlib import Path

from minit.base.errors import PodError, describe
from minit.base.value import Value, replace
from minit.kubernetes.containers import PULL_POLICIES
from minit.kubernetes.fields import INNER_FORM, Fields, Findings, is_inner, read_name
from minit.kubernetes.references import (
    CONFIG_MAP,
    SECRET,
    Config,
    PodNames,
    find_config,
    read_amount,
    read_field,
    read_resource_field,
)
from minit.linux import syscalls
from minit.manifest.pod import Volume
from minit.manifest.reader import Node
from minit.podfiles import paths
from minit.stage0.files.durable import disk_errors
from minit.stage0.files.locks import directory_lock
from minit.stage0.images.treestore import IMAGE
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.pods.privateusers import read_ids
from minit.stage0.volumes import NAME_FORM, NAMED, home_of, is_volume_name

_MODE_MAX = 0o777
_CLUSTER_CONFIG = "kube-root-ca.crt"
_CLUSTER_CERTIFICATE = "ca.crt"
_USUAL_MODE = 0o644

_HOST_TYPES = ("", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket", "CharDevice", "BlockDevice")
_KINDS = ("emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected", "persistentVolumeClaim", "image")

# For the group of a Pod, as Kubernetes has it.
_READABLE = 0o440
_GROUP_DIRECTORY = 0o2775
_IS_THERE: dict[str, Callable[[int], bool]] = {
    "Directory": stat.S_ISDIR,
    "DirectoryOrCreate": stat.S_ISDIR,
    "File": stat.S_ISREG,
    "FileOrCreate": stat.S_ISREG,
    "Socket": stat.S_ISSOCK,
    "CharDevice": stat.S_ISCHR,
    "BlockDevice": stat.S_ISBLK,
}

_INSIDE = syscalls.RESOLVE_BENEATH | syscalls.RESOLVE_NO_SYMLINKS | syscalls.RESOLVE_NO_XDEV
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Rights of the group; new files of a directory belong to the group.
_FILE_MODE = 0o660
_DIRECTORY_MODE = 0o2770
_FILE_KINDS = {
    stat.S_IFREG: _FILE_MODE,
    stat.S_IFIFO: _FILE_MODE,
    stat.S_IFSOCK: _FILE_MODE,
    stat.S_IFDIR: _DIRECTORY_MODE,
}


class VolumeFile(Value):
    """A file of a volume: the path below the volume, the content, None for the pod's UUID, and the mode."""

    path: str
    data: bytes | None
    mode: int


class Sources(Value):
    """The origins of a volume's files: configs of the file, and the Pod. `group`, if not None, must be able to read."""

    configs: tuple[Config, ...]
    pod: PodNames
    group: int | None = None


def read_config_files(
    fields: Fields, sources: Sources, kind: str, *, key: str = "name", usual: int
) -> tuple[VolumeFile, ...]:
    """Return the files of a ConfigMap or Secret, named in the field `key`."""
    with fields:
        optional = fields["optional"].optional(Node.boolean) or False
        config = find_config(sources.configs, kind, fields[key], optional)
        if fields["items"].given:
            found = fields.each("items", lambda node, findings: _read_item(node, findings, config, usual, optional))
            return tuple(file for file in found if file is not None)
        data = () if config is None else config.data
        return tuple(VolumeFile(path=path, data=content, mode=usual) for path, content in data)


def read_pod_files(fields: Fields, sources: Sources, usual: int) -> tuple[VolumeFile, ...]:
    """Return the files of fields of the Pod."""
    with fields:
        found = fields.each("items", lambda node, findings: _read_pod_file(node, findings, sources, usual))
        return tuple(file for file in found if file is not None)


def read_projected(fields: Fields, sources: Sources) -> tuple[VolumeFile, ...]:
    """Return the files of several sources; of two files with one path the later. A cluster's own files are left out."""
    with fields:
        mode = read_default_mode(fields)
        missing: list[str] = []
        found = fields.each("sources", lambda node, findings: _read_source(node, findings, sources, mode, missing))
        if missing:
            fields.findings.skip(fields.node, f"without {' and '.join(missing)}, as there is no API server")
        return tuple({file.path: file for files in found for file in files}.values())


def read_default_mode(fields: Fields) -> int:
    """Return the mode of files without an own mode."""
    mode = fields["defaultMode"].optional(_read_mode)
    return _USUAL_MODE if mode is None else mode


def _read_source(
    node: Node, findings: Findings, sources: Sources, mode: int, missing: list[str]
) -> tuple[VolumeFile, ...]:
    """Return the files of a source; `missing` gets the names of files that only a cluster has."""
    with Fields(node, findings) as fields:
        if fields["serviceAccountToken"].given:
            with fields.within("serviceAccountToken") as token:
                token["audience"], token["expirationSeconds"]
                missing.append(token["path"].matching(is_inner, INNER_FORM))
            return ()
        if _is_of_cluster(fields["configMap"], sources):
            missing.append(_CLUSTER_CERTIFICATE)
            return ()
        for field, kind in (("configMap", CONFIG_MAP), ("secret", SECRET)):
            if fields[field].given:
                return read_config_files(fields.within(field), sources, kind, usual=mode)
        if fields["downwardAPI"].given:
            return read_pod_files(fields.within("downwardAPI"), sources, mode)
        for field in ("clusterTrustBundle", "podCertificate"):
            if fields[field].given:
                findings.refuse(fields[field], "there is no cluster that would issue it")
                return ()
    raise node.error("one of configMap, secret and downwardAPI")


def _is_of_cluster(node: Node, sources: Sources) -> bool:
    """Tell whether a ConfigMap is the one that every namespace of a cluster has, unless the file has the ConfigMap."""
    named = isinstance(node.raw(), dict) and node["name"].raw() == _CLUSTER_CONFIG
    return named and all(config.name != _CLUSTER_CONFIG for config in sources.configs)


def _read_item(node: Node, findings: Findings, config: Config | None, mode: int, optional: bool) -> VolumeFile | None:
    with Fields(node, findings) as fields:
        path = fields["path"].matching(is_inner, INNER_FORM)
        own = fields["mode"].optional(_read_mode)
        key = fields["key"].non_empty()
        data = config.get(key) if config is not None else None
        if data is None:
            if optional or config is None:
                return None
            raise fields["key"].error(f"a key of {config.kind} {config.name}")
        return VolumeFile(path=posixpath.normpath(path), data=data, mode=mode if own is None else own)


def _read_pod_file(node: Node, findings: Findings, sources: Sources, mode: int) -> VolumeFile | None:
    with Fields(node, findings) as fields:
        path = posixpath.normpath(fields["path"].matching(is_inner, INNER_FORM))
        own = fields["mode"].optional(_read_mode)
        mode = mode if own is None else own
        if fields["resourceFieldRef"].given:
            text = read_resource_field(fields.within("resourceFieldRef"), sources.pod, None)
            return None if text is None else VolumeFile(path=path, data=text.encode(), mode=mode)
        field = fields.within("fieldRef")
        # Other references are only for variables, in Kubernetes too.
        name = field["fieldPath"].matching(lambda text: text.startswith("metadata."), "a field of metadata")
        text = read_field(field, sources.pod)
        if text is None:
            return None
        return VolumeFile(path=path, data=None if name == "metadata.uid" else text.encode(), mode=mode)


def _read_mode(node: Node) -> int:
    return node.integer(0, _MODE_MAX)


class PodVolume(Value):
    """
    A volume, and the files needed before the pod runs.

    `files` are written into an empty volume, and `group`, if not None, may read the files; a named volume is given to
    the group. `host_type` is Kubernetes' name of the type of file at a path of the host, found there or made; empty
    for any type. A volume `in_memory` has at most `size`, a quantity, if `size` is not None. An image is
    fetched by a `pull_policy`, None for the default policy.
    """

    volume: Volume
    files: tuple[VolumeFile, ...] = ()
    group: int | None = None
    host_type: str = ""
    in_memory: bool = False
    size: str | None = None
    pull_policy: str | None = None


def read_volume(node: Node, findings: Findings, sources: Sources) -> PodVolume:
    """Read an entry of `spec.volumes`, which belongs to the group of `sources`, if any, unless it is the host's."""
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


def write_volume_files(pod: Pod, volumes: Iterable[PodVolume]) -> None:
    """Write the files of volumes to the later directories of empty volumes, which stage1 keeps as found."""
    ids = read_ids(pod)
    first = 0 if ids is None else ids.shift
    for volume in volumes:
        if not volume.files:
            continue
        group = None if volume.group is None else first + volume.group
        top = pod.path / paths.POD_SHARED_VOLUMES / volume.volume.name
        os.makedirs(top, 0o755)
        for file in volume.files:
            path = top / file.path
            try:
                os.makedirs(path.parent, 0o755, exist_ok=True)
                with open(path, "xb") as opened:
                    opened.write(pod.uuid.encode() if file.data is None else file.data)
                    os.fchown(opened.fileno(), first, first if group is None else group)
                    os.fchmod(opened.fileno(), file.mode if volume.group is None else file.mode | _READABLE)
            except OSError as error:
                raise PodError(f'volume "{volume.volume.name}": {file.path}: {describe(error)}') from error
        for directory, _, _ in os.walk(top):
            os.chown(directory, first, first if group is None else group)
            if group is not None:
                os.chmod(directory, _GROUP_DIRECTORY)


def give_named_volumes(data: Path, volumes: Iterable[PodVolume], *, if_root_differs: bool) -> None:
    """Give named volumes to their groups; StoreError for a file that cannot be changed."""
    for volume in volumes:
        if volume.volume.kind == NAMED and volume.group is not None:
            assert volume.volume.source is not None
            give_to_group(data, volume.volume.source, volume.group, if_root_differs=if_root_differs)


def prepare_host_paths(volumes: Iterable[PodVolume]) -> None:
    """Make the sources of volumes that Kubernetes makes, and check the others; PodError for a missing source."""
    for volume in volumes:
        if not volume.host_type:
            continue
        assert volume.volume.source is not None
        path = Path(volume.volume.source)
        try:
            if volume.host_type == "DirectoryOrCreate":
                os.makedirs(path, 0o755, exist_ok=True)
            elif volume.host_type == "FileOrCreate" and not path.exists():
                os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
            mode = path.stat().st_mode
        except OSError as error:
            raise PodError(f'volume "{volume.volume.name}": {describe(error)}') from error
        if not _IS_THERE[volume.host_type](mode):
            raise PodError(f'volume "{volume.volume.name}": {path}: expected hostPath.type {volume.host_type}')


def give_to_group(data: Path, name: str, group: int, *, if_root_differs: bool) -> None:
    """
    Give a named volume to a group, as Kubernetes' fsGroup: the group owns all files, new ones too, and may write them.

    With `if_root_differs` nothing is done if the uppermost directory is so already. Pods may have the volume at the
    same time, so nothing in it is trusted: no link is followed, no mount point is crossed, and a descriptor holds what
    is changed.

    Other bits of modes stay, except the bits that chown(2) takes from programs. Links and devices stay as they are, and
    so do files deeper than the longest path. StoreError if a file cannot be changed.
    """
    home = home_of(data, name)
    with disk_errors(f'volume "{name}"', data), directory_lock(home, exclusive=True):
        top = os.open(home / "data", _DIRECTORY)
        try:
            if not (if_root_differs and _belongs(top, group)):
                _give_tree(top, group)
        finally:
            os.close(top)


def _belongs(fd: int, group: int) -> bool:
    status = os.fstat(fd)
    return status.st_gid == group and status.st_mode & _DIRECTORY_MODE == _DIRECTORY_MODE


def _give_tree(top: int, group: int) -> None:
    pending = ["."]
    while pending:
        directory = pending.pop()
        try:
            fd = syscalls.openat2(top, directory, _DIRECTORY, resolve=_INSIDE)
        except OSError:
            continue  # gone meanwhile, or not for us to enter
        try:
            for entry in os.listdir(fd):
                if _give(fd, entry, group):
                    pending.append(f"{directory}/{entry}")
        finally:
            os.close(fd)
    # Last, so that an interrupted walk never counts as a whole walk.
    _give(top, ".", group)


def _give(directory: int, entry: str, group: int) -> bool:
    """Give an entry of a directory to the group; return whether the entry is a directory."""
    try:
        # Opens nothing: a pipe would wait, and a device do something.
        fd = syscalls.openat2(directory, entry, os.O_PATH | os.O_NOFOLLOW, resolve=_INSIDE)
    except OSError:
        return False
    try:
        status = os.fstat(fd)
        kind = stat.S_IFMT(status.st_mode)
        if kind not in _FILE_KINDS:
            return False
        held = f"/proc/self/fd/{fd}"
        if status.st_gid != group:
            os.chown(held, -1, group)
        os.chmod(held, stat.S_IMODE(os.fstat(fd).st_mode) | _FILE_KINDS[kind])
        return kind == stat.S_IFDIR
    finally:
        os.close(fd)
