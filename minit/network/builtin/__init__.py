"""
The plugins that are built in: loopback, and ptp and bridge with the addresses of host-local, for IPv4.

They do what the reference plugins of these names do, for machines that have none. Only `minit/network/cni.py` calls
them. Read `attachment.py` first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minit.network.builtin import bridge, loopback, ptp
from minit.network.builtin.config import is_supported
from minit.network.request import Request
from minit.network.result import Result
from minit.value import Value


class Builtin(Value):
    """
    A plugin as three functions, each called as an external one is with the command of that name.

    The first argument is the configuration as an external plugin would read it, the last the result of the plugin
    before or, for `check`, of the last ADD. They raise MinitError or OSError.
    """

    add: Callable[[Mapping[str, object], Request, Result | None], Result]
    delete: Callable[[Mapping[str, object], Request], None]
    check: Callable[[Mapping[str, object], Request, Result | None], None]


def find_builtin(config: Mapping[str, object]) -> Builtin | None:
    """Return the plugin for a configuration, None if it asks for anything that is not built in."""
    if not is_supported(config):
        return None
    if config["type"] == "ptp":
        return Builtin(add=ptp.add, delete=ptp.delete, check=ptp.check)
    if config["type"] == "bridge":
        return Builtin(add=bridge.add, delete=bridge.delete, check=bridge.check)
    return Builtin(add=loopback.add, delete=loopback.delete, check=loopback.check)
