"""Go's rules for the words of a command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flagwords import Flag, FlagError, FlagKind, click_words, split_words

FLAGS = {
    "--dir": Flag(kind=FlagKind.VALUE),
    "--net": Flag(kind=FlagKind.OPTIONAL, bare="default"),
    "--quiet": Flag(kind=FlagKind.SWITCH),
}

OPERANDS = st.text(min_size=1).filter(lambda word: not word.startswith("-"))


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["--dir=/a"], [("--dir", "/a")]),
        (["--dir", "/a"], [("--dir", "/a")]),
        (["--dir", "--net"], [("--dir", "--net")]),
        (["--dir="], [("--dir", "")]),
        (["--net"], [("--net", "default")]),
        (["--net=host"], [("--net", "host")]),
        (["--quiet"], [("--quiet", "true")]),
        (["--quiet=T"], [("--quiet", "true")]),
        (["--quiet=0"], [("--quiet", "false")]),
    ],
)
def test_flags(words: list[str], flags: list[tuple[str, str]]) -> None:
    """A value follows `=` or is the next word; optional and boolean ones follow `=` only."""
    assert split_words(words, FLAGS) == (flags, [])


def test_optional_value_leaves_the_next_word_alone() -> None:
    """The word after `--net` is an operand."""
    assert split_words(["--net", "host"], FLAGS) == ([("--net", "default")], ["host"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nope"], "unknown flag: --nope"),
        (["--nope=1"], "unknown flag: --nope"),
        (["-x"], "unknown flag: -x"),
        (["--dir"], "flag needs an argument: --dir"),
        (["--quiet=maybe"], 'invalid boolean value "maybe" for --quiet'),
        (["---"], "unknown flag: ---"),
    ],
)
def test_bad_flags(words: list[str], message: str) -> None:
    """An error in a flag is told in Go's words."""
    with pytest.raises(FlagError, match=f"^{message}$"):
        split_words(words, FLAGS)


@given(st.lists(OPERANDS), st.lists(st.text()))
def test_everything_after_two_dashes_is_an_operand(before: list[str], after: list[str]) -> None:
    """`--` ends the flags, and only the first one does."""
    assert split_words([*before, "--", *after], FLAGS) == ([], before + after)


@given(OPERANDS, st.lists(st.text()))
def test_flags_may_end_at_the_first_operand(operand: str, rest: list[str]) -> None:
    """Words after the first operand are then passed on as they are, a `--` included."""
    words = ["--quiet", operand, *rest]
    assert split_words(words, FLAGS, stop_at_operand=True) == ([("--quiet", "true")], [operand, *rest])


def test_single_dash_is_an_operand() -> None:
    """A lone `-` is no flag."""
    assert split_words(["-", "--quiet"], FLAGS) == ([("--quiet", "true")], ["-"])


def test_words_for_click() -> None:
    """Values are joined with `=`, so that one that looks like a flag stays a value; the last switch wins."""
    found = [("--dir", "--odd"), ("--quiet", "true"), ("--net", "a"), ("--quiet", "false")]
    assert click_words(found, FLAGS) == ["--dir=--odd", "--net=a"]
    assert click_words([("--quiet", "false"), ("--quiet", "true")], FLAGS) == ["--quiet"]
