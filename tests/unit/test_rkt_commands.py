"""docs/rkt.md, rkt's commands and options: all of them, and what minit has of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from minit.cli.commandgroups import commands
from minit.cli.grammar import GlobalOption
from tests.unit.test_docs import COMMANDS, options_of

TEXT = (Path(__file__).parents[2] / "docs/rkt.md").read_text()
ROWS = {
    name: (set(re.findall(r"`(--[\w-]+)`", options)), verdict)
    for name, options, verdict in re.findall(r"^\| `([\w -]+)` \| (.+) \| (.+) \|$", TEXT, re.MULTILINE)
}
GLOBAL_OPTIONS = {
    option
    for options in re.findall(r"^Global options: (.+?)\. ", TEXT, re.M | re.S)
    for option in re.findall(r"`(--[\w-]+)`", options)
}
_OPTION = re.compile(r"^  (?:    |-\w, )(--[a-z0-9-]+)", re.MULTILINE)


@pytest.mark.parametrize("name", [name for name, (_, verdict) in ROWS.items() if verdict.startswith(("yes", "as "))])
def test_what_minit_has(name: str) -> None:
    """A command that the table says minit has takes every option of rkt's."""
    own = f"{name} add" if name == "trust" else name  # what the words of a group are for
    assert ROWS[name][0] - options_of(COMMANDS[own]) == set()


def test_what_minit_does_not_have() -> None:
    """A command that is left out has a reason."""
    left_out = {name for name, (_, verdict) in ROWS.items() if verdict.startswith("no: ")}
    assert left_out == {"api-service", "config", "metadata-service"}
    assert not left_out & set(COMMANDS)


def test_global_options() -> None:
    """Every command takes rkt's global options."""
    own = {word for option in commands.params if isinstance(option, GlobalOption) for word in option.opts}
    assert own == GLOBAL_OPTIONS


def rkt_help(*words: str) -> str:
    """Return what `rkt help` shows, with its experimental commands."""
    experiments = {"RKT_EXPERIMENT_APP": "true", "RKT_EXPERIMENT_ATTACH": "true"}
    environment = {**os.environ, **experiments}
    result = subprocess.run(["rkt", "help", *words], capture_output=True, text=True, env=environment, check=True)
    return result.stdout + result.stderr


def test_the_table_is_what_rkt_says() -> None:
    """The table has all commands of a real rkt, and no other, each with its options."""
    if shutil.which("rkt") is None:
        pytest.skip("no rkt binary on PATH")
    listed = re.findall(r"^\t([a-z-]+(?: [a-z-]+)?)\t", rkt_help(), re.MULTILINE)
    named = {*listed, *(f"app {name}" for name in re.findall(r"^\t([a-z-]+)\t", rkt_help("app"), re.MULTILINE))}
    # What rkt's own list leaves out.
    assert named | {"image fetch"} == set(ROWS)
    for name, (options, _) in ROWS.items():
        own, _, shared = rkt_help(*name.split()).partition("GLOBAL OPTIONS:")
        assert set(_OPTION.findall(own)) == options or name == "help", name
        assert set(_OPTION.findall(shared)) in (GLOBAL_OPTIONS, set()), name
