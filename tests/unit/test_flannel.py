"""The built-in plugin flannel: reading what flannel writes, and the configuration that is made of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError, NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import parse_subnet
from minit.network.builtin.flannel import SubnetEnv, delegated_config, parse_subnet_env

PATH = "/run/flannel/subnet.env"
TEXT = "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nFLANNEL_MTU=1472\nFLANNEL_IPMASQ=true\n"
ENV = SubnetEnv(
    networks=(parse_subnet("10.1.0.0/16"),), subnets=(parse_subnet("10.1.17.0/24"),), mtu=1472, masquerades=True
)
BOTH = (
    "# x\nFLANNEL_NETWORK=10.1.0.0/16,10.2.0.0/16,10.1.0.0/16\nFLANNEL_SUBNET=10.1.17.1/24\nX=y\n"
    "FLANNEL_IPV6_NETWORK=fd00:1::/48\nFLANNEL_IPV6_SUBNET=fd00:1:0:17::1/64\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=no\n"
)


def delegated(env: SubnetEnv, **more: Any) -> dict[str, Any]:
    """Return what the other plugin is asked."""
    return delegated_config(Node({"name": "mynet", "type": "flannel", **more}, None, "net.conf"), env)


def test_a_file_of_one_family() -> None:
    """The subnet is the one that the address of the host is in."""
    assert parse_subnet_env(TEXT, PATH) == ENV


def test_a_file_of_both_families() -> None:
    """There may be several networks; one that comes twice counts once, and other variables for nothing."""
    assert parse_subnet_env(BOTH, PATH) == SubnetEnv(
        networks=tuple(map(parse_subnet, ("10.1.0.0/16", "10.2.0.0/16", "fd00:1::/48"))),
        subnets=(parse_subnet("10.1.17.0/24"), parse_subnet("fd00:1:0:17::/64")),
        mtu=1450,
        masquerades=False,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "no FLANNEL_NETWORK or FLANNEL_IPV6_NETWORK, no FLANNEL_SUBNET or FLANNEL_IPV6_SUBNET, no FLANNEL_MTU, no ",
        ),
        (TEXT.replace("FLANNEL_MTU", "MTU"), "no FLANNEL_MTU"),
        (TEXT.replace("10.1.0.0/16", "10.1.0.0/16,x"), 'FLANNEL_NETWORK: expected subnets, got "10.1.0.0/16,x"'),
        (TEXT.replace("10.1.17.1/24", "10.1.17.1"), 'FLANNEL_SUBNET: expected a subnet, got "10.1.17.1"'),
        (TEXT.replace("1472", "-1"), 'FLANNEL_MTU: expected a number up to 65535, got "-1"'),
        (TEXT.replace("1472", "65536"), 'FLANNEL_MTU: expected a number up to 65535, got "65536"'),
    ],
)
def test_a_file_that_cannot_be_used(text: str, message: str) -> None:
    """The error names the file and the variable."""
    with pytest.raises(NetworkError) as caught:
        parse_subnet_env(text, PATH)
    assert str(caught.value).startswith(f"{PATH}: {message}")


@given(st.text(alphabet="FLANNEL_SUBTMQPIVWORK=0123./,:\n", max_size=120).map(lambda text: TEXT + text))
def test_any_file_is_read_or_refused(text: str) -> None:
    """No text makes the parser fail otherwise."""
    try:
        parse_subnet_env(text, PATH)
    except NetworkError as error:
        assert "\n" not in str(error)


def test_the_usual_delegate() -> None:
    """A bridge with the subnet, a route to the whole network, and the masquerading that flannel does not do."""
    assert delegated(ENV) == {
        "name": "mynet",
        "type": "bridge",
        "mtu": 1472,
        "ipMasq": False,
        "isGateway": True,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.17.0/24"}]], "routes": [{"dst": "10.1.0.0/16"}]},
    }
    both = delegated(parse_subnet_env(BOTH, PATH), cniVersion="1.0.0")
    assert both["ipMasq"] is True
    assert both["cniVersion"] == "1.0.0"
    assert both["ipam"]["ranges"] == [[{"subnet": "10.1.17.0/24"}], [{"subnet": "fd00:1:0:17::/64"}]]
    assert [route["dst"] for route in both["ipam"]["routes"]] == ["10.1.0.0/16", "10.2.0.0/16", "fd00:1::/48"]


def test_what_the_configuration_says_itself() -> None:
    """Keys of the delegate stay, those of the address manager too, and capabilities are passed on."""
    asked = {"bridge": "mynet0", "mtu": 1400, "ipMasq": True, "isGateway": False, "isDefaultGateway": True}
    ipam = {"type": "mine", "routes": [{"dst": "0.0.0.0/0"}], "dataDir": "/d", "ranges": [[{"subnet": "10.9.0.0/16"}]]}
    runtime = {"ips": ["10.1.17.9/24"]}
    assert delegated(ENV, delegate=asked, ipam=ipam, runtimeConfig=runtime, args={"cni": {}}) == {
        **asked,
        "name": "mynet",
        "type": "bridge",
        "runtimeConfig": runtime,
        "ipam": {
            "type": "mine",
            "dataDir": "/d",
            "ranges": [[{"subnet": "10.1.17.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16"}],
        },
    }
    other = delegated(ENV, delegate={"type": "ipvlan", "master": "eth0"})
    assert (other["type"], other["master"], "isGateway" in other) == ("ipvlan", "eth0", False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"delegate": []}, "net.conf: delegate: expected an object, got []"),
        ({"delegate": {"type": 1}}, "net.conf: delegate.type: expected a non-empty string, got 1"),
        ({"delegate": {"name": "x"}}, 'net.conf: delegate.name: expected nothing here: flannel sets it, got "x"'),
        ({"delegate": {"ipam": {}}}, "net.conf: delegate.ipam: expected nothing here: flannel sets it, got {}"),
        ({"ipam": 1}, "net.conf: ipam: expected an object, got 1"),
        (
            {"ipam": {"routes": [{"dst": "x"}]}},
            'net.conf: ipam.routes[0].dst: expected a destination in CIDR notation, got "x"',
        ),
    ],
)
def test_what_is_wrong_is_named(more: dict[str, Any], message: str) -> None:
    """The line names file and key."""
    with pytest.raises(ManifestError) as caught:
        delegated(ENV, **more)
    assert str(caught.value) == message
