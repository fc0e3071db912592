"""
A mutable pod beside a model of it: any sequence of requests, and ends of apps in between.

Most requests go to the control socket directly, as an interpreter's start for each would be most of the time.
"""

from __future__ import annotations

import os
import signal
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tests.support.campaign import campaign
from tests.support.pods import MakePod, shell
from tests.support.processes import status_of
from tests.support.sandbox import Sandbox
from tests.support.waiting import wait_for

NAMES = ("one", "two", "three")
# Ends with 3 on SIGUSR1, with 9 on SIGTERM, and leaves a process behind.
WAITING = "trap 'exit 9' TERM; trap 'exit 3' USR1; sleep 1000 & : > /up; wait"
SELDOM = st.sampled_from((False, False, False, True))


class Model:
    """The model: of each app in the pod its state, its last status and the number of its restarts."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.status: dict[str, int | None] = {}
        self.starts: dict[str, int] = {}


def machine_of(sandbox: Sandbox) -> type[RuleBasedStateMachine]:
    """Return the state machine whose runs all drive this pod, each beginning with an empty one."""

    def ask(op: str, app: str) -> str | None:
        """Return why a request was refused, None if it was not."""
        reply = sandbox.pod.ask({"op": op, "app": app})
        assert reply["ok"] is not ("error" in reply)
        return reply.get("error")

    def send(app: str, number: int) -> None:
        """Send a signal to the main process of an app, and wait for its end."""
        own = str((sandbox.app(app) or {})["pid"])
        depth = len(status_of(sandbox.pod.pid)["NSpid"].split()) - 1
        for pid in sandbox.pod.members_of_app(app):
            if status_of(pid)["NSpid"].split()[depth] == own:
                os.kill(pid, number)
                break
        sandbox.wait_state(app, "exited")

    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        @rule(app=st.sampled_from(NAMES), by_entrypoint=SELDOM)
        def add(self, app: str, by_entrypoint: bool) -> None:
            if app not in self.model.state:
                assert sandbox.add(app, shell(WAITING)).returncode == 0
                self.model.state[app], self.model.status[app], self.model.starts[app] = "prepared", None, 0
            elif by_entrypoint:
                result = sandbox.call("app/add", f"--uuid={sandbox.pod.uuid}", f"--app={app}")
                assert (result.returncode, "is in this pod already" in result.stdout) == (254, True)

        @rule(app=st.sampled_from(NAMES), by_entrypoint=SELDOM)
        def start(self, app: str, by_entrypoint: bool) -> None:
            if app not in self.model.state:
                assert ask("app-start", app) == f'no app "{app}" in this pod'
                if by_entrypoint:
                    assert sandbox.call("app/start", f"--app={app}").returncode == 254
                    (sandbox.pod.stage1 / "rkt/status" / app).unlink()
                return
            is_running = self.model.state[app] == "running"
            if not is_running:
                sandbox.pod.file(app, "up").unlink(missing_ok=True)
            if by_entrypoint:
                assert sandbox.start(app).returncode == 0
            else:
                sandbox.mark_started(app)
                assert ask("app-start", app) is None
            self.model.starts[app] += not is_running
            self.model.state[app], self.model.status[app] = "running", None
            wait_for(sandbox.pod.file(app, "up").exists, f"{app} to wait for signals")

        @rule(app=st.sampled_from(NAMES), twice=st.booleans(), by_entrypoint=SELDOM)
        def stop(self, app: str, twice: bool, by_entrypoint: bool) -> None:
            for _ in range(1 + twice):
                if by_entrypoint:
                    result = sandbox.stop(app)
                    assert (result.returncode, result.stdout) == (0, "")
                else:
                    assert ask("app-stop", app) is None
            if self.model.state.get(app) == "running":
                self.model.state[app], self.model.status[app] = "exited", 9

        @rule(app=st.sampled_from(NAMES), number=st.sampled_from((signal.SIGUSR1, signal.SIGKILL)))
        def end(self, app: str, number: int) -> None:
            if self.model.state.get(app) == "running":
                send(app, number)
                self.model.state[app], self.model.status[app] = "exited", 3 if number == signal.SIGUSR1 else 137

        @rule(app=st.sampled_from(NAMES), really=SELDOM)
        def remove(self, app: str, really: bool) -> None:
            if app not in self.model.state:
                assert ask("app-rm", app) is None
            elif really:
                result = sandbox.remove(app)
                assert (result.returncode, result.stdout) == (0, "")
                assert sandbox.traces(app) == []
                for facts in (self.model.state, self.model.status, self.model.starts):
                    del facts[app]

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
    """After requests in any order states, statuses and restarts are those of the model, and nothing grows."""
    sandbox = Sandbox(make_pod)
    length = settings(
        max_examples=campaign(10),
        stateful_step_count=100,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    run_state_machine_as_test(machine_of(sandbox), settings=length)
    assert sandbox.end().returncode == 0
