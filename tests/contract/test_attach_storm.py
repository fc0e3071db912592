"""Many clients of one terminal that come, go, change size and lose their sidecar, in random order."""

from __future__ import annotations

import random
import subprocess

import pytest

from tests.support.attach import APP, TERMINAL, attach, kill_sidecar, start_app
from tests.support.campaign import campaign
from tests.support.pods import MakePod, PodDirectory
from tests.support.terminal import Terminal

_MOST_CLIENTS = 4
_STEPS = 12
DETACH = b"\x10\x11"


class Person:
    """Somebody at a terminal, attached to the app."""

    def __init__(self, pod: PodDirectory, rows: int, columns: int, *flags: str) -> None:
        self.terminal = Terminal(rows, columns)
        self._before = self.terminal.settings
        self._client: subprocess.Popen[bytes] = attach(pod, *flags, terminal=self.terminal)
        self.terminal.expect(rb"app> ")

    def leave(self, *pieces: bytes) -> None:
        """Detach by keys, which are typed in pieces, and find the terminal as it was."""
        for piece in pieces:
            self.terminal.type(piece)
        assert self.terminal.finish(self._client) == 0
        assert self.terminal.seen.endswith(b"attach: detached\r\n")
        assert self.terminal.settings == self._before
        self.terminal.close()


@pytest.mark.parametrize("seed", range(campaign(1)))
def test_whoever_comes_and_goes(make_pod: MakePod, seed: int) -> None:
    """Everybody who is there sees everything, its terminal has the size of who typed last, none is left raw."""
    chance = random.Random(seed)
    pod = start_app(make_pod, "PS1='app> ' exec sh -i", TERMINAL)
    people = [Person(pod, 24, 80)]
    for step in range(_STEPS):
        deed = chance.choice(("come", "go", "kill", "resize"))
        if deed == "come" and len(people) < _MOST_CLIENTS:
            people.append(Person(pod, 24, 80, *chance.choice(((), ("--read-only",), ("--take-stdin",)))))
        elif deed == "go" and people:
            people.pop(chance.randrange(len(people))).leave(*chance.choice(((DETACH,), (b"\x10", b"\x11"))))
        elif deed == "kill":
            kill_sidecar(pod)
        elif deed == "resize" and people:
            chance.choice(people).terminal.resize(chance.randrange(10, 60), chance.randrange(40, 200))
        rows, columns = chance.randrange(10, 60), chance.randrange(60, 200)
        writer = Person(pod, rows, columns, "--take-stdin")
        # Others may still be on their way to the next sidecar, with sizes of their own.
        writer.terminal.resize(rows + 1, columns)
        wanted = b"%d %d" % (rows + 1, columns)
        writer.terminal.type(b"until stty size | grep '^%s$'; do :; done; echo step $((%d))\r" % (wanted, step))
        for person in (writer, *people):
            person.terminal.expect(rb"\r\nstep %d\r\n(.*)app> " % step)
        writer.leave(DETACH)
    for person in people:
        person.leave(DETACH)
    assert pod.status(APP) is None
