"""Which PID namespace an app is in: that of the pod with all other apps, or one of its own, in which it is PID 1."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from minit.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.paths import ANNOTATION_PID_NAMESPACE
from minit.plan.appplan import AppPlan
from minit.plan.root.mountoperations import PROC, BindTree, MountOp
from minit.plan.root.volumes import VolumeMount

_OF_POD, _OF_APP = "pod", "app"


def plan_own_pids(
    runtime: RuntimeApp, manifest: PodManifest, spec: AppPlan, volumes: Sequence[VolumeMount], *, hotplug: bool
) -> bool:
    """
    Return whether an app has a PID namespace of its own, by its annotation or that of the pod.

    PlanError beside what such an app cannot have: each of its starts gets a /proc of its own, and mounts of its own.
    """
    value = runtime.annotation(ANNOTATION_PID_NAMESPACE) or manifest.annotation(ANNOTATION_PID_NAMESPACE) or _OF_POD
    where = f'app "{runtime.name}": {ANNOTATION_PID_NAMESPACE}'
    if value not in (_OF_POD, _OF_APP):
        raise PlanError(f'{where}: expected {_OF_POD} or {_OF_APP}, got "{value}"')
    if value == _OF_POD:
        return False
    if hotplug:
        raise PlanError(f"{where}: an app with minit/hotplug has that of its pod")
    if spec.post_stop is not None:
        raise PlanError(f"{where}: an app with a post-stop handler, which comes after its end, has that of its pod")
    for volume in volumes:
        if f"{volume.target}/".startswith(f"{PROC.target}/"):
            raise PlanError(f"{where}: {volume.place}: an app with a volume at {volume.target} has that of its pod")
    return True


def with_own_proc(mounts: Iterable[MountOp]) -> tuple[MountOp, ...]:
    """Return the mounts of an app with a /proc of its own PID namespace in place of the pod's."""
    return tuple(PROC if isinstance(each, BindTree) and each.target == PROC.target else each for each in mounts)
