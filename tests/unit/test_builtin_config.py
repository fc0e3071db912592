"""The built-in network plugins: configurations that they take, and their reading of arguments and addresses."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.errors import ManifestError, MinitError, NetworkError
from minit.network.builtin import find_builtin
from minit.network.builtin.arguments import parse_arguments
from minit.network.builtin.config import is_supported, lease_parent, read_bridge, read_ptp
from minit.network.builtin.resolvconf import parse_resolv_conf
from minit.network.ipv4 import (
    Subnet,
    format_address,
    parse_address,
    parse_interface,
    parse_subnet,
    subnet_of,
)
from minit.network.result import Dns

IPAM = {"type": "host-local", "subnet": "10.1.0.0/16"}
PTP = {"cniVersion": "0.4.0", "name": "net", "type": "ptp", "ipam": IPAM}

addresses = st.integers(0, 2**32 - 1)
prefixes = st.integers(0, 32)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.sampled_from(["", "host-local", "10.0.0.0/8", "1.2.3.4", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*IPAM, "ranges", "dst", "x"]), inner),
    max_leaves=6,
)


@given(addresses)
def test_addresses_are_those_of_the_standard_library(address: int) -> None:
    """Writing and reading agree with ipaddress."""
    text = format_address(address)
    assert text == str(ipaddress.IPv4Address(address))
    assert parse_address(text) == address


@given(addresses, prefixes)
def test_subnets_are_those_of_the_standard_library(address: int, prefix: int) -> None:
    """Mask, first and last address agree with ipaddress."""
    network = ipaddress.ip_network((address, prefix), strict=False)
    subnet = subnet_of(address, prefix)
    assert str(subnet) == str(network)
    assert (subnet.mask, subnet.broadcast) == (int(network.netmask), int(network.broadcast_address))
    assert address in subnet
    assert parse_subnet(str(subnet)) == subnet
    assert parse_interface(f"{format_address(address)}/{prefix}") == (address, prefix)


@given(st.text(alphabet="0123456789./ x٣", max_size=18))
def test_what_is_an_address_is_one_for_the_standard_library(text: str) -> None:
    """Nothing is read as an address or a subnet that ipaddress refuses."""
    for parse, reference in ((parse_address, ipaddress.IPv4Address), (parse_subnet, ipaddress.IPv4Network)):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert str(reference(text)) == (str(value) if isinstance(value, Subnet) else format_address(value))


@pytest.mark.parametrize("text", ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.04", "1.2.3.-4", "1.2.3. 4", "::1"])
def test_what_is_no_address(text: str) -> None:
    """Only four plain decimal numbers are an address."""
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize("text", ["10.0.0.0", "10.0.0.0/", "10.0.0.0/33", "10.0.0.1/24", "10.0.0.0/08", "10.0.0.0/-1"])
def test_what_is_no_subnet(text: str) -> None:
    """A subnet has a length, and no bits beyond it."""
    with pytest.raises(ValueError):
        parse_subnet(text)


@pytest.mark.parametrize(
    "config",
    [
        PTP,
        {**PTP, "IPMASQ": True, "mtu": 1400, "dns": {"domain": "x"}, "prevResult": {}, "capabilities": {"ips": True}},
        {**PTP, "ipMasqBackend": "nftables", "vlan": 0, "macspoofchk": False, "args": {}, "runtimeConfig": None},
        {**PTP, "ipam": {**IPAM, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.1.9", "gateway": "10.1.0.5"}},
        {
            **PTP,
            "ipam": {**IPAM, "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}], "dataDir": "/x:y", "resolvConf": ":"},
        },
        {**PTP, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9"}]]}},
        {**PTP, "type": "bridge", "bridge": "b", "isGateway": True, "forceAddress": True, "hairpinMode": True},
        {"name": "net", "type": "bridge"},
        {"name": "lo", "type": "loopback", "cniVersion": "1.0.0"},
        # Wrong, and nobody else's business.
        {**PTP, "ipam": {"type": "host-local", "subnet": "nonsense"}},
        {**PTP, "ipam": {}},
    ],
)
def test_what_is_built_in(config: dict[str, object]) -> None:
    """Everything in these is done by a built-in plugin."""
    assert is_supported(config)


@pytest.mark.parametrize(
    "config",
    [
        {**PTP, "type": "macvlan"},
        {"name": "net"},
        {**PTP, "type": ["ptp"]},
        {**PTP, "keep": 1},
        {**PTP, "ipMasqBackend": "iptables"},
        {**PTP, "args": {"cni": {"ips": ["10.1.0.9"]}}},
        {**PTP, "runtimeConfig": {"ips": ["10.1.0.9"]}},
        {**PTP, "ipam": {"type": "dhcp"}},
        {**PTP, "ipam": {**IPAM, "subnet": "fd00::/64"}},
        {**PTP, "ipam": {**IPAM, "routes": [{"dst": "::/0"}]}},
        {**PTP, "ipam": {**IPAM, "routes": [{"dst": "0.0.0.0/0", "mtu": 1400}]}},
        {**PTP, "ipam": {**IPAM, "ranges": [[{"subnet": "10.2.0.0/16"}]]}},
        {**PTP, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}], [{"subnet": "10.2.0.0/16"}]]}},
        {**PTP, "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}, {"subnet": "10.2.0.0/16"}]]}},
        {**PTP, "ipam": {"type": "host-local", "ranges": [[]]}},
        {**PTP, "ipam": {**IPAM, "allocator": "x"}},
        {**PTP, "hairpinMode": True},
        {**PTP, "type": "bridge", "vlan": 5},
        {"name": "lo", "type": "loopback", "ipam": IPAM},
    ],
)
def test_what_is_left_to_real_plugins(config: dict[str, object]) -> None:
    """A configuration that asks for more than is built in is not touched."""
    assert not is_supported(config)
    assert find_builtin(config) is None


def test_the_defaults_of_a_pool() -> None:
    """The gateway is the first address, and all but network and broadcast may be leased."""
    pool = read_ptp(PTP).ipam.pool
    assert (pool.network, pool.directory, str(pool.subnet)) == ("net", "/var/lib/cni/networks", "10.1.0.0/16")
    assert (str(pool), format_address(pool.gateway)) == ("10.1.0.1-10.1.255.254", "10.1.0.1")
    assert [pool.has(parse_address(f"10.1.{end}")) for end in ("0.0", "0.1", "0.2", "255.254", "255.255")] == [
        *(False, False, True, True, False)
    ]


def test_everything_of_a_range_counts() -> None:
    """A range in the list of range sets is read like one in the address manager's own fields."""
    block = {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.10"}
    flat = {"type": "host-local", "dataDir": "/data", **block}
    nested = {"type": "host-local", "dataDir": "/data", "ranges": [[block]]}
    pools = [read_ptp({**PTP, "ipam": ipam}).ipam.pool for ipam in (flat, nested)]
    assert pools[0] == pools[1]
    assert (str(pools[0]), format_address(pools[0].gateway)) == ("10.1.0.9-10.1.0.20", "10.1.0.10")
    assert lease_parent({**PTP, "ipam": flat}) == pools[0].directory == "/data"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ipam": {}}, 'ipam.type: expected "host-local", got nothing'),
        ({"ipam": {"type": "host-local"}}, "ipam.subnet: expected a string, got nothing"),
        ({"ipam": {**IPAM, "subnet": "10.1.0.1/16"}}, 'ipam.subnet: expected an IPv4 subnet, got "10.1.0.1/16"'),
        (
            {"ipam": {**IPAM, "subnet": "10.1.0.0/31"}},
            'ipam.subnet: expected a prefix of at most 30, got "10.1.0.0/31"',
        ),
        (
            {"ipam": {**IPAM, "rangeStart": "10.2.0.1"}},
            'ipam.rangeStart: expected an address in 10.1.0.0/16, got "10.2.0.1"',
        ),
        (
            {"ipam": {**IPAM, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}},
            'ipam.rangeEnd: expected an address not before rangeStart, got "10.1.0.8"',
        ),
        ({"ipam": {**IPAM, "gateway": "x"}}, 'ipam.gateway: expected an IPv4 address, got "x"'),
        ({"ipam": {**IPAM, "routes": [{}]}}, "ipam.routes[0].dst: expected a string, got nothing"),
        ({"ipam": {**IPAM, "routes": [{"dst": "x"}]}}, 'ipam.routes[0].dst: expected an IPv4 subnet, got "x"'),
        ({"mtu": "1400"}, 'mtu: expected an integer from 0 to 65535, got "1400"'),
        ({"ipMasq": "yes"}, 'ipMasq: expected true or false, got "yes"'),
        ({"dns": {"search": "x"}}, 'dns.search: expected a list, got "x"'),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    """The error is a line with the network, the key and what was expected there."""
    with pytest.raises(ManifestError) as caught:
        read_ptp({**PTP, **changes})
    assert str(caught.value) == f'network "net": {message}'


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", None])
def test_a_network_that_names_no_directory(name: object) -> None:
    """A name that would lead out of the directory of leases is refused."""
    with pytest.raises(ManifestError, match="name: expected the name of a network"):
        read_ptp({**PTP, "name": name})


@pytest.mark.parametrize("name", ["a/b", "a b", "sixteen-letters-", ".", "a:b", "äääääääää"])
def test_a_bridge_that_has_no_name(name: str) -> None:
    """Only what the kernel takes as the name of an interface names a bridge."""
    with pytest.raises(ManifestError, match="bridge: expected the name of an interface"):
        read_bridge({**PTP, "type": "bridge", "bridge": name})


@given(st.dictionaries(st.sampled_from(["ipam", "mtu", "dns", "ipMasq", "bridge", "isGateway", "x"]), json_values))
def test_any_configuration_is_read_or_refused(config: dict[str, object]) -> None:
    """No JSON whatever makes a plugin fail otherwise than with a line."""
    is_supported({"type": "bridge", **config})
    for read in (read_ptp, read_bridge):
        try:
            read({"name": "net", **config})
        except MinitError as error:
            assert str(error).startswith('network "net": ')
    assert lease_parent(config)


def test_arguments() -> None:
    """IP= asks for an address, with or without a prefix length, and unknown keys may be allowed."""
    address = parse_address("10.1.0.9")
    assert parse_arguments("").address is None
    assert parse_arguments("IP=10.1.0.9").address == address
    assert parse_arguments("X=y;IP=10.1.0.9/16;IgnoreUnknown=TRUE").address == address
    assert parse_arguments("IgnoreUnknown=0").address is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("IP", 'CNI_ARGS: "IP": expected KEY=VALUE'),
        ("IP=10.1.0.9;", 'CNI_ARGS: "": expected KEY=VALUE'),
        ("IP=1=2", 'CNI_ARGS: "IP=1=2": expected KEY=VALUE'),
        ("IP=x", 'CNI_ARGS: "IP=x": expected an IPv4 address'),
        ("IP=fd00::1", 'CNI_ARGS: "IP=fd00::1": expected an IPv4 address'),
        ("IgnoreUnknown=maybe", 'CNI_ARGS: "IgnoreUnknown=maybe": expected 1, true, 0 or false'),
        ("ip=10.1.0.9", 'CNI_ARGS: "ip=10.1.0.9": unknown; IgnoreUnknown=1 allows it'),
        ("X=y;IgnoreUnknown=false", 'CNI_ARGS: "X=y": unknown; IgnoreUnknown=1 allows it'),
    ],
)
def test_arguments_that_are_refused(text: str, message: str) -> None:
    """An impossible value is named as it was given."""
    with pytest.raises(NetworkError) as caught:
        parse_arguments(text)
    assert str(caught.value) == message


@given(st.text(alphabet="IP=;.19xgnoreUk", max_size=30))
def test_any_arguments_are_read_or_refused(text: str) -> None:
    """No text makes the parser fail otherwise."""
    try:
        parse_arguments(text)
    except NetworkError as error:
        assert "\n" not in str(error)


def test_resolv_conf() -> None:
    """All servers, search domains and options count, the last domain, and no comments."""
    servers = "; x\n#nameserver 0\nnameserver 1.1.1.1 2\n nameserver ::1\n"
    text = f"{servers}domain a\ndomain b\nsearch c d\nsearch e\noptions f g\nx\n"
    assert parse_resolv_conf(text) == Dns(
        nameservers=("1.1.1.1", "::1"), domain="b", search=("c", "d", "e"), options=("f", "g")
    )


@given(st.text(alphabet="nameserv domain#\n\t \x00", max_size=60))
def test_any_resolv_conf_is_read(text: str) -> None:
    """No text makes the parser fail."""
    parse_resolv_conf(text)
