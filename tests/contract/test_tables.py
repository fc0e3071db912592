"""Tables for people: on a terminal they fit it, anywhere else they are rkt's."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.support.stage0_world import World, write_app
from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="prepares pods, which needs root")

NAME = "registry.example.com/a-team-with-a-name/web-server-of-the-team"


@pytest.fixture
def world(world: World) -> World:
    """A data directory with a pod of an image with a long name."""
    write_app(world.app, NAME)
    world.prepare()
    return world


@pytest.mark.parametrize("words", [["list"], ["image", "list"]], ids=" ".join)
def test_a_table_fits_the_terminal(words: list[str], world: World) -> None:
    """On a terminal a table is as wide as that at most, unless all of it is asked for; a pipe has all of it in tabs."""

    def shown(columns: int, *flags: str) -> list[str]:
        with Terminal(columns=columns) as terminal:
            command = world.command(*words, *flags)
            process = subprocess.Popen(command, env=world.environment(), **terminal.options)
            assert terminal.finish(process) == 0
            return terminal.seen.decode().splitlines()

    piped = world.minit(*words).stdout
    assert "\t" in piped and NAME in piped
    wide, narrow = shown(200), shown(80)
    assert any(NAME in line for line in wide)
    assert not any("\t" in line for line in [*wide, *narrow])
    assert max(map(len, narrow)) <= 80 < max(map(len, wide))
    assert any("…" in line for line in narrow)
    assert any(NAME in line for line in shown(80, "--full"))
