"""Hooks of apps: what an annotation may say."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError
from minit.manifest.app import App
from minit.manifest.pod import RuntimeApp
from minit.plan.appplan import AppPlan
from minit.plan.inputs.runflags import RunFlags
from minit.plan.life.hooks import Hook
from tests.support.planning import plan_one

UUID = "17d69bdf-5e4a-4f07-a8d4-8c0a1f6e9a3c"


def plan(value: object) -> AppPlan:
    """Return the plan of an app with this annotation."""
    text = value if isinstance(value, str) else json.dumps(value)
    runtime = RuntimeApp(name="web", annotations=(("minit/hooks", text),))
    app = App(user="0", group="0", exec=("/bin/web",), environment=(("PATH", "/a:/b"),), working_directory="/srv")
    return plan_one(runtime, app, RunFlags(uuid=UUID))[0]


def test_hooks() -> None:
    """A command is looked for as that of the app is, and a sleep is none."""
    spec = plan({"pre-stop": {"sleep": "1m"}, "post-start": {"exec": ["run", "x", ""]}})
    assert spec.life.post_start == Hook(
        candidates=("/a/run", "/b/run"), command="run", search="/a:/b", arguments=("x", "")
    )
    assert spec.life.pre_stop == Hook(sleep_seconds=60)
    assert list(spec.life.hooks) == ["post-start", "pre-stop"]
    assert spec.life.has_handlers and spec.life.is_joined_later
    assert "app web: pre-stop sleep 60 s" in spec.describe()
    assert "app web: post-start exec /a/run or /b/run ['x', '']" in spec.describe()
    assert not plan({"pre-stop": {"sleep": "0"}}).life.has_handlers


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("[", "hooks: "),
        ({}, "expected an object with post-start or pre-stop"),
        ({"pre-start": {"sleep": "1s"}}, "expected an object with post-start or pre-stop"),
        ({"pre-stop": {}}, "pre-stop"),
        ({"pre-stop": None}, "expected an object with exec or sleep"),
        ({"pre-stop": {"exec": ["a"], "sleep": "1s"}}, "expected an object with exec or sleep"),
        ({"pre-stop": {"http": {"port": 1}}}, "expected an object with exec or sleep"),
        ({"pre-stop": {"exec": []}}, "expected a command and its arguments"),
        ({"pre-stop": {"exec": [""]}}, "expected a command and its arguments"),
        ({"pre-stop": {"exec": ["a\0"]}}, "expected a string without NUL"),
        ({"pre-stop": {"exec": "a"}}, "exec"),
        ({"pre-stop": {"sleep": 1}}, "sleep"),
        ({"pre-stop": {"sleep": "-1s"}}, 'expected a duration such as "5s"'),
        ({"pre-stop": {"sleep": "9000h"}}, 'expected a duration such as "5s"'),
        ({"pre-stop": {"sleep": "soon"}}, 'expected a duration such as "5s"'),
    ],
)
def test_errors(value: object, message: str) -> None:
    """One line names the app, the annotation and the place."""
    with pytest.raises(MinitError) as raised:
        plan(value)
    assert message in str(raised.value)
    assert str(raised.value).startswith('app "web": annotation minit/hooks: ')


LEAVES = st.sampled_from(["", "a", "/b", "1s", "0", "x\0"]) | st.integers() | st.none() | st.booleans()
NAMES = st.sampled_from(["post-start", "pre-stop", "exec", "sleep", "x"])
VALUES = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3) | st.dictionaries(NAMES, each, max_size=2))


@given(VALUES)
def test_any_value(value: object) -> None:
    """It is hooks that can be run, or an error."""
    try:
        hooks = plan(json.dumps(value)).life.hooks
    except MinitError:
        return
    assert hooks
    for hook in hooks.values():
        assert (hook.sleep_seconds is None) == bool(hook.candidates)
        assert not any("\0" in word for word in (*hook.candidates, *hook.arguments))
