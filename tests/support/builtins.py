"""Calls of built-in plugins as `minit/network/cni.py` makes them, without a pod directory and a search for programs."""

from __future__ import annotations

from collections.abc import Mapping

from minit.manifest.reader import Node
from minit.network.builtin import ask_builtin
from minit.network.builtin.call import Call
from minit.network.request import Request
from minit.network.result import Result

SOURCE = "net.conf"
"""The file that errors in a configuration name."""


def call_builtin(
    command: str,
    plugin_type: str,
    config: Mapping[str, object],
    request: Request,
    previous: Result | None = None,
) -> Result:
    """Make a request of a plugin, which finds the others that it delegates to among the built-in ones."""

    def delegate(command: str, plugin_type: str, fields: Mapping[str, object], previous: Result | None) -> Result:
        return call_builtin(command, plugin_type, fields, request, previous)

    call = Call(config=Node(dict(config), None, SOURCE), request=request, delegate=delegate, previous=previous)
    return ask_builtin(command, plugin_type, call)
