"""
Attaching a pod to a network, checking the attachment, and detaching the pod, by the CNI.

A plain configuration is handled as in rkt: the plugin gets the file unchanged. For a list each plugin gets its part
with the result of the plugin before, as the specification says. A plugin is a program or built in. The working
directory is the pod directory, and the network namespace the host's.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from minit.base import jsontext
from minit.base.errors import MinitError, NetworkError, describe
from minit.manifest.networkconfig import NetworkConfig, PluginConfig, is_at_least
from minit.network import netinfo
from minit.network.pluginrequests import TIMEOUT_SECONDS, PluginRequests, PluginSearch
from minit.network.protocol import Request, Result, write_result
from minit.plan.networks.networkplan import PlannedNetwork

JsonObject = dict[str, object]

_RKTS_VARIABLES = {"CNI_VERSION": "0.1.0"}  # the specification has no such parameter
_CHECK_SINCE = "0.4.0"
_RESULT_ON_DELETE_SINCE = "0.4.0"

# Keys of a plugin in a list that come from the list, or are dropped (CNI, "Deriving request configuration").
_DERIVED = ("cniversion", "name", "prevresult", "capabilities")


def plugin_path(network: PlannedNetwork, search: PluginSearch) -> str:
    """Return the plugin's path for `net-info.json`, for a list the first plugin's; NetworkError if there is none."""
    return search.find(network.config.plugins[0].type)


def attach(
    network: PlannedNetwork,
    request: Request,
    search: PluginSearch,
    cancelled: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Result:
    """
    Add the pod to a network and return the result, which is then in the pod directory.

    NetworkError has the words of the failed plugin; all earlier steps are undone. When the descriptor `cancelled`
    becomes readable, the running plugin is killed, as after its time limit.
    """
    config = network.config
    attachment = _Attachment(config, request, search, timeout_seconds, cancelled)
    plugins = [search.find(plugin.type) for plugin in config.plugins]
    netinfo.cache_plugins(config.file_name, plugins)
    try:
        return attachment.add(plugins)
    except MinitError as error:
        try:
            detach(network, request, search, timeout_seconds)
        except MinitError as problem:
            # A plugin that cannot work at all says the same about both requests.
            if str(problem) != str(error):
                raise NetworkError(f"{error} (and it could not be undone: {problem})") from error
        raise


def detach(
    network: PlannedNetwork,
    request: Request,
    search: PluginSearch,
    timeout_seconds: float = TIMEOUT_SECONDS,
    freed: ExitStack | None = None,
) -> None:
    """
    Delete the pod from a network, even if the pod never joined the network or has left it.

    A failure does not stop the other plugins; NetworkError then has the words of all failed plugins. The end of `freed`
    waits for the kernel to free what is removed; without `freed` each plugin waits.
    """
    config = network.config
    attachment = _Attachment(config, request, search, timeout_seconds, freed=freed)
    chosen = netinfo.cached_plugins(config.file_name)
    has_result = is_at_least(config.cni_version, _RESULT_ON_DELETE_SINCE)
    previous = netinfo.cached_result(config.file_name) if has_result else None
    problems = []
    for index, plugin in reversed(list(enumerate(config.plugins))):
        try:
            found = chosen[index] if index < len(chosen) else search.find(plugin.type)
            attachment.call("DEL", plugin, found, previous)
        except MinitError as error:
            problems.append(describe(error))
    if problems:
        raise NetworkError("; ".join(problems))
    try:
        netinfo.forget(config.file_name)
    except OSError as error:
        raise NetworkError(describe(error)) from error


def check(
    network: PlannedNetwork, request: Request, search: PluginSearch, timeout_seconds: float = TIMEOUT_SECONDS
) -> bool:
    """
    Ask the plugins whether the pod is still attached as before; NetworkError has the difference.

    False if there is no check: the configuration forbids it, or is older than CHECK.
    """
    config = network.config
    if config.disable_check or not is_at_least(config.cni_version, _CHECK_SINCE):
        return False
    previous = netinfo.cached_result(config.file_name)
    if previous is None:
        raise NetworkError(f'the pod is not attached to network "{config.name}"')
    attachment = _Attachment(config, request, search, timeout_seconds)
    for plugin, found in zip(config.plugins, netinfo.cached_plugins(config.file_name)):
        attachment.call("CHECK", plugin, found, previous)
    return True


class _Attachment:
    """The requests about an interface, to each plugin of the configuration."""

    def __init__(
        self,
        config: NetworkConfig,
        request: Request,
        search: PluginSearch,
        timeout_seconds: float,
        cancelled: int | None = None,
        freed: ExitStack | None = None,
    ) -> None:
        self._config = config
        self._requests = PluginRequests(
            search,
            request,
            config.cni_version,
            _place(config),
            variables={} if config.is_list else _RKTS_VARIABLES,
            timeout_seconds=timeout_seconds,
            cancelled=cancelled,
            freed=freed,
        )

    def add(self, plugins: Sequence[str]) -> Result:
        """Have each plugin add the pod and return the last result."""
        version = self._config.cni_version
        result, previous = Result(), None
        for plugin, found in zip(self._config.plugins, plugins):
            written = self.call("ADD", plugin, found, previous)
            result = self._requests.read(written, plugin.type)
            # The result is passed on unchanged: fields unknown to minit pass too.
            previous = written if written.get("cniVersion") == version else write_result(result, version)
            # After each plugin: if the next plugin fails, the plugins before may need the result for their undoing.
            netinfo.cache_result(self._config.file_name, previous)
        return result

    def call(self, command: str, plugin: PluginConfig, found: str, previous: JsonObject | None) -> JsonObject:
        """Make a request of a plugin and return the JSON object of the answer, an empty object but for ADD."""
        # rkt knows no CHECK, and no plugin can check without the result.
        is_plain = not self._config.is_list and command != "CHECK"
        config = _derive(self._config, plugin, previous)
        return self._requests.make(command, plugin.type, found, config, plugin.text if is_plain else None)


def _derive(config: NetworkConfig, plugin: PluginConfig, previous: JsonObject | None) -> JsonObject:
    """Return the configuration for a plugin of a list."""
    own = jsontext.parse(plugin.text, _place(config))
    assert isinstance(own, dict)  # it was one when the configuration was parsed
    if config.is_list:
        own = {name: value for name, value in own.items() if name.lower() not in _DERIVED}
        own |= {"cniVersion": config.cni_version, "name": config.name}
    if previous is not None:
        own["prevResult"] = previous
    return own


def _place(config: NetworkConfig) -> str:
    return f"{config.directory}/{config.file_name}"
