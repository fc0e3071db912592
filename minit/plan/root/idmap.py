"""
Deciding which volumes of the host show their owners in a pod with a user namespace: idmapped mounts.

Such a volume belongs in the pod to the ids that it has on the disk, its root's included, and what the pod makes there
belongs to them on the disk too. So nobody but whoever runs the pod can ask for it, and an image cannot.
"""

from __future__ import annotations

from collections.abc import Sequence

from minit.base.errors import PlanError
from minit.base.value import replace
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest
from minit.plan.root.volumes import HOST, VolumeMount

_ALL = "true"
_NONE = "false"


def plan_idmap(
    manifest: PodManifest, planned: Sequence[tuple[VolumeMount, ...]], *, private_users: bool
) -> list[tuple[VolumeMount, ...]]:
    """
    Return the volumes of each app, in the manifest's order, with `idmap` in those that the annotations name.

    An app's own annotation decides, then that of the pod. PlanError for a name that is no volume of the host.
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
