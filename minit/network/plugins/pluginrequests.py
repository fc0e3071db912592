"""Requests to plugins, be they programs or built in, also those that one of them makes of another."""

from __future__ import annotations

import os
from collections.abc import Mapping

from minit import jsontext
from minit.errors import ManifestError, NetworkError, describe
from minit.manifest.reader import Node
from minit.network.builtin import ask_builtin
from minit.network.builtin.call import Call
from minit.network.plugins.plugin import first_line, run_plugin
from minit.network.plugins.pluginsearch import PluginSearch
from minit.network.protocol.passedargs import tolerated
from minit.network.protocol.request import Request
from minit.network.protocol.result import Result, read_result, write_result

JsonObject = dict[str, object]

TIMEOUT_SECONDS = 60.0


class PluginRequests:
    """
    Requests about one interface of a pod, or about none.

    `version` is that of the specification, `source` the file that errors in a configuration name. `variables` are more
    of the environment than the specification has. When the descriptor `cancelled` becomes readable, the program that
    runs is killed, as it is when its time is over; a plugin that is built in gives up.
    """

    def __init__(
        self,
        search: PluginSearch,
        request: Request,
        version: str,
        source: str,
        *,
        variables: Mapping[str, str] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        cancelled: int | None = None,
    ) -> None:
        self._search = search
        self._request = request
        self._version = version
        self._source = source
        self._variables = variables or {}
        self._timeout_seconds = timeout_seconds
        self._cancelled = cancelled

    def make(
        self, command: str, plugin_type: str, path: str, config: JsonObject, text: bytes | None = None
    ) -> JsonObject:
        """
        Make a request of the plugin at `path` and return the JSON object it answers with, an empty one but for ADD.

        A program reads `text`, if it is given, in the place of `config`. NetworkError is what the plugin says.
        """
        if self._search.is_built_in(plugin_type, path):
            return self.make_of_builtin(command, plugin_type, config)
        environment = self._environment(command, path)
        request = jsontext.dump(config) if text is None else text
        output = run_plugin(path, request, environment, self._timeout_seconds, self._cancelled)
        return _parse_answer(output, plugin_type) if command == "ADD" else {}

    def make_of_builtin(self, command: str, plugin_type: str, config: JsonObject) -> JsonObject:
        """Make a request of a plugin that is built in."""
        node = Node(config, None, self._source)
        call = Call(
            config=node,
            request=self._request,
            delegate=self._delegate,
            previous=self._read_previous(command, node["prevResult"]),
            cancelled=self._cancelled,
        )
        try:
            result = ask_builtin(command, plugin_type, call)
        except OSError as error:
            raise NetworkError(f'plugin "{plugin_type}": {describe(error)}') from error
        return write_result(result, self._version) if command == "ADD" else {}

    def read(self, written: object, plugin_type: str) -> Result:
        """Return the result in the answer of a plugin."""
        try:
            return read_result(written, f'result of plugin "{plugin_type}"', self._version)
        except ManifestError as error:
            raise NetworkError(str(error)) from error

    def _delegate(
        self, command: str, plugin_type: str, fields: Mapping[str, object], previous: Result | None
    ) -> Result:
        """Make a request of a plugin that another one names (`Delegate`)."""
        config = {name: value for name, value in fields.items() if name.lower() != "prevresult"}
        if previous is not None:
            config["prevResult"] = write_result(previous, self._version)
        written = self.make(command, plugin_type, self._search.find(plugin_type), config)
        return self.read(written, plugin_type) if command == "ADD" else Result()

    def _read_previous(self, command: str, node: Node) -> Result | None:
        if not node.given:
            return None
        try:
            return read_result(node.raw(), node.where, self._version)
        except ManifestError:
            if command != "DEL":
                raise
            return None  # it deletes what it finds, as after the loss of a result

    def _environment(self, command: str, program: str) -> dict[str, str]:
        return {
            **os.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": self._request.container_id,
            "CNI_NETNS": self._request.namespace,
            "CNI_ARGS": tolerated(self._request.args),
            "CNI_IFNAME": self._request.interface,
            "CNI_PATH": self._search.environment_path(program),
            **self._variables,
        }


def _parse_answer(output: bytes, plugin_type: str) -> JsonObject:
    try:
        answer = jsontext.parse(output, "")
    except ManifestError:
        answer = None
    if not isinstance(answer, dict):
        line = first_line(output)
        raise NetworkError(f'plugin "{plugin_type}" printed no result{": " if line else ""}{line}')
    return answer
