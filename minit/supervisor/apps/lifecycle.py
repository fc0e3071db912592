"""
The life of an app as a table: every state meets every event, and every pair has an answer.

Pure: the supervisor feeds events in and carries the actions out.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class State(StrEnum):
    """A state of an app."""

    BUILDING = "building"  # added to a mutable pod, the root is being made
    ABANDONED = "abandoned"  # the process that makes the root was killed
    ADDED = "added"  # the root is there, and the app has never been started
    PREPARING = "preparing"  # forked, building the root
    PREPARED = "prepared"  # waiting to be told to exec
    PRE_START = "pre-start"  # prepared, and the pre-start handler runs
    CLEARING = "clearing"  # what the pre-start handler left behind was sent SIGKILL
    POST_START = "post-start"  # executed, and the post-start hook runs
    RUNNING = "running"
    PRE_STOP = "pre-stop"  # to be asked to stop when the pre-stop hook, which runs, has ended
    STOPPING = "stopping"  # asked to stop, the main process still there
    LINGERING = "lingering"  # the process in charge is gone, others of the group are not
    KILLED = "killed"  # the group was sent SIGKILL, the main process is still there
    REMNANTS = "remnants"  # the process in charge is gone, SIGKILL was sent to the rest of the group
    POST_STOP = "post-stop"  # the main process and the group are gone, the post-stop handler runs
    EXITED = "exited"  # nothing of the app is left but the root, in which the app can be started again
    DELETING = "deleting"  # to be removed, and not even a process that entered the app may be left
    REMOVED = "removed"


STARTING = (State.PREPARING, State.PREPARED, State.PRE_START, State.CLEARING)
ALIVE = (State.POST_START, State.RUNNING, State.PRE_STOP, State.STOPPING)
# In these an app has no process, and none comes unasked.
RESTING = (State.ADDED, State.EXITED)


class Event(StrEnum):
    """An event in the life of an app."""

    BUILT = "built"
    BUILD_FAILED = "build-failed"
    REMOVE = "remove"
    START = "start"
    FORK_FAILED = "fork-failed"  # there is no process to prepare the app in
    READY_TO_EXEC = "ready-to-exec"
    GO = "go"
    HANDLE_START = "handle-start"  # go, but the pre-start handler comes first
    HANDLE_RUNNING = "handle-running"  # executed, and the post-start hook comes before the app counts as running
    HANDLE_STOPPING = "handle-stopping"  # stop, but the pre-stop hook comes first
    HANDLED = "handled"  # the handler or hook that ran has ended well
    HANDLER_FAILED = "handler-failed"
    DIED = "died"  # the main process ended, be it in a failed set-up or exec
    GROUP_CLEAR = "group-clear"  # nothing but the main process is left in the group
    GROUP_EMPTY = "group-empty"
    HANDLE_STOP = "handle-stop"  # the group is empty, but the post-stop handler comes before the end
    STOP = "stop"
    KILL = "kill"
    GRACE_OVER = "grace-over"
    KILL_WAIT_OVER = "kill-wait-over"
    STAY = "stay"  # the app, which has exited, is not restarted after all


class Action(StrEnum):
    """What the supervisor does for an app when an event changes its state."""

    FORK = "fork"  # fork the main process, which prepares itself
    RUN_PRE_START = "run-pre-start"
    EXECUTE = "execute"  # tell the main process to exec
    RECORD = "record"  # write the status and apply the pod's policy
    RUN_POST_START = "run-post-start"
    GO_ON = "go-on"  # the start is complete, for which others may wait
    RUN_PRE_STOP = "run-pre-stop"  # arm the grace timer too
    END_HOOK = "end-hook"  # SIGKILL to the hook that takes too long
    TERMINATE = "terminate"  # stop signal and SIGCONT to the group, arm the grace timer
    KILL_GROUP = "kill-group"  # SIGKILL to the group, arm the kill-wait timer
    CLEAR_GROUP = "clear-group"  # SIGKILL to the group but for the main process, arm the kill-wait timer
    CHECK_GROUP = "check-group"  # look whether the group is empty, or clear, already
    FAIL_START = "fail-start"  # the start has failed, since the group cannot be cleared
    RUN_POST_STOP = "run-post-stop"  # arm the grace timer too if the pod is ending
    ARM_GRACE = "arm-grace"  # arm the grace timer, signal nobody
    REPORT_UNKILLABLE = "report-unkillable"
    FINISH = "finish"  # nothing of the app is left; disarm the app's timer
    END_LOG = "end-log"  # mark the log as complete, once all output is read
    RELEASE = "release"  # let go of everything that belongs to the app


Answer = tuple[State, tuple[Action, ...]]

_KILL: Answer = (State.KILLED, (Action.KILL_GROUP,))
_STOP: Answer = (State.STOPPING, (Action.TERMINATE,))
_GIVE_UP_ROOT: Answer = (State.ABANDONED, (Action.KILL_GROUP,))
_KILL_THE_REST: Answer = (State.REMNANTS, (Action.KILL_GROUP, Action.CHECK_GROUP))
_RUN_POST_STOP: Answer = (State.POST_STOP, (Action.RUN_POST_STOP,))
_END: Answer = (State.EXITED, (Action.FINISH,))
_END_UNKILLABLE: Answer = (State.EXITED, (Action.REPORT_UNKILLABLE, Action.FINISH))
_REMOVE: Answer = (State.REMOVED, (Action.RELEASE,))
_REMOVE_UNKILLABLE: Answer = (State.REMOVED, (Action.REPORT_UNKILLABLE, Action.RELEASE))

_WHILE_RESTING: Mapping[Event, Answer] = {
    Event.START: (State.PREPARING, (Action.FORK,)),
    Event.REMOVE: (State.DELETING, (Action.KILL_GROUP, Action.CHECK_GROUP)),
}
_WHILE_ALIVE: Mapping[Event, Answer] = {
    Event.DIED: (State.LINGERING, (Action.RECORD, Action.TERMINATE, Action.CHECK_GROUP)),
    Event.KILL: _KILL,
}
# Nothing has been executed yet: there is nobody to be polite to.
_WHILE_PREPARING: Mapping[Event, Answer] = {**_WHILE_ALIVE, Event.STOP: _KILL}
# Neither has a pre-start handler anything left to prepare.
_WHILE_HANDLING_START: Mapping[Event, Answer] = {
    **_WHILE_PREPARING,
    Event.DIED: (State.REMNANTS, (Action.RECORD, Action.KILL_GROUP, Action.CHECK_GROUP)),
}
_WHILE_RUNNING: Mapping[Event, Answer] = {
    **_WHILE_ALIVE,
    Event.STOP: _STOP,
    Event.HANDLE_STOPPING: (State.PRE_STOP, (Action.RUN_PRE_STOP,)),
}

_TABLE: Mapping[State, Mapping[Event, Answer]] = {
    State.BUILDING: {
        Event.BUILT: (State.ADDED, ()),
        Event.BUILD_FAILED: _REMOVE,
        **dict.fromkeys((Event.STOP, Event.KILL, Event.REMOVE, Event.GRACE_OVER), _GIVE_UP_ROOT),
    },
    State.ABANDONED: {
        Event.BUILT: _REMOVE,
        Event.BUILD_FAILED: _REMOVE,
        Event.KILL_WAIT_OVER: _REMOVE_UNKILLABLE,
    },
    State.ADDED: _WHILE_RESTING,
    State.PREPARING: {
        **_WHILE_PREPARING,
        Event.FORK_FAILED: (State.EXITED, (Action.RECORD, Action.FINISH)),
        Event.READY_TO_EXEC: (State.PREPARED, ()),
    },
    State.PREPARED: {
        **_WHILE_PREPARING,
        Event.GO: (State.RUNNING, (Action.EXECUTE,)),
        Event.HANDLE_START: (State.PRE_START, (Action.RUN_PRE_START,)),
    },
    State.PRE_START: {
        **_WHILE_HANDLING_START,
        Event.HANDLED: (State.CLEARING, (Action.CLEAR_GROUP, Action.CHECK_GROUP)),
        Event.HANDLER_FAILED: _KILL,
    },
    State.CLEARING: {
        **_WHILE_HANDLING_START,
        Event.GROUP_CLEAR: (State.RUNNING, (Action.EXECUTE,)),
        Event.KILL_WAIT_OVER: (State.KILLED, (Action.FAIL_START, Action.KILL_GROUP)),
    },
    State.POST_START: {**_WHILE_RUNNING, Event.HANDLED: (State.RUNNING, (Action.GO_ON,))},
    State.RUNNING: {**_WHILE_RUNNING, Event.HANDLE_RUNNING: (State.POST_START, (Action.RUN_POST_START,))},
    State.PRE_STOP: {
        **_WHILE_ALIVE,
        Event.HANDLED: _STOP,
        Event.HANDLER_FAILED: _STOP,
        Event.GRACE_OVER: (State.STOPPING, (Action.END_HOOK, Action.TERMINATE)),
    },
    State.STOPPING: {**_WHILE_ALIVE, Event.GRACE_OVER: _KILL},
    State.LINGERING: {
        Event.GROUP_EMPTY: _END,
        Event.HANDLE_STOP: _RUN_POST_STOP,
        Event.GRACE_OVER: _KILL_THE_REST,
        Event.KILL: _KILL_THE_REST,
    },
    State.KILLED: {
        Event.DIED: (State.REMNANTS, (Action.RECORD, Action.CHECK_GROUP)),
        Event.KILL_WAIT_OVER: _END_UNKILLABLE,
    },
    State.REMNANTS: {
        Event.GROUP_EMPTY: _END,
        Event.HANDLE_STOP: _RUN_POST_STOP,
        Event.KILL_WAIT_OVER: _END_UNKILLABLE,
    },
    State.POST_STOP: {
        Event.STOP: (State.POST_STOP, (Action.ARM_GRACE,)),
        # Nothing of the handler lives longer.
        **dict.fromkeys((Event.HANDLED, Event.HANDLER_FAILED, Event.GRACE_OVER, Event.KILL), _KILL_THE_REST),
    },
    State.EXITED: {**_WHILE_RESTING, Event.STAY: (State.EXITED, (Action.END_LOG,))},
    State.DELETING: {Event.GROUP_EMPTY: _REMOVE, Event.KILL_WAIT_OVER: _REMOVE_UNKILLABLE},
    State.REMOVED: {},
}

_NAMES_OF_THE_API = {
    **dict.fromkeys((State.BUILDING, State.ABANDONED, State.PREPARING), "preparing"),
    **dict.fromkeys((State.ADDED, State.PREPARED, State.PRE_START, State.CLEARING), "prepared"),
    **dict.fromkeys((State.POST_START, State.RUNNING), "running"),
    **dict.fromkeys((State.PRE_STOP, State.STOPPING, State.LINGERING), "stopping"),
    **dict.fromkeys((State.KILLED, State.REMNANTS, State.POST_STOP), "stopping"),
    State.EXITED: "exited",
    State.DELETING: "deleting",
    State.REMOVED: "unknown",
}


def api_state(state: State) -> str:
    """Return the state of rkt's app-level API for an app in `state`."""
    return _NAMES_OF_THE_API[state]


def next_state(state: State, event: Event) -> Answer:
    """Return the state after `event` and the actions to take; an event that means nothing to a state is ignored."""
    return _TABLE[state].get(event, (state, ()))
