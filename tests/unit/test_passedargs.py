"""minit.network.pluginrequests: what plugins that are programs get of the arguments of a network."""

from __future__ import annotations

import pytest

from minit.network.pluginrequests import tolerated


@pytest.mark.parametrize("args", ["IP=10.0.0.1", "IP=10.0.0.1;MAC=02:00:00:00:00:01", "GATEWAY=", "MAC"])
def test_keys_that_are_for_some_plugin(args: str) -> None:
    """The plugins that do not know them are told to ignore them."""
    assert tolerated(args) == f"{args};IgnoreUnknown=1"


@pytest.mark.parametrize("args", ["", "FOO=1", "IP=10.0.0.1;FOO=1", "ip=10.0.0.1", "IP=1;", "IP=1;IgnoreUnknown=0"])
def test_all_else_is_passed_on_as_it_is(args: str) -> None:
    """No arguments stay none, an unknown key is left to be refused, and the user has the last word."""
    assert tolerated(args) == args
