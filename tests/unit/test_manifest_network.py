"""minit.manifest.networkconfig: configurations of the CNI, plain and in lists."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.manifest.networkconfig import (
    CNI_VERSIONS,
    NetworkConfig,
    PluginConfig,
    is_at_least,
    parse_network_config,
    parse_network_name,
)

DIRECTORY = "/etc/rkt/net.d"


def parse(document: object, file_name: str = "10-lan.conf") -> NetworkConfig:
    """Parse `document` as a file of DIRECTORY."""
    return parse_network_config(json.dumps(document).encode(), file_name, DIRECTORY)


def refusal(document: object, file_name: str = "10-lan.conf") -> str:
    """Return the message with which `document` is refused."""
    with pytest.raises(ManifestError) as caught:
        parse(document, file_name)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_plain_configuration() -> None:
    """The one plugin of a plain file gets the whole of it, byte for byte."""
    text = b'{"cniVersion": "0.1.0",\n "name": "lan",  "type": "ptp", "ipMasq": true, "mtu": 1500.0}\n'
    assert parse_network_config(text, "10-lan.conf", DIRECTORY) == NetworkConfig(
        name="lan",
        file_name="10-lan.conf",
        directory=DIRECTORY,
        text=text,
        cni_version="0.1.0",
        plugins=(PluginConfig(type="ptp", text=text),),
        ip_masq=True,
    )


def test_a_list() -> None:
    """Each plugin of a list has its own object, with the keys in their order."""
    document = {
        "cniVersion": "1.0.0",
        "name": "lan",
        "disableCheck": True,
        "plugins": [{"type": "bridge", "zeta": 1, "alpha": [True]}, {"type": "firewall", "ipMasq": True}],
    }
    config = parse(document, "10-lan.conflist")
    assert config.is_list and config.ip_masq and config.disable_check
    assert config.cni_version == "1.0.0"
    assert [plugin.type for plugin in config.plugins] == ["bridge", "firewall"]
    assert config.plugins[0].text == b'{"type":"bridge","zeta":1,"alpha":[true]}'
    assert config.text == json.dumps(document).encode()


@pytest.mark.parametrize("version", [{}, {"cniVersion": ""}, {"cniVersion": None}])
def test_a_file_without_version_is_of_the_oldest(version: dict[str, object]) -> None:
    """As in the plugins of the CNI, no version means 0.1.0."""
    assert parse({"name": "lan", "type": "ptp", **version}).cni_version == "0.1.0"


@pytest.mark.parametrize("version", CNI_VERSIONS)
def test_every_version_is_taken(version: str) -> None:
    """A configuration may be of any released version."""
    assert parse({"name": "lan", "type": "ptp", "cniVersion": version}).cni_version == version


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({"cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0", "0.4.0"]}, "1.0.0"),
        ({"cniVersion": "1.0.0", "cniVersions": ["0.4.0"]}, "1.0.0"),
        ({"cniVersion": "2.0.0", "cniVersions": ["1.1.0", "2.0.0"]}, "1.1.0"),
        ({"cniVersions": ["0.4.0"]}, "0.4.0"),
        ({"cniVersion": "0.4.0", "cniVersions": []}, "0.4.0"),
    ],
)
def test_a_list_of_several_versions(fields: dict[str, object], version: str) -> None:
    """It is taken for the newest of them that is known; a single plugin gets its file as it is, of one version."""
    config = {"name": "lan", "plugins": [{"type": "ptp"}], **fields}
    assert parse(config, "lan.conflist").cni_version == version


def test_a_list_of_unknown_versions() -> None:
    """It is refused with what it says."""
    with pytest.raises(ManifestError, match=r'cniVersions: expected a version of 0.1.0 to 1.1.0, got \["2.0.0"\]'):
        parse({"name": "lan", "plugins": [{"type": "ptp"}], "cniVersions": ["2.0.0"]}, "lan.conflist")
    plain = {"name": "lan", "type": "ptp", "cniVersion": "0.4.0", "cniVersions": ["1.0.0"]}
    assert parse(plain).cni_version == "0.4.0"


def test_versions_have_an_order() -> None:
    """A version is at least itself and those before it."""
    assert [is_at_least(version, "0.4.0") for version in CNI_VERSIONS] == [False] * 4 + [True] * 3


def test_what_rkt_and_minit_do_not_interpret_may_be_anything() -> None:
    """The settings of a plugin are its own business, and keys match whatever their case."""
    config = parse({"Name": "lan", "TYPE": "x", "ipam": 7, "mtu": [], "args": None, "plugins": "none of a plain file"})
    assert (config.name, config.plugins[0].type, config.is_list) == ("lan", "x", False)


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([], "expected an object, got []"),
        ({"type": "ptp"}, "name: expected the name of a network, usable as a file name, got nothing"),
        ({"name": "", "type": "ptp"}, 'got ""'),
        ({"name": "..", "type": "ptp"}, 'name: expected the name of a network, usable as a file name, got ".."'),
        ({"name": "a/b", "type": "ptp"}, 'got "a/b"'),
        ({"name": "a" * 256, "type": "ptp"}, 'got "aaa'),
        ({"name": "a\0b", "type": "ptp"}, "name: expected a string without NUL"),
        ({"name": 1, "type": "ptp"}, "got 1"),
        ({"name": "lan"}, "type: expected the name of a plugin, a file without directory, got nothing"),
        (
            {"name": "lan", "type": "../sh"},
            'type: expected the name of a plugin, a file without directory, got "../sh"',
        ),
        ({"name": "lan", "type": "ptp", "ipMasq": "yes"}, 'ipMasq: expected true or false, got "yes"'),
        ({"name": "lan", "type": "ptp", "cniVersion": "2.0.0"}, 'cniVersion: expected "0.1.0" or "0.2.0" or'),
        ({"name": "lan", "type": "ptp", "cniVersion": 1}, "cniVersion: expected a string, got 1"),
    ],
)
def test_refused(document: object, expected: str) -> None:
    """A file that is no configuration is refused with its name and the place in it."""
    message = refusal(document)
    assert message.startswith("/etc/rkt/net.d/10-lan.conf: ")
    assert expected in message


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "plugins: expected a list of at least one plugin, got nothing"),
        ({"plugins": []}, "plugins: expected a list of at least one plugin, got []"),
        ({"plugins": {}}, "plugins: expected a list, got {}"),
        ({"plugins": [{"type": "ptp"}, {}]}, "plugins[1].type: expected the name of a plugin"),
        ({"plugins": [None]}, "plugins[0].type: expected the name of a plugin"),
        ({"plugins": ["ptp"]}, 'plugins[0]: expected an object, got "ptp"'),
    ],
)
def test_refused_lists(fields: dict[str, Any], expected: str) -> None:
    """A list needs plugins, and each of them a type."""
    assert expected in refusal({"name": "lan", "type": "ptp", **fields}, "10-lan.conflist")


@pytest.mark.parametrize(("document", "name"), [({"name": "lan"}, "lan"), ({}, None), ({"name": "a/b"}, "a/b")])
def test_the_name_alone(document: object, name: str | None) -> None:
    """The name of a network can be had from a file that is wrong otherwise."""
    assert parse_network_name(json.dumps(document).encode(), "10-lan.conf", DIRECTORY) == name


@given(st.one_of(st.binary(), st.recursive(st.text() | st.integers(), st.lists).map(lambda v: json.dumps(v).encode())))
def test_any_bytes_are_parsed_or_refused(data: bytes) -> None:
    """Nothing but ManifestError comes of a file, whatever is in it."""
    for name in ("a.conf", "a.conflist"):
        with pytest.raises(ManifestError):
            parse_network_config(data, name, DIRECTORY)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdef"), inner, max_size=3),
    max_leaves=8,
)


@given(st.lists(st.dictionaries(st.sampled_from(["ipam", "mtu", "x"]), _JSON), min_size=1, max_size=3))
def test_settings_of_plugins_are_kept(settings: list[dict[str, Any]]) -> None:
    """The text of a plugin out of a list means what stands in the file."""
    plugins = [{"type": "ptp", **own} for own in settings]
    config = parse({"name": "lan", "plugins": plugins}, "a.conflist")
    assert [json.loads(plugin.text) for plugin in config.plugins] == plugins
