"""A request to a built-in plugin, and what such a plugin is."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from minit.base.errors import NetworkError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.network.protocol.request import Request
from minit.network.protocol.result import Result

Delegate = Callable[[str, str, Mapping[str, object], Result | None], Result]
"""
Makes a request of another plugin, built in or a program: command, type, its configuration, the result before it.

The answer to anything but ADD is an empty result. NetworkError is what the plugin says (CNI, "Plugin Delegation").
"""


class Call(Value):
    """
    A request about one interface of a pod.

    `config` is the configuration as an external plugin would read it, whose errors name its file. `previous` is the
    result of the plugin before or, for CHECK and DEL, of the last ADD. When the descriptor `cancelled` becomes
    readable, nobody waits for ADD any more.
    """

    config: Node
    request: Request
    delegate: Delegate
    previous: Result | None = None
    cancelled: int | None = None

    @property
    def fields(self) -> Mapping[str, object]:
        """The configuration as it is, for a plugin that this one delegates to."""
        raw = self.config.raw()
        assert isinstance(raw, dict)  # it was one when the configuration was parsed
        return raw

    @property
    def asked(self) -> Node:
        """
        The object `args.cni` of the configuration, or an absent value.

        The form of `args` is everybody's own (CNI, "Configuration format"): rkt's plugins ignore a list there, for one.
        """
        return self.config["args"].if_object()["cni"].if_object()

    def need_result_before(self) -> Result:
        """Return the result of the plugin before this one; NetworkError if it is the first of its list."""
        if self.previous is None:
            where = self.config.where
            raise NetworkError(f"{where}: prevResult is missing: the plugin has to follow another one in a list")
        return self.previous

    def need_result_of_add(self) -> Result:
        """Return the result that CHECK compares with; NetworkError if there is none."""
        if self.previous is None:
            raise NetworkError("CHECK needs the result of ADD")
        return self.previous


class Builtin(Value):
    """
    A plugin as functions, each the command of that name. They raise MinitError or OSError.

    `collect` is GC and `status` STATUS, which are about no interface; None for a plugin that has nothing to do for it.
    """

    add: Callable[[Call], Result]
    delete: Callable[[Call], None]
    check: Callable[[Call], None]
    collect: Callable[[Call], None] | None = None
    status: Callable[[Call], None] | None = None
