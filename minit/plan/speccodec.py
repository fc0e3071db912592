"""
An app's spec as bytes: what `app/add`, a process of the host, has decided and PID 1 carries out.

It is JSON. A value is an object with the name of its class, bytes and sets are objects with one key; lists are tuples.
"""

from __future__ import annotations

from minit.base.errors import ControlError, ManifestError
from minit.base.jsontext import dump, parse
from minit.base.value import Value
from minit.manifest.limits import CpuQuota, Limits
from minit.manifest.seccomp import SeccompPolicy
from minit.plan.appplan import (
    AppSpec,
    ConfinementPlan,
    Dependency,
    LifePlan,
    ProcessPlan,
    ResourcePlan,
    StoragePlan,
    StreamsPlan,
)
from minit.plan.life.health import HealthCheck, Target
from minit.plan.life.hooks import Hook
from minit.plan.life.restart import RestartPolicy
from minit.plan.life.sockets import ListenSocket
from minit.plan.rights.protection import Protection
from minit.plan.rights.seccompprofile import SeccompProfile
from minit.plan.root.devicevolumes import DeviceRule
from minit.plan.root.etcfiles import AppFile
from minit.plan.root.mountoperations import (
    BindTree,
    MadeFilesystem,
    MakeDirectory,
    MakeFile,
    MakeNode,
    MakeSymlink,
    MountFilesystem,
)
from minit.plan.root.volumes import VolumeMount

_CLASSES: dict[str, type[Value]] = {
    kind.__name__: kind
    for kind in (
        *(
            AppSpec,
            CpuQuota,
            DeviceRule,
            AppFile,
            Limits,
            Protection,
            SeccompPolicy,
            SeccompProfile,
            ListenSocket,
            VolumeMount,
        ),
        *(ProcessPlan, ConfinementPlan, ResourcePlan, StoragePlan, StreamsPlan, LifePlan),
        *(Dependency, HealthCheck, Hook, RestartPolicy, Target),
        *(BindTree, MadeFilesystem, MakeDirectory, MakeFile, MakeNode, MakeSymlink, MountFilesystem),
    )
}
_CLASS, _BYTES, _SET = "class", "bytes", "set"


def encode_spec(spec: AppSpec) -> bytes:
    """Return a spec as bytes."""
    return dump(_encode(spec))


def decode_spec(data: bytes) -> AppSpec:
    """Return the spec in `data`; ControlError if it is none of this version."""
    try:
        spec = _decode(parse(data, "spec"))
    except ManifestError as error:
        raise ControlError(str(error)) from error
    except (KeyError, TypeError, ValueError) as error:
        raise ControlError(f"spec: not one of this version: {error}") from error
    if not isinstance(spec, AppSpec):
        raise ControlError("spec: not one of an app")
    return spec


def _encode(value: object) -> object:
    if isinstance(value, Value):
        return {_CLASS: type(value).__name__, **{name: _encode(getattr(value, name)) for name in value._fields}}
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, bytes):
        return {_BYTES: value.hex()}
    if isinstance(value, frozenset):
        return {_SET: sorted(value)}
    return value


def _decode(value: object) -> object:
    if isinstance(value, list):
        # Not of a generator, whose tuple is made too large and cut: PID 1 would keep up to 2,000 free ones of each size
        # (Objects/tupleobject.c).
        return tuple([_decode(item) for item in value])
    if not isinstance(value, dict):
        return value
    if _BYTES in value:
        return bytes.fromhex(value[_BYTES])
    if _SET in value:
        return frozenset(value[_SET])
    kind = _CLASSES[value.pop(_CLASS)]
    return kind(**{name: _decode(item) for name, item in value.items()})
