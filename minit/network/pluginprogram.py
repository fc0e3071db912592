"""
A built-in plugin as a program that speaks the CNI's protocol, for other plugins and other runtimes.

The request is in the environment and on standard input; the answer, also about a failure, is a line of JSON on standard
output.
"""

from __future__ import annotations

import os
import string
import sys
from collections.abc import Callable, Mapping

from minit.base import jsontext
from minit.base.errors import (
    ManifestError,
    MinitError,
    NetworkError,
    PluginError,
    StrandedError,
    UnsupportedFieldError,
    describe,
)
from minit.base.harmless import harmless
from minit.base.value import Value
from minit.linux.stdio import complain, open_standard_streams, write_all
from minit.manifest.networkconfig import CNI_VERSIONS, is_at_least
from minit.manifest.reader import Node
from minit.network import protocol
from minit.network.namespace import is_namespace, is_own_namespace
from minit.network.pluginrequests import PluginRequests, PluginSearch
from minit.network.protocol import Request
from minit.podfiles import paths
from minit.podfiles.boundedfile import read_bounded

JsonObject = dict[str, object]

_FAILED = 1  # the exit code
_SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
_SOURCE = "network configuration"
_UMASK = 0o022

_ATTACHMENT = ("CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME")
_REQUIRED = {
    "ADD": _ATTACHMENT,
    "CHECK": _ATTACHMENT,
    "DEL": ("CNI_CONTAINERID", "CNI_IFNAME"),
    "GC": ("CNI_PATH",),
    "STATUS": (),
    "VERSION": (),
}
_ALPHANUMERIC = frozenset(string.ascii_letters + string.digits)
_NAME_CHARACTERS = _ALPHANUMERIC | frozenset("_.-")
_MAX_INTERFACE_BYTES = 15


def run_program(name: str, environment: Mapping[str, str], image: str) -> int:
    """Serve a single request as the plugin `name` of the stage1 image at `image`; return the exit code."""
    os.umask(_UMASK)
    answer: JsonObject | None
    try:
        open_standard_streams()
    except OSError as error:
        answer, code = error_answer(error, CNI_VERSIONS[-1]), _FAILED
    else:
        answer, code = answer_request(name, environment, _read_request, image)
    if answer is None:
        return code
    try:
        write_all(1, jsontext.dump(answer) + b"\n")
    except OSError as error:
        # To the runtime a lost result is a failure: the runtime then has the plugin delete the attachment.
        complain(f"{name}: cannot answer: {describe(error)}")
        return _FAILED
    return code


def answer_request(
    name: str, environment: Mapping[str, str], read_request: Callable[[], bytes], image: str
) -> tuple[JsonObject | None, int]:
    """Carry out a request to the plugin `name`; return the answer, None for none, and the exit code."""
    version = CNI_VERSIONS[-1]
    try:
        if name not in paths.BUILT_IN_PLUGINS:
            known = ", ".join(paths.BUILT_IN_PLUGINS)
            raise PluginError(
                f'there is no built-in plugin "{name}"', protocol.ANY_OTHER, f"it has to be called as {known}"
            )
        parameters = read_parameters(environment)
        if parameters.command == "VERSION":
            return _versions(read_request), 0
        config = _read_config(read_request)
        version = _read_version(config)
        _check_request(parameters, config, version)
        fields = config.raw()
        assert isinstance(fields, dict)  # it has a name
        return _serve(name, parameters, fields, version, image), 0
    except (Exception, StrandedError) as error:
        if not isinstance(error, (MinitError, OSError, StrandedError)):
            sys.excepthook(type(error), error, error.__traceback__)  # an error in minit
        return error_answer(error, version), _FAILED


def _read_request() -> bytes:
    return read_bounded(os.dup(0), _SOURCE, jsontext.MAX_SIZE_BYTES)


def error_answer(error: BaseException, version: str) -> JsonObject:
    """Return the answer about a failure, in a version of the specification."""
    message, details = describe(error), ""
    code = protocol.ANY_OTHER
    if isinstance(error, UnsupportedFieldError):
        code = protocol.UNSUPPORTED_FIELD
    elif isinstance(error, ManifestError):
        code = protocol.INVALID_CONFIGURATION
    elif isinstance(error, PluginError):
        message, details, code = error.message, error.details, error.code
    answer: JsonObject = {"cniVersion": version, "code": code, "msg": harmless(message)}
    return {**answer, "details": harmless(details)} if details else answer


def _versions(read_request: Callable[[], bytes]) -> JsonObject:
    # A person at a terminal gives nothing on standard input, nor do old runtimes.
    asked = None
    if not os.isatty(0):
        try:
            asked = Node(jsontext.parse(read_request(), ""), None, "")["cniVersion"].raw()
        except (MinitError, OSError):
            pass
    return {"cniVersion": asked if asked in CNI_VERSIONS else CNI_VERSIONS[-1], "supportedVersions": CNI_VERSIONS}


def _read_config(read_request: Callable[[], bytes]) -> Node:
    try:
        return Node(jsontext.parse(read_request(), _SOURCE), None, _SOURCE)
    except OSError as error:
        raise PluginError("error reading from stdin", protocol.IO_FAILURE, describe(error)) from error
    except MinitError as error:
        raise PluginError(
            "error parsing the network configuration", protocol.DECODING_FAILURE, describe(error)
        ) from error


def _read_version(config: Node) -> str:
    try:
        version = config["cniVersion"].optional(Node.string) or CNI_VERSIONS[0]
    except ManifestError as error:
        raise PluginError(
            "error parsing the network configuration", protocol.DECODING_FAILURE, describe(error)
        ) from error
    if version not in CNI_VERSIONS:
        details = f'config is "{version}", plugin supports {jsontext.dump(CNI_VERSIONS).decode()}'
        raise PluginError("incompatible CNI versions", protocol.INCOMPATIBLE_VERSION, details)
    return version


def _check_request(parameters: Parameters, config: Node, version: str) -> None:
    command = parameters.command
    if not is_at_least(version, _SINCE.get(command, version)):
        details = f"{command} came with {_SINCE[command]}, the configuration is of {version}"
        raise PluginError(f"config version does not allow {command}", protocol.INCOMPATIBLE_VERSION, details)
    name = config["name"].optional(Node.string)
    if not name:
        raise PluginError("missing network name", protocol.INVALID_CONFIGURATION)
    if not is_valid_name(name):
        raise PluginError("invalid characters found in network name", protocol.INVALID_CONFIGURATION, f"name is {name}")
    if command in ("ADD", "CHECK", "DEL"):
        _check_namespace(parameters)


def _check_namespace(parameters: Parameters) -> None:
    """Refuse a path without a network namespace, but for DEL, and the namespace of this process."""
    path = parameters.namespace
    if parameters.command != "DEL" and not is_namespace(path):
        try:
            os.stat(path)
            reason = f"{path} is none"
        except OSError as error:
            reason = describe(error)
        raise PluginError("invalid network namespace", protocol.INVALID_NAMESPACE, f"CNI_NETNS: {reason}")
    if not parameters.may_be_own_namespace and is_own_namespace(path):
        raise PluginError(
            "plugin's netns and netns from CNI_NETNS should not be the same",
            protocol.INVALID_NAMESPACE,
            f"CNI_NETNS is {path}; CNI_NETNS_OVERRIDE=1 allows it",
        )


def _serve(name: str, parameters: Parameters, config: JsonObject, version: str, image: str) -> JsonObject | None:
    namespace = parameters.namespace
    if parameters.command == "DEL" and not is_namespace(namespace):
        namespace = ""
    request = Request(
        container_id=parameters.container_id,
        namespace=namespace,
        interface=parameters.interface,
        args=parameters.args,
    )
    requests = PluginRequests(PluginSearch(parameters.directories, image), request, version, _SOURCE)
    try:
        return requests.make_of_builtin(parameters.command, name, config) or None
    except (NetworkError, OSError) as error:
        if parameters.command != "STATUS" or isinstance(error, PluginError):
            raise
        raise PluginError(describe(error), protocol.NOT_AVAILABLE) from error


class Parameters(Value):
    """
    The variables of a request to a plugin (CNI specification, section 2).

    Requirements, refusals and messages are those of the reference plugins. `directories` are those of CNI_PATH, which
    is optional: a built-in plugin needs them only to find other plugins. `may_be_own_namespace` is CNI_NETNS_OVERRIDE:
    the namespace may be the plugin's own.
    """

    command: str
    container_id: str = ""
    namespace: str = ""
    interface: str = ""
    args: str = ""
    directories: tuple[str, ...] = ()
    may_be_own_namespace: bool = False


def read_parameters(environment: Mapping[str, str]) -> Parameters:
    """Return the parameters in the environment; PluginError names missing or wrong variables."""
    command = environment.get("CNI_COMMAND", "")
    required = ("CNI_COMMAND", *_REQUIRED.get(command, ()))
    missing = [name for name in required if not environment.get(name)]
    if missing:
        raise _refused(f"required env variables [{','.join(missing)}] missing")
    if command not in _REQUIRED:
        raise _refused(f"unknown CNI_COMMAND: {command}")
    container_id, interface = environment.get("CNI_CONTAINERID", ""), environment.get("CNI_IFNAME", "")
    if "CNI_CONTAINERID" in required and not is_valid_name(container_id):
        raise _refused("invalid characters in containerID", f"CNI_CONTAINERID is {container_id}")
    if "CNI_IFNAME" in required:
        _check_interface(interface)
    return Parameters(
        command=command,
        container_id=container_id,
        namespace=environment.get("CNI_NETNS", ""),
        interface=interface,
        args=environment.get("CNI_ARGS", ""),
        directories=tuple(filter(None, environment.get("CNI_PATH", "").split(":"))),
        may_be_own_namespace=environment.get("CNI_NETNS_OVERRIDE", "").upper() in ("1", "TRUE"),
    )


def is_valid_name(text: str) -> bool:
    """Tell whether a text may be the name of a network or the id of a container."""
    return text[:1] in _ALPHANUMERIC and _NAME_CHARACTERS.issuperset(text)


def _check_interface(name: str) -> None:
    place = f"CNI_IFNAME is {name}"
    if len(name.encode(errors="surrogateescape")) > _MAX_INTERFACE_BYTES:
        raise _refused("interface name is too long", f"{place}: expected at most {_MAX_INTERFACE_BYTES} bytes")
    if name in (".", ".."):
        raise _refused("interface name is . or ..", place)
    if any(letter in "/:" or letter.isspace() for letter in name):
        raise _refused("interface name contains / or : or whitespace characters", place)
    if "%" in name:
        raise _refused("interface name contains %", f"{place}: the kernel makes another name of it")


def _refused(message: str, details: str = "") -> PluginError:
    return PluginError(message, protocol.INVALID_ENVIRONMENT, details)
