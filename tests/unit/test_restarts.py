"""minit.plan.life.restart and minit.supervisor.apps.backoff: the annotations, and what follows the ends of an app."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.pod import PodManifest, RuntimeApp
from minit.plan.life.restart import ALWAYS, ON_FAILURE, RestartPolicy, plan_restart
from minit.supervisor.apps.backoff import Restarts

DURATION = 'expected a duration from 10ms to a year, such as "5s"'
POLICIES = st.builds(
    RestartPolicy,
    condition=st.sampled_from((ON_FAILURE, ALWAYS)),
    delay_seconds=st.floats(0.01, 100),
    max_delay_seconds=st.floats(0.01, 1000),
    reset_seconds=st.floats(0.01, 100),
    limit=st.none() | st.integers(0, 10),
)
ENDS = st.lists(st.tuples(st.booleans(), st.floats(0, 200)), max_size=100)


def planned(
    *own: tuple[str, str], pod: tuple[tuple[str, str], ...] = (), has_console: bool = False
) -> RestartPolicy | None:
    """Return the policy of an app with these annotations, of which `minit/restart` is left out."""
    runtime = RuntimeApp(name="web", annotations=tuple((f"minit/restart{name}", value) for name, value in own))
    shared = tuple((f"minit/restart{name}", value) for name, value in pod)
    manifest = PodManifest(ac_version="0.8.11", apps=(runtime,), annotations=shared)
    return plan_restart(runtime, manifest, has_console=has_console)


def test_annotations() -> None:
    """An app's own come before those of the pod, each by itself; without minit/restart there is no restart."""
    assert planned() is planned(("", "never")) is planned(("-delay", "1s")) is None
    assert planned(("", "always")) == RestartPolicy(condition=ALWAYS)
    assert planned(("", "never"), pod=(("", "always"),)) is None
    assert planned(
        ("-delay", "1m30s"), ("-reset", "1h"), ("-limit", "0"), pod=(("", "on-failure"), ("-delay", "1s"))
    ) == RestartPolicy(condition=ON_FAILURE, delay_seconds=90.0, max_delay_seconds=90.0, reset_seconds=3600.0, limit=0)
    policy = planned(("", "always"), ("-max-delay", "5s"))
    assert policy is not None
    assert policy.max_delay_seconds == 5.0


@pytest.mark.parametrize(
    ("own", "reason"),
    [
        (("", "yes"), 'minit/restart: expected never, on-failure or always, got "yes"'),
        (("-delay", "0"), f'minit/restart-delay: {DURATION}, got "0"'),
        (("-delay", "5"), f'minit/restart-delay: {DURATION}, got "5"'),
        (("-max-delay", "-1s"), f'minit/restart-max-delay: {DURATION}, got "-1s"'),
        (("-reset", "9000h"), f'minit/restart-reset: {DURATION}, got "9000h"'),
        (("-limit", "-1"), 'minit/restart-limit: expected a number of restarts, got "-1"'),
        (("-limit", "٣"), 'minit/restart-limit: expected a number of restarts, got "٣"'),
    ],
)
def test_wrong_annotations(own: tuple[str, str], reason: str) -> None:
    """They are refused, even where there is no restart, with what was expected."""
    with pytest.raises(PlanError) as caught:
        planned(own)
    assert str(caught.value) == f'app "web": annotation {reason}'


def test_an_interactive_app_cannot_come_back() -> None:
    """Its console ends with it."""
    assert planned(has_console=True) is None
    with pytest.raises(PlanError, match="an interactive app cannot be started again"):
        planned(("", "always"), has_console=True)


def delays(policy: RestartPolicy, *ends: tuple[bool, float]) -> list[float | None]:
    """Return what follows each end, (failed, seconds that it ran), up to the first that nothing follows."""
    restarts, found = Restarts(policy), []
    for failed, ran_seconds in ends:
        restarts.end(failed=failed, ran_seconds=ran_seconds)
        found.append(restarts.delay_seconds)
        if restarts.delay_seconds is None:
            break
        restarts.begin(by_itself=True)
    return found


def test_delays_double_and_begin_anew_after_a_stable_run() -> None:
    """From the first up to the longest; an app that ran long enough is as good as new."""
    policy = RestartPolicy(condition=ALWAYS, delay_seconds=1.0, max_delay_seconds=5.0, reset_seconds=10.0)
    short, long = (True, 9.9), (False, 10.0)
    assert delays(policy, short, short, short, short, short, long, short) == [1, 2, 4, 5, 5, 1, 2]


def test_the_condition() -> None:
    """on-failure is over with a good end, always is not."""
    for condition, expected in ((ON_FAILURE, [0.1, None]), (ALWAYS, [0.1, 0.2, 0.4])):
        assert delays(RestartPolicy(condition=condition), (True, 0), (False, 0), (True, 0)) == expected


@given(POLICIES, ENDS)
def test_whatever_happens_the_policy_is_kept(policy: RestartPolicy, ends: list[tuple[bool, float]]) -> None:
    """Delays lie within their bounds, no more restarts in a row come than allowed, and every restart is counted."""
    restarts = Restarts(policy)
    in_a_row = 0
    for index, (failed, ran_seconds) in enumerate(ends):
        restarts.end(failed=failed, ran_seconds=ran_seconds)
        if ran_seconds >= policy.reset_seconds:
            in_a_row = 0
        wanted = failed or policy.condition == ALWAYS
        assert restarts.gave_up == (wanted and policy.limit is not None and in_a_row >= policy.limit)
        assert (restarts.delay_seconds is not None) == (wanted and not restarts.gave_up)
        if restarts.delay_seconds is None:
            return
        shortest = min(policy.delay_seconds, policy.max_delay_seconds)
        assert shortest <= restarts.delay_seconds <= policy.max_delay_seconds
        restarts.begin(by_itself=True)
        in_a_row += 1
        assert restarts.count == index + 1


def test_a_start_noted_twice() -> None:
    """An error right after a start was noted has the start noted once more: that is one start, as is the row."""
    restarts = Restarts(RestartPolicy(condition=ALWAYS))
    for _ in range(2):
        restarts.end(failed=True, ran_seconds=0.0)
        for _ in range(2):
            restarts.begin(by_itself=True)
    assert (restarts.count, restarts.in_a_row) == (2, 2)
    restarts.begin(by_itself=False)
    assert (restarts.count, restarts.in_a_row) == (2, 0)
