"""The plugins that change what others of a list have made: they need the result of the one before."""

from __future__ import annotations

from minit.errors import NetworkError
from minit.network.builtin.call import Call
from minit.network.result import Result


def result_before(call: Call) -> Result:
    """Return the result of the plugin before or, for CHECK, of the last ADD; NetworkError if there is none."""
    if call.previous is None:
        place = call.config.where
        raise NetworkError(f"{place}: prevResult is missing: the plugin has to follow another one in a list")
    return call.previous
