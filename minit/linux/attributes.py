"""
Attributes that a process passes on to its children, and to the programs that these execute: limits and scheduling.

The launcher has it from the caller of `run` and keeps a record of it, which every app, handler and entered command
gets: whoever enters has other attributes, and PID 1's may be changed by an app that is root.
"""

from __future__ import annotations

from minit.base.value import Value

# A resource of getrlimit(2), its soft and its hard limit.
Limit = tuple[int, int, int]


class Attributes(Value):
    """
    Limits, scheduling and personality; `affinity` are the numbers of processors, `policy` is one of sched(7).

    `coredump_filter` is None on a kernel without it.
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
