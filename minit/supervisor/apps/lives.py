"""The life-cycle table at work: here alone the state of an app changes, and the actions that follow are carried out."""

from __future__ import annotations

from collections.abc import Callable

from minit.podfiles.paths import PodEvent
from minit.supervisor.apps.lifecycle import Action, Event, next_state
from minit.supervisor.apps.podapp import App
from minit.supervisor.journal import Journal


class Lives:
    """
    Feeds events to the table.

    `actions` are the functions by the names that the table has for them. `observers` are called when anything about an
    app has changed.
    """

    def __init__(self, journal: Journal) -> None:
        self.actions: dict[Action, Callable[[App], None]] = {}
        self.observers: list[Callable[[App], None]] = []
        self._journal = journal

    def handle(self, app: App, event: Event) -> None:
        """Change the state of an app as the table has it for an event, and carry out the actions."""
        before = app.state
        app.state, actions = next_state(app.state, event)
        if app.state != before:
            self._journal.event(PodEvent.APP_STATE, app=app.name, state=app.state, cause=event)
        for action in actions:
            self.actions[action](app)
        self.notify(app)

    def notify(self, app: App) -> None:
        """Tell of an app that something about it has changed."""
        for observer in self.observers:
            observer(app)
        for helper in app.helpers:
            helper.tell()
