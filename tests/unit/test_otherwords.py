"""minit.cli.otherwords, the commands that there are, and docs/comparison.md, against each other."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from minit.cli.commandgroups import commands
from minit.cli.grammar import GlobalOption, MinitGroup, flag_table, long_name
from minit.cli.invocation import Invocation
from minit.cli.otherwords import ABSENT, INSTEAD, INSTEAD_OF_FLAGS, answer_flag

COMPARISON = (Path(__file__).parents[2] / "docs/comparison.md").read_text()
COMMANDS, ABSENCES, HABITS, OPTIONS = (part.partition("\n|---")[2] for part in COMPARISON.split("\n## ")[1:])


def cells(table: str) -> Iterator[list[str]]:
    """Yield the cells of each row."""
    for line in table.splitlines():
        if line.startswith("| "):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def quoted(text: str) -> list[str]:
    """Return what stands in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def words(group: click.Group, before: str = "") -> Iterator[str]:
    """Yield the words of every command that is no group."""
    for name in group.commands:
        command = group.commands[name]
        if isinstance(command, click.Group):
            yield from words(command, f"{before}{name} ")
        else:
            yield f"{before}{name}"


def find(path: str) -> click.Command:
    """Return the command of words up to the first option; KeyError if there is none."""
    command: click.Command = commands
    for word in path.split():
        if word.startswith("-"):
            assert word.partition("=")[0] in {name for each in command.params for name in each.opts}
            break
        assert isinstance(command, click.Group)
        command = command.commands[word]
    return command


def typed(phrase: str) -> str:
    """Return what `minit PHRASE` is refused with."""
    with pytest.raises(click.UsageError) as refused:
        commands.main(phrase.split(), obj=Invocation(), standalone_mode=False)
    return refused.value.message


@pytest.mark.parametrize(("phrase", "instead"), INSTEAD.items())
def test_other_words_lead_to_commands(phrase: str, instead: str) -> None:
    """Words of another tool's are refused with the words of a command that is there."""
    find(instead)
    assert typed(phrase).endswith(f", use minit {instead}")


@pytest.mark.parametrize(("phrase", "reason"), ABSENT.items())
def test_absent_words_have_a_reason(phrase: str, reason: str) -> None:
    """Words that nothing of minit's stands for are refused with the reason, also in front of other words."""
    assert typed(phrase).endswith(f": {reason}")
    assert phrase in INSTEAD or typed(f"{phrase} web").endswith(f": {reason}")


@pytest.mark.parametrize(
    ("command", "flag", "instead"),
    [(command, *row) for command, rows in INSTEAD_OF_FLAGS.items() if command for row in rows.items()],
)
def test_other_flags_have_an_answer(command: str, flag: str, instead: str) -> None:
    """A flag of another tool's is refused with the flag of minit that is there, or with a sentence."""
    told = typed(f"{command} {flag} web")
    assert told == f"unknown flag: {flag}" + (f", use {instead}" if instead.startswith("-") else f": {instead}")


@pytest.mark.parametrize(("flag", "instead"), INSTEAD_OF_FLAGS[""].items())
def test_flags_for_every_command_have_an_answer(flag: str, instead: str) -> None:
    """A flag for every command leads to one that a command has."""
    tables = [flag_table(find(path).params) for path in words(commands)]
    assert f", use {instead}" in [answer_flag("", flag, flags) for flags in tables if flag not in flags]
    assert answer_flag("", flag, ()) == ""


def test_there_are_three_hundred_words() -> None:
    """Three hundred words and flags of docker, podman, kubectl and nerdctl are answered, or are names of ours."""
    options = [each for path in words(commands) for each in find(path).params if isinstance(each, click.Option)]
    names = {name for each in options for name in each.opts if name != long_name(each)}
    assert len(names) + len(INSTEAD) + len(ABSENT) + sum(map(len, INSTEAD_OF_FLAGS.values())) >= 300


def test_the_comparison_has_every_command() -> None:
    """Each command of minit begins a row, and no row begins with anything else."""
    assert sorted(quoted(row[0])[0] for row in cells(COMMANDS)) == sorted(words(commands))


def test_habits() -> None:
    """At least sixty lines of podman's have one of minit's, which its options allow, and another line has a reason."""
    rows = [cells for cells in map(tuple, cells(HABITS)) if cells[0].startswith("`")]
    assert len(rows) >= 60
    for line, other, reason in rows:
        [typed] = (
            quoted(line) if other == "the same" else [text.removeprefix("minit ") for text in quoted(other)] or [""]
        )
        assert (other == "the same") != bool(reason), line
        words = shlex.split(typed)
        command: click.Command = commands
        context = click.Context(commands, info_name="minit", obj=Invocation())
        while words and isinstance(command, click.Group):
            _, found, words = command.resolve_command(context, words)
            assert found is not None, line
            command = found
        assert not words or command.make_context(command.name, words, parent=context), line


def test_the_comparison_has_every_option_of_run() -> None:
    """Each option of run, but for the global ones, is in the first column, and nothing else is."""
    options = [each for each in commands.commands["run"].params if isinstance(each, click.Option)]
    own = {long_name(each) for each in options if not isinstance(each, GlobalOption)}
    assert {name for row in cells(OPTIONS) for name in quoted(row[0])} == own


def test_the_comparison_has_every_word_that_is_absent() -> None:
    """The list of what minit has not is that of the answers to such words."""
    assert {word for row in cells(ABSENCES) for word in quoted(row[0])} == {*ABSENT}


def test_words_of_machines() -> None:
    """Where there is no machine, the words for its versions say that."""
    group = commands.commands["init"]
    assert isinstance(group, MinitGroup)
    assert group.unknown(["rollback"]) == 'unknown command "rollback": only machines that minit boots have it'


def test_the_flag_for_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    """--version prints what the command version does, and commands know no such flag."""
    commands.main(["--version"], obj=Invocation(), standalone_mode=False)
    assert capsys.readouterr().out.startswith("minit Version: ")
    with pytest.raises(click.UsageError, match="unknown flag: --version"):
        commands.main(["list", "--version"], obj=Invocation(), standalone_mode=False)
