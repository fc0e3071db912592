"""The last step of the commands that run pods: this process becomes the pod's stage1, or one in the background does."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

import click

from minit.base.errors import MinitError, describe
from minit.cli.commands.pods.endingcommands import cleanup_of
from minit.cli.invocation import Invocation, flush_output
from minit.linux.stdio import write_all
from minit.stage0.garbage.podgc import remove, start_remover
from minit.stage0.images.store import Store
from minit.stage0.images.treestore import TreeStore
from minit.stage0.pods.poddirectory import DELETED_STATES, Pod, open_pod
from minit.stage0.stage1.entrypoints import RunOptions
from minit.stage0.start.detached import start_detached
from minit.stage0.start.newpod import discarded_on_failure
from minit.stage0.start.run import run_pod

_OF_APP = re.compile(rb"[a-z0-9-]+\[[0-9]+\]: ")


def refuse_detached_terminal(how: RunOptions, *, detach: bool) -> None:
    """Refuse a pod that is connected to the terminal that its command leaves."""
    if detach and how.interactive:
        raise click.UsageError("--interactive needs the terminal that --detach leaves")


def start_pod(
    invocation: Invocation, store: Store, pod: Pod, how: RunOptions, *, detach: bool, removed: bool = False
) -> None:
    """
    Run a locked pod that is complete: here, or with `detach` elsewhere, and print its UUID when it is ready.

    With `removed` it is removed when it ends. One in the background that does not become ready is removed at once.
    """

    def run() -> NoReturn:
        with discarded_on_failure(pod):
            run_pod(pod, TreeStore(invocation.data, store), how, invocation.note, flush_output, remover)

    def start_its_remover() -> int:
        start = decided.reader if detach else None
        return start_remover(pod, invocation.local_config, invocation.note, debug=invocation.debug, start=start)

    remover = start_its_remover if removed else None
    if how.interactive and not how.quiet and os.isatty(0):
        invocation.note("press ^] three times within 1s to kill the pod")
    if not detach:
        run()
    decided = _Decision()
    try:
        start_in_background(invocation, pod, run, decided.make)
    except BaseException:
        with suppress(MinitError, OSError):
            _remove(invocation, store, pod.uuid)
        raise
    invocation.say(pod.uuid)


def start_in_background(
    invocation: Invocation, pod: Pod, run: Callable[[], NoReturn], decided: Callable[[], None] = lambda: None
) -> None:
    """Have `run` become the stage1 of a locked pod elsewhere; as start_detached, with what it says told to the user."""
    flush_output()
    said = _Said()
    try:
        start_detached(pod, run, lambda error: invocation.note(describe(error)), said.take, decided)
    except BaseException:
        said.tell_rest()
        raise


class _Decision:
    """Whether the pod has been ready: when it is made, a pipe ends."""

    def __init__(self) -> None:
        self.reader, self._writer = os.pipe()

    def make(self) -> None:
        """Let go on who waits for it."""
        os.close(self._writer)


class _Said:
    """Output of a pod that starts: stage1's own is told at once, that of its apps only if the start fails."""

    def __init__(self) -> None:
        self._begun = b""
        self._held: list[bytes] = []

    def take(self, data: bytes) -> None:
        """Take some more of it."""
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._held.append(line) if _OF_APP.match(line) else _tell(line)

    def tell_rest(self) -> None:
        """Tell what is held back."""
        for line in (*self._held, *([self._begun] if self._begun else [])):
            _tell(line)


def _tell(line: bytes) -> None:
    sys.stderr.flush()
    with suppress(OSError):
        write_all(2, line + b"\n")


def _remove(invocation: Invocation, store: Store, uuid: str) -> None:
    with open_pod(invocation.data, uuid) as pod, cleanup_of(invocation, store) as cleanup:
        if pod.state not in DELETED_STATES:
            remove(pod, cleanup, invocation.note)
