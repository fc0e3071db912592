"""
Which PID namespace an app is in: that of the pod with all other apps, one of its own, in which it is PID 1, or that of
another app.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minit.base.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.names import is_ac_name
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.appplan import AppPlan
from minit.plan.root.mountoperations import PROC, BindTree
from minit.plan.root.volumes import VolumeMount

_OF_POD, _OF_APP, _OF_OTHER, _OF_HOST = "pod", "app", "app:", "host"


def plan_host_pids(manifest: PodManifest, *, private_users: bool) -> bool:
    """Return whether a pod has no PID namespace of its own; PlanError with users of its own, or an app that has one."""
    if manifest.annotation(Annotation.PID_NAMESPACE) != _OF_HOST:
        return False
    where = f"annotation {Annotation.PID_NAMESPACE}: {_OF_HOST}"
    if private_users:
        raise PlanError(f"{where}: not with --private-users, whose root may not mount the /proc of the host")
    for runtime in manifest.apps:
        if runtime.annotation(Annotation.PID_NAMESPACE) not in (None, _OF_HOST):
            raise PlanError(f'{where}: app "{runtime.name}" asks for another one')
    return True


def plan_pid_namespace(
    runtime: RuntimeApp,
    manifest: PodManifest,
    spec: AppPlan,
    volumes: Sequence[VolumeMount],
    *,
    hotplug: bool,
    mutable: bool,
) -> dict[str, Any]:
    """
    Return what changes of an app by its annotation, or that of the pod: nothing with the namespace that the pod is in.

    PlanError beside what another one cannot have: each of its starts gets a /proc of its own, and mounts of its own.
    That of another app can only be joined in a mutable pod, where that app runs already.
    """
    of_app = runtime.annotation(Annotation.PID_NAMESPACE)
    value = of_app or manifest.annotation(Annotation.PID_NAMESPACE) or _OF_POD
    where = f'app "{runtime.name}": {Annotation.PID_NAMESPACE}'
    if manifest.annotation(Annotation.PID_NAMESPACE) == _OF_HOST:
        return {}
    if value == _OF_HOST:
        raise PlanError(f"{where}: {_OF_HOST} is for all apps of a pod, by an annotation of that")
    other = value.removeprefix(_OF_OTHER) if of_app and value.startswith(_OF_OTHER) else None
    if value not in (_OF_POD, _OF_APP) and (other is None or not is_ac_name(other)):
        raise PlanError(f'{where}: expected {_OF_POD}, {_OF_APP} or, of an app, {_OF_OTHER}NAME, got "{value}"')
    if value == _OF_POD:
        return {}
    if other == runtime.name:
        raise PlanError(f"{where}: that is the app itself")
    if other is not None and not mutable:
        raise PlanError(f"{where}: only in a mutable pod does another app run when one starts")
    if hotplug:
        raise PlanError(f"{where}: an app with minit/hotplug has that of its pod")
    if spec.life.post_stop is not None:
        raise PlanError(f"{where}: an app with a post-stop handler, which comes after its end, has that of its pod")
    for volume in volumes:
        if f"{volume.target}/".startswith(f"{PROC.target}/"):
            raise PlanError(f"{where}: {volume.place}: an app with a volume at {volume.target} has that of its pod")
    mounts = (
        PROC if isinstance(each, BindTree) and each.target == PROC.target else each for each in spec.storage.mounts
    )
    return {"own_pids": True, "pids_of": other, "mounts": tuple(mounts)}
