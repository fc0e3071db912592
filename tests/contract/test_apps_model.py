"""A mutable pod beside a model of it: any sequence of requests, and ends of apps in between."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.campaign import campaign
from tests.support.pods import MakePod, shell
from tests.support.sandbox import Sandbox

NAMES = ("one", "two", "three")
# Ends with 3 when there is a file, with 9 on SIGTERM.
LOOP = "trap 'exit 9' TERM; while ! test -e /end; do sleep 0.01; done; rm /end; exit 3"


class Model:
    """What should be so: of each app that is in the pod, its state, its last status and how often it was restarted."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.status: dict[str, int | None] = {}
        self.starts: dict[str, int] = {}


def machine_of(sandbox: Sandbox) -> type[RuleBasedStateMachine]:
    """Return the state machine whose runs all drive this pod, each beginning with an empty one."""

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        @rule(app=st.sampled_from(NAMES))
        def add(self, app: str) -> None:
            if app in self.model.state:
                result = sandbox.call("app/add", f"--uuid={sandbox.pod.uuid}", f"--app={app}")
                assert (result.returncode, "is in this pod already" in result.stdout) == (254, True)
                return
            assert sandbox.add(app, shell(LOOP)).returncode == 0
            self.model.state[app], self.model.status[app], self.model.starts[app] = "prepared", None, 0

        @rule(app=st.sampled_from(NAMES))
        def start(self, app: str) -> None:
            result = sandbox.start(app) if app in self.model.state else sandbox.call("app/start", f"--app={app}")
            assert result.returncode == (0 if app in self.model.state else 254), result.stdout
            if app in self.model.state:
                self.model.starts[app] += self.model.state[app] != "running"
                self.model.state[app], self.model.status[app] = "running", None
            else:
                (sandbox.pod.stage1 / "rkt/status" / app).unlink()

        @rule(app=st.sampled_from(NAMES), twice=st.booleans())
        def stop(self, app: str, twice: bool) -> None:
            for _ in range(1 + twice):
                result = sandbox.stop(app)
                assert (result.returncode, result.stdout) == (0, "")
            if self.model.state.get(app) == "running":
                self.model.state[app], self.model.status[app] = "exited", 9

        @rule(app=st.sampled_from(NAMES))
        def end(self, app: str) -> None:
            if self.model.state.get(app) == "running":
                sandbox.pod.file(app, "end").touch()
                sandbox.wait_state(app, "exited")
                self.model.state[app], self.model.status[app] = "exited", 3

        @rule(app=st.sampled_from(NAMES))
        def kill(self, app: str) -> None:
            if self.model.state.get(app) == "running":
                pid = (sandbox.app(app) or {})["pid"]
                assert sandbox.pod.enter(app, "/bin/kill", "-KILL", str(pid)).returncode == 0
                sandbox.wait_state(app, "exited")
                self.model.state[app], self.model.status[app] = "exited", 137

        @rule(app=st.sampled_from(NAMES))
        def remove(self, app: str) -> None:
            if app in self.model.state:
                result = sandbox.remove(app)
                assert (result.returncode, result.stdout) == (0, "")
                assert sandbox.traces(app) == []
                for facts in (self.model.state, self.model.status, self.model.starts):
                    del facts[app]  # type: ignore[attr-defined]
            else:
                assert sandbox.call("app/rm", f"--app={app}").returncode == 0

        @invariant()
        def the_pod_is_as_the_model(self) -> None:
            apps: list[dict[str, Any]] = sandbox.pod.ask({"op": "state"})["apps"]
            assert {app["name"]: app["lifecycle_state"] for app in apps} == self.model.state
            for app in apps:
                name = app["name"]
                assert app["restarts"] == max(0, self.model.starts[name] - 1)
                assert sandbox.pod.status(name) == self.model.status[name]
                assert sandbox.rkt_state(name) == {"prepared": "created"}.get(self.model.state[name], app["state"])
            assert sandbox.process.poll() is None

        def teardown(self) -> None:
            for app in tuple(self.model.state):
                assert sandbox.remove(app).returncode == 0

    return Machine


def test_a_pod_beside_its_model(make_pod: MakePod) -> None:
    """Whatever is asked in whatever order, states, statuses and restarts are those of the model, and nothing grows."""
    sandbox = Sandbox(make_pod)
    length = settings(
        max_examples=campaign(4),
        stateful_step_count=12,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(machine_of(sandbox), settings=length)
    assert sandbox.end().returncode == 0
