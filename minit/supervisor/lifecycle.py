"""
The life of an app as a table: every state meets every event, and every pair has an answer.

Pure: the supervisor feeds events in and carries the actions out.
"""

from __future__ import annotations

# States.
PREPARING = "preparing"  # forked, building its root
PREPARED = "prepared"  # waiting to be told to exec
RUNNING = "running"
STOPPING = "stopping"  # asked to stop, its main process still there
LINGERING = "lingering"  # the main process is gone and recorded, others of its group are not
KILLED = "killed"  # its group was sent SIGKILL, its main process is still there
REMNANTS = "remnants"  # the main process is gone and recorded, SIGKILL was sent to the rest of the group
EXITED = "exited"

STATES = (PREPARING, PREPARED, RUNNING, STOPPING, LINGERING, KILLED, REMNANTS, EXITED)

# Events.
READY_TO_EXEC = "ready-to-exec"
GO = "go"
DIED = "died"  # the main process ended; a failed set-up or exec ends it too
GROUP_EMPTY = "group-empty"
STOP = "stop"
KILL = "kill"
GRACE_OVER = "grace-over"
KILL_WAIT_OVER = "kill-wait-over"

EVENTS = (READY_TO_EXEC, GO, DIED, GROUP_EMPTY, STOP, KILL, GRACE_OVER, KILL_WAIT_OVER)

# Actions.
RECORD = "record"  # write the status and apply the pod's policy
TERMINATE = "terminate"  # stop signal and SIGCONT to the group, arm the grace timer
KILL_GROUP = "kill-group"  # SIGKILL to the group, arm the kill-wait timer
CHECK_GROUP = "check-group"  # look whether the group is empty already
REPORT_UNKILLABLE = "report-unkillable"
FINISH = "finish"  # nothing of the app is left; disarm its timer

Answer = tuple[str, tuple[str, ...]]

_WHILE_ALIVE: dict[str, Answer] = {
    DIED: (LINGERING, (RECORD, TERMINATE, CHECK_GROUP)),
    KILL: (KILLED, (KILL_GROUP,)),
}
_TABLE: dict[tuple[str, str], Answer] = {
    **{
        (state, event): answer
        for state in (PREPARING, PREPARED, RUNNING, STOPPING)
        for event, answer in _WHILE_ALIVE.items()
    },
    (PREPARING, READY_TO_EXEC): (PREPARED, ()),
    # Nothing has been executed yet: there is nobody to be polite to.
    (PREPARING, STOP): (KILLED, (KILL_GROUP,)),
    (PREPARED, STOP): (KILLED, (KILL_GROUP,)),
    (PREPARED, GO): (RUNNING, ()),
    (RUNNING, STOP): (STOPPING, (TERMINATE,)),
    (STOPPING, GRACE_OVER): (KILLED, (KILL_GROUP,)),
    (KILLED, DIED): (REMNANTS, (RECORD, CHECK_GROUP)),
    (KILLED, KILL_WAIT_OVER): (EXITED, (REPORT_UNKILLABLE, FINISH)),
    (LINGERING, GROUP_EMPTY): (EXITED, (FINISH,)),
    (LINGERING, GRACE_OVER): (REMNANTS, (KILL_GROUP, CHECK_GROUP)),
    (LINGERING, KILL): (REMNANTS, (KILL_GROUP, CHECK_GROUP)),
    (REMNANTS, GROUP_EMPTY): (EXITED, (FINISH,)),
    (REMNANTS, KILL_WAIT_OVER): (EXITED, (REPORT_UNKILLABLE, FINISH)),
}


def next_state(state: str, event: str) -> Answer:
    """Return the state after `event` and the actions to take; an event that means nothing to a state is ignored."""
    return _TABLE.get((state, event), (state, ()))
