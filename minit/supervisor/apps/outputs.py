"""
The output of apps: complete logs are marked, losses counted, and the rest is waited for at the end.

A module beside its one importer, the context, which only puts such parts together.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from minit.linux.loop import Loop
from minit.linux.stdio import complain_at_once
from minit.supervisor.apps.apprecords import Records
from minit.supervisor.apps.lifecycle import State
from minit.supervisor.apps.podapp import App
from minit.supervisor.apps.podpolicy import PodPolicy
from minit.supervisor.journal import Journal
from minit.supervisor.output.sidecars import Sidecars

DRAIN_STALL_SECONDS = 5.0
_DRAIN_TURN_SECONDS = 0.25


class Outputs:
    """The output of a pod's apps; `sidecars` read it, through the filter of system calls `sidecar_filter`."""

    def __init__(self, pod: PodPolicy, loop: Loop, records: Records, journal: Journal, sidecar_filter: bytes) -> None:
        self.sidecars = Sidecars(loop, journal, self._on_end, self._on_loss, sidecar_filter)
        self._pod = pod
        self._records = records
        self._journal = journal

    def mark_log_end(self, app: App) -> None:
        """Tell the readers of an app's log that the log is complete, once it is."""
        if app.state != State.EXITED or app.is_restarting or self.sidecars.read(app.name):
            return
        self._records.mark_log_end(app)

    def drain(self, turn: Callable[[float], None], tell_seconds: Callable[[float], None]) -> None:
        """
        Wait until every sidecar has written what its process left, or none makes progress any more.

        `turn` handles events for so long; `tell_seconds` has the launcher wait so long from now. A pod of which output
        is lost has failed, unless its apps may lose some.
        """
        self._wait(turn, tell_seconds)
        self.sidecars.lose_rest()
        for app in self._pod.apps.values():
            if fails_by_loss(app):
                self._pod.fail()

    def _wait(self, turn: Callable[[float], None], tell_seconds: Callable[[float], None]) -> None:
        self.sidecars.renew(at_once=True)
        progress, stalled_at = (-1, -1), 0.0
        while not self.sidecars.all_ended:
            pending = self.sidecars.unread_bytes()
            now = time.monotonic()
            if (pending, self.sidecars.flushes()) != progress:
                progress, stalled_at = (pending, self.sidecars.flushes()), now + DRAIN_STALL_SECONDS
                tell_seconds(DRAIN_STALL_SECONDS)
            elif now >= stalled_at:
                self._journal.info("pod.drain-stalled", unread_bytes=pending)
                return
            turn(_DRAIN_TURN_SECONDS)

    def _on_loss(self, name: str, size_bytes: int) -> None:
        app = self._pod.apps.get(name)
        if app is None:
            return
        is_first = app.lost_bytes is None
        app.lost_bytes = (app.lost_bytes or 0) + size_bytes
        if is_first and not self._pod.finished:
            complain_at_once(f'stage1: app "{name}": output is lost, as nobody can read it any more')
            self._note_loss(app)

    def _on_end(self, name: str) -> None:
        app = self._pod.apps.get(name)
        if app is None:
            return
        if app.lost_bytes:
            self._note_loss(app)
        self.mark_log_end(app)

    def _note_loss(self, app: App) -> None:
        if app.run.end is None or app.run.end.status is None:
            self._records.note_state(app)
        else:
            self._records.write_end(app)


def fails_by_loss(app: App) -> bool:
    """Say how much output of an app was lost, if any, and return whether the pod has failed by the loss."""
    if not app.lost_bytes:
        return False
    complain_at_once(f'stage1: app "{app.name}": {app.lost_bytes} bytes of output were lost')
    return app.spec.streams.lost_output_fails
