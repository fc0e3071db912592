"""The events of a pod from outside, out of the file that its stage1 keeps them in: docs/events.md."""

from __future__ import annotations

import os
from collections.abc import Iterator

from minit.base import jsontext
from minit.base.errors import ManifestError
from minit.base.value import Value
from minit.podfiles import paths
from minit.stage0.pods.poddirectory import Pod
from minit.stage0.reports.logfiles import AppLog
from minit.stage0.reports.logreader import open_log_directory, passes

Event = dict[str, object]


class Wanted(Value):
    """A choice of events: of these `apps`, all without one, after number `since`, None from the first one kept on."""

    apps: frozenset[str] = frozenset()
    since: int | None = None


class EventReader:
    """Makes of the lines of the file the events that are wanted; `last` is the number of the last one there was."""

    def __init__(self, wanted: Wanted) -> None:
        self.last = wanted.since
        self._wanted = wanted

    def read(self, line: bytes) -> Iterator[Event]:
        """Yield the event of a line, and before it that there are others missing; nothing for what is none."""
        try:
            event = jsontext.parse(line, "event")
        except ManifestError:
            return
        number = event.get("seq") if isinstance(event, dict) else None
        if not isinstance(event, dict) or not isinstance(number, int):
            return
        if self.last is not None and number <= self.last:
            return
        if self.last is not None and number > self.last + 1:
            yield {"seq": number - 1, "event": paths.PodEvent.GAP, "lost": number - self.last - 1}
        self.last = number
        # An event without an app is about the whole pod.
        if not self._wanted.apps or event.get("app") in self._wanted.apps:
            yield event


def pod_events(pod: Pod, wanted: Wanted, output: int, *, follow: bool) -> Iterator[list[Event]]:
    """
    Yield the events of a pod as they come, the first list at once; with `follow` until the pod has ended.

    PodError if its stage1 keeps none. BrokenPipeError once nobody reads the descriptor `output` any more.
    """
    place, name = os.path.split(paths.STAGE1_EVENTS)
    directory = open_log_directory(pod, wait=follow, directory=place, what="events")
    if directory is None:
        return
    reader = EventReader(wanted)
    log = AppLog(name.removesuffix(".log"), directory)
    try:
        for moment in passes(pod, [log], directory, output, None):
            chunks = log.chunks(final=log.app in moment.complete, follow=follow)
            yield [event for chunk in chunks for line in chunk.split(b"\n") for event in reader.read(line)]
            if not follow:
                return
    finally:
        log.close()
        os.close(directory)
