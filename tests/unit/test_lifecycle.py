"""minit.supervisor.apps.lifecycle: every state meets every event, and every path keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from minit.supervisor.apps import lifecycle
from minit.supervisor.apps.lifecycle import EVENTS, EXITED, PREPARING, REMOVED, RESTING, STATES, api_state, next_state

ACTIONS = {
    *(lifecycle.RUN_PRE_START, lifecycle.EXECUTE, lifecycle.RUN_POST_STOP, lifecycle.ARM_GRACE),
    *(lifecycle.RUN_POST_START, lifecycle.GO_ON, lifecycle.RUN_PRE_STOP, lifecycle.END_HOOK),
    *(lifecycle.RECORD, lifecycle.TERMINATE, lifecycle.KILL_GROUP, lifecycle.CHECK_GROUP),
    *(
        lifecycle.CLEAR_GROUP,
        lifecycle.FAIL_START,
        lifecycle.FORK,
        lifecycle.RELEASE,
        lifecycle.REPORT_UNKILLABLE,
        lifecycle.FINISH,
    ),
}
DEPTH = 8
# Before the first start of an app and after its last.
AROUND = (lifecycle.BUILDING, lifecycle.ABANDONED, lifecycle.ADDED, lifecycle.DELETING, REMOVED)
# What comes once at most: the main process dies once, the pod is stopped once, each handler runs once.
ONCE = (
    *(lifecycle.DIED, lifecycle.STOP, lifecycle.HANDLE_START, lifecycle.HANDLE_STOP),
    *(lifecycle.HANDLE_RUNNING, lifecycle.HANDLE_STOPPING),
)
BEGINNINGS_OF_HANDLERS = (
    *(lifecycle.HANDLE_START, lifecycle.HANDLE_RUNNING, lifecycle.HANDLE_STOPPING, lifecycle.HANDLE_STOP),
)
ENDS_OF_HANDLERS = (lifecycle.HANDLED, lifecycle.HANDLER_FAILED)


def paths(depth: int = DEPTH) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """
    Yield (events, actions, state) for every path of up to `depth` events from the start to the end, of one start.

    An event that changes nothing is not followed: the path goes on as if it had not come. Some events come once at
    most, and a handler ends after it has begun.
    """
    pending: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [((), (), PREPARING)]
    while pending:
        events, actions, state = pending.pop()
        yield events, actions, state
        if len(events) == depth:
            continue
        for event in EVENTS:
            if event in (lifecycle.START, lifecycle.REMOVE) or (event in ONCE and event in events):
                continue
            if event == lifecycle.FORK_FAILED and events:
                continue
            if event in ENDS_OF_HANDLERS and not _handler_runs(events):
                continue
            after, more = next_state(state, event)
            if (after, more) != (state, ()):
                pending.append(((*events, event), (*actions, *more), after))


def _handler_runs(events: tuple[str, ...]) -> bool:
    begun = sum(event in BEGINNINGS_OF_HANDLERS for event in events)
    return begun > sum(event in ENDS_OF_HANDLERS for event in events)


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_every_pair_has_an_answer(state: str, event: str) -> None:
    """The answer is a state and actions that exist; FINISH comes exactly with the end, RELEASE with the removal."""
    after, actions = next_state(state, event)
    assert after in STATES
    assert set(actions) <= ACTIONS
    assert (lifecycle.FINISH in actions) == (after == EXITED != state)
    assert (lifecycle.RELEASE in actions) == (after == REMOVED != state)


def test_an_app_rests_until_it_is_started_or_removed() -> None:
    """START begins everything anew, REMOVE ends all, and nothing else moves an app that was added or has exited."""
    for state in RESTING:
        assert next_state(state, lifecycle.START) == (PREPARING, (lifecycle.FORK,))
        assert next_state(state, lifecycle.REMOVE)[0] == lifecycle.DELETING
        others = set(EVENTS) - {lifecycle.START, lifecycle.REMOVE}
        assert all(next_state(state, event) == (state, ()) for event in others)


def test_only_a_resting_app_can_be_started() -> None:
    """START means nothing to any other."""
    assert all(next_state(state, lifecycle.START) == (state, ()) for state in set(STATES) - set(RESTING))


def test_a_removed_app_stays_so() -> None:
    """Nothing leads out of REMOVED."""
    assert all(next_state(REMOVED, event) == (REMOVED, ()) for event in EVENTS)


def test_a_removed_app_has_been_killed() -> None:
    """Every way to REMOVED has SIGKILL before it for any process there might be, or the root was never made."""
    for state, event in product(STATES, EVENTS):
        after, actions = next_state(state, event)
        if after in (lifecycle.DELETING, lifecycle.ABANDONED) and after != state:
            assert lifecycle.KILL_GROUP in actions
        if after == REMOVED != state:
            failed = (state, event) == (lifecycle.BUILDING, lifecycle.BUILD_FAILED)
            assert failed or state in (lifecycle.DELETING, lifecycle.ABANDONED)


@pytest.mark.parametrize("state", STATES)
def test_every_state_has_a_name_of_the_api(state: str) -> None:
    """Those of rkt's proposal for its app-level API."""
    names = {"unknown", "preparing", "prepared", "running", "stopping", "exited", "deleting"}
    assert api_state(state) in names


@pytest.mark.parametrize("start", STATES)
def test_the_end_is_reachable(start: str) -> None:
    """From every state some events lead to the removal, and from that of an app that is not to be removed to EXITED."""
    reached = {start}
    while more := {next_state(state, event)[0] for state in reached for event in EVENTS} - reached:
        reached |= more
    assert REMOVED in reached
    assert EXITED in reached or start in (lifecycle.ABANDONED, lifecycle.DELETING, REMOVED)


def test_every_state_is_reachable() -> None:
    """No state stands in the table for nothing."""
    assert {state for _, _, state in paths()} == {*STATES} - {*AROUND}
    reached = {lifecycle.BUILDING}
    while more := {next_state(state, event)[0] for state in reached for event in EVENTS} - reached:
        reached |= more
    assert reached == {*STATES}


def test_a_death_is_recorded_once() -> None:
    """On every path RECORD comes with the death of the main process, or because there is none, and never again."""
    for events, actions, _ in paths():
        ends = events.count(lifecycle.DIED) + events.count(lifecycle.FORK_FAILED)
        assert actions.count(lifecycle.RECORD) == ends, events


def test_an_app_that_ended_is_recorded_or_was_unkillable() -> None:
    """No path reaches EXITED without a record, except by giving up on SIGKILL."""
    for events, actions, state in paths():
        if state == EXITED:
            assert {lifecycle.RECORD, lifecycle.REPORT_UNKILLABLE} & {*actions}, events


def test_nothing_is_called_unkillable_before_it_was_killed() -> None:
    """REPORT_UNKILLABLE has a KILL_GROUP before it."""
    for events, actions, _ in paths():
        if lifecycle.REPORT_UNKILLABLE in actions:
            before = actions[: actions.index(lifecycle.REPORT_UNKILLABLE)]
            assert lifecycle.KILL_GROUP in before, events


def test_nothing_is_asked_politely_after_sigkill() -> None:
    """TERMINATE never follows KILL_GROUP, unless a handler has run in between."""
    for events, actions, _ in paths():
        killed = False
        for action in actions:
            killed = (killed or action == lifecycle.KILL_GROUP) and action != lifecycle.RUN_POST_STOP
            assert not (killed and action == lifecycle.TERMINATE), events


def test_a_pre_stop_hook_comes_before_the_stop_signal() -> None:
    """However it ends, or does not, TERMINATE follows once, unless the app was killed; never SIGKILL instead of it."""
    ends = (lifecycle.HANDLED, lifecycle.HANDLER_FAILED, lifecycle.GRACE_OVER, lifecycle.DIED)
    for event in ends:
        assert lifecycle.TERMINATE in next_state(lifecycle.PRE_STOP, event)[1]
        assert lifecycle.KILL_GROUP not in next_state(lifecycle.PRE_STOP, event)[1]
    for events, actions, state in paths():
        if lifecycle.RUN_PRE_STOP in actions and lifecycle.KILL_GROUP not in actions and state != lifecycle.PRE_STOP:
            assert lifecycle.TERMINATE in actions[actions.index(lifecycle.RUN_PRE_STOP) :], events


def test_a_hook_needs_an_executed_app_that_lives() -> None:
    """EXECUTE comes before any hook, and none begins after RECORD, TERMINATE or KILL_GROUP."""
    for events, actions, _ in paths():
        for hook in (lifecycle.RUN_POST_START, lifecycle.RUN_PRE_STOP):
            if hook in actions:
                before = actions[: actions.index(hook)]
                assert lifecycle.EXECUTE in before, events
                assert not {lifecycle.RECORD, lifecycle.TERMINATE, lifecycle.KILL_GROUP} & {*before}, events


def test_an_app_is_executed_once_and_after_its_handler() -> None:
    """EXECUTE comes at most once, never while a handler runs or after one that failed, and never after a death."""
    for events, actions, state in paths():
        assert actions.count(lifecycle.EXECUTE) == (state in lifecycle.ALIVE or lifecycle.EXECUTE in actions)
        if lifecycle.EXECUTE in actions and lifecycle.RUN_PRE_START in actions:
            assert lifecycle.HANDLED in events, events
        if lifecycle.EXECUTE in actions and lifecycle.RECORD in actions:
            assert actions.index(lifecycle.EXECUTE) < actions.index(lifecycle.RECORD), events


def test_nothing_of_a_handler_lives_longer() -> None:
    """An app is executed once its group is clear of what a handler left; what a post-stop one leaves gets SIGKILL."""
    for events, actions, _ in paths():
        if lifecycle.RUN_PRE_START in actions and lifecycle.EXECUTE in actions:
            assert lifecycle.CLEAR_GROUP in actions[: actions.index(lifecycle.EXECUTE)], events
            assert lifecycle.GROUP_CLEAR in events, events
    for event in ENDS_OF_HANDLERS:
        assert lifecycle.KILL_GROUP in next_state(lifecycle.POST_STOP, event)[1]


def test_a_post_stop_handler_comes_after_the_record() -> None:
    """RUN_POST_STOP has a RECORD before it: its handler finds the main process gone and the status written."""
    for events, actions, _ in paths():
        if lifecycle.RUN_POST_STOP in actions:
            assert lifecycle.RECORD in actions[: actions.index(lifecycle.RUN_POST_STOP)], events


def test_what_a_post_stop_handler_leaves_is_ended_before_the_app_is_exited() -> None:
    """After its end the group is looked at, and only an empty one ends the app."""
    for events, _, state in paths():
        if lifecycle.HANDLE_STOP in events and state == EXITED:
            assert events[-1] in (lifecycle.GROUP_EMPTY, lifecycle.KILL_WAIT_OVER), events


def test_every_wait_has_a_timer() -> None:
    """A state that waits for processes to end was entered with an action that arms a timer."""
    waiting = (
        lifecycle.CLEARING,
        lifecycle.PRE_STOP,
        lifecycle.STOPPING,
        lifecycle.LINGERING,
        lifecycle.KILLED,
        lifecycle.REMNANTS,
    )
    for events, actions, state in paths():
        if state in waiting:
            timed = {lifecycle.CLEAR_GROUP, lifecycle.RUN_PRE_STOP, lifecycle.TERMINATE, lifecycle.KILL_GROUP}
            assert timed & {*actions}, events


def test_a_post_stop_handler_has_no_timer_until_the_pod_is_stopped() -> None:
    """Then it has one, which ends in SIGKILL."""
    assert next_state(lifecycle.POST_STOP, lifecycle.STOP) == (lifecycle.POST_STOP, (lifecycle.ARM_GRACE,))
    assert lifecycle.KILL_GROUP in next_state(lifecycle.POST_STOP, lifecycle.GRACE_OVER)[1]


@pytest.mark.parametrize("state", [*STATES])
def test_a_forced_stop_always_kills(state: str) -> None:
    """KILL sends SIGKILL wherever there may be a process that was not sent one, by STOP before it or not."""
    after_stop, stopped = next_state(state, lifecycle.STOP)
    _, killed = next_state(after_stop, lifecycle.KILL)
    done = state in (lifecycle.KILLED, lifecycle.REMNANTS, EXITED, *set(AROUND) - {lifecycle.BUILDING})
    assert (lifecycle.KILL_GROUP in (*stopped, *killed)) is not done


@pytest.mark.parametrize(
    ("events", "states"),
    [
        (
            [lifecycle.READY_TO_EXEC, lifecycle.GO, lifecycle.DIED, lifecycle.GROUP_EMPTY],
            [lifecycle.PREPARED, lifecycle.RUNNING, lifecycle.LINGERING, EXITED],
        ),
        (
            [lifecycle.READY_TO_EXEC, lifecycle.GO, lifecycle.STOP, lifecycle.GRACE_OVER, lifecycle.DIED],
            [lifecycle.PREPARED, lifecycle.RUNNING, lifecycle.STOPPING, lifecycle.KILLED, lifecycle.REMNANTS],
        ),
        ([lifecycle.STOP, lifecycle.DIED, lifecycle.GROUP_EMPTY], [lifecycle.KILLED, lifecycle.REMNANTS, EXITED]),
        (
            [lifecycle.DIED, lifecycle.GRACE_OVER, lifecycle.KILL_WAIT_OVER],
            [lifecycle.LINGERING, lifecycle.REMNANTS, EXITED],
        ),
        (
            [lifecycle.READY_TO_EXEC, lifecycle.HANDLE_START, lifecycle.HANDLED, lifecycle.GROUP_CLEAR, lifecycle.DIED],
            [lifecycle.PREPARED, lifecycle.PRE_START, lifecycle.CLEARING, lifecycle.RUNNING, lifecycle.LINGERING],
        ),
        (
            [lifecycle.READY_TO_EXEC, lifecycle.HANDLE_START, lifecycle.HANDLED, lifecycle.KILL_WAIT_OVER],
            [lifecycle.PREPARED, lifecycle.PRE_START, lifecycle.CLEARING, lifecycle.KILLED],
        ),
        (
            [lifecycle.READY_TO_EXEC, lifecycle.HANDLE_START, lifecycle.HANDLER_FAILED, lifecycle.DIED],
            [lifecycle.PREPARED, lifecycle.PRE_START, lifecycle.KILLED, lifecycle.REMNANTS],
        ),
        (
            [
                *(lifecycle.READY_TO_EXEC, lifecycle.GO, lifecycle.HANDLE_RUNNING, lifecycle.HANDLED),
                *(lifecycle.HANDLE_STOPPING, lifecycle.HANDLED, lifecycle.GRACE_OVER),
            ],
            [
                *(lifecycle.PREPARED, lifecycle.RUNNING, lifecycle.POST_START, lifecycle.RUNNING),
                *(lifecycle.PRE_STOP, lifecycle.STOPPING, lifecycle.KILLED),
            ],
        ),
        (
            [*(lifecycle.READY_TO_EXEC, lifecycle.GO, lifecycle.HANDLE_STOPPING), lifecycle.GRACE_OVER, lifecycle.DIED],
            [*(lifecycle.PREPARED, lifecycle.RUNNING, lifecycle.PRE_STOP), lifecycle.STOPPING, lifecycle.LINGERING],
        ),
        (
            [lifecycle.DIED, lifecycle.HANDLE_STOP, lifecycle.STOP, lifecycle.GRACE_OVER, lifecycle.GROUP_EMPTY],
            [lifecycle.LINGERING, lifecycle.POST_STOP, lifecycle.POST_STOP, lifecycle.REMNANTS, EXITED],
        ),
        (
            [lifecycle.DIED, lifecycle.HANDLE_STOP, lifecycle.HANDLED, lifecycle.GROUP_EMPTY],
            [lifecycle.LINGERING, lifecycle.POST_STOP, lifecycle.REMNANTS, EXITED],
        ),
    ],
)
def test_lives(events: list[str], states: list[str]) -> None:
    """The lives an app usually has."""
    state = PREPARING
    for event, expected in zip(events, states, strict=True):
        state, _ = next_state(state, event)
        assert state == expected
