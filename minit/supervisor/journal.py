"""
PID 1's own log.

Events are kept from the first instruction and written once PID 1 has the time for that.
"""

from __future__ import annotations

from collections.abc import Callable

from minit.podfiles.paths import PodEvent
from minit.supervisor.podevents import Events

_KEPT_EVENTS = 1000


class Journal:
    """A list of events until `attach` gives it a place to write them to; `events` are those for the pod's users."""

    def __init__(self, debug: bool) -> None:
        self.events = Events()
        self._debug = debug
        self._kept: list[tuple[str, dict[str, object]]] = []
        self._write: Callable[[str, dict[str, object]], None] | None = None

    def event(self, event: PodEvent, **fields: object) -> None:
        """Log what users of the pod are told of as well."""
        self.events.add(event, fields)
        self.info(event, **fields)

    def info(self, event: str, **fields: object) -> None:
        """Log a transition that an operator wants to see."""
        if self._write is not None:
            self._write(event, fields)
        elif len(self._kept) < _KEPT_EVENTS:
            self._kept.append((event, fields))

    def debug(self, event: str, **fields: object) -> None:
        """Log a detail, with --debug only."""
        if self._debug:
            self.info(event, **fields)

    def attach(self, write: Callable[[str, dict[str, object]], None]) -> None:
        """Write the events so far, and from now on each as it comes."""
        self._write = write
        kept, self._kept = self._kept, []
        for event, fields in kept:
            write(event, fields)
