"""
Attaching a pod to a network, checking that, and detaching it again, by the CNI.

A plain configuration is handled as in rkt: the plugin gets the file as it is. A list is handled as the specification
says: each plugin gets its part with what the one before it came to. A plugin is a program, or one that is built in.
The working directory is the pod directory, and the network namespace the host's.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping, Sequence

from minit import jsontext, paths
from minit.errors import ManifestError, MinitError, NetworkError, describe
from minit.manifest.networkconfig import NetworkConfig, PluginConfig, is_at_least
from minit.manifest.reader import Node
from minit.network import cache
from minit.network.builtin import BUILTINS, ask_builtin
from minit.network.builtin.call import Call
from minit.network.passedargs import tolerated
from minit.network.plugin import first_line, run_plugin
from minit.network.request import Request
from minit.network.result import Result, read_result, write_result
from minit.plan.networks.networkplan import PlannedNetwork

JsonObject = dict[str, object]

TIMEOUT_SECONDS = 60.0

_VENDOR_PLUGINS = f"/{paths.PLUGINS}"
_SYSTEM_PLUGINS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")

_BUILT_IN = "builtin:"
_RKT_VERSION = "0.1.0"
_CHECK_SINCE = "0.4.0"
_RESULT_ON_DELETE_SINCE = "0.4.0"

# Keys of a plugin in a list that come from the list, or not at all (CNI, "Deriving request configuration").
_DERIVED = ("cniversion", "name", "prevresult", "capabilities")


class PluginSearch:
    """The places of plugins: rkt's directories, then minit's own plugins, then those of distributions."""

    def __init__(self, local_config: str, system: Sequence[str] = _SYSTEM_PLUGINS) -> None:
        self.directories = (f"{local_config}/net.d", _VENDOR_PLUGINS, paths.POD_PLUGINS)
        self.system = tuple(system)

    def find(self, plugin_type: str) -> str:
        """Return the path of a plugin's program, or `builtin:TYPE`; NetworkError if there is no such plugin."""
        found = _find_program(self.directories, plugin_type)
        if found is None and plugin_type in BUILTINS:
            return _BUILT_IN + plugin_type
        found = found or _find_program(self.system, plugin_type)
        if found is None:
            raise NetworkError(f'Could not find plugin "{plugin_type}"')
        return found

    def environment_path(self, program: str) -> str:
        """Return CNI_PATH for a program, where it finds the plugins that it delegates to."""
        is_rkts = os.path.dirname(program) in self.directories
        return ":".join(self.directories if is_rkts else (*self.directories, *self.system))


def plugin_path(network: PlannedNetwork, search: PluginSearch) -> str:
    """Return what `net-info.json` calls the network's plugin, of a list the first; NetworkError if it is not there."""
    return search.find(network.config.plugins[0].type)


def attach(
    network: PlannedNetwork,
    request: Request,
    search: PluginSearch,
    cancelled: int | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Result:
    """
    Add the pod to a network and return what came of it, which is then noted in the pod directory.

    NetworkError is what the failed plugin says; what had been done by then is undone. When the descriptor `cancelled`
    becomes readable the plugin that runs is killed, as it is when its time is over.
    """
    config = network.config
    attachment = _Attachment(config, request, search, timeout_seconds, cancelled)
    plugins = [search.find(plugin.type) for plugin in config.plugins]
    cache.cache_plugins(config.file_name, plugins)
    try:
        written = attachment.add(plugins)
    except MinitError as error:
        try:
            detach(network, request, search, timeout_seconds)
        except MinitError as problem:
            # A plugin that cannot work at all says the same about both.
            if str(problem) != str(error):
                raise NetworkError(f"{error} (and it could not be undone: {problem})") from error
        raise
    return attachment.read(written, config.plugins[-1].type)


def detach(
    network: PlannedNetwork, request: Request, search: PluginSearch, timeout_seconds: float = TIMEOUT_SECONDS
) -> None:
    """
    Delete the pod from a network, also if it never joined it, or has left it.

    The plugins before one that fails are run all the same; NetworkError then says what all of them had to say.
    """
    config = network.config
    attachment = _Attachment(config, request, search, timeout_seconds)
    chosen = cache.cached_plugins(config.file_name)
    has_result = is_at_least(config.cni_version, _RESULT_ON_DELETE_SINCE)
    previous = cache.cached_result(config.file_name) if has_result else None
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
        cache.forget(config.file_name)
    except OSError as error:
        raise NetworkError(describe(error)) from error


def check(
    network: PlannedNetwork, request: Request, search: PluginSearch, timeout_seconds: float = TIMEOUT_SECONDS
) -> bool:
    """
    Ask the plugins whether the pod is attached as it was; NetworkError says what is not as it was.

    False if they cannot be asked: the configuration forbids it, or is older than this request of the specification.
    """
    config = network.config
    if config.disable_check or not is_at_least(config.cni_version, _CHECK_SINCE):
        return False
    previous = cache.cached_result(config.file_name)
    if previous is None:
        raise NetworkError(f'the pod is not attached to network "{config.name}"')
    attachment = _Attachment(config, request, search, timeout_seconds)
    for plugin, found in zip(config.plugins, cache.cached_plugins(config.file_name)):
        attachment.call("CHECK", plugin, found, previous)
    return True


class _Attachment:
    """The common part of all requests about one interface."""

    def __init__(
        self,
        config: NetworkConfig,
        request: Request,
        search: PluginSearch,
        timeout_seconds: float,
        cancelled: int | None = None,
    ) -> None:
        self._config = config
        self._request = request
        self._search = search
        self._timeout_seconds = timeout_seconds
        self._cancelled = cancelled

    def add(self, plugins: Sequence[str]) -> JsonObject:
        """Have each plugin add the pod and return the last result, in the version of the configuration."""
        version = self._config.cni_version
        previous: JsonObject = {}
        for plugin, found in zip(self._config.plugins, plugins):
            written = self.call("ADD", plugin, found, previous or None)
            result = self.read(written, plugin.type)
            # As it is, what minit knows nothing of passes on, too.
            previous = written if written.get("cniVersion") == version else write_result(result, version)
            # After each of them: if the next one fails, those before it may need the result to undo what they did.
            cache.cache_result(self._config.file_name, previous)
        return previous

    def call(self, command: str, plugin: PluginConfig, found: str, previous: JsonObject | None) -> JsonObject:
        """Make a request of a plugin and return the JSON object it answers with, an empty one but for ADD."""
        # rkt knows no CHECK, and no plugin can do it without the result.
        is_plain = not self._config.is_list and command != "CHECK"
        if found.startswith(_BUILT_IN):
            return self._call_builtin(command, plugin.type, _derive(self._config, plugin, previous))
        text = plugin.text if is_plain else jsontext.dump(_derive(self._config, plugin, previous))
        return self._run(command, plugin.type, found, text)

    def delegate(self, command: str, plugin_type: str, fields: Mapping[str, object], previous: Result | None) -> Result:
        """Make a request of a plugin that another one names (`Delegate`)."""
        version = self._config.cni_version
        config = {name: value for name, value in fields.items() if name.lower() != "prevresult"}
        if previous is not None:
            config["prevResult"] = write_result(previous, version)
        found = self._search.find(plugin_type)
        if found.startswith(_BUILT_IN):
            written = self._call_builtin(command, plugin_type, config)
        else:
            written = self._run(command, plugin_type, found, jsontext.dump(config))
        return self.read(written, plugin_type) if command == "ADD" else Result()

    def read(self, written: object, plugin_type: str) -> Result:
        """Return the result in the answer of a plugin."""
        try:
            return read_result(written, f'result of plugin "{plugin_type}"', self._config.cni_version)
        except ManifestError as error:
            raise NetworkError(str(error)) from error

    def _environment(self, command: str, program: str) -> dict[str, str]:
        environment = {
            **os.environ,
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": self._request.container_id,
            "CNI_NETNS": self._request.namespace,
            "CNI_ARGS": tolerated(self._request.args),
            "CNI_IFNAME": self._request.interface,
            "CNI_PATH": self._search.environment_path(program),
        }
        if not self._config.is_list:
            environment["CNI_VERSION"] = _RKT_VERSION  # the specification has no such parameter
        return environment

    def _run(self, command: str, plugin_type: str, program: str, text: bytes) -> JsonObject:
        environment = self._environment(command, program)
        output = run_plugin(program, text, environment, self._timeout_seconds, self._cancelled)
        return _parse_answer(output, plugin_type) if command == "ADD" else {}

    def _call_builtin(self, command: str, plugin_type: str, config: JsonObject) -> JsonObject:
        previous = config.get("prevResult")
        call = Call(
            config=Node(config, None, _place(self._config)),
            request=self._request,
            delegate=self.delegate,
            previous=None if previous is None else self.read(previous, plugin_type),
        )
        try:
            result = ask_builtin(command, plugin_type, call)
        except OSError as error:
            raise NetworkError(f'plugin "{plugin_type}": {describe(error)}') from error
        return write_result(result, self._config.cni_version) if command == "ADD" else {}


def _derive(config: NetworkConfig, plugin: PluginConfig, previous: JsonObject | None) -> JsonObject:
    """Return what a plugin is asked to do."""
    own = jsontext.parse(plugin.text, _place(config))
    assert isinstance(own, dict)  # it was one when the configuration was parsed
    if config.is_list:
        own = {name: value for name, value in own.items() if name.lower() not in _DERIVED}
        own |= {"cniVersion": config.cni_version, "name": config.name}
    if previous is not None:
        own["prevResult"] = previous
    return own


def _find_program(directories: Sequence[str], name: str) -> str | None:
    for directory in directories:
        path = f"{directory}/{name}"
        try:
            if stat.S_ISREG(os.stat(path).st_mode) and not _is_own(path):
                return path
        except OSError:
            pass
    return None


def _is_own(path: str) -> bool:
    """Tell whether a program is one of this image's own, of which each is a function, too."""
    try:
        return os.path.samefile(path, f"{paths.POD_STAGE1_ROOTFS}/entrypoints/{paths.PLUGIN_ENTRYPOINT}")
    except OSError:
        return False


def _parse_answer(output: bytes, plugin_type: str) -> JsonObject:
    try:
        answer = jsontext.parse(output, "")
    except ManifestError:
        answer = None
    if not isinstance(answer, dict):
        line = first_line(output)
        raise NetworkError(f'plugin "{plugin_type}" printed no result{": " if line else ""}{line}')
    return answer


def _place(config: NetworkConfig) -> str:
    return f"{config.directory}/{config.file_name}"
