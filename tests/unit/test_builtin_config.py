"""The built-in network plugins: configurations that they take, and their reading of arguments and addresses."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import ManifestError, MinitError, NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import IPAddress, parse_address, parse_interface, parse_subnet
from minit.network.builtin.bridge import read_bridge_config
from minit.network.builtin.call import dns, network_name, parse_arguments, protection, routes
from minit.network.builtin.hostlocal import read_range_sets
from minit.network.podnames import parse_resolv_conf
from minit.network.protocol import Dns

IPAM = {"type": "host-local", "subnet": "10.1.0.0/16"}
PTP = {"cniVersion": "0.4.0", "name": "net", "type": "ptp", "ipam": IPAM}

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 70000)
    | st.sampled_from(["", "host-local", "10.0.0.0/8", "1.2.3.4", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*IPAM, "ranges", "dst", "x"]), inner),
    max_leaves=6,
)


def node(config: Mapping[str, object]) -> Node:
    """Return a configuration as plugins get it."""
    return Node(dict(config), None, "net.conf")


def read_all(config: dict[str, object]) -> None:
    """Read everything that a bridge with host-local reads."""
    root = node(config)
    network_name(root)
    read_range_sets(root)
    routes(root["ipam"])
    dns(root)
    protection(root)
    read_bridge_config(root)


@given(st.ip_addresses())
def test_any_address_is_read(address: IPAddress) -> None:
    """An address is read as it is written, and a mapped one as the IPv4 address that it stands for."""
    mapped = address.ipv4_mapped if address.version == 6 else None
    assert parse_address(str(address)) == (mapped or address)


@given(st.text(alphabet="0123456789abf:./% x٣", max_size=18))
def test_what_is_an_address_is_one_for_the_standard_library(text: str) -> None:
    """Nothing is read as an address or a subnet that ipaddress refuses."""
    for parse, reference in ((parse_address, ipaddress.ip_address), (parse_subnet, ipaddress.ip_network)):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert reference(text) == value or "::ffff:" in text.lower()


@pytest.mark.parametrize(
    "text", ["", "1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.04", "1.2.3.-4", "1.2.3. 4", "::1%eth0", "::g"]
)
def test_what_is_no_address(text: str) -> None:
    """Neither zeros before a number nor zones are taken."""
    with pytest.raises(ValueError):
        parse_address(text)


@pytest.mark.parametrize(
    "text",
    [
        "10.0.0.0",
        "10.0.0.0/",
        "10.0.0.0/33",
        "10.0.0.1/24",
        "10.0.0.0/08",
        "10.0.0.0/-1",
        "10.0.0.0/255.0.0.0",
        "fd00::/129",
        "fd00::1/64",
    ],
)
def test_what_is_no_subnet(text: str) -> None:
    """A subnet has a length, and no bits beyond it."""
    with pytest.raises(ValueError):
        parse_subnet(text)


def ranges(ipam: Mapping[str, object], **more: object) -> list[str]:
    """Return the sets of ranges of an address manager as text."""
    return [str(one) for one in read_range_sets(node({**PTP, **more, "ipam": ipam}))]


def test_the_defaults_of_a_range() -> None:
    """The gateway is the first address, and all but network and broadcast may be leased."""
    (only,) = read_range_sets(node(PTP))[0].ranges
    assert (str(only.subnet), str(only), str(only.gateway)) == ("10.1.0.0/16", "10.1.0.1-10.1.255.254", "10.1.0.1")
    assert [only.may_lease(parse_address(f"10.1.{end}")) for end in ("0.0", "0.1", "0.2", "255.254", "255.255")] == [
        *(False, False, True, True, False)
    ]
    (six,) = read_range_sets(node({**PTP, "ipam": {"subnet": "fd00::/64"}}))[0].ranges
    assert (str(six), str(six.gateway)) == ("fd00::1-fd00::ffff:ffff:ffff:ffff", "fd00::1")


def test_each_set_of_ranges_counts() -> None:
    """The sets of the capability come first, then the address manager's own range, then its list."""
    block = {"subnet": "10.1.0.0/16", "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.20", "gateway": "10.1.0.10"}
    assert ranges(block) == ranges({"ranges": [[block]]}) == ["10.1.0.9-10.1.0.20"]
    other = [{"subnet": "10.2.0.0/30"}, {"subnet": "10.3.0.0/30"}]
    capability = {"ipRanges": [[{"subnet": "fd00::/126"}]]}
    assert ranges({**block, "ranges": [other]}, runtimeConfig=capability) == [
        *("fd00::1-fd00::3", "10.1.0.9-10.1.0.20", "10.2.0.1-10.2.0.2,10.3.0.1-10.3.0.2")
    ]


def test_addresses_of_a_set_go_round() -> None:
    """After the last one leased comes the rest of its range, the other ranges, and the beginning of its own."""
    sets = [{"subnet": "10.1.0.0/29"}, {"subnet": "10.2.0.0/30"}]
    (one,) = read_range_sets(node({**PTP, "ipam": {"ranges": [sets]}}))
    after = [str(address) for _, address in one.after(parse_address("10.1.0.4"))]
    assert after == ["10.1.0.5", "10.1.0.6", "10.2.0.2", "10.1.0.2", "10.1.0.3", "10.1.0.4"]
    assert [str(address) for _, address in one.after(None)][:2] == ["10.1.0.2", "10.1.0.3"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ipam": {"type": "host-local"}}, "ipam.ranges: expected at least one range, got nothing"),
        ({"ipam": {**IPAM, "subnet": "10.1.0.1/16"}}, 'ipam.subnet: expected a subnet, got "10.1.0.1/16"'),
        (
            {"ipam": {**IPAM, "subnet": "10.1.0.0/31"}},
            'ipam.subnet: expected a prefix of at most 30, got "10.1.0.0/31"',
        ),
        ({"ipam": {**IPAM, "subnet": "fd00::/127"}}, 'ipam.subnet: expected a prefix of at most 126, got "fd00::/127"'),
        (
            {"ipam": {**IPAM, "rangeStart": "10.2.0.1"}},
            'ipam.rangeStart: expected an address in 10.1.0.0/16, got "10.2.0.1"',
        ),
        (
            {"ipam": {**IPAM, "rangeStart": "10.1.0.9", "rangeEnd": "10.1.0.8"}},
            'ipam.rangeEnd: expected an address not before rangeStart, got "10.1.0.8"',
        ),
        (
            {"ipam": {**IPAM, "ranges": [[{"subnet": "10.1.2.0/24"}]]}},
            "ipam.ranges[0]: expected each address in one range, got 10.1.2.1-10.1.2.254 and 10.1.0.1-10.1.255.254",
        ),
        (
            {"ipam": {"ranges": [[{"subnet": "10.1.0.0/16"}, {"subnet": "fd00::/64"}]]}},
            "ipam.ranges[0]: expected ranges of one family, got ",
        ),
        ({"ipam": {"ranges": [[]]}}, "ipam.ranges[0]: expected at least one range, got []"),
        ({"ipam": {**IPAM, "gateway": "x"}}, 'ipam.gateway: expected an IP address, got "x"'),
        ({"ipam": {**IPAM, "routes": [{}]}}, "ipam.routes[0].dst: expected a string, got nothing"),
        (
            {"ipam": {**IPAM, "routes": [{"dst": "x"}]}},
            'ipam.routes[0].dst: expected a destination in CIDR notation, got "x"',
        ),
        ({"mtu": "1400"}, 'mtu: expected an integer from 0 to 65535, got "1400"'),
        ({"ipMasq": "yes"}, 'ipMasq: expected true or false, got "yes"'),
        ({"dns": {"search": "x"}}, 'dns.search: expected a list, got "x"'),
    ],
)
def test_what_is_wrong_is_named(changes: dict[str, object], message: str) -> None:
    """The error is a line with the network, the key and what was expected there."""
    with pytest.raises(ManifestError) as caught:
        read_all({**PTP, **changes})
    assert str(caught.value).startswith(f"net.conf: {message}")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", None])
def test_a_network_that_names_no_directory(name: object) -> None:
    """A name that would lead out of the directory of leases is refused."""
    with pytest.raises(ManifestError, match="name: expected the name of a network"):
        network_name(node({**PTP, "name": name}))


@pytest.mark.parametrize("name", ["a/b", "a b", "sixteen-letters-", ".", "a:b", "br%d", "äääääääää"])
def test_a_bridge_that_has_no_name(name: str) -> None:
    """Only what the kernel takes as the name of an interface, and as it is, names a bridge."""
    with pytest.raises(ManifestError, match="bridge: expected the name of an interface"):
        read_bridge_config(node({**PTP, "type": "bridge", "bridge": name}))


@given(st.dictionaries(st.sampled_from(["ipam", "mtu", "dns", "ipMasq", "bridge", "isGateway", "x"]), json_values))
def test_any_configuration_is_read_or_refused(config: dict[str, object]) -> None:
    """No JSON whatever makes a plugin fail otherwise than with a line."""
    try:
        read_all({"name": "net", **config})
    except MinitError as error:
        assert str(error).startswith("net.conf: ")


def test_arguments() -> None:
    """IP=, GATEWAY= and MAC= ask for addresses, IP= with or without a prefix length; unknown keys may be allowed."""
    address = parse_address("10.1.0.9")
    assert parse_arguments("").addresses == ()
    for text in ("IP=10.1.0.9,fd00::9", "IP=10.1.0.9;IP=fd00::9"):
        assert parse_arguments(text).addresses == (address, parse_address("fd00::9"))
    asked = parse_arguments("X=y;IP=10.1.0.9/16;GATEWAY=10.1.0.1;IgnoreUnknown=TRUE")
    assert (asked.addresses, asked.gateways) == ((parse_interface("10.1.0.9/16"),), (parse_address("10.1.0.1"),))
    assert parse_arguments("IgnoreUnknown=0").addresses == ()
    assert parse_arguments("MAC=02-00-5E-10-00-0F").mac == "02:00:5e:10:00:0f"
    assert parse_arguments("MAC=").mac is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("IP", 'CNI_ARGS: "IP": expected KEY=VALUE'),
        ("IP=10.1.0.9;", 'CNI_ARGS: "": expected KEY=VALUE'),
        ("IP=1=2", 'CNI_ARGS: "IP=1=2": expected KEY=VALUE'),
        ("IP=x", 'CNI_ARGS: "IP=x": expected an IP address'),
        ("GATEWAY=10.1.0.0/16", 'CNI_ARGS: "GATEWAY=10.1.0.0/16": expected an IP address'),
        ("MAC=02:00:5e:10:00", 'CNI_ARGS: "MAC=02:00:5e:10:00": expected a hardware address'),
        ("MAC=02:00:5e:10-00-0f", 'CNI_ARGS: "MAC=02:00:5e:10-00-0f": expected a hardware address'),
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
