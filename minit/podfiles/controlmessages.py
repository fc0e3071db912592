"""
The messages of the control socket: a JSON object for each request to PID 1, and for each answer.

docs/control.md has a table of them. Clients may be of another version: unknown keys are ignored, and the answer of an
older PID 1 may lack some fields of `LiveApp`.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, Self, get_args, get_origin, get_type_hints

from minit.base.errors import ControlError
from minit.base.value import Value

ADDING_VERSION = 3
"""Of `AddApp` and its spec: both sides are of one image."""

MAXIMUM_DESCRIPTORS = 253
"""The descriptors that a request may bring: SCM_MAX_FD of Linux."""

PAUSED = "paused"
"""The state of a running app whose processes are frozen."""

_EXPECTED = {
    str: "a text",
    int: "an integer",
    float: 'a number like "5.0"',
    bool: "true or false",
    tuple: "a list",
    Mapping: "an object",
}


class Message(Value):
    """A JSON object with a key for each field. A field without a value is None, and is left out of the object."""

    _kinds: dict[str, Any] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Here, since PID 1 imports nothing later, not even by evaluating an annotation.
        cls._kinds = get_type_hints(cls)

    @classmethod
    def kinds(cls) -> dict[str, Any]:
        """Return the type of each field."""
        return {name: cls._kinds[name] for name in cls._fields}

    @classmethod
    def read(cls, fields: Mapping[str, object], place: str) -> Self:
        """Return the message in a JSON object; ControlError, with `place`, for a value of a wrong type."""
        found: dict[str, Any] = {}
        for name, kind in cls.kinds().items():
            is_absent = name not in fields or (fields[name] is None and isinstance(kind, UnionType))
            if not is_absent:
                found[name] = _decode(kind, fields[name], f'{place}: "{name}"')
            elif not hasattr(cls, name):
                raise ControlError(f'{place}: "{name}": expected a value')
        return cls(**found)

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        values = {name: getattr(self, name) for name in self._fields}
        return {name: _encode(value) for name, value in values.items() if value is not None}


def _decode(kind: Any, value: object, place: str) -> object:
    if isinstance(kind, UnionType):  # X | None, for a value that is not None
        return _decode(get_args(kind)[0], value, place)
    if kind is object:
        return value
    origin = get_origin(kind)
    if origin is tuple and isinstance(value, list):
        # No tuple of a generator: PID 1 would keep up to 2,000 free tuples of each size (Objects/tupleobject.c).
        return tuple([_decode(get_args(kind)[0], item, place) for item in value])
    if origin is Mapping and isinstance(value, dict):
        return {key: _decode(get_args(kind)[1], item, place) for key, item in value.items()}
    if origin is None and issubclass(kind, Message) and isinstance(value, dict):
        return kind.read(value, place)
    # Exactly: true is no integer.
    if type(value) is kind:
        return value
    raise ControlError(f"{place}: expected {_EXPECTED.get(origin or kind, 'an object')}")


def _encode(value: object) -> object:
    if isinstance(value, Message):
        return value.to_json()
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: _encode(item) for key, item in value.items()}
    return value


class Answer(Message):
    """PID 1's answer to a request that is carried out, with the fields of the answer's own class."""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object with a true `ok`."""
        return {"ok": True, **super().to_json()}


class Refusal(Answer):
    """The answer to a request that is not carried out."""

    error: str

    def to_json(self) -> dict[str, object]:
        """Return the JSON object with a false `ok`."""
        return {**super().to_json(), "ok": False}


class Identity(Answer):
    """The pod of a supervisor, and its pid there."""

    uuid: str
    pid: int


class HealthResult(Message):
    """The last decisive result of a check of an app."""

    healthy: bool
    text: str


class LiveApp(Message):
    """An app of the pod. `pid` is there while the app runs, `status` from its end on."""

    name: str
    state: str
    lifecycle_state: str | None = None
    status: int | None = None
    pid: int | None = None
    restarts: int | None = None
    ready: bool | None = None
    says: str | None = None
    restart_in_seconds: float | None = None
    streams: Mapping[str, str] | None = None
    attached: Mapping[str, int] | None = None
    lost_output_bytes: int | None = None
    health: Mapping[str, HealthResult] | None = None


class LivePod(Answer):
    """The state of a pod and of its apps, and the version of the minit that PID 1 runs."""

    uuid: str
    state: str
    ready: bool
    apps: tuple[LiveApp, ...]
    version: str | None = None


class Events(Answer):
    """Events of the pod, as docs/events.md lists them, and the number of the last one."""

    events: tuple[object, ...]
    last: int


class Request(Message):
    """A request. `op` names its class on the wire."""

    op = ""

    def to_json(self) -> dict[str, object]:
        """Return the JSON object."""
        return {"op": self.op, **super().to_json()}

    def read_answer(self, fields: Mapping[str, object]) -> Answer:
        """Return PID 1's answer in a JSON object; ControlError for a refusal, and for an answer to something else."""
        if fields.get("ok") is not True:
            raise ControlError(str(fields.get("error")))
        return answer_of(type(self)).read(fields, "answer")


class Ping(Request):
    """Asks for the pod's UUID and PID 1's own pid."""

    op = "ping"


class AskState(Request):
    """Asks for the state of the pod and of its apps."""

    op = "state"


class StopPod(Request):
    """Begins to stop the pod; with `force`, or as a second request, the apps are killed at once."""

    op = "stop"
    force: bool = False


class ReopenLogs(Request):
    """Has the sidecar of `app`, or every sidecar, let go of moved log files."""

    op = "reopen-logs"
    app: str | None = None


class Reexecute(Request):
    """Has PID 1 execute its program anew, and go on."""

    op = "reexecute"


class Upgrade(Request):
    """Has PID 1 execute the program of another version of minit: a descriptor is a read-only mount of its image."""

    op = "upgrade"


class AskEvents(Request):
    """Asks for the kept events after number `since`, as many as fit."""

    op = "events"
    since: int = 0


class NoteHealth(Request):
    """Tells the result of a `check` of an app's process, and the `action` that follows."""

    op = "health"
    app: str
    pid: int
    check: str
    healthy: bool
    text: str = ""
    action: str = "none"


class FindNamespace(Request):
    """Asks for the mount namespace of an app."""

    op = "namespace"
    app: str


class EnterApp(Request):
    """Asks for the namespaces of an app and for its profile, minit.plan.entering."""

    op = "enter"
    app: str


class FindHelpers(Request):
    """Asks for pidfds of the helpers of an app."""

    op = "helpers"
    app: str


class Note(Request):
    """Has a `text`, the reason of a failure of an entrypoint, written to the pod's log."""

    op = "note"
    app: str
    text: str


class PauseApp(Request):
    """Freezes all processes of an app that runs."""

    op = "app-pause"
    app: str


class ResumeApp(Request):
    """Thaws all processes of an app that runs."""

    op = "app-resume"
    app: str


class SignalApp(Request):
    """Sends a signal to the main process of an app that runs."""

    op = "app-signal"
    app: str
    signal: int


class AppRequest(Request):
    """A request about an app of a mutable pod; its answer waits for the app."""

    app: str


class AddApp(AppRequest):
    """Adds an app, by a descriptor for each role in `descriptors`; with `v2` its control group is one of cgroup v2."""

    op = "app-add"
    version: int
    descriptors: tuple[str, ...]
    v2: bool = False


class StartApp(AppRequest):
    """Starts an app."""

    op = "app-start"


class StopApp(AppRequest):
    """Stops an app, with another grace period than its own if `grace_seconds` is given; 0.0 kills at once."""

    op = "app-stop"
    grace_seconds: float | None = None


class RemoveApp(AppRequest):
    """Stops an app, and has PID 1 let go of it."""

    op = "app-rm"


REQUESTS: dict[str, type[Request]] = {
    kind.op: kind
    for kind in (
        *(Ping, AskState, StopPod, ReopenLogs, AskEvents, NoteHealth, FindNamespace, EnterApp, FindHelpers, Note),
        *(PauseApp, ResumeApp, SignalApp, Reexecute, Upgrade),
        *(AddApp, StartApp, StopApp, RemoveApp),
    )
}
_ANSWERS: dict[type[Request], type[Answer]] = {Ping: Identity, AskState: LivePod, AskEvents: Events}


def answer_of(request: type[Request]) -> type[Answer]:
    """Return the class of the answer to a request."""
    return _ANSWERS.get(request, Answer)


def read_request(fields: Mapping[str, object]) -> Request:
    """Return the request in a JSON object; ControlError for anything else."""
    op = fields.get("op")
    kind = REQUESTS.get(op) if isinstance(op, str) else None
    if kind is None:
        raise ControlError(f'unknown op "{op}"')
    return kind.read(fields, "request")
