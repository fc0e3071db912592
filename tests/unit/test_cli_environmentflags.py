"""Environment variables on the command line and in files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flags.appoptions import parse_environment_files, parse_variable, parse_variables
from minit.cli.flagwords import FlagError

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_.-]*", fullmatch=True)
LINES = st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))
VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.dictionaries(NAMES, LINES), st.booleans())
def test_files_read_back(variables: dict[str, str], windows: bool) -> None:
    """A value is the rest of its line as it stands, spaces and quotes included; lines may end as on other systems."""
    end = "\r\n" if windows else "\n"
    text = end.join(f"{name}={value}" for name, value in variables.items())
    assert parse_environment_files("--set-env-file", [("f", text)]) == tuple(variables.items())


@given(st.dictionaries(NAMES, VALUES))
def test_variables_of_several_lines_read_back(variables: dict[str, str]) -> None:
    """A file in which each variable ends with a NUL has any values."""
    text = "".join(f"{name}={value}\0" for name, value in variables.items())
    assert parse_environment_files("--set-env-file", [("f", text)]) == tuple(variables.items())


def test_comments_and_blank_lines() -> None:
    """Lines that are blank or begin with # or ; say nothing; several files add up."""
    files = [("a", "# c\n;c\n\n \t\nA=#1\n"), ("b", "B= x \n")]
    assert parse_environment_files("--set-env-file", files) == (("A", "#1"), ("B", " x "))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("A=1\nB\n", '--set-env-file: f line 2: expected NAME=VALUE, got "B"'),
        ("\n\n A=1", '--set-env-file: f line 3: expected NAME=VALUE, got " A=1"'),
        ("export A=1", '--set-env-file: f line 1: expected NAME=VALUE, got "export A=1"'),
        ("A=1\n#\nA=2", "--set-env-file: f line 3: A is set twice"),
        ("A=1\0B\0", '--set-env-file: f variable 2: expected NAME=VALUE, got "B"'),
        ("A=1\0A=2", "--set-env-file: f variable 2: A is set twice"),
    ],
)
def test_bad_files(text: str, message: str) -> None:
    """An error is told with the file and the line."""
    with pytest.raises(FlagError) as caught:
        parse_environment_files("--set-env-file", [("f", text)])
    assert str(caught.value) == message


def test_one_name_in_two_files() -> None:
    """A name that two files set is refused, as in rkt."""
    with pytest.raises(FlagError, match="--set-env-file: g line 1: A is set twice"):
        parse_environment_files("--set-env-file", [("f", "A=1"), ("g", "A=1")])


def test_one_name_twice() -> None:
    """A name that --set-env sets twice is refused, as in rkt."""
    assert parse_variables("--set-env", ["A=1", "B="]) == (("A", "1"), ("B", ""))
    with pytest.raises(FlagError, match="--set-env: A is set twice"):
        parse_variables("--set-env", ["A=1", "A=2"])


@given(st.text())
def test_any_variable_is_read_or_refused(text: str) -> None:
    """No text leads to anything but a variable or a FlagError."""
    try:
        name, value = parse_variable("--set-env", text)
    except FlagError as error:
        assert str(error).startswith("--set-env: ")
    else:
        assert f"{name}={value}" == text
