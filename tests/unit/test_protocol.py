"""minit.supervisor.control.answers: what the control socket answers."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.linux import syscalls
from minit.linux.messages import socket_pair
from minit.linux.process import read_attributes
from minit.plan.appspec import AppSpec
from minit.plan.confinement import Confinement
from minit.plan.entering import decode_profile, profile_of
from minit.plan.podplan import PodPlan
from minit.plan.process import ProcessPlan
from minit.plan.resources import ResourcePlan
from minit.podfiles.controlmessages import read_request
from minit.supervisor.apps.context import Context
from minit.supervisor.apps.controlgroup import GroupEnds
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.control.answers import answer
from minit.supervisor.journal import Journal
from minit.supervisor.launcherlink import LauncherLink
from minit.supervisor.supervisor import Supervisor

UUID = "6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"


def ask(supervisor: Supervisor, fields: dict[str, object]) -> tuple[dict[str, object], list[int]]:
    """Return the answer to a request as its client reads it, and the descriptors."""
    reply, descriptors = answer(supervisor, read_request(fields))
    return reply.to_json(), descriptors


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """A supervisor of two apps that were not started: `web` is prepared, `db` is not."""
    directory = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    specs = tuple(
        AppSpec(
            name=name,
            process=ProcessPlan(candidates=("/x",), environment=(("A", "1"), ("B", ""))),
            confinement=Confinement(),
            resources=ResourcePlan(rlimits=((resource.RLIMIT_NOFILE, 256, 512),)),
        )
        for name in ("web", "db")
    )
    plan = PodPlan(uuid=UUID, hostname="h", namespaces=(), apps=(), bounding=None)
    ends = GroupEnds(app="", directory=directory, is_v2=False)
    apps = [App(spec, ends, read_attributes()) for spec in specs]
    apps[0].run.pid, apps[0].namespace, apps[0].state = 11, directory, State.RUNNING
    launcher, theirs = socket_pair()
    control, _ = socket_pair()
    signals = syscalls.signalfd(())
    context = Context(plan.traits, apps, theirs, Journal(debug=False))
    yield Supervisor(context, LauncherLink(context, theirs), control, signals)
    os.close(directory)
    os.close(signals)
    launcher.close()


def test_namespace(supervisor: Supervisor) -> None:
    """The mount namespace of a prepared app stays the supervisor's."""
    namespace = supervisor.apps["web"].namespace
    assert ask(supervisor, {"op": "namespace", "app": "web"}) == ({"ok": True}, [namespace])


def test_enter(supervisor: Supervisor) -> None:
    """With the namespace comes a file of what the app gives a command; it is made once."""
    app = supervisor.apps["web"]
    reply, descriptors = ask(supervisor, {"op": "enter", "app": "web"})
    assert reply == {"ok": True}
    assert app.profile is not None and descriptors == [app.namespace, app.profile]
    profile = decode_profile(os.pread(app.profile, 1 << 16, 0), "profile")
    assert profile == profile_of(app.spec, app.attributes)
    assert profile.environment == ((b"A", b"1"), (b"B", b""))
    assert profile.limits == ((resource.RLIMIT_NOFILE, 256, 512),)
    assert ask(supervisor, {"op": "enter", "app": "web"}) == (reply, descriptors)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        ({"op": "namespace", "app": "db"}, 'app "db" is not prepared yet'),
        ({"op": "namespace", "app": "no"}, 'no app "no" in this pod'),
        ({"op": "enter", "app": "db"}, 'app "db" is not prepared yet'),
        ({"op": "reopen-logs", "app": "no"}, 'no app "no" in this pod'),
        ({"op": "events", "since": -1}, '"since": expected the number of an event'),
        (
            {"op": "health", "app": "no", "pid": 1, "check": "liveness", "healthy": True},
            "expected an app of this pod, a check and its result",
        ),
    ],
)
def test_refusals(supervisor: Supervisor, request_: dict[str, object], error: str) -> None:
    """A request that cannot be answered is refused with the reason, and nothing changes."""
    assert ask(supervisor, request_) == ({"ok": False, "error": error}, [])
    assert supervisor.pod.exit_code is None


@pytest.mark.parametrize(("force", "state"), [(None, State.STOPPING), (True, State.KILLED), (False, State.STOPPING)])
def test_stop(supervisor: Supervisor, force: object, state: str) -> None:
    """The answer comes at once; only a true `force` kills."""
    request: dict[str, object] = {"op": "stop"} if force is None else {"op": "stop", "force": force}
    assert ask(supervisor, request) == ({"ok": True}, [])
    assert supervisor.pod.exit_code == 0
    assert supervisor.apps["web"].state == state
    assert ask(supervisor, {"op": "state"})[0]["state"] == "stopping"
