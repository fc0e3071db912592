"""minit.network.pluginprogram and its parameters: what a request may be, and how a failure is answered."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PluginError
from minit.manifest.networkconfig import CNI_VERSIONS
from minit.manifest.reader import Node
from minit.network.builtin import BUILTINS
from minit.network.builtin.call import refuse
from minit.network.pluginprogram import Parameters, answer_request, error_answer, is_valid_name, read_parameters
from minit.podfiles import paths

ATTACHMENT = {"CNI_CONTAINERID": "pod-1", "CNI_NETNS": "/run/netns/x", "CNI_IFNAME": "eth0"}
NEWEST = CNI_VERSIONS[-1]


def ask(command: str, config: object = None, name: str = "loopback", **environment: str) -> tuple[object, int]:
    """Answer a request with all variables; `config` is any JSON value, or the bytes of standard input."""
    text = config if isinstance(config, bytes) else json.dumps(config).encode()
    return answer_request(
        name, {"CNI_COMMAND": command, "CNI_PATH": "/", **ATTACHMENT, **environment}, lambda: text, "/image"
    )


def refused(command: str, config: object = None, name: str = "loopback", **environment: str) -> dict[str, object]:
    """Return the error that a request is answered with, but for its version."""
    answer, code = ask(command, config, name, **environment)
    assert code == 1
    assert isinstance(answer, dict)
    return {key: value for key, value in answer.items() if key != "cniVersion"}


def test_every_plugin_that_is_built_in_is_one_of_the_image() -> None:
    """The image has a program for each, and no other."""
    assert sorted(BUILTINS) == list(paths.BUILT_IN_PLUGINS)


def test_all_parameters() -> None:
    """Each variable has its place."""
    environment = {"CNI_COMMAND": "ADD", "CNI_ARGS": "IP=10.0.0.1", "CNI_PATH": "/a::/b", "CNI_NETNS_OVERRIDE": "true"}
    assert read_parameters({**ATTACHMENT, **environment, "OTHER": "x"}) == Parameters(
        command="ADD",
        container_id="pod-1",
        namespace="/run/netns/x",
        interface="eth0",
        args="IP=10.0.0.1",
        directories=("/a", "/b"),
        may_be_own_namespace=True,
    )


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        ({}, "CNI_COMMAND"),
        ({"CNI_COMMAND": ""}, "CNI_COMMAND"),
        ({"CNI_COMMAND": "ADD"}, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
        ({"CNI_COMMAND": "CHECK", "CNI_IFNAME": "eth0"}, "CNI_CONTAINERID,CNI_NETNS"),
        ({"CNI_COMMAND": "DEL", "CNI_CONTAINERID": ""}, "CNI_CONTAINERID,CNI_IFNAME"),
        ({"CNI_COMMAND": "GC"}, "CNI_PATH"),
    ],
)
def test_missing_variables_are_named(environment: dict[str, str], missing: str) -> None:
    """The error has code 4 and all names, in the words of the reference plugins."""
    with pytest.raises(PluginError) as caught:
        read_parameters(environment)
    assert (caught.value.code, str(caught.value)) == (4, f"required env variables [{missing}] missing")


@pytest.mark.parametrize("command", ["STATUS", "VERSION"])
def test_requests_about_no_attachment(command: str) -> None:
    """They need no other variable, and one that would be refused for an attachment is not looked at."""
    assert read_parameters({"CNI_COMMAND": command, "CNI_IFNAME": "a/b"}).command == command


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("CNI_COMMAND", "add", "unknown CNI_COMMAND: add"),
        ("CNI_CONTAINERID", "-x", "invalid characters in containerID; CNI_CONTAINERID is -x"),
        ("CNI_CONTAINERID", "a/../b", "invalid characters in containerID; CNI_CONTAINERID is a/../b"),
        ("CNI_CONTAINERID", "ä", "invalid characters in containerID; CNI_CONTAINERID is ä"),
        ("CNI_IFNAME", "..", "interface name is . or ..; CNI_IFNAME is .."),
        ("CNI_IFNAME", "a b", "interface name contains / or : or whitespace characters; CNI_IFNAME is a b"),
        ("CNI_IFNAME", "eth%d", "interface name contains %; CNI_IFNAME is eth%d: the kernel makes another name of it"),
        ("CNI_IFNAME", "sixteen-letters-", "interface name is too long; CNI_IFNAME is sixteen-letters-: expected"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, message: str) -> None:
    """The error has code 4, the variable and its value."""
    with pytest.raises(PluginError) as caught:
        read_parameters({"CNI_COMMAND": "ADD", **ATTACHMENT, variable: value})
    assert caught.value.code == 4
    assert str(caught.value).startswith(message)


@given(st.text(max_size=5))
def test_names_that_are_valid_are_file_names(text: str) -> None:
    """They are made of letters, digits, `_`, `.` and `-` alone, and begin with one of the first two."""
    if is_valid_name(text):
        assert text.isascii()
        assert text[0].isalnum()
        assert all(letter.isalnum() or letter in "_.-" for letter in text)
        assert is_valid_name(f"{text}_.-9")


@given(st.text(max_size=5))
def test_version_is_answered_whatever_is_asked(version: str) -> None:
    """VERSION has the version that was asked for if it is known, else the newest, and all that are supported."""
    known = version if version in CNI_VERSIONS else NEWEST
    assert ask("VERSION", {"cniVersion": version}) == ({"cniVersion": known, "supportedVersions": CNI_VERSIONS}, 0)


@pytest.mark.parametrize(("config", "version"), [(b"", NEWEST), ([], NEWEST), ({"cniVersion": "0.2.0"}, "0.2.0")])
def test_version_with_other_requests(config: object, version: str) -> None:
    """VERSION needs no standard input."""
    assert ask("VERSION", config) == ({"cniVersion": version, "supportedVersions": CNI_VERSIONS}, 0)


def test_a_name_that_is_no_plugin() -> None:
    """The error names it and the plugins there are, even when the request is nonsense."""
    answer = refused("", name="brigde")
    assert (answer["code"], answer["msg"]) == (999, 'there is no built-in plugin "brigde"')
    assert str(answer["details"]).endswith(", ".join(paths.BUILT_IN_PLUGINS))


@pytest.mark.parametrize(
    ("config", "code", "message", "details"),
    [
        (b"{", 6, "error parsing the network configuration", "network configuration: expected"),
        (b"", 6, "error parsing the network configuration", "network configuration: expected a value at line 1"),
        (7, 6, "error parsing the network configuration", "network configuration: expected an object, got 7"),
        (
            {"cniVersion": 1},
            6,
            "error parsing the network configuration",
            "network configuration: cniVersion: expected",
        ),
        ({"cniVersion": "1.2.0"}, 1, "incompatible CNI versions", 'config is "1.2.0", plugin supports ["0.1.0",'),
        ({"cniVersion": "1.0.0"}, 7, "missing network name", None),
        ({"name": "a/b"}, 7, "invalid characters found in network name", "name is a/b"),
    ],
)
def test_a_wrong_configuration(config: object, code: int, message: str, details: str | None) -> None:
    """The error has the code of the specification, and the place of what is wrong."""
    answer = refused("ADD", config)
    assert answer["code"] == code
    assert str(answer["msg"]).startswith(message)
    assert ("details" in answer) == (details is not None)
    assert details is None or str(answer["details"]).startswith(details)


@pytest.mark.parametrize(("command", "since"), [("CHECK", "0.4.0"), ("GC", "1.1.0"), ("STATUS", "1.1.0")])
def test_a_request_that_is_newer_than_the_configuration(command: str, since: str) -> None:
    """It is refused with code 1, as the runtime should not have made it."""
    for version in CNI_VERSIONS[: CNI_VERSIONS.index(since)]:
        answer, _ = ask(command, {"cniVersion": version, "name": "net"})
        assert answer == {
            "cniVersion": version,
            "code": 1,
            "msg": f"config version does not allow {command}",
            "details": f"{command} came with {since}, the configuration is of {version}",
        }


def test_the_version_of_an_error() -> None:
    """It is that of the configuration, as soon as it is known."""
    for version in CNI_VERSIONS:
        answer, _ = ask("ADD", {"cniVersion": version})
        assert isinstance(answer, dict)
        assert answer["cniVersion"] == version
    answer, _ = ask("ADD", {"cniVersion": "9"})
    assert isinstance(answer, dict)
    assert answer["cniVersion"] == NEWEST


@pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL"])
def test_the_namespace_of_the_plugin_is_refused(command: str) -> None:
    """A container that is in the network of the plugin itself is a mistake, with code 8 and before anything is done."""
    own = f"/proc/{os.getpid()}/ns/net"
    answer = refused(command, {"cniVersion": "1.0.0", "name": "net"}, CNI_NETNS=own)
    assert answer["code"] == 8
    assert answer["details"] == f"CNI_NETNS is {own}; CNI_NETNS_OVERRIDE=1 allows it"


def test_a_field_that_is_not_supported() -> None:
    """The error has code 2 and names key and value, as the specification wants it."""
    field = Node({"vlan": 5}, None, "network configuration")["vlan"]
    assert error_answer(refuse(field, "there are no VLANs"), "1.0.0") == {
        "cniVersion": "1.0.0",
        "code": 2,
        "msg": "network configuration: vlan: expected nothing here: there are no VLANs, got 5",
    }


@pytest.mark.parametrize("command", ["ADD", "CHECK"])
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("/nonexistent", "CNI_NETNS: /nonexistent: no such file or directory"),
        ("/etc/passwd", "CNI_NETNS: /etc/passwd is none"),
    ],
)
def test_what_is_no_namespace(command: str, path: str, reason: str) -> None:
    """The error has code 8 and names the path."""
    answer = refused(command, {"cniVersion": "1.0.0", "name": "net"}, CNI_NETNS=path)
    assert answer == {"code": 8, "msg": "invalid network namespace", "details": reason}


def test_standard_input_that_cannot_be_read() -> None:
    """The error has code 5."""

    def fail() -> bytes:
        raise OSError(5, "Input/output error", "network configuration")

    answer, code = answer_request("ptp", {"CNI_COMMAND": "STATUS"}, fail, "/image")
    assert code == 1
    assert isinstance(answer, dict)
    assert (answer["code"], answer["details"]) == (5, "network configuration: input/output error")
