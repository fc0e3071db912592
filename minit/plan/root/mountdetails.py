"""
Settings of volumes that a mount point of appc lacks: a part of a volume, propagation, memory, idmapped mounts.

The annotation minit/mounts of an app is a JSON object by target, minit/memory-volumes of a pod one of empty volumes. A
volume of minit/idmap belongs in a pod with a user namespace to the ids on the disk, root included, and new files get
such owners on the disk. So only the caller can ask for idmapped mounts, and an image cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.limits import BILLION, parse_quantity
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.manifest.reader import Node, read_json
from minit.plan.root.devicevolumes import DEVICE_ACCESS
from minit.plan.root.mountoperations import COVERS, MakeDirectory, MountFilesystem, MountOp
from minit.plan.root.volumes import EMPTY, HOST, MEMORY, VolumeMount

PRIVATE = "private"
SLAVE = "slave"
SHARED = "shared"
MOUNT_OPTIONS = ("nodev", "noexec", "nosuid")

_FIELDS = ("subPath", "propagation", "readOnly", "recursiveReadOnly", "options", "deviceAccess")
_MEMORY_FIELDS = ("size",)
_DIRECTORY = f"{COVERS}/volumes"
_LARGEST_BYTES = 1 << 60
_SIZE = "a number of bytes such as 64Mi"

_ALL = "true"
_NONE = "false"


def plan_mount_details(
    runtime: RuntimeApp, volumes: tuple[VolumeMount, ...], *, private_users: bool
) -> tuple[VolumeMount, ...]:
    """Return the volumes of an app with the annotation's settings; ManifestError or PlanError for bad settings."""
    text = runtime.annotation(Annotation.MOUNTS)
    if text is None:
        return volumes
    where = f'app "{runtime.name}": annotation {Annotation.MOUNTS}'
    root = _read_object(text, where)
    targets = {volume.target for volume in volumes}
    for target in _keys(root):
        if target not in targets:
            raise PlanError(f'{where}: no volume is mounted on "{target}"')
    # By the very name: the reader of objects knows no upper case.
    details = {name: Node(value, root, name) for name, value in _keys(root).items()}
    return tuple(
        _detail(volume, details[volume.target], private_users) if volume.target in details else volume
        for volume in volumes
    )


def plan_memory_volumes(
    manifest: PodManifest, planned: Sequence[tuple[VolumeMount, ...]]
) -> list[tuple[VolumeMount, ...]]:
    """Return the volumes of each app, with kind MEMORY for the volumes in the pod's annotation."""
    names = {name for name, _ in _read_memory(manifest)}
    return [
        tuple(_in_memory(volume) if volume.volume in names else volume for volume in volumes) for volumes in planned
    ]


def memory_mounts(manifest: PodManifest) -> tuple[MountOp, ...]:
    """Return the mounts in the stage1 root for the volumes in memory; PlanError for a bad volume."""
    volumes = {volume.name: volume for volume in manifest.volumes}
    operations: list[MountOp] = []
    for name, size_bytes in _read_memory(manifest):
        volume = volumes.get(name)
        if volume is None or volume.kind != EMPTY:
            raise PlanError(f'annotation {Annotation.MEMORY_VOLUMES}: the pod has no empty volume "{name}"')
        assert volume.mode is not None and volume.uid is not None and volume.gid is not None
        options = (("mode", volume.mode), ("uid", str(volume.uid)), ("gid", str(volume.gid)))
        size = () if size_bytes is None else (("size", str(size_bytes)),)
        target = _memory_source(name)
        operations.append(MakeDirectory(target=target))
        operations.append(MountFilesystem(fstype="tmpfs", target=target, options=(*options, *size), noexec=False))
    return (MakeDirectory(target=_DIRECTORY), *operations) if operations else ()


def plan_shared_memory(manifest: PodManifest) -> int | None:
    """Return the most bytes of the pod's shared memory, None for what the kernel allows; PlanError for no number."""
    text = manifest.annotation(Annotation.SHM_SIZE)
    try:
        return None if text is None else _parse_size(text)
    except ValueError as error:
        raise PlanError(f'annotation {Annotation.SHM_SIZE}: expected {_SIZE}, got "{text}"') from error


def _memory_source(name: str) -> str:
    return f"{_DIRECTORY}/{name}"


def _in_memory(volume: VolumeMount) -> VolumeMount:
    return replace(volume, kind=MEMORY, source=_memory_source(volume.volume))


def _read_memory(manifest: PodManifest) -> list[tuple[str, int | None]]:
    """Return the names of the volumes in memory and the most bytes of each, None for what the kernel allows."""
    text = manifest.annotation(Annotation.MEMORY_VOLUMES)
    if text is None:
        return []
    root = _read_object(text, f"annotation {Annotation.MEMORY_VOLUMES}")
    found = []
    for name, value in _keys(root).items():
        node = Node(value, root, name)
        _refuse_others(node, _MEMORY_FIELDS)
        found.append((name, node["size"].optional(_read_size)))
    return found


def _read_size(node: Node) -> int:
    try:
        return _parse_size(node.string())
    except ValueError as error:
        raise node.error(_SIZE) from error


def _parse_size(text: str) -> int:
    size_bytes = -(-parse_quantity(text) // BILLION)
    if not 0 < size_bytes <= _LARGEST_BYTES:
        raise ValueError
    return size_bytes


def _detail(volume: VolumeMount, node: Node, private_users: bool) -> VolumeMount:
    _refuse_others(node, _FIELDS)
    sub_path = node["subPath"].optional(lambda given: given.matching(_is_inner, "a relative path without .. in it"))
    propagation = node["propagation"].optional(lambda given: given.one_of(PRIVATE, SLAVE, SHARED))
    read_only = volume.read_only or node["readOnly"].optional(Node.boolean) or False
    is_deep = node["recursiveReadOnly"].optional(Node.boolean)
    if propagation not in (None, PRIVATE) and volume.idmap:
        raise node["propagation"].error(f'"{PRIVATE}" with minit/idmap')
    if propagation == SHARED:
        _check_shared(volume, node["propagation"], sub_path, private_users)
    if is_deep is not None and not read_only:
        raise node["recursiveReadOnly"].error("nothing for a volume that can be written")
    if is_deep and propagation not in (None, PRIVATE):
        raise node["recursiveReadOnly"].error(f'false, or propagation "{PRIVATE}"')
    return replace(
        volume,
        sub_path=sub_path or "",
        propagation=propagation,
        read_only=read_only,
        flat_read_only=is_deep is False,
        device_access=node["deviceAccess"].optional(lambda given: given.matching(_is_access, "letters of rwm")) or "",
        options=node["options"].each(lambda given: given.one_of(*MOUNT_OPTIONS)),
        copy_up=volume.copy_up and not sub_path,
    )


def _check_shared(volume: VolumeMount, node: Node, sub_path: str | None, private_users: bool) -> None:
    if volume.kind != HOST:
        raise node.error("another value for a volume that is not the host's")
    if sub_path:
        raise node.error("another value with subPath")
    if private_users:
        raise node.error("another value with --private-users")


def _is_access(text: str) -> bool:
    return 0 < len(text) == len({*text} & {*DEVICE_ACCESS})


def _is_inner(path: str) -> bool:
    return not path.startswith("/") and ".." not in path.split("/")


def _read_object(text: str, where: str) -> Node:
    root = read_json(text.encode(errors="surrogateescape"), where)
    if not isinstance(root.raw(), dict):
        raise root.error("an object")
    return root


def _keys(node: Node) -> dict[str, object]:
    value = node.raw()
    return value if isinstance(value, dict) else {}


def _refuse_others(node: Node, known: Sequence[str]) -> None:
    if not isinstance(node.raw(), dict):
        raise node.error("an object")
    for name, value in _keys(node).items():
        if name not in known:
            raise Node(value, node, name).error(f"one of the fields {', '.join(known)}", "another one")


def plan_idmap(
    manifest: PodManifest, planned: Sequence[tuple[VolumeMount, ...]], *, private_users: bool
) -> list[tuple[VolumeMount, ...]]:
    """
    Return the volumes of each app, in the manifest's order, with `idmap` by the annotations.

    The app's annotation decides, then the pod's. PlanError for a name without a volume of the host.
    """
    of_pod = manifest.annotation(Annotation.IDMAP)
    if of_pod is not None:
        _check(of_pod, "", [volume for volumes in planned for volume in volumes], private_users)
    mapped = []
    for runtime, volumes in zip(manifest.apps, planned):
        text = runtime.annotation(Annotation.IDMAP)
        if text is not None:
            _check(text, f'app "{runtime.name}": ', volumes, private_users)
        mapped.append(tuple(_mark(volume, of_pod if text is None else text) for volume in volumes))
    return mapped


def _mark(volume: VolumeMount, text: str | None) -> VolumeMount:
    if text is None or text == _NONE or volume.kind != HOST:
        return volume
    return replace(volume, idmap=text == _ALL or volume.volume in text.split(","))


def _check(text: str, where: str, volumes: Sequence[VolumeMount], private_users: bool) -> None:
    if text == _NONE:
        return
    prefix = f"{where}annotation {Annotation.IDMAP}: "
    if not private_users:
        raise PlanError(f"{prefix}ids are mapped in pods with --private-users only")
    of_host = {volume.volume for volume in volumes if volume.kind == HOST}
    if text == _ALL:
        if not of_host:
            raise PlanError(f"{prefix}there is no volume of the host")
        return
    for name in text.split(","):
        if name not in of_host:
            raise PlanError(f'{prefix}expected "true", "false" or names of volumes of the host, got "{name}"')
