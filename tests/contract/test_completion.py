"""Completion of command lines: what may come next, and that bash, zsh and fish do complete by it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from minit.cli.commandgroups import commands
from minit.cli.completion import DIRECTORIES, FILES, NOTHING, complete, split_line
from tests.support.stage0_world import REPOSITORY, World
from tests.support.terminal import Terminal

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="prepares pods, which needs root")

TAB = b"\t"


def words(line: str) -> list[str]:
    """Return the words that may stand at the end of a line."""
    *before, word = split_line(line)
    return [candidate.word for candidate in complete(commands, before[1:], word).candidates]


def paths(line: str) -> str:
    """Return which paths may stand at the end of a line."""
    *before, word = split_line(line)
    return complete(commands, before[1:], word).paths


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("minit sta", ["status", "start", "stats", "stage1"]),
        ("minit --debug --dir /x ver", ["version"]),
        ("minit image ren", ["render"]),
        ("minit im ren", ["render"]),
        ("minit frobnicate ", []),
        ("minit run --volu", ["--volume"]),
        ("minit run --net", ["--network-alias", "--net", "--net=", "--network", "--network="]),
        ("minit run --net=default-", ["--net=default-restricted"]),
        ("minit run --net=default,no", ["--net=default,none"]),
        ("minit list --format ", ["json", "json-pretty"]),
        ("minit list --format=json-", ["--format=json-pretty"]),
        ("minit list --full --fu", []),
        ("minit run a --environment=A=1 --env", ["--env-file", "--environment", "--env"]),
        ("minit --insecure-options=paths,secc", ["--insecure-options=paths,seccomp"]),
        ("minit run a.aci -- --vol", []),
        ("minit run a.aci -- x --- b.aci --memo", ["--memory", "--memory-swap"]),
        ("minit stop --forc", ["--force"]),
        ("minit volume ls --filter ", ["name=", "dangling=", "since=", "after=", "until="]),
        ("minit volume ls --filter=dan", ["--filter=dangling="]),
        ("minit list -f health=un", ["health=unhealthy"]),
        ("minit stop -- --forc", []),
        ("minit enter x --vers", []),
        ("minit completion z", ["zsh"]),
        ("minit help image ren", ["render"]),
        ("minit help run x", []),
        ("minit list 'unfinished --f", []),
    ],
)
def test_words(line: str, expected: list[str]) -> None:
    """Commands, options and their values are offered where they may stand."""
    assert words(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("minit fetch ", FILES),
        ("minit run --stage1-path=", FILES),
        ("minit run --stage1-path ", FILES),
        ("minit --dir ", DIRECTORIES),
        ("minit image render x ", DIRECTORIES),
        ("minit run a.aci -- ", FILES),
        ("minit -- ", FILES),
        ("minit list ", NOTHING),
        ("minit run --hostname=", NOTHING),
    ],
)
def test_paths(line: str, expected: str) -> None:
    """Paths are left to the shell where there may be some."""
    assert paths(line) == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("minit a", ["minit", "a"]),
        ("minit a ", ["minit", "a", ""]),
        ("minit 'a b", ["minit", "a b"]),
        ('minit "a b" "c', ["minit", "a b", "c"]),
        ("minit a\\ b", ["minit", "a b"]),
        ("minit it's", ["minit", "its"]),
    ],
)
def test_lines(line: str, expected: list[str]) -> None:
    """A line is split by the shell's rules, its last word being what was typed of it so far."""
    assert split_line(line) == expected


def test_what_the_data_directory_has(world: World) -> None:
    """UUIDs, names of apps and names of images are offered, to each command those that it can use."""
    uuid = world.prepare(world.app, "--name=first", world.app, "--name=second")
    base = f"minit --dir={world.data}"
    assert words(f"{base} status {uuid[:2]}") == [uuid]
    assert words(f"{base} run-prepared ") == [uuid]
    assert words(f"{base} stop ") == []
    assert words(f"{base} rm {uuid} ") == []
    assert words(f"{base} enter --app=") == ["--app=first", "--app=second"]
    assert words(f"{base} image rm ") == words(f"{base} run ") != []
    assert paths(f"{base} run ") == FILES
    assert paths(f"{base} image rm ") == NOTHING
    (world.data / "pods/prepared" / uuid / "pod").write_text("{")
    assert words(f"{base} status {uuid[:2]}") == [uuid]
    assert words(f"minit --dir={world.root}/missing image rm ") == []
    assert not (world.root / "missing").exists()


@contextmanager
def shell(tmp_path: Path, *command: str) -> Iterator[Terminal]:
    """An interactive shell in a terminal, with `minit` on its PATH."""
    program = tmp_path / "bin" / "minit"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f'#!/bin/sh\nPYTHONPATH={REPOSITORY} exec {sys.executable} -m minit "$@"\n')
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "PS1": "$ ",
        "TERM": "dumb",
    }
    with Terminal(columns=200) as terminal:
        process = subprocess.Popen(command, env=environment, cwd=tmp_path, **terminal.options)
        try:
            yield terminal
        finally:
            process.kill()
            process.wait()


def check_shell(terminal: Terminal, uuid: str, data: Path) -> None:
    """Complete lines by Tab, and look at what the shell made of them."""
    for typed, completed in (
        ("vers", "version "),
        ("image cat-m", "image cat-manifest "),
        ("list --form", "list --format "),
        ("list --format=json-", "list --format=json-pretty "),
        ("run --stage1-path=some-f", "run --stage1-path=some-file.aci "),
        ("fetch some-f", "fetch some-file.aci "),
        (f"--dir={data} status {uuid[:4]}", f"--dir={data} status {uuid} "),
    ):
        terminal.type(f"minit {typed}".encode() + TAB)
        terminal.expect(f"minit {completed}".encode().replace(b".", rb"\."))
        terminal.type(b"\x15")  # Ctrl-U takes the line away


def test_bash(world: World, tmp_path: Path) -> None:
    """bash completes by `minit completion bash`, words with = and : too, which it breaks there."""
    (tmp_path / "some-file.aci").touch()
    uuid = world.prepare(world.app)
    with shell(tmp_path, "bash", "--norc", "--noprofile", "-i") as terminal:
        terminal.type(b". <(minit completion bash); bind 'set enable-bracketed-paste off'; echo rea''dy\n")
        terminal.expect(rb"ready\r\n.*\$ ")
        check_shell(terminal, uuid, world.data)


def test_zsh(world: World, tmp_path: Path) -> None:
    """zsh completes by `minit completion zsh`."""
    if shutil.which("zsh") is None:
        pytest.skip("no zsh on PATH")
    (tmp_path / "some-file.aci").touch()
    uuid = world.prepare(world.app)
    with shell(tmp_path, "zsh", "-f", "-i") as terminal:
        terminal.type(b"PS1='$ '; autoload -Uz compinit; compinit -u -D; . <(minit completion zsh); echo rea''dy\n")
        terminal.expect(rb"ready\r\n.*\$ ")
        check_shell(terminal, uuid, world.data)


def test_fish(world: World, tmp_path: Path) -> None:
    """fish completes by `minit completion fish`, and shows what each word means."""
    if shutil.which("fish") is None:
        pytest.skip("no fish on PATH")
    (tmp_path / "some-file.aci").touch()
    uuid = world.prepare(world.app)
    script = tmp_path / "minit.fish"
    with shell(tmp_path, "fish", "--no-config", "-c", "minit completion fish > minit.fish; echo done") as terminal:
        terminal.expect(b"done")

    def lines(line: str) -> list[str]:
        command = f"source {script}; complete --do-complete '{line}'"
        environment = {**os.environ, "PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "HOME": str(tmp_path)}
        result = subprocess.run(
            ["fish", "--no-config", "-c", command], env=environment, cwd=tmp_path, capture_output=True, text=True
        )
        assert result.stderr == ""
        return result.stdout.splitlines()

    assert lines("minit vers") == ["version\tPrint the versions of minit and of what it runs on."]
    assert lines("minit list --format=json-") == ["--format=json-pretty"]
    assert lines("minit run --stage1-path=some-f") == ["--stage1-path=some-file.aci"]
    assert lines("minit fetch some-f") == ["some-file.aci"]
    [found] = lines(f"minit --dir={world.data} status {uuid[:4]}")
    assert found.startswith(f"{uuid}\tprepared: ")
