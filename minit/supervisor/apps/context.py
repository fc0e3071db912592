"""
The context of the supervisor: everything that the parts of PID 1 share.

The life-cycle table works here: nothing else changes the state of an app.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from minit.base.carried import Carried
from minit.linux.attributes import Limit
from minit.linux.loop import Loop
from minit.linux.messages import Socket
from minit.linux.process import hold_limits, read_limits
from minit.plan.appspec import AppSpec
from minit.plan.podplan import PodTraits
from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.apprecords import Records
from minit.supervisor.apps.lifecycle import Action, Event, next_state
from minit.supervisor.apps.notifylistener import Listeners
from minit.supervisor.apps.outputs import Outputs
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import PodPolicy
from minit.supervisor.journal import Journal

RETRY_SECONDS = 1.0
"""When a record that could not be written, and a connection that could not be accepted, are tried again."""


class Context:
    """
    The pod as PID 1 has it: traits of the plan, the apps by name, the loop, and what follows events of the apps.

    `pod` decides about the apps, `records` are their files, `outputs` their output, read by `sidecars`, `listeners`
    hear their notifications. `actions` are the functions for the actions of the life-cycle table; the supervisor sets
    them before the first event. `observers` are called when anything about an app has changed. `at_work` names the apps
    whose events are being handled.
    """

    def __init__(
        self,
        traits: PodTraits,
        apps: Sequence[App],
        launcher: Socket | None,
        journal: Journal,
        sidecar_filter: bytes = b"",
    ) -> None:
        self.traits = traits
        self.journal = journal
        self.limits = OwnLimits(journal)
        self.loop = Loop(begin=self.limits.hold_if_exposed)
        self.actions: Mapping[Action, Callable[[App], None]] = {}
        self.observers: list[Callable[[App], None]] = []
        self.at_work: list[str] = []
        self.records = Records(journal, self.retry_soon)
        self.pod = PodPolicy(traits, apps, launcher, journal, self.handle)
        self.apps = self.pod.apps
        self.outputs = Outputs(self.pod, self.loop, self.records, journal, sidecar_filter)
        self.sidecars = self.outputs.sidecars
        self.listeners = Listeners(self.loop, journal, self.retry_soon, self.pod.on_progress)
        self._retry = self.loop.deadline(self._try_again)

    def handle(self, app: App, event: Event) -> None:
        """Change the state of an app as the table has it for an event, and carry out the actions."""
        before = app.state
        after, actions = next_state(before, event)
        # Both at once. What an action leads to comes before the actions behind it.
        app.due[:0], app.state = actions, after
        if app.state != before:
            self.journal.event(PodEvent.APP_STATE, app=app.name, state=app.state, cause=event)
            # A stop has its grace period, and a hook in the group runs.
            self._thaw(app)
        self._act(app, len(actions))
        self.notify(app)

    def act(self, app: App) -> None:
        """Carry out the actions that are due; what was begun and did not end is done once more."""
        self._act(app, len(app.due))

    def _act(self, app: App, count: int) -> None:
        with self.work_for(app):
            for _ in range(count):
                self.actions[app.due[0]](app)
                del app.due[0]

    @contextmanager
    def work_for(self, app: App) -> Iterator[None]:
        """Note that there is work for an app; an error in the work leaves the note, for who deals with the error."""
        self.at_work.append(app.name)
        yield
        self.at_work.pop()

    def pause(self, app: App) -> bool:
        """Freeze all processes of a running app, until `resume` or the next state; False without a freezer."""
        if app.group.is_frozen:
            return True
        if not app.group.freeze():
            return False
        self.journal.event(PodEvent.APP_PAUSED, app=app.name)
        self.records.note_state(app)
        self.notify(app)
        return True

    def resume(self, app: App) -> None:
        """Thaw the processes of a paused app."""
        self._thaw(app)
        self.notify(app)

    def _thaw(self, app: App) -> None:
        if app.group.is_frozen:
            app.group.thaw()
            self.journal.event(PodEvent.APP_RESUMED, app=app.name)
            self.records.note_state(app)

    def notify(self, app: App) -> None:
        """Tell the observers, and the helpers of an app, that something about the app has changed."""
        for observer in self.observers:
            observer(app)
        for helper in app.helpers:
            helper.tell()

    def retry_soon(self) -> None:
        """Try again in a moment what a disk has not taken."""
        # Not later than planned: frequent requests of one app must not hold up the others.
        if self._retry.moment is None:
            self._retry.set(time.monotonic() + RETRY_SECONDS)

    def _try_again(self) -> None:
        self.records.catch_up()
        self.listeners.resume()


class OwnLimits(Carried):
    """The limits of PID 1, read before an app could change them."""

    _limits: list[Limit]
    _is_exposed: bool

    def __init__(self, journal: Journal) -> None:
        self._limits = read_limits()
        self._journal = journal
        self._is_exposed = False

    def expose(self, spec: AppSpec) -> None:
        """Note an app, which may be able to change the limits."""
        self._is_exposed |= spec.may_change_limits

    def hold(self) -> bool:
        """
        Undo what an app that is root has done to the limits of PID 1, which could write or open nothing then.

        Returns whether there was something that could be undone: a hard limit takes CAP_SYS_RESOURCE.
        """
        has_changed = hold_limits(self._limits)
        if has_changed:
            self._journal.info("limits.restored")
        return has_changed

    def are_held(self, resources: Iterable[int]) -> bool:
        """Return whether some limits are as they were."""
        return all(resource.getrlimit(number) == self._limits[number][1:] for number in resources)

    def hold_if_exposed(self) -> None:
        """Do so if an app can have changed them."""
        if self._is_exposed:
            self.hold()
