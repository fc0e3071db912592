"""Requests for networks, the configurations made of them, and the choice of subnets."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base import jsontext
from minit.base.errors import ManifestError, NetworkError
from minit.manifest.creatednetwork import (
    IPNetwork,
    NetworkDriver,
    NetworkRequest,
    free_local_subnet,
    free_subnet,
    network_document,
    networks_in,
    read_network,
)
from minit.manifest.networkconfig import parse_network_config

TIME = "2026-11-28T12:00:00Z"


def document(taken: tuple[str, ...] = (), **fields: object) -> dict[str, object]:
    """Return the configuration for a request."""
    request = NetworkRequest(**{"name": "front", **fields})  # type: ignore[arg-type]
    return network_document(request, [ip_network(text) for text in taken], TIME)


def test_a_bridge_with_both_families() -> None:
    """Each subnet has a gateway and a default route, and what was asked for can be read back."""
    written = document(
        subnets=("10.1.2.0/24", "fd00::/64"),
        gateways=("10.1.2.254",),
        ranges=("10.1.2.128/25",),
        options=(("com.docker.network.driver.mtu", "1400"),),
        labels=(("a", "b"),),
    )
    assert written["ipam"] == {
        "type": "host-local",
        "ranges": [
            [{"subnet": "10.1.2.0/24", "gateway": "10.1.2.254", "rangeStart": "10.1.2.128", "rangeEnd": "10.1.2.254"}],
            [{"subnet": "fd00::/64", "gateway": "fd00::1"}],
        ],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
    }
    assert (written["mtu"], written["ipMasq"], written["isGateway"]) == (1400, True, True)
    data = jsontext.dump(written)
    assert parse_network_config(data, "50-front.conf", "/etc/rkt/net.d").ip_masq
    network = read_network(data, "/etc/rkt/net.d/50-front.conf")
    assert network.subnets == (("10.1.2.0/24", "10.1.2.254"), ("fd00::/64", "fd00::1"))
    assert (network.labels, network.is_internal, network.created) == ((("a", "b"),), False, TIME)


def test_an_internal_network() -> None:
    """It is restricted, with neither a default route nor the host's address."""
    written = document(is_internal=True)
    assert written["restricted"] is True
    assert "ipMasq" not in written
    assert "routes" not in written["ipam"]  # type: ignore[operator]


def test_a_macvlan() -> None:
    """It has the host's link, and a DHCP server unless there is a subnet."""
    written = document(driver=NetworkDriver.MACVLAN, options=(("parent", "eth0"),))
    assert (written["master"], written["ipam"]) == ("eth0", {"type": "dhcp"})
    of_office = document(("192.0.2.0/24",), driver=NetworkDriver.MACVLAN, subnets=("192.0.2.0/24",))
    assert of_office["ipam"]["routes"] == [{"dst": "0.0.0.0/0"}]  # type: ignore[index]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "host"}, "a meaning for --net"),
        ({"name": "../x"}, "the name of a network"),
        ({"name": "a:b"}, "the name of a network"),
        ({"subnets": ("10.0.0.0/25",)}, "overlaps with 10.0.0.0/8"),
        ({"subnets": ("10.1.2.3/24",)}, "without bits beyond"),
        ({"subnets": ("192.0.2.0/24", "192.0.2.0/25")}, "overlaps with 192.0.2.0/24"),
        ({"subnets": ("192.0.2.0/31",)}, "no room for a pod"),
        ({"gateways": ("192.0.2.1",)}, "--gateway: 192.0.2.1 is in none of 172.24.0.0/24"),
        ({"gateways": ("x",)}, "expected an address"),
        ({"ranges": ("192.0.2.0/28",)}, "--ip-range: 192.0.2.0/28 is in none of"),
        ({"options": (("parent", "eth0"),)}, 'has mtu, bridge, and no "parent"'),
        ({"options": (("mtu", "big"),)}, "expected a number from 68"),
        ({"options": (("bridge", "../../x"),)}, "expected the name of a link"),
        ({"driver": NetworkDriver.IPVLAN}, "needs a --subnet"),
        ({"driver": NetworkDriver.MACVLAN, "is_internal": True}, "--internal is for bridges"),
        ({"driver": NetworkDriver.MACVLAN, "has_ipv6": True}, "needs a --subnet of IPv6"),
    ],
)
def test_impossible_requests(fields: dict[str, object], message: str) -> None:
    """Each is refused with the option and the reason."""
    with pytest.raises(NetworkError, match=message):
        document(("10.0.0.0/8",), **fields)


_TAKEN = st.lists(
    st.tuples(st.integers(0, 2**32 - 1), st.integers(1, 32)).map(lambda pair: ip_network(pair, strict=False)),
    max_size=30,
)


@given(_TAKEN)
def test_free_subnets_overlap_with_none(taken: list[IPNetwork]) -> None:
    """A chosen subnet overlaps with no taken one, or there is an error that says so."""
    try:
        chosen = free_subnet(taken)
    except NetworkError as error:
        assert "--subnet" in str(error)
    else:
        assert chosen.prefixlen == 24
        assert not any(chosen.overlaps(one) for one in taken)
    assert free_local_subnet(taken).subnet_of(ip_network("fd00::/8"))  # type: ignore[arg-type]


@given(
    st.binary(max_size=60)
    | st.recursive(
        st.none() | st.booleans() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["name", "type", "ipam", "ranges", "subnet", "minit", "plugins"]), inner)
        ),
    ).map(jsontext.dump)
)
def test_files_of_others(data: bytes) -> None:
    """Any file has facts, or an error of one line that names the file."""
    try:
        networks_in(read_network(data, "/x/10-a.conf"))
    except ManifestError as error:
        assert str(error).startswith("/x/10-a.conf")
        assert "\n" not in str(error)
