"""The restarts of one app: whether there is another one after an end, and after what time. Pure."""

from __future__ import annotations

from minit.base.carried import Carried
from minit.plan.life.restart import ALWAYS, RestartPolicy


class Restarts(Carried):
    """
    The counts of an app with a restart policy.

    `count` is all its restarts, `in_a_row` those since it last ran for the policy's `reset_seconds`. `delay_seconds` is
    set from an end until the restart that follows it; `gave_up` says that there is none because of the policy's limit.
    """

    policy: RestartPolicy
    count: int
    in_a_row: int
    delay_seconds: float | None
    gave_up: bool

    def __init__(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.count = 0
        self.in_a_row = 0
        self.delay_seconds = None
        self.gave_up = False

    def end(self, *, failed: bool, ran_seconds: float) -> None:
        """Decide what follows an end of the app."""
        self.delay_seconds = None
        self.gave_up = False
        if ran_seconds >= self.policy.reset_seconds:
            self.in_a_row = 0
        if not failed and self.policy.condition != ALWAYS:
            return
        if self.policy.limit is not None and self.in_a_row >= self.policy.limit:
            self.gave_up = True
            return
        # Beyond 2**64 any delay is the longest, and a float has an end.
        doubled = self.policy.delay_seconds * 2.0 ** min(self.in_a_row, 64)
        self.delay_seconds = min(doubled, self.policy.max_delay_seconds)

    def begin(self, *, by_itself: bool) -> None:
        """
        Note that the app is being started again; by somebody else, it is as good as new.

        Noted twice, after an error, it is one start.
        """
        if not by_itself:
            self.in_a_row = 0
        elif self.delay_seconds is not None:
            self.delay_seconds, self.count, self.in_a_row = None, self.count + 1, self.in_a_row + 1

    def cancel(self) -> None:
        """Have no restart follow the last end."""
        self.delay_seconds = None
