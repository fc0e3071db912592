"""The operands of `cp`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.commands.filecommands import PodPath, parse_copy_words
from minit.cli.flagwords import FlagError


def test_operands() -> None:
    """A path in a pod has the pod before a colon, and the app of several; all else is of this machine."""
    assert parse_copy_words("2d38:/a:b", "-") == (PodPath(pod="2d38", app=None, path="/a:b"), "-")
    assert parse_copy_words("./a:b", "db:web:/x/.") == ("./a:b", PodPath(pod="db", app="web", path="/x/."))
    assert parse_copy_words("file", "db:/") == ("file", PodPath(pod="db", app=None, path="/"))


@pytest.mark.parametrize("words", ["a b", "p:/a q:/b", "p:a b", ":/a b", "p::/a b", "p:web:a b", "a:b c:/d", "- -"])
def test_bad_operands(words: str) -> None:
    """Two places of one side, and a place that is not absolute, are refused."""
    with pytest.raises(FlagError, match="expected"):
        parse_copy_words(*words.split())


@given(st.text(), st.text())
def test_any_operands(source: str, target: str) -> None:
    """Any two words are one path in a pod and one of this machine, or an error."""
    try:
        words = parse_copy_words(source, target)
    except FlagError:
        return
    assert sum(isinstance(word, PodPath) for word in words) == 1
