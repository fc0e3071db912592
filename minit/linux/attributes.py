"""
Attributes that a process passes on to children and executed programs: scheduling, and the form of limits.

The launcher inherits the attributes from the caller of `run` and keeps a record, which every app, handler and entered
command gets: the caller of `enter` has other attributes, and an app with root's rights can change those of PID 1.
Limits are no attributes: the plan of an app has them.
"""

from __future__ import annotations

import resource

from minit.base.value import Value

UNLIMITED = resource.RLIM_INFINITY

# A resource of getrlimit(2), soft limit, hard limit.
Limit = tuple[int, int, int]


def narrower(limit: int, other: int) -> int:
    """Return the narrower of two limits, each of which may be UNLIMITED."""
    return other if limit == UNLIMITED else limit if other == UNLIMITED else min(limit, other)


class Attributes(Value):
    """
    Scheduling and personality; `affinity` are the numbers of processors, `policy` is a policy of sched(7).

    `coredump_filter` is None on a kernel without such a filter.
    """

    nice: int
    policy: int
    affinity: tuple[int, ...]
    io_priority: int
    personality: int
    timer_slack_ns: int
    thp_disable: int
    coredump_filter: int | None
