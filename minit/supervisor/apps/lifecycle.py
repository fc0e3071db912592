"""
The life of an app as a table: every state meets every event, and every pair has an answer.

Pure: the supervisor feeds events in and carries the actions out.
"""

from __future__ import annotations

# States.
BUILDING = "building"  # added to a mutable pod, its root is being made
ABANDONED = "abandoned"  # what makes its root was killed
ADDED = "added"  # its root is there, and it has never been started
PREPARING = "preparing"  # forked, building its root
PREPARED = "prepared"  # waiting to be told to exec
PRE_START = "pre-start"  # prepared, and its pre-start handler runs
CLEARING = "clearing"  # what its pre-start handler left behind was sent SIGKILL
POST_START = "post-start"  # executed, and its post-start hook runs
RUNNING = "running"
PRE_STOP = "pre-stop"  # to be asked to stop when its pre-stop hook, which runs, has ended
STOPPING = "stopping"  # asked to stop, its main process still there
LINGERING = "lingering"  # the process in charge is gone, others of its group are not
KILLED = "killed"  # its group was sent SIGKILL, its main process is still there
REMNANTS = "remnants"  # the process in charge is gone, SIGKILL was sent to the rest of the group
POST_STOP = "post-stop"  # the main process and its group are gone, its post-stop handler runs
EXITED = "exited"  # nothing of it is left but its root, in which it can be started again
DELETING = "deleting"  # to be removed, and not even a process that entered it may be left
REMOVED = "removed"

STATES = (
    *(BUILDING, ABANDONED, ADDED, DELETING, REMOVED),
    *(PREPARING, PREPARED, PRE_START, CLEARING, POST_START, RUNNING, PRE_STOP, STOPPING),
    *(LINGERING, KILLED, REMNANTS, POST_STOP, EXITED),
)
STARTING = (PREPARING, PREPARED, PRE_START, CLEARING)
ALIVE = (POST_START, RUNNING, PRE_STOP, STOPPING)
# In these an app has no process, and none comes unasked.
RESTING = (ADDED, EXITED)

# Events.
BUILT = "built"
BUILD_FAILED = "build-failed"
REMOVE = "remove"
START = "start"
FORK_FAILED = "fork-failed"  # there is no process to prepare the app in
READY_TO_EXEC = "ready-to-exec"
GO = "go"
HANDLE_START = "handle-start"  # go, but the pre-start handler comes first
HANDLE_RUNNING = "handle-running"  # executed, and the post-start hook comes before it counts as running
HANDLE_STOPPING = "handle-stopping"  # stop, but the pre-stop hook comes first
HANDLED = "handled"  # the handler or hook that ran has ended well
HANDLER_FAILED = "handler-failed"
DIED = "died"  # the main process ended; a failed set-up or exec ends it too
GROUP_CLEAR = "group-clear"  # nothing but the main process is left in the group
GROUP_EMPTY = "group-empty"
HANDLE_STOP = "handle-stop"  # the group is empty, but the post-stop handler comes before the end
STOP = "stop"
KILL = "kill"
GRACE_OVER = "grace-over"
KILL_WAIT_OVER = "kill-wait-over"

EVENTS = (
    *(BUILT, BUILD_FAILED, REMOVE),
    *(START, FORK_FAILED, READY_TO_EXEC, GO, HANDLE_START, HANDLED, HANDLER_FAILED, DIED),
    *(HANDLE_RUNNING, HANDLE_STOPPING),
    *(GROUP_CLEAR, GROUP_EMPTY, HANDLE_STOP, STOP, KILL, GRACE_OVER, KILL_WAIT_OVER),
)

# Actions.
FORK = "fork"  # fork the main process, which prepares itself
RUN_PRE_START = "run-pre-start"
EXECUTE = "execute"  # tell the main process to exec
RECORD = "record"  # write the status and apply the pod's policy
RUN_POST_START = "run-post-start"
GO_ON = "go-on"  # its start is complete, for which others may wait
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
FINISH = "finish"  # nothing of the app is left; disarm its timer
RELEASE = "release"  # let go of everything that belongs to the app

Answer = tuple[str, tuple[str, ...]]

_WHILE_ALIVE: dict[str, Answer] = {
    DIED: (LINGERING, (RECORD, TERMINATE, CHECK_GROUP)),
    KILL: (KILLED, (KILL_GROUP,)),
}
_KILL_THE_REST: Answer = (REMNANTS, (KILL_GROUP, CHECK_GROUP))
_TABLE: dict[tuple[str, str], Answer] = {
    (BUILDING, BUILT): (ADDED, ()),
    (BUILDING, BUILD_FAILED): (REMOVED, (RELEASE,)),
    **{(BUILDING, event): (ABANDONED, (KILL_GROUP,)) for event in (STOP, KILL, REMOVE, GRACE_OVER)},
    **{(ABANDONED, event): (REMOVED, (RELEASE,)) for event in (BUILT, BUILD_FAILED)},
    (ABANDONED, KILL_WAIT_OVER): (REMOVED, (REPORT_UNKILLABLE, RELEASE)),
    **{(state, START): (PREPARING, (FORK,)) for state in RESTING},
    **{(state, REMOVE): (DELETING, (KILL_GROUP, CHECK_GROUP)) for state in RESTING},
    (DELETING, GROUP_EMPTY): (REMOVED, (RELEASE,)),
    (DELETING, KILL_WAIT_OVER): (REMOVED, (REPORT_UNKILLABLE, RELEASE)),
    (PREPARING, FORK_FAILED): (EXITED, (RECORD, FINISH)),
    **{(state, event): answer for state in (*STARTING, *ALIVE) for event, answer in _WHILE_ALIVE.items()},
    (PREPARING, READY_TO_EXEC): (PREPARED, ()),
    # Nothing has been executed yet: there is nobody to be polite to.
    (PREPARING, STOP): (KILLED, (KILL_GROUP,)),
    (PREPARED, STOP): (KILLED, (KILL_GROUP,)),
    (PREPARED, GO): (RUNNING, (EXECUTE,)),
    (PREPARED, HANDLE_START): (PRE_START, (RUN_PRE_START,)),
    (PRE_START, HANDLED): (CLEARING, (CLEAR_GROUP, CHECK_GROUP)),
    (PRE_START, HANDLER_FAILED): (KILLED, (KILL_GROUP,)),
    # Neither has the handler anything left to prepare.
    **{(state, STOP): (KILLED, (KILL_GROUP,)) for state in (PRE_START, CLEARING)},
    **{(state, DIED): (REMNANTS, (RECORD, KILL_GROUP, CHECK_GROUP)) for state in (PRE_START, CLEARING)},
    (CLEARING, GROUP_CLEAR): (RUNNING, (EXECUTE,)),
    (CLEARING, KILL_WAIT_OVER): (KILLED, (FAIL_START, KILL_GROUP)),
    (RUNNING, HANDLE_RUNNING): (POST_START, (RUN_POST_START,)),
    (POST_START, HANDLED): (RUNNING, (GO_ON,)),
    **{(state, STOP): (STOPPING, (TERMINATE,)) for state in (POST_START, RUNNING)},
    **{(state, HANDLE_STOPPING): (PRE_STOP, (RUN_PRE_STOP,)) for state in (POST_START, RUNNING)},
    **{(PRE_STOP, event): (STOPPING, (TERMINATE,)) for event in (HANDLED, HANDLER_FAILED)},
    (PRE_STOP, GRACE_OVER): (STOPPING, (END_HOOK, TERMINATE)),
    (STOPPING, GRACE_OVER): (KILLED, (KILL_GROUP,)),
    (KILLED, DIED): (REMNANTS, (RECORD, CHECK_GROUP)),
    (KILLED, KILL_WAIT_OVER): (EXITED, (REPORT_UNKILLABLE, FINISH)),
    (LINGERING, GROUP_EMPTY): (EXITED, (FINISH,)),
    (LINGERING, HANDLE_STOP): (POST_STOP, (RUN_POST_STOP,)),
    (LINGERING, GRACE_OVER): _KILL_THE_REST,
    (LINGERING, KILL): _KILL_THE_REST,
    (REMNANTS, GROUP_EMPTY): (EXITED, (FINISH,)),
    (REMNANTS, HANDLE_STOP): (POST_STOP, (RUN_POST_STOP,)),
    (REMNANTS, KILL_WAIT_OVER): (EXITED, (REPORT_UNKILLABLE, FINISH)),
    (POST_STOP, STOP): (POST_STOP, (ARM_GRACE,)),
    # Nothing of the handler lives longer.
    (POST_STOP, HANDLED): _KILL_THE_REST,
    (POST_STOP, HANDLER_FAILED): _KILL_THE_REST,
    (POST_STOP, GRACE_OVER): _KILL_THE_REST,
    (POST_STOP, KILL): _KILL_THE_REST,
}

_NAMES_OF_THE_API = {
    **dict.fromkeys((BUILDING, ABANDONED, PREPARING), "preparing"),
    **dict.fromkeys((ADDED, PREPARED, PRE_START, CLEARING), "prepared"),
    **dict.fromkeys((POST_START, RUNNING), "running"),
    **dict.fromkeys((PRE_STOP, STOPPING, LINGERING, KILLED, REMNANTS, POST_STOP), "stopping"),
    EXITED: "exited",
    DELETING: "deleting",
    REMOVED: "unknown",
}


def api_state(state: str) -> str:
    """Return which of the states of rkt's app-level API an app is in."""
    return _NAMES_OF_THE_API[state]


def next_state(state: str, event: str) -> Answer:
    """Return the state after `event` and the actions to take; an event that means nothing to a state is ignored."""
    return _TABLE.get((state, event), (state, ()))
