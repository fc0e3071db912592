"""--port."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.flags.runoptions import parse_direct_port, parse_port
from minit.cli.flagwords import FlagError
from minit.manifest.app import Port
from minit.manifest.pod import ExposedPort

# Digits alone are numbers.
NAMES = st.from_regex(r"[a-z0-9]+(-[a-z0-9]+)*", fullmatch=True).filter(lambda name: not name.isdigit())


@given(NAMES, st.integers(1, 65535), st.none() | st.ip_addresses())
def test_ports_read_back(name: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> None:
    """A port has a name, perhaps an address, which for IPv6 stands in brackets, and a number."""
    place = "" if address is None else f"[{address}]:" if address.version == 6 else f"{address}:"
    parsed = parse_port("--port", f"{name}:{place}{port}")
    assert (parsed.name, parsed.host_port, parsed.pod_port) == (name, port, None)
    assert (parsed.host_ip and ipaddress.ip_address(parsed.host_ip)) == address


@given(
    st.integers(1, 65535), st.integers(1, 65535), st.none() | st.ip_addresses(), st.sampled_from(("", "/tcp", "/udp"))
)
def test_ports_by_number(
    host: int, pod: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None, suffix: str
) -> None:
    """A port of the host and one of the pod are two numbers, perhaps with an address before and a protocol behind."""
    place = "" if address is None else f"[{address}]:" if address.version == 6 else f"{address}:"
    text = f"{place}{host}:{pod}{suffix}"
    parsed = parse_port("--port", text)
    assert parsed == parse_direct_port("--port", text)
    assert parsed.pod_port is not None
    assert (parsed.host_port, parsed.pod_port.port, parsed.pod_port.protocol) == (host, pod, suffix[1:] or "tcp")
    assert (parsed.host_ip and ipaddress.ip_address(parsed.host_ip)) == address


def test_addresses_have_one_spelling() -> None:
    """An address is written in its shortest form, so that equal ones are seen to be equal."""
    expected = ExposedPort(name="http", host_port=80, host_ip="2001:db8::1")
    assert parse_port("--port", "http:[2001:0DB8:0::0001]:80") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", '--port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got ""'),
        ("80", '--port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got "80"'),
        ("HTTP:80", '--port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got "HTTP:80"'),
        (":80", '--port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got ":80"'),
        ("0:80", '--port 0:80: expected a number from 1 to 65535, got "0"'),
        ("80:65536", '--port 80:65536: expected a number from 1 to 65535, got "65536"'),
        ("80:80/sctp", '--port 80:80/sctp: expected the protocol tcp or udp, got "sctp"'),
        ("127.1:80:80", '--port 127.1:80:80: expected an IP address, one of IPv6 in brackets, got "127.1"'),
        ("[::1:80:80", '--port: expected [IP:]PORT:PORT[/udp] or NAME:[IP:]PORT, got "[::1:80:80"'),
        ("http:", '--port http: expected a number from 1 to 65535, got ""'),
        ("http:0", '--port http: expected a number from 1 to 65535, got "0"'),
        ("http:65536", '--port http: expected a number from 1 to 65535, got "65536"'),
        ("http:80/tcp", '--port http: expected a number from 1 to 65535, got "80/tcp"'),
        ("http::80", '--port http: expected an IP address, one of IPv6 in brackets, got ""'),
        ("http:host:80", '--port http: expected an IP address, one of IPv6 in brackets, got "host"'),
        ("http:127.1:80", '--port http: expected an IP address, one of IPv6 in brackets, got "127.1"'),
        ("http:::1:80", '--port http: expected an IP address, one of IPv6 in brackets, got "::1"'),
        ("http:[127.0.0.1]:80", '--port http: expected an IP address, one of IPv6 in brackets, got "[127.0.0.1]"'),
    ],
)
def test_bad_ports(text: str, message: str) -> None:
    """An error in a port is one line."""
    with pytest.raises(FlagError) as caught:
        parse_port("--port", text)
    assert str(caught.value) == message


@given(st.text())
def test_any_value_is_read_or_refused(text: str) -> None:
    """No value leads to anything but a port or a FlagError that names the flag."""
    try:
        parse_port("--port", text)
    except FlagError as error:
        assert str(error).startswith("--port")


@given(NAMES, st.sampled_from(["tcp", "udp"]), st.integers(1, 65535), st.ip_addresses(), st.integers(1, 65535))
def test_direct_ports_read_back(
    name: str, protocol: str, pod_port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address, host_port: int
) -> None:
    """A port of a sandbox says which port of the pod it leads to, and where on the host it is."""
    parsed = parse_direct_port("--port", f"{name}:{protocol}:{pod_port}:{address}:{host_port}")
    assert parsed.pod_port == Port(name=name, protocol=protocol, port=pod_port)
    assert (parsed.name, parsed.host_port) == (name, host_port)
    assert ipaddress.ip_address(parsed.host_ip or "") == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http:80", '--port: expected NAME:PROTOCOL:PORT:HOSTIP:HOSTPORT, got "http:80"'),
        ("http:sctp:1:0.0.0.0:80", '--port http: expected the protocol tcp or udp, got "sctp"'),
        ("http:tcp:0:0.0.0.0:80", '--port http: expected a number from 1 to 65535, got "0"'),
        ("http:tcp:1::80", '--port http: expected an IP address, one of IPv6 in brackets, got ""'),
        ("http:tcp:1:host:80", '--port http: expected an IP address, one of IPv6 in brackets, got "host"'),
    ],
)
def test_bad_direct_ports(text: str, message: str) -> None:
    """An error in a port is one line."""
    with pytest.raises(FlagError) as caught:
        parse_direct_port("--port", text)
    assert str(caught.value) == message
