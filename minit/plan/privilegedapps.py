"""What apps have that are not confined at all: the annotation minit/privileged, where the pod allows it."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from typing import Any

from minit.base.errors import PlanError
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.inputs.hostfacts import HostNode
from minit.plan.inputs.switches import is_set
from minit.plan.rights.protection import Protection
from minit.plan.root.mountoperations import CONSOLE, DEV, SYS, BindTree, MakeDirectory, MakeNode, MountOp

_SYSFS = BindTree(source=SYS, target=SYS, recursive=True, writable=True)


def is_privileged(runtime: RuntimeApp, manifest: PodManifest) -> bool:
    """Tell whether an app is to have all privileges; PlanError where its pod does not allow that."""
    if not is_set(runtime, Annotation.PRIVILEGED):
        return False
    allowed = manifest.annotation(Annotation.ALLOW_PRIVILEGED)
    if allowed not in (None, "true", "false"):
        raise PlanError(f'{Annotation.ALLOW_PRIVILEGED}: expected true or false, got "{allowed}"')
    if allowed != "true":
        raise PlanError(f'app "{runtime.name}": {Annotation.PRIVILEGED}: its pod has no {Annotation.ALLOW_PRIVILEGED}')
    return True


def may_be_privileged(manifest: PodManifest) -> bool:
    """Tell whether a pod has an app that asks for all privileges, and allows that."""
    asks = any(runtime.annotation(Annotation.PRIVILEGED) == "true" for runtime in manifest.apps)
    return asks and manifest.annotation(Annotation.ALLOW_PRIVILEGED) == "true"


def privileged_fields(mounts: Sequence[MountOp], nodes: Sequence[HostNode]) -> dict[str, Any]:
    """Return the fields of a privileged app's plan, which has `mounts` and gets the host's device `nodes` as well."""
    return {
        "bounding": None,
        "seccomp": None,
        "guards": frozenset(),
        "devices": None,
        "protection": Protection(),
        "sysfs": _SYSFS,
        "mounts": (*mounts, *_with_directories(mounts, nodes)),
    }


def _with_directories(mounts: Sequence[MountOp], nodes: Sequence[HostNode]) -> list[MountOp]:
    # The console is the app's own, or there is none.
    present = {CONSOLE, DEV, *(operation.target for operation in mounts)}
    made: list[MountOp] = []
    for node in nodes:
        if node.path in present:
            continue
        missing = []
        directory = posixpath.dirname(node.path)
        while directory not in present:
            present.add(directory)
            missing.append(MakeDirectory(target=directory))
            directory = posixpath.dirname(directory)
        made += [*reversed(missing), _make(node)]
    return made


def _make(node: HostNode) -> MakeNode:
    uid, gid = node.owner
    return MakeNode(
        target=node.path,
        major=node.major,
        minor=node.minor,
        mode=node.mode,
        is_block=node.is_block,
        uid=uid,
        gid=gid,
    )
