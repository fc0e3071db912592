"""An app as PID 1 carries the plan out, and as bytes, for an app that is added to a running pod."""

from __future__ import annotations

from minit.base.errors import ControlError, ManifestError
from minit.base.value import Value, replace
from minit.base.valuecodec import ValueCodec
from minit.plan.confinement import Confinement
from minit.plan.lifeplan import LifePlan
from minit.plan.process import ProcessPlan
from minit.plan.resources import ResourcePlan
from minit.plan.root.groupmounts import GROUPS
from minit.plan.root.mountoperations import BindTree
from minit.plan.storage import StoragePlan
from minit.plan.streams import StreamsPlan


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


# When the module is imported: later PID 1 imports nothing, and has forgotten the modules that annotations name.
_CODEC = ValueCodec(AppSpec)


def encode_spec(spec: AppSpec) -> bytes:
    """Return a spec as bytes of JSON."""
    return _CODEC.encode(spec)


def decode_spec(data: bytes) -> AppSpec:
    """Return the spec in `data`; ControlError if `data` is no spec of this version."""
    try:
        spec = _CODEC.decode(data, "spec")
    except ManifestError as error:
        raise ControlError(str(error)) from error
    if not isinstance(spec, AppSpec):
        raise ControlError("spec: not one of an app")
    return spec
