"""Progress of long work on standard error: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as Bars

from minit.base.progress import Progress, silent
from minit.cli.invocation import Invocation

# Shorter work needs no progress.
_PATIENCE_SECONDS = 0.5
_REFRESH_SECONDS = 0.1


@contextmanager
def show_progress(invocation: Invocation, *, quiet: bool) -> Iterator[Progress]:
    """Yield a Progress that shows messages, as soon as the work proves to be long."""
    if quiet:
        yield silent
    elif sys.stderr.isatty():
        with ExitStack() as stack:
            yield _Bar(stack)
    else:
        yield _Lines(invocation)


class _Lines:
    """A line for each step."""

    def __init__(self, invocation: Invocation) -> None:
        self._invocation = invocation
        self._start = time.monotonic()
        self._shown = ""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        if step != self._shown and time.monotonic() - self._start >= _PATIENCE_SECONDS:
            self._shown = step
            self._invocation.note(step)


class _Bar:
    """A bar for the present step, which vanishes at the end; `stack` takes the bar down."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._start = self._refreshed = time.monotonic()
        self._bars: Bars | None = None
        self._step = ""

    def __call__(self, step: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now - self._start < _PATIENCE_SECONDS:
            return
        if self._bars is None:
            self._bars = _make_bars()
            self._bars.add_task(step)
            self._stack.enter_context(self._bars)
        elif step == self._step and now - self._refreshed < _REFRESH_SECONDS:
            return
        self._step, self._refreshed = step, now
        task = self._bars.task_ids[0]
        self._bars.update(task, description=step, completed=done, total=total, refresh=True)


def _make_bars() -> Bars:
    # Refreshed by hand: rich's own refreshing is a thread, and extracting an image forks.
    return Bars(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
