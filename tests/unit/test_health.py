"""Health checks: what an annotation may say, and what results come to."""

from __future__ import annotations

import fcntl
import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import MinitError
from minit.launcher.health import healthhelper
from minit.launcher.health.healthhelper import NEVER, AppHealth, CheckState
from minit.manifest.pod import RuntimeApp
from minit.plan.life.health import HealthCheck, Target, plan_health


def plan(value: object, *, can_be_removed: bool = False) -> tuple[HealthCheck, ...]:
    """Return the checks of an annotation."""
    text = value if isinstance(value, str) else json.dumps(value)
    return plan_health(RuntimeApp(name="web", annotations=(("minit/health", text),)), can_be_removed=can_be_removed)


def test_checks() -> None:
    """There are three ways and three kinds, with the defaults of Kubernetes; they come in a fixed order."""
    assert plan(
        {
            "readiness": {"tcp": {"port": 5432}, "successes": 2},
            "liveness": {
                "http": {"port": 80, "path": "/ok", "headers": {"A": "b c"}},
                "interval": "1m",
                "action": "stop-pod",
            },
            "startup": {"exec": ["/bin/check", "x"], "delay": "1s", "timeout": "500ms", "failures": 30},
        }
    ) == (
        HealthCheck(
            kind="startup",
            command=("/bin/check", "x"),
            delay_seconds=1,
            timeout_seconds=0.5,
            failures=30,
            action="restart",
        ),
        HealthCheck(
            kind="liveness",
            target=Target(host="127.0.0.1", port=80, path="/ok", headers=(("A", "b c"),)),
            interval_seconds=60,
            action="stop-pod",
        ),
        HealthCheck(kind="readiness", target=Target(host="127.0.0.1", port=5432), successes=2),
    )
    assert plan_health(RuntimeApp(name="web"), can_be_removed=True) == ()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("x", "minit/health"),
        ({}, "expected some of startup, liveness, readiness"),
        ({"alive": {}}, "alive: expected one of the fields startup"),
        ({"liveness": {}}, "liveness: expected one of exec, http and tcp"),
        ({"liveness": {"exec": []}}, "liveness.exec: expected a command"),
        ({"liveness": {"exec": ["x"], "tcp": {"port": 1}}}, "expected one of exec, http and tcp"),
        ({"liveness": {"exec": ["x"], "period": "1s"}}, "liveness.period: expected one of the fields exec"),
        ({"liveness": {"exec": ["x"], "interval": "0s"}}, "from 0.1 s on"),
        ({"liveness": {"exec": ["x"], "failures": 0}}, "liveness.failures: expected an integer"),
        ({"liveness": {"exec": ["x"], "successes": 2}}, "liveness.successes: expected 1, for liveness"),
        ({"liveness": {"exec": ["x"], "action": "kill"}}, "liveness.action: expected"),
        ({"readiness": {"exec": ["x"], "action": "restart"}}, 'readiness.action: expected "none"'),
        ({"liveness": {"http": {"port": 0}}}, "liveness.http.port"),
        ({"liveness": {"http": {"port": 1, "path": "/a b"}}}, "liveness.http.path"),
        ({"liveness": {"http": {"port": 1, "host": "localhost"}}}, "liveness.http.host: expected an IP address"),
        ({"liveness": {"tcp": {"port": 1, "host": "1:2"}}}, "liveness.tcp.host: expected an IP address"),
        ({"liveness": {"tcp": {"port": 1, "host": "127.1"}}}, "liveness.tcp.host: expected an IP address"),
        ({"liveness": {"tcp": {"port": 1, "host": "fe80::1%1"}}}, "liveness.tcp.host: expected an IP address"),
        ({"liveness": {"http": {"port": 1, "headers": {"a": "b\r\nc"}}}}, "liveness.http.headers"),
    ],
)
def test_errors(value: object, message: str) -> None:
    """An error is named with its place in the annotation."""
    with pytest.raises(MinitError, match="web.*minit/health") as raised:
        plan(value)
    assert message in str(raised.value)


@pytest.mark.parametrize("host", ["192.0.2.7", "::1", "2001:db8::192.0.2.7"])
def test_hosts(host: str) -> None:
    """A target may be at any address of either kind."""
    [check] = plan({"readiness": {"tcp": {"port": 1, "host": host}}})
    assert check.target == Target(host=host, port=1)


def test_not_for_what_a_mutable_pod_starts_with() -> None:
    """It can be removed, and another app be added under its name."""
    with pytest.raises(MinitError, match="only apps that are added to it can have checks"):
        plan({"liveness": {"exec": ["x"]}}, can_be_removed=True)


def check(kind: str = "liveness", **fields: object) -> HealthCheck:
    """Return a check that takes no time."""
    return HealthCheck(kind=kind, command=("x",), **fields)  # type: ignore[arg-type]


def test_thresholds() -> None:
    """Results in a row decide, once when they are good, again and again when they are bad."""
    state = CheckState(check(failures=2, interval_seconds=5), 0)
    decided = [state.note(good, 0) for good in (True, True, False, True, False, False, False, False, True)]
    assert decided == [True, False, False, False, False, True, False, True, True]
    assert state.healthy is True and state.due_at == 5


def test_the_start_comes_first() -> None:
    """Until the app has started nothing else is checked; then the check of its start is done with."""
    health = AppHealth([check("startup"), check("liveness", delay_seconds=7), check("readiness")], 100)
    [startup] = health.due(100)
    startup.begin()
    assert health.due(200) == [] and health.next_due() == NEVER
    assert not health.note(startup, False, 101) and [state.check.kind for state in health.due(111)] == ["startup"]
    assert health.note(startup, True, 105)
    assert [state.check.kind for state in health.due(105)] == ["readiness"]
    assert [state.check.kind for state in health.due(107)] == ["liveness", "readiness"]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5), st.integers(1, 5))
def test_no_decision_without_enough_results(results: list[bool], failures: int, successes: int) -> None:
    """A check is never bad without as many bad results in a row, nor good without as many good ones."""
    state = CheckState(check("readiness", failures=failures, successes=successes), 0)
    for number, good in enumerate(results, 1):
        if state.note(good, 0):
            needed = successes if good else failures
            assert results[max(0, number - needed) : number] == [good] * needed
            assert state.healthy is good


def test_what_is_written_as_fast_as_it_is_read_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command leaves processes behind that go on writing: no more is read than its pipe can hold."""
    reader, writer = os.pipe()
    size_bytes = fcntl.fcntl(reader, fcntl.F_GETPIPE_SZ)
    os.write(writer, b"x" * size_bytes)
    read, taken = os.read, 0

    def read_and_refill(fd: int, count: int) -> bytes:
        nonlocal taken
        data = read(fd, count)
        taken += os.write(writer, data)
        assert taken <= size_bytes
        return data

    monkeypatch.setattr(os, "read", read_and_refill)
    output = healthhelper.Output(reader)
    output.read()
    assert output.last_line() == "x" * 200
    assert taken == size_bytes
    output.close()
    os.close(writer)
