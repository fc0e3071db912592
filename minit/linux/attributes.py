"""
Attributes that a process passes on to children and executed programs: limits and scheduling.

The launcher inherits the attributes from the caller of `run` and keeps a record, which every app, handler and entered
command gets: the caller of `enter` has other attributes, and an app with root's rights can change those of PID 1.
"""

from __future__ import annotations

from minit.base.value import Value

# A resource of getrlimit(2), soft limit, hard limit.
Limit = tuple[int, int, int]


class Attributes(Value):
    """
    Limits, scheduling and personality; `affinity` are the numbers of processors, `policy` is a policy of sched(7).

    `coredump_filter` is None on a kernel without such a filter.
    """

    limits: tuple[Limit, ...]
    nice: int
    policy: int
    affinity: tuple[int, ...]
    io_priority: int
    personality: int
    timer_slack_ns: int
    thp_disable: int
    coredump_filter: int | None
