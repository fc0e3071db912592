"""Remains of a test on the machine, which the next ones would meet."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

from tests.support.hostnet import NAMESPACES, kept_files
from tests.support.owngroup import OwnGroup
from tests.support.processes import own_processes, status_of
from tests.support.waiting import wait_for


class Leftovers:
    """Knows what was there before a test."""

    patience_seconds = 30.0  # for what is on its way out

    def __init__(self, group: OwnGroup | None) -> None:
        """Look at a session's group; without a group, which only a user's session has, at all of the user's."""
        self._group = group
        self._before = self._present()

    def check(self) -> None:
        """Raise AssertionError that names what there is now and was not before."""
        with suppress(AssertionError):
            wait_for(lambda: not self._new(), "the end of what a test left", self.patience_seconds)
        assert not (new := self._new()), f"the test left behind: {', '.join(sorted(map(_described, new)))}"

    def _new(self) -> set[tuple[str, str]]:
        return self._present() - self._before

    def _present(self) -> set[tuple[str, str]]:
        with open("/proc/self/mountinfo") as lines:
            found = {("mount", point) for line in lines if (point := line.split()[4]) != str(NAMESPACES)}
        if self._group is not None:
            found |= {("group", str(path)) for path in self._group.groups()}
        processes = own_processes() if self._group is None else self._group.processes()
        found |= {("process", str(pid)) for pid in processes}
        found |= {("link", name) for _, name in socket.if_nameindex()}
        found |= {("file", str(path)) for path in kept_files()}
        return found | {("namespace", name) for name in os.listdir(NAMESPACES)}


def _described(found: tuple[str, str]) -> str:
    kind, name = found
    if kind != "process":
        return f"{kind} {name}"
    with suppress(FileNotFoundError, ProcessLookupError):
        return f"process {name} ({status_of(int(name))['Name']}: {Path('/proc', name, 'cmdline').read_bytes()!r})"
    return f"process {name}"
