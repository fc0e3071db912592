"""minit.supervisor.control.operations: what the control socket answers."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.base import jsontext
from minit.linux import syscalls
from minit.linux.messages import socket_pair
from minit.linux.process import read_attributes
from minit.plan.appplan import AppSpec, ProcessPlan
from minit.plan.entering import decode_profile, profile_of
from minit.plan.podplan import PodPlan
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.control.operations import answer
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import LauncherLink
from minit.supervisor.supervisor import Supervisor

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of two apps that were not started: `web` is prepared, `db` is not."""
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    specs = tuple(
        AppSpec(name=name, process=ProcessPlan(candidates=("/x",), environment=(("A", "1"), ("B", ""))))
        for name in ("web", "db")
    )
    plan = PodPlan(uuid=UUID, hostname="h", namespaces=(), apps=specs, bounding=None)
    ends = GroupEnds(app="", directory=directory, is_v2=False)
    apps = [App(spec, ends, read_attributes((256, 256))) for spec in specs]
    apps[0].run.pid, apps[0].namespace, apps[0].state = 11, directory, State.RUNNING
    launcher, theirs = socket_pair()
    control, _ = socket_pair()
    signals = syscalls.signalfd(())
    context = Context(plan, apps, theirs, Journal(debug=False))
    yield Supervisor(context, LauncherLink(context, theirs), control, signals)
    os.close(directory)
    os.close(signals)
    launcher.close()


def test_namespace(supervisor: Supervisor) -> None:
    """The mount namespace of a prepared app stays the supervisor's."""
    namespace = supervisor.apps["web"].namespace
    assert answer(supervisor, {"op": "namespace", "app": "web"}) == ({"ok": True}, [namespace])


def test_enter(supervisor: Supervisor) -> None:
    """With the namespace comes a file of what the app gives a command; it is made once."""
    app = supervisor.apps["web"]
    reply, descriptors = answer(supervisor, {"op": "enter", "app": "web"})
    assert reply == {"ok": True}
    assert app.profile is not None and descriptors == [app.namespace, app.profile]
    profile = decode_profile(os.pread(app.profile, 1 << 16, 0), "profile")
    assert profile == profile_of(app.spec, app.attributes)
    assert profile.environment == ((b"A", b"1"), (b"B", b""))
    assert profile.attributes is not None and (resource.RLIMIT_NOFILE, 256, 256) in profile.attributes.limits
    assert (resource.RLIMIT_CORE, *resource.getrlimit(resource.RLIMIT_CORE)) in profile.attributes.limits
    assert answer(supervisor, {"op": "enter", "app": "web"}) == (reply, descriptors)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "namespace", "app": "db"}, 'app "db" is not prepared yet'),
        ({"op": "namespace", "app": "no"}, 'no app "no" in this pod'),
        ({"op": "enter", "app": "db"}, 'app "db" is not prepared yet'),
        ({"op": "namespace"}, 'no app "None" in this pod'),
        ({"op": "dance"}, 'unknown op "dance"'),
        ({}, 'unknown op "None"'),
    ],
)
def test_refusals(supervisor: Supervisor, request_: dict[str, object], error: str) -> None:
    """A request that cannot be answered is refused with the reason, and nothing changes."""
    assert answer(supervisor, request_) == ({"ok": False, "error": error}, [])
    assert supervisor.pod.exit_code is None


@pytest.mark.parametrize(("force", "state"), [(None, State.STOPPING), (True, State.KILLED), ("yes", State.STOPPING)])
def test_stop(supervisor: Supervisor, force: object, state: str) -> None:
    """The answer comes at once; only a true `force` kills."""
    request: dict[str, object] = {"op": "stop"} if force is None else {"op": "stop", "force": force}
    assert answer(supervisor, request) == ({"ok": True}, [])
    assert supervisor.pod.exit_code == 0
    assert supervisor.apps["web"].state == state
    assert answer(supervisor, {"op": "state"})[0]["state"] == "stopping"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(st.sampled_from(["op", "app", "force", "x"]), JSON, max_size=3)
    | st.fixed_dictionaries({"op": st.sampled_from(["ping", "state", "namespace"]), "app": JSON})
)
def test_any_object_is_answered(supervisor: Supervisor, request_: dict[str, object]) -> None:
    """The reply to any request is JSON and tells whether it worked."""
    reply, _ = answer(supervisor, request_)
    assert isinstance(reply["ok"], bool)
    assert ("error" in reply) is not reply["ok"]
    assert jsontext.parse(jsontext.dump(reply), "reply") == reply
