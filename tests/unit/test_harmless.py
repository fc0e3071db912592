"""Texts of others are harmless before anybody reads them."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minit.base.errors import PlanError, describe
from minit.base.harmless import harmless, harmless_json
from minit.cli.commands.diagnosecommand import report_text
from minit.cli.commands.outputcommands import text_line
from minit.linux.stdio import complain, complain_at_once, record_complaints
from minit.reaper.diagnose import diagnose_exec
from minit.reaper.exit_status import ExitStatus
from tests.support.hostiletext import ATTACKS, is_harmless

# With halves of surrogate pairs, which bytes that are no UTF-8 become.
TEXTS = st.text(st.characters(codec=None), max_size=40) | st.sampled_from(ATTACKS)


@given(TEXTS)
def test_nothing_acts_or_hides(text: str) -> None:
    """No control, no direction, no separator of lines and nothing invisible is left, and the text can be encoded."""
    assert is_harmless(harmless(text).encode().decode())
    assert harmless(harmless(text)) == harmless(text)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('open "/bin/größe 日本 привет": no such file', 'open "/bin/größe 日本 привет": no such file'),
        ("a\tb", "a\tb"),
        ("\x1b[2J\r\nstage1: ", "\\x1b[2J\\x0d\\x0astage1: "),
        ("\x9b\u202e\u2066\u200f\u2028\ufeff\U000e0041", "\\x9b\\u202e\\u2066\\u200f\\u2028\\ufeff\\U000e0041"),
        ("/x\udcff\ud800", "/x\\xff\\ud800"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    """Letters of all scripts stay as they are; the rest has the escapes of C and Python."""
    assert harmless(text) == shown


@given(st.text(max_size=40), st.sampled_from((None, "\t")))
@example("\u202e\x7f\U000e0041", None)
def test_json_means_the_same(text: str, indent: str | None) -> None:
    """JSON keeps its value, and its strings hold nothing that acts or hides."""
    shown = harmless_json(json.dumps({text: [text]}, indent=indent, ensure_ascii=False))
    assert json.loads(shown) == {text: [text]}
    assert all(is_harmless(line) for line in shown.split("\n"))


# What makes a line of a text of somebody else's.
LINES: dict[str, Callable[[str], str]] = {
    "an error": lambda text: describe(PlanError(f'app "a": user "{text}" not found')),
    "a system error": lambda text: describe(FileNotFoundError(errno.ENOENT, "", text)),
    "a system error with bytes": lambda text: describe(FileNotFoundError(errno.ENOENT, "", os.fsencode(text))),
    "another error": lambda text: describe(ValueError(text)),
    "a step": lambda text: ExitStatus(step="change directory to", errno=errno.ENOENT, path=text).describe(),
    "a step without errno": lambda text: ExitStatus(step="find executable", path=text).describe(),
    "an event": lambda text: text_line({"seq": 1, "app": text, "text": text}),
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
@given(text=TEXTS)
def test_lines(line: Callable[[str], str], text: str) -> None:
    """Each text of an image is one line without anything that acts or hides."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # no name of a file
        text = text.encode("utf-8", "replace").decode()
    assert is_harmless(line(text))


@pytest.mark.parametrize("say", [complain, complain_at_once])
@given(text=TEXTS)
def test_complaints(say: Callable[[str], None], text: str) -> None:
    """A message to standard error, and to its record, is one line and harmless."""
    recorded: list[str] = []
    before, (reader, writer) = os.dup(2), os.pipe()
    os.dup2(writer, 2)
    record_complaints(recorded.append)
    try:
        say(f"stage1: {text}")
    finally:
        record_complaints(lambda line: None)
        os.dup2(before, 2)
        for fd in (before, writer):
            os.close(fd)
    with os.fdopen(reader, "rb") as file:
        lines = file.read().decode().split("\n")
    assert lines == [*recorded, ""] and is_harmless(lines[0]) and len(lines) == 2


@given(text=TEXTS.filter(lambda text: "\0" not in text))
def test_why_an_exec_failed(text: str) -> None:
    """The reason names the file, and is harmless once it is shown."""
    path = "/" + text.encode("utf-8", "replace").decode().replace("/", "")
    assert is_harmless(harmless(diagnose_exec(f"{path} that is not there")))


@given(text=TEXTS)
def test_a_report(text: str) -> None:
    """A value of a report is one line of it."""
    lines = report_text({"pod": {"name": text}, "apps": [{"log": [text]}]}).split("\n")
    assert all(is_harmless(line) for line in lines)
    assert len(lines) == len(report_text({"pod": {"name": "x"}, "apps": [{"log": ["x"]}]}).split("\n"))
