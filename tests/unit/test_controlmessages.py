"""minit.podfiles.controlmessages: requests and answers of the control socket, and their table in the docs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base import jsontext
from minit.base.errors import ControlError
from minit.podfiles.controlmessages import (
    REQUESTS,
    AddApp,
    Answer,
    AskEvents,
    AskState,
    Events,
    HealthResult,
    LiveApp,
    LivePod,
    Message,
    Ping,
    Refusal,
    Request,
    StopApp,
    answer_of,
    read_request,
)
from tests.support.stage0_world import REPOSITORY

TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", object: "object", LiveApp: "app"}
TEXT = st.text(max_size=4)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
FIELDS = sorted({name for kind in REQUESTS.values() for name in kind.kinds()})


def type_name(kind: Any) -> str:
    """Return the type of a field in JSON's words."""
    if isinstance(kind, UnionType):
        return type_name(get_args(kind)[0])
    if get_origin(kind) is tuple:
        return f"{type_name(get_args(kind)[0])}s"
    if get_origin(kind) is Mapping:
        return f"object of {type_name(get_args(kind)[1])}s"
    return TYPES.get(kind, "result")


def cell(kind: type[Message]) -> str:
    """Return the fields of a message as the table has them."""
    fields = (f"`{name}`{'?' if hasattr(kind, name) else ''}: {type_name(of)}" for name, of in kind.kinds().items())
    return ", ".join(fields) or "—"


def table(marker: str) -> list[list[str]]:
    """Return the rows of a table of docs/control.md."""
    text = (REPOSITORY / "docs/control.md").read_text()
    rows = re.split(rf"<!-- /?{marker} -->\n", text)[1].splitlines()[2:]
    return [[part.strip() for part in row.strip("|").split(" | ")] for row in rows]


def test_the_table_of_requests() -> None:
    """The docs list every request with its fields and those of its answer."""
    assert [row[:3] for row in table("requests")] == [
        [f"`{op}`", cell(kind), cell(answer_of(kind))] for op, kind in REQUESTS.items()
    ]


def test_the_table_of_an_apps_state() -> None:
    """The docs list every field of an app in the answer to `state`."""
    assert [row[0] for row in table("app state")] == cell(LiveApp).split(", ")


@given(st.fixed_dictionaries({"op": st.sampled_from(sorted(REQUESTS))}, optional=dict.fromkeys(FIELDS, JSON)))
def test_any_object(fields: dict[str, object]) -> None:
    """An object is a request that is the same value after a way through JSON, or is refused."""
    try:
        request = read_request(fields)
    except ControlError as error:
        assert str(error).startswith('request: "')
        return
    text = jsontext.dump(request.to_json())
    again = jsontext.parse(text, "request")
    assert isinstance(again, dict) and read_request(again) == request


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({}, 'unknown op "None"'),
        ({"op": "dance"}, 'unknown op "dance"'),
        ({"op": ["ping"]}, "unknown op \"['ping']\""),
        ({"op": "namespace"}, 'request: "app": expected a value'),
        ({"op": "namespace", "app": 1}, 'request: "app": expected a text'),
        ({"op": "stop", "force": "yes"}, 'request: "force": expected true or false'),
        ({"op": "events", "since": None}, 'request: "since": expected an integer'),
        ({"op": "events", "since": True}, 'request: "since": expected an integer'),
        ({"op": "app-stop", "app": "a", "grace_seconds": 5}, 'request: "grace_seconds": expected a number like "5.0"'),
        ({"op": "app-add", "app": "a", "version": 3, "descriptors": "spec"}, 'request: "descriptors": expected a list'),
        ({"op": "app-add", "app": "a", "version": 3, "descriptors": [1]}, 'request: "descriptors": expected a text'),
    ],
)
def test_what_is_no_request(fields: dict[str, object], error: str) -> None:
    """A wrong type is refused with the name of its field."""
    with pytest.raises(ControlError) as refused:
        read_request(fields)
    assert str(refused.value) == error


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (Ping(), {"op": "ping"}),
        (StopApp(app="a"), {"op": "app-stop", "app": "a"}),
        (StopApp(app="a", grace_seconds=0.0), {"op": "app-stop", "app": "a", "grace_seconds": 0.0}),
        (
            AddApp(app="a", version=3, descriptors=("spec", "root"), v2=True),
            {"op": "app-add", "app": "a", "version": 3, "descriptors": ["spec", "root"], "v2": True},
        ),
    ],
)
def test_requests(request_: Request, fields: dict[str, object]) -> None:
    """A request has its fields on the wire, and a client of another version may say more."""
    assert request_.to_json() == fields
    assert read_request({**fields, "more": 1}) == request_


def test_answers() -> None:
    """An answer has its fields beside `ok`, and what is absent in it is not there to its reader."""
    app = LiveApp(name="a", state="running", pid=7, health={"liveness": HealthResult(healthy=True, text="")})
    state = LivePod(uuid="u", state="running", ready=True, apps=(app,))
    told = {"name": "a", "state": "running", "pid": 7, "health": {"liveness": {"healthy": True, "text": ""}}}
    fields = {"ok": True, "uuid": "u", "state": "running", "ready": True, "apps": [told]}
    assert state.to_json() == fields
    assert AskState().read_answer(fields) == state
    assert AskEvents().read_answer({"ok": True, "events": [{"x": [1]}], "last": 4}) == Events(
        events=({"x": [1]},), last=4
    )
    assert Ping().read_answer({**fields, "pid": 1}).to_json() == {"ok": True, "uuid": "u", "pid": 1}
    assert StopApp(app="a").read_answer({"ok": True}) == Answer()


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        (Refusal(error="no").to_json(), "no"),
        ({}, "None"),
        ({"ok": True, "uuid": "u"}, 'answer: "state": expected a value'),
        ({"ok": True, "uuid": "u", "state": "s", "ready": True, "apps": [1]}, 'answer: "apps": expected an object'),
    ],
)
def test_refusals(fields: dict[str, object], error: str) -> None:
    """A refusal, and an answer of another form, is an error."""
    with pytest.raises(ControlError) as refused:
        AskState().read_answer(fields)
    assert str(refused.value) == error
