"""minit.network.protocol: what plugins of all versions answer, and how it is passed on."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError
from minit.base.value import replace
from minit.manifest.networkconfig import CNI_VERSIONS
from minit.network.addresses import parse_address, parse_destination, parse_interface
from minit.network.protocol import (
    Address,
    Dns,
    Interface,
    Result,
    Route,
    read_result,
    write_result,
)

OLD = CNI_VERSIONS[:2]
WITH_FAMILY = CNI_VERSIONS[2:5]
NEW = CNI_VERSIONS[5:]
NEWEST = "1.1.0"
DNS = {"nameservers": ["10.0.0.1"], "domain": "example.com", "search": ["a", "b"], "options": ["rotate"]}
READ_DNS = Dns(nameservers=("10.0.0.1",), domain="example.com", search=("a", "b"), options=("rotate",))


def at(address: str, gateway: str | None = None) -> Address:
    """Return an address of a pod."""
    return Address(address=parse_interface(address), gateway=None if gateway is None else parse_address(gateway))


def to(destination: str, gateway: str | None = None) -> Route:
    """Return a route."""
    return Route(
        destination=parse_destination(destination), gateway=None if gateway is None else parse_address(gateway)
    )


def ipv4_of(result: Result) -> str | None:
    """Return the pod's IPv4 address."""
    return None if result.ipv4 is None else str(result.ipv4.address.ip)


def read(value: object, version: str) -> Result:
    """Read a result of a plugin that was given a configuration of `version`."""
    return read_result(value, "result", version)


@pytest.mark.parametrize("version", OLD)
def test_an_old_result(version: str) -> None:
    """Before 0.3.0 there is one address of each family, with its routes."""
    value = {
        "cniVersion": version,
        "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]},
        "ip6": {"ip": "fd00::2/64", "routes": [{"dst": "::/0", "gw": "fd00::1"}]},
        "dns": DNS,
    }
    result = Result(
        addresses=(at("10.0.0.2/24", "10.0.0.1"), at("fd00::2/64")),
        routes=(to("0.0.0.0/0"), to("::/0", "fd00::1")),
        dns=READ_DNS,
    )
    assert read(value, "1.0.0") == result
    assert write_result(result, version) == value


@pytest.mark.parametrize("version", WITH_FAMILY + NEW)
def test_a_new_result(version: str) -> None:
    """From 0.3.0 on there are lists; until 1.0.0 each address says of which family it is."""
    family = {"version": "4"} if version in WITH_FAMILY else {}
    value = {
        "cniVersion": version,
        "interfaces": [{"name": "cni0", "mac": "aa:bb"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [{**family, "interface": 1, "address": "10.0.0.2/24", "gateway": "10.0.0.1"}],
        "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1"}],
        "dns": DNS,
    }
    result = Result(
        interfaces=(Interface(name="cni0", mac="aa:bb"), Interface(name="eth0", sandbox="/run/netns/x")),
        addresses=(replace(at("10.0.0.2/24", "10.0.0.1"), interface=1),),
        routes=(to("0.0.0.0/0", "10.0.0.1"),),
        dns=READ_DNS,
    )
    assert read(value, "0.1.0") == result
    assert write_result(result, version) == value


def test_the_fields_of_the_newest_version() -> None:
    """1.1.0 tells more of interfaces and routes, and a table or scope of 0 is one; no version before has a place."""
    interface = {"name": "eth0", "mtu": 1400, "socketPath": "/run/vhost", "pciID": "0000:00:02.0"}
    route = {"dst": "::/0", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 0, "scope": 0}
    result = read({"interfaces": [interface], "routes": [route]}, "1.1.0")
    assert result.interfaces[0] == Interface(name="eth0", mtu=1400, socket_path="/run/vhost", pci_id="0000:00:02.0")
    assert result.routes[0] == replace(to("::/0"), mtu=1400, advertised_mss=1360, priority=5, table=0, scope=0)
    written = write_result(result, "1.1.0")
    assert (written["interfaces"], written["routes"]) == ([interface], [route])
    written = write_result(result, "1.0.0")
    assert (written["interfaces"], written["routes"]) == ([{"name": "eth0"}], [{"dst": "::/0"}])


def test_a_result_without_version_is_of_that_of_the_configuration() -> None:
    """Plugins of the first days say no version."""
    assert ipv4_of(read({"ip4": {"ip": "10.0.0.2/24"}}, "0.1.0")) == "10.0.0.2"
    assert ipv4_of(read({"ips": [{"address": "10.0.0.2/24"}]}, "0.3.1")) == "10.0.0.2"
    assert ipv4_of(read({"ip4": {"ip": "10.0.0.2/24"}}, "0.3.1")) is None


def test_what_rkt_shows_of_an_address() -> None:
    """Address, mask, subnet and gateway are had one by one."""
    result = read({"ip4": {"ip": "172.16.28.9/22", "gateway": "172.16.28.1"}}, "0.1.0")
    assert ipv4_of(result) == "172.16.28.9"
    assert result.ipv4 == at("172.16.28.9/22", "172.16.28.1")


def test_without_an_ipv4_address_nothing_is_shown() -> None:
    """An address of another family counts for nothing with rkt, and then its name servers do not either."""
    for value in ({"dns": DNS}, {"ip6": {"ip": "fd00::2/64"}, "dns": DNS}):
        result = read(value, "0.2.0")
        assert result.ipv4 is None
        assert result.dns == Dns()
    assert read({"dns": DNS}, "1.0.0").dns == READ_DNS


def test_addresses_of_the_host_are_not_the_pods() -> None:
    """An address on an interface without a sandbox is the host's; a wrong index says nothing."""
    value = {
        "interfaces": [{"name": "cni0"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [
            {"address": "10.0.0.1/24", "interface": 0},
            {"address": "fd00::2/64", "interface": 1},
            {"address": "10.0.0.2/24", "interface": 1},
            {"address": "10.0.0.3/24", "interface": 1},
        ],
    }
    assert ipv4_of(read(value, "1.0.0")) == "10.0.0.2"
    assert ipv4_of(read({"ips": [{"address": "10.0.0.1/24", "interface": 7}]}, "1.0.0")) == "10.0.0.1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, "result: expected an object, got 7"),
        ({"cniVersion": "9.0.0"}, 'result: cniVersion: expected "0.1.0" or'),
        ({"ips": [{"address": "10.0.0.2"}]}, "ips[0].address: expected an address in CIDR notation"),
        ({"ips": [{"address": "10.0.0.2/33"}]}, 'got "10.0.0.2/33"'),
        ({"ips": [{"address": "10.0.0/8"}]}, 'got "10.0.0/8"'),
        ({"ips": [{"address": "fd00::g/8"}]}, 'got "fd00::g/8"'),
        ({"ips": [{"address": "10.0.0.2/8", "gateway": "x"}]}, 'ips[0].gateway: expected an IP address, got "x"'),
        ({"ips": [{"address": "10.0.0.2/8", "interface": "0"}]}, "ips[0].interface: expected an integer"),
        ({"routes": [{"dst": "default"}]}, 'routes[0].dst: expected a destination in CIDR notation, got "default"'),
        ({"interfaces": [{}]}, "interfaces[0].name: expected a string, got nothing"),
        ({"interfaces": [{"name": "e", "mtu": -1}]}, "interfaces[0].mtu: expected an integer from 0 to"),
        ({"routes": [{"dst": "::/0", "scope": "link"}]}, "routes[0].scope: expected an integer"),
        ({"dns": {"nameservers": "10.0.0.1"}}, "dns.nameservers: expected a list"),
    ],
)
def test_garbage(value: object, expected: str) -> None:
    """An answer that is no result is refused with its place."""
    with pytest.raises(ManifestError) as caught:
        read(value, "1.0.0")
    assert expected in str(caught.value)


def test_an_old_result_must_have_addresses_where_it_says_so() -> None:
    """An `ip4` without `ip` is no result."""
    with pytest.raises(ManifestError, match="ip4.ip: expected a string, got nothing"):
        read({"ip4": {}}, "0.2.0")


_TEXT = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=8)
# The text of a mapped address is read as the IPv4 address that it stands for.
_IPV6 = st.ip_addresses(v=6).filter(lambda address: IPv6Address(address).ipv4_mapped is None)
_INTERFACES_4 = st.builds("{}/{}".format, st.ip_addresses(v=4), st.integers(0, 32)).map(parse_interface)
_INTERFACES_6 = st.builds("{}/{}".format, _IPV6, st.integers(0, 128)).map(parse_interface)
_NETWORKS = _INTERFACES_4 | _INTERFACES_6
_GATEWAYS = st.none() | st.ip_addresses(v=4) | _IPV6
_TEXTS = st.lists(_TEXT, max_size=3).map(tuple)
_NUMBERS = st.none() | st.integers(0, (1 << 32) - 1)
_SIZES = st.none() | st.integers(1, (1 << 32) - 1)
_WORDS = st.just("") | _TEXT
_INTERFACES = st.builds(
    Interface, name=_TEXT, mac=_WORDS, sandbox=_WORDS, mtu=_SIZES, socket_path=_WORDS, pci_id=_WORDS
)
_ROUTES = st.builds(
    Route,
    destination=_NETWORKS.map(lambda interface: interface.network),
    gateway=_GATEWAYS,
    mtu=_SIZES,
    advertised_mss=_SIZES,
    priority=_SIZES,
    table=_NUMBERS,
    scope=_NUMBERS,
)
_RESULTS = st.builds(
    Result,
    interfaces=st.lists(_INTERFACES, max_size=3).map(tuple),
    addresses=st.lists(
        st.builds(Address, address=_NETWORKS, gateway=_GATEWAYS, interface=st.none() | st.integers(0, 3)), max_size=4
    ).map(tuple),
    routes=st.lists(_ROUTES, max_size=4).map(tuple),
    dns=st.builds(Dns, nameservers=_TEXTS, domain=_WORDS, search=_TEXTS, options=_TEXTS),
)


def without_details(result: Result) -> Result:
    """Return a result with nothing of what only the newest version has."""
    interfaces = [Interface(name=each.name, mac=each.mac, sandbox=each.sandbox) for each in result.interfaces]
    routes = [Route(destination=route.destination, gateway=route.gateway) for route in result.routes]
    return replace(result, interfaces=tuple(interfaces), routes=tuple(routes))


@given(_RESULTS, st.sampled_from(WITH_FAMILY + NEW))
def test_a_new_result_survives_being_passed_on(result: Result, version: str) -> None:
    """A result in a version with lists is read as the same, but for the fields that only the newest has."""
    expected = result if version == NEWEST else without_details(result)
    assert read(write_result(result, version), "0.1.0") == expected


@given(_RESULTS, st.sampled_from(OLD))
def test_an_old_result_keeps_what_it_has_a_place_for(result: Result, version: str) -> None:
    """Of each family the first address and all routes stay, and the name servers if there is an IPv4 address."""
    written = read(write_result(result, version), "1.0.0")
    firsts = [address for address in (result.first_address(4), result.first_address(6)) if address]
    assert written.addresses == tuple(replace(address, interface=None) for address in firsts)
    assert set(written.routes) <= set(without_details(result).routes)
    assert written.dns == (result.dns if result.ipv4 else Dns())
    # Nothing is lost any more when it is written once more.
    assert read(write_result(written, version), "1.0.0") == written
