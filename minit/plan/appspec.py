"""An app as PID 1 carries the plan out, and as bytes, for an app that is added to a running pod."""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args, get_type_hints

from minit.base.errors import ControlError, ManifestError
from minit.base.jsontext import dump, parse
from minit.base.value import Value, replace
from minit.plan.confinement import Confinement
from minit.plan.lifeplan import LifePlan
from minit.plan.process import ProcessPlan
from minit.plan.resources import ResourcePlan
from minit.plan.root.groupmounts import GROUPS
from minit.plan.root.mountoperations import BindTree
from minit.plan.storage import StoragePlan
from minit.plan.streams import StreamsPlan

_VALUE, _BYTES, _SET = "value", "bytes", "set"


class AppSpec(Value):
    """
    The plan of an app without its confinement, and the parts that the launcher makes of the plan.

    `environment` and `files` have the offers of the pod's networks.
    """

    name: str
    process: ProcessPlan
    confinement: Confinement
    """Of the app and its hooks."""
    handler_filters: tuple[bytes, ...] = ()
    """The filters of the event handlers, which run as root in the app."""
    may_change_limits: bool = False
    """Whether the filters allow the app to change the limits of other processes of the same user, PID 1 included."""
    resources: ResourcePlan = ResourcePlan()
    storage: StoragePlan = StoragePlan()
    groups: tuple[BindTree, ...] = ()
    """The app's own control groups, shown in place of a protected path."""
    streams: StreamsPlan = StreamsPlan()
    life: LifePlan = LifePlan()

    @property
    def has_group_namespace(self) -> bool:
        """Tell whether the app sees its group as the topmost: under v2 runtimes look for no other (Docker)."""
        return any(group.target == GROUPS for group in self.groups)

    @property
    def command_confinement(self) -> Confinement:
        """The confinement of a command that is entered as the app's user; a command is root unless asked otherwise."""
        # Enter looks for the command with the calls by which it reports a command that cannot be executed.
        return replace(self.confinement, has_own_filters=False)

    @property
    def handler_confinement(self) -> Confinement:
        """The confinement of an event handler: root in the app, whatever user the app has."""
        return replace(self.confinement, uid=0, gid=0, supplementary_gids=(), filters=self.handler_filters)


def _values_in(hint: object) -> Iterator[type[Value]]:
    """Yield the class of every value that may be in a field with a type annotation."""
    if isinstance(hint, type) and issubclass(hint, Value):
        yield hint
        for name, inner in get_type_hints(hint).items():
            if name in hint._fields:
                yield from _values_in(inner)
    for part in get_args(hint):
        yield from _values_in(part)


# When the module is imported: later PID 1 imports nothing, and has forgotten the modules that annotations name.
_CLASSES = {kind.__name__: kind for kind in _values_in(AppSpec)}


def encode_spec(spec: AppSpec) -> bytes:
    """
    Return a spec as bytes of JSON.

    A value is an object with its fields by the name of its class; bytes and sets are objects with one key.
    """
    return dump(_encode(spec))


def decode_spec(data: bytes) -> AppSpec:
    """Return the spec in `data`; ControlError if `data` is no spec of this version."""
    try:
        spec = _decode(parse(data, "spec"))
    except ManifestError as error:
        raise ControlError(str(error)) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ControlError(f"spec: not one of this version: {error}") from error
    if not isinstance(spec, AppSpec):
        raise ControlError("spec: not one of an app")
    return spec


def _encode(value: object) -> object:
    if isinstance(value, Value):
        return {_VALUE: [type(value).__name__, {name: _encode(getattr(value, name)) for name in value._fields}]}
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
    [(form, content)] = value.items()
    if form == _BYTES:
        return bytes.fromhex(content)
    if form == _SET:
        return frozenset(content)
    name, fields = content
    return _CLASSES[name](**{field: _decode(item) for field, item in fields.items()})
