"""minit.supervisor.apps.lifecycle: every state meets every event, and every path keeps its promises."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import pytest

from minit.supervisor.apps.lifecycle import ALIVE, RESTING, Action, Event, State, api_state, next_state

Path = tuple[tuple[Event, ...], tuple[Action, ...], State]
DEPTH = 8
# Before the first start of an app and after its last.
AROUND = (State.BUILDING, State.ABANDONED, State.ADDED, State.DELETING, State.REMOVED)
# What comes once at most: the main process dies once, the pod is stopped once, each handler runs once.
ONCE = (
    *(Event.DIED, Event.STOP, Event.HANDLE_START, Event.HANDLE_STOP),
    *(Event.HANDLE_RUNNING, Event.HANDLE_STOPPING),
)
BEGINNINGS_OF_HANDLERS = (*(Event.HANDLE_START, Event.HANDLE_RUNNING, Event.HANDLE_STOPPING, Event.HANDLE_STOP),)
ENDS_OF_HANDLERS = (Event.HANDLED, Event.HANDLER_FAILED)


def paths(depth: int = DEPTH) -> Iterator[Path]:
    """
    Yield (events, actions, state) for every path of up to `depth` events from the start to the end, of one start.

    An event that changes nothing is not followed: the path goes on as if it had not come. Some events come once at
    most, and a handler ends after it has begun.
    """
    pending: list[Path] = [((), (), State.PREPARING)]
    while pending:
        events, actions, state = pending.pop()
        yield events, actions, state
        if len(events) == depth:
            continue
        for event in Event:
            if event in (Event.START, Event.REMOVE, Event.STAY) or (event in ONCE and event in events):
                continue
            if event == Event.FORK_FAILED and events:
                continue
            if event in ENDS_OF_HANDLERS and not _handler_runs(events):
                continue
            after, more = next_state(state, event)
            if (after, more) != (state, ()):
                pending.append(((*events, event), (*actions, *more), after))


def _handler_runs(events: tuple[Event, ...]) -> bool:
    begun = sum(event in BEGINNINGS_OF_HANDLERS for event in events)
    return begun > sum(event in ENDS_OF_HANDLERS for event in events)


@pytest.mark.parametrize(("state", "event"), list(product(State, Event)))
def test_every_pair_has_an_answer(state: State, event: Event) -> None:
    """The answer is a state and actions that exist; FINISH comes exactly with the end, RELEASE with the removal."""
    after, actions = next_state(state, event)
    assert isinstance(after, State)
    assert all(isinstance(action, Action) for action in actions)
    assert (Action.FINISH in actions) == (after == State.EXITED != state)
    assert (Action.RELEASE in actions) == (after == State.REMOVED != state)


def test_every_action_is_taken() -> None:
    """No action stands in the module for nothing."""
    answers = (next_state(state, event) for state, event in product(State, Event))
    assert {action for _, actions in answers for action in actions} == {*Action}


def test_an_app_rests_until_it_is_started_or_removed() -> None:
    """START begins everything anew, REMOVE ends all, and nothing else moves an app that was added or has exited."""
    for state in RESTING:
        assert next_state(state, Event.START) == (State.PREPARING, (Action.FORK,))
        assert next_state(state, Event.REMOVE)[0] == State.DELETING
        others = set(Event) - {Event.START, Event.REMOVE, Event.STAY}
        assert all(next_state(state, event) == (state, ()) for event in others)


def test_the_log_of_an_app_that_stays_exited_ends() -> None:
    """STAY, that no restart follows, ends the log of an app that has exited, and means nothing to any other."""
    assert next_state(State.EXITED, Event.STAY) == (State.EXITED, (Action.END_LOG,))
    assert all(next_state(state, Event.STAY) == (state, ()) for state in set(State) - {State.EXITED})


def test_only_a_resting_app_can_be_started() -> None:
    """START means nothing to any other."""
    assert all(next_state(state, Event.START) == (state, ()) for state in set(State) - set(RESTING))


def test_a_removed_app_stays_so() -> None:
    """Nothing leads out of REMOVED."""
    assert all(next_state(State.REMOVED, event) == (State.REMOVED, ()) for event in Event)


def test_a_removed_app_has_been_killed() -> None:
    """Every way to REMOVED has SIGKILL before it for any process there might be, or the root was never made."""
    for state, event in product(State, Event):
        after, actions = next_state(state, event)
        if after in (State.DELETING, State.ABANDONED) and after != state:
            assert Action.KILL_GROUP in actions
        if after == State.REMOVED != state:
            failed = (state, event) == (State.BUILDING, Event.BUILD_FAILED)
            assert failed or state in (State.DELETING, State.ABANDONED)


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_name_of_the_api(state: State) -> None:
    """Those of rkt's proposal for its app-level API."""
    names = {"unknown", "preparing", "prepared", "running", "stopping", "exited", "deleting"}
    assert api_state(state) in names


@pytest.mark.parametrize("start", State)
def test_the_end_is_reachable(start: State) -> None:
    """From every state some events lead to the removal, and from that of an app that is not to be removed to EXITED."""
    reached = {start}
    while more := {next_state(state, event)[0] for state in reached for event in Event} - reached:
        reached |= more
    assert State.REMOVED in reached
    assert State.EXITED in reached or start in (State.ABANDONED, State.DELETING, State.REMOVED)


def test_every_state_is_reachable() -> None:
    """No state stands in the table for nothing."""
    assert {state for _, _, state in paths()} == {*State} - {*AROUND}
    reached = {State.BUILDING}
    while more := {next_state(state, event)[0] for state in reached for event in Event} - reached:
        reached |= more
    assert reached == {*State}


def test_a_death_is_recorded_once() -> None:
    """On every path RECORD comes with the death of the main process, or because there is none, and never again."""
    for events, actions, _ in paths():
        ends = events.count(Event.DIED) + events.count(Event.FORK_FAILED)
        assert actions.count(Action.RECORD) == ends, events


def test_an_app_that_ended_is_recorded_or_was_unkillable() -> None:
    """No path reaches EXITED without a record, except by giving up on SIGKILL."""
    for events, actions, state in paths():
        if state == State.EXITED:
            assert {Action.RECORD, Action.REPORT_UNKILLABLE} & {*actions}, events


def test_nothing_is_called_unkillable_before_it_was_killed() -> None:
    """REPORT_UNKILLABLE has a KILL_GROUP before it."""
    for events, actions, _ in paths():
        if Action.REPORT_UNKILLABLE in actions:
            before = actions[: actions.index(Action.REPORT_UNKILLABLE)]
            assert Action.KILL_GROUP in before, events


def test_nothing_is_asked_politely_after_sigkill() -> None:
    """TERMINATE never follows KILL_GROUP, unless a handler has run in between."""
    for events, actions, _ in paths():
        killed = False
        for action in actions:
            killed = (killed or action == Action.KILL_GROUP) and action != Action.RUN_POST_STOP
            assert not (killed and action == Action.TERMINATE), events


def test_a_pre_stop_hook_comes_before_the_stop_signal() -> None:
    """However it ends, or does not, TERMINATE follows once, unless the app was killed; never SIGKILL instead of it."""
    ends = (Event.HANDLED, Event.HANDLER_FAILED, Event.GRACE_OVER, Event.DIED)
    for event in ends:
        assert Action.TERMINATE in next_state(State.PRE_STOP, event)[1]
        assert Action.KILL_GROUP not in next_state(State.PRE_STOP, event)[1]
    for events, actions, state in paths():
        if Action.RUN_PRE_STOP in actions and Action.KILL_GROUP not in actions and state != State.PRE_STOP:
            assert Action.TERMINATE in actions[actions.index(Action.RUN_PRE_STOP) :], events


def test_a_hook_needs_an_executed_app_that_lives() -> None:
    """EXECUTE comes before any hook, and none begins after RECORD, TERMINATE or KILL_GROUP."""
    for events, actions, _ in paths():
        for hook in (Action.RUN_POST_START, Action.RUN_PRE_STOP):
            if hook in actions:
                before = actions[: actions.index(hook)]
                assert Action.EXECUTE in before, events
                assert not {Action.RECORD, Action.TERMINATE, Action.KILL_GROUP} & {*before}, events


def test_an_app_is_executed_once_and_after_its_handler() -> None:
    """EXECUTE comes at most once, never while a handler runs or after one that failed, and never after a death."""
    for events, actions, state in paths():
        assert actions.count(Action.EXECUTE) == (state in ALIVE or Action.EXECUTE in actions)
        if Action.EXECUTE in actions and Action.RUN_PRE_START in actions:
            assert Event.HANDLED in events, events
        if Action.EXECUTE in actions and Action.RECORD in actions:
            assert actions.index(Action.EXECUTE) < actions.index(Action.RECORD), events


def test_nothing_of_a_handler_lives_longer() -> None:
    """An app is executed once its group is clear of what a handler left; what a post-stop one leaves gets SIGKILL."""
    for events, actions, _ in paths():
        if Action.RUN_PRE_START in actions and Action.EXECUTE in actions:
            assert Action.CLEAR_GROUP in actions[: actions.index(Action.EXECUTE)], events
            assert Event.GROUP_CLEAR in events, events
    for event in ENDS_OF_HANDLERS:
        assert Action.KILL_GROUP in next_state(State.POST_STOP, event)[1]


def test_a_post_stop_handler_comes_after_the_record() -> None:
    """RUN_POST_STOP has a RECORD before it: its handler finds the main process gone and the status written."""
    for events, actions, _ in paths():
        if Action.RUN_POST_STOP in actions:
            assert Action.RECORD in actions[: actions.index(Action.RUN_POST_STOP)], events


def test_what_a_post_stop_handler_leaves_is_ended_before_the_app_is_exited() -> None:
    """After its end the group is looked at, and only an empty one ends the app."""
    for events, _, state in paths():
        if Event.HANDLE_STOP in events and state == State.EXITED:
            assert events[-1] in (Event.GROUP_EMPTY, Event.KILL_WAIT_OVER), events


def test_every_wait_has_a_timer() -> None:
    """A state that waits for processes to end was entered with an action that arms a timer."""
    waiting = (State.CLEARING, State.PRE_STOP, State.STOPPING, State.LINGERING, State.KILLED, State.REMNANTS)
    for events, actions, state in paths():
        if state in waiting:
            timed = {Action.CLEAR_GROUP, Action.RUN_PRE_STOP, Action.TERMINATE, Action.KILL_GROUP}
            assert timed & {*actions}, events


def test_a_post_stop_handler_has_no_timer_until_the_pod_is_stopped() -> None:
    """Then it has one, which ends in SIGKILL."""
    assert next_state(State.POST_STOP, Event.STOP) == (State.POST_STOP, (Action.ARM_GRACE,))
    assert Action.KILL_GROUP in next_state(State.POST_STOP, Event.GRACE_OVER)[1]


@pytest.mark.parametrize("state", [*State])
def test_a_forced_stop_always_kills(state: State) -> None:
    """KILL sends SIGKILL wherever there may be a process that was not sent one, by STOP before it or not."""
    after_stop, stopped = next_state(state, Event.STOP)
    _, killed = next_state(after_stop, Event.KILL)
    done = state in (State.KILLED, State.REMNANTS, State.EXITED, *set(AROUND) - {State.BUILDING})
    assert (Action.KILL_GROUP in (*stopped, *killed)) is not done


@pytest.mark.parametrize(
    ("events", "states"),
    [
        (
            [Event.READY_TO_EXEC, Event.GO, Event.DIED, Event.GROUP_EMPTY],
            [State.PREPARED, State.RUNNING, State.LINGERING, State.EXITED],
        ),
        (
            [Event.READY_TO_EXEC, Event.GO, Event.STOP, Event.GRACE_OVER, Event.DIED],
            [State.PREPARED, State.RUNNING, State.STOPPING, State.KILLED, State.REMNANTS],
        ),
        ([Event.STOP, Event.DIED, Event.GROUP_EMPTY], [State.KILLED, State.REMNANTS, State.EXITED]),
        ([Event.DIED, Event.GRACE_OVER, Event.KILL_WAIT_OVER], [State.LINGERING, State.REMNANTS, State.EXITED]),
        (
            [Event.READY_TO_EXEC, Event.HANDLE_START, Event.HANDLED, Event.GROUP_CLEAR, Event.DIED],
            [State.PREPARED, State.PRE_START, State.CLEARING, State.RUNNING, State.LINGERING],
        ),
        (
            [Event.READY_TO_EXEC, Event.HANDLE_START, Event.HANDLED, Event.KILL_WAIT_OVER],
            [State.PREPARED, State.PRE_START, State.CLEARING, State.KILLED],
        ),
        (
            [Event.READY_TO_EXEC, Event.HANDLE_START, Event.HANDLER_FAILED, Event.DIED],
            [State.PREPARED, State.PRE_START, State.KILLED, State.REMNANTS],
        ),
        (
            [
                *(Event.READY_TO_EXEC, Event.GO, Event.HANDLE_RUNNING, Event.HANDLED),
                *(Event.HANDLE_STOPPING, Event.HANDLED, Event.GRACE_OVER),
            ],
            [
                *(State.PREPARED, State.RUNNING, State.POST_START, State.RUNNING),
                *(State.PRE_STOP, State.STOPPING, State.KILLED),
            ],
        ),
        (
            [*(Event.READY_TO_EXEC, Event.GO, Event.HANDLE_STOPPING), Event.GRACE_OVER, Event.DIED],
            [*(State.PREPARED, State.RUNNING, State.PRE_STOP), State.STOPPING, State.LINGERING],
        ),
        (
            [Event.DIED, Event.HANDLE_STOP, Event.STOP, Event.GRACE_OVER, Event.GROUP_EMPTY],
            [State.LINGERING, State.POST_STOP, State.POST_STOP, State.REMNANTS, State.EXITED],
        ),
        (
            [Event.DIED, Event.HANDLE_STOP, Event.HANDLED, Event.GROUP_EMPTY],
            [State.LINGERING, State.POST_STOP, State.REMNANTS, State.EXITED],
        ),
    ],
)
def test_lives(events: list[Event], states: list[State]) -> None:
    """The lives an app usually has."""
    state = State.PREPARING
    for event, expected in zip(events, states, strict=True):
        state, _ = next_state(state, event)
        assert state == expected
