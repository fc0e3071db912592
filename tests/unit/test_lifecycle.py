"""minit.supervisor.lifecycle: every state meets every event, and every path keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from minit.supervisor import lifecycle
from minit.supervisor.lifecycle import EVENTS, EXITED, PREPARING, STATES, next_state

ACTIONS = {
    *(lifecycle.RECORD, lifecycle.TERMINATE, lifecycle.KILL_GROUP, lifecycle.CHECK_GROUP),
    *(lifecycle.REPORT_UNKILLABLE, lifecycle.FINISH),
}
DEPTH = 8


def paths(depth: int = DEPTH) -> Iterator[tuple[tuple[str, ...], tuple[str, ...], str]]:
    """
    Yield (events, actions, state) for every path of up to `depth` events from the start.

    An event that changes nothing is not followed: the path goes on as if it had not come. The main process dies
    once at most.
    """
    pending: list[tuple[tuple[str, ...], tuple[str, ...], str]] = [((), (), PREPARING)]
    while pending:
        events, actions, state = pending.pop()
        yield events, actions, state
        if len(events) == depth:
            continue
        for event in EVENTS:
            if event == lifecycle.DIED and event in events:
                continue
            after, more = next_state(state, event)
            if (after, more) != (state, ()):
                pending.append(((*events, event), (*actions, *more), after))


@pytest.mark.parametrize(("state", "event"), list(product(STATES, EVENTS)))
def test_every_pair_has_an_answer(state: str, event: str):
    """The answer is a state and actions that exist, and FINISH comes exactly with the end."""
    after, actions = next_state(state, event)
    assert after in STATES
    assert set(actions) <= ACTIONS
    assert (lifecycle.FINISH in actions) == (after == EXITED != state)


def test_the_end_is_the_end():
    """Nothing leads out of EXITED."""
    assert all(next_state(EXITED, event) == (EXITED, ()) for event in EVENTS)


@pytest.mark.parametrize("start", STATES)
def test_the_end_is_reachable(start: str):
    """From every state some events lead to EXITED."""
    reached = {start}
    while more := {next_state(state, event)[0] for state in reached for event in EVENTS} - reached:
        reached |= more
    assert EXITED in reached


def test_every_state_is_reachable():
    """No state stands in the table for nothing."""
    assert {state for _, _, state in paths()} == {*STATES}


def test_a_death_is_recorded_once():
    """On every path RECORD comes with the death of the main process and never again."""
    for events, actions, _ in paths():
        assert actions.count(lifecycle.RECORD) == events.count(lifecycle.DIED), events


def test_an_app_that_ended_is_recorded_or_was_unkillable():
    """No path reaches EXITED without a record, except by giving up on SIGKILL."""
    for events, actions, state in paths():
        if state == EXITED:
            assert {lifecycle.RECORD, lifecycle.REPORT_UNKILLABLE} & {*actions}, events


def test_nothing_is_called_unkillable_before_it_was_killed():
    """REPORT_UNKILLABLE has a KILL_GROUP before it."""
    for events, actions, _ in paths():
        if lifecycle.REPORT_UNKILLABLE in actions:
            before = actions[: actions.index(lifecycle.REPORT_UNKILLABLE)]
            assert lifecycle.KILL_GROUP in before, events


def test_nothing_is_asked_politely_after_sigkill():
    """TERMINATE never follows KILL_GROUP."""
    for events, actions, _ in paths():
        if lifecycle.KILL_GROUP in actions:
            assert lifecycle.TERMINATE not in actions[actions.index(lifecycle.KILL_GROUP) :], events


def test_every_wait_has_a_timer():
    """A state that waits for processes to end was entered with an action that arms a timer."""
    waiting = (lifecycle.STOPPING, lifecycle.LINGERING, lifecycle.KILLED, lifecycle.REMNANTS)
    for events, actions, state in paths():
        if state in waiting:
            assert {lifecycle.TERMINATE, lifecycle.KILL_GROUP} & {*actions}, events


@pytest.mark.parametrize("state", [*STATES])
def test_a_forced_stop_always_kills(state: str):
    """KILL sends SIGKILL wherever there may be a process that was not sent one, by STOP before it or not."""
    after_stop, stopped = next_state(state, lifecycle.STOP)
    _, killed = next_state(after_stop, lifecycle.KILL)
    done = state in (lifecycle.KILLED, lifecycle.REMNANTS, EXITED)
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
    ],
)
def test_lives(events: list[str], states: list[str]):
    """The lives an app usually has."""
    state = PREPARING
    for event, expected in zip(events, states, strict=True):
        state, _ = next_state(state, event)
        assert state == expected
