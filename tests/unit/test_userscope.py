"""The decision about a scope of the user's systemd."""

from __future__ import annotations

import pytest

from minit.base.value import replace
from minit.pods.userscope import ScopeFacts, scope_words

LOGIN = ScopeFacts(was_moved=False, is_delegated=False, has_manager=True, program="/usr/bin/systemd-run")


def test_a_login_shell_of_systemd() -> None:
    """The command line runs once more in a delegated scope."""
    words = scope_words(LOGIN, ["minit", "run", "a.aci"])
    assert words is not None
    assert words[0] == "/usr/bin/systemd-run"
    assert words[-3:] == ("minit", "run", "a.aci") and words[-4] == "--"
    assert {"--user", "--scope", "--property=Delegate=yes"} <= {*words}


@pytest.mark.parametrize(
    "facts",
    [
        replace(LOGIN, was_moved=True),
        replace(LOGIN, is_delegated=True),
        replace(LOGIN, has_manager=False),
        replace(LOGIN, program=None),
    ],
    ids=["moved", "delegated", "no-manager", "no-program"],
)
def test_no_scope(facts: ScopeFacts) -> None:
    """A command stays where it is once moved, where the group is delegated, and where nobody makes a scope."""
    assert scope_words(facts, ["minit"]) is None
