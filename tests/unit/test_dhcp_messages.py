"""Messages of DHCP: what is written is read, and nothing from the network is more than a message or nothing."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.network.addresses import is_domain_name, parse_domain_names
from minit.network.dhcp import message
from minit.network.dhcp.message import Answer, Identity, encode_request, machine_identity, parse_answer, unwrap, wrap

MAC = bytes.fromhex("525400123456")
TRANSACTION = 0x12345678
ADDRESS, SERVER = IPv4Address("192.0.2.7"), IPv4Address("192.0.2.1")


def reply(options: bytes, address: int = 0xC0000207, transaction: int = TRANSACTION) -> bytes:
    """Return what a server sends."""
    head = bytes((2, 1, 6, 0)) + transaction.to_bytes(4, "big") + bytes(8) + address.to_bytes(4, "big") + bytes(8)
    return head + MAC.ljust(16, b"\0") + bytes(192) + bytes.fromhex("63825363") + options


OFFER = bytes.fromhex("350102 3604c0000201 0104ffffff00 0304c0000201 0608c0000235c0000236 330400000e10 0f036c616e ff")


def test_an_offer() -> None:
    """Address, mask, routers, name servers, domain and time are read."""
    assert parse_answer(reply(OFFER), TRANSACTION, MAC) == Answer(
        kind=message.OFFER,
        address=IPv4Interface("192.0.2.7/24"),
        server=SERVER,
        routers=(SERVER,),
        name_servers=(IPv4Address("192.0.2.53"), IPv4Address("192.0.2.54")),
        domain="lan",
        lease_seconds=3600,
    )


def test_what_is_for_somebody_else() -> None:
    """Another transaction, another machine, a request, or a mask with holes are nothing."""
    assert parse_answer(reply(OFFER), TRANSACTION + 1, MAC) is None
    assert parse_answer(reply(OFFER), TRANSACTION, MAC[::-1]) is None
    assert parse_answer(b"\1" + reply(OFFER)[1:], TRANSACTION, MAC) is None
    assert (
        parse_answer(reply(OFFER.replace(bytes.fromhex("ffffff00"), bytes.fromhex("ff00ff00"))), TRANSACTION, MAC)
        is None
    )


@pytest.mark.parametrize("address", ["224.0.0.1", "127.0.0.1", "255.255.255.255"])
def test_an_address_of_no_host(address: str) -> None:
    """An address that no host can have is none."""
    assert parse_answer(reply(OFFER, int(IPv4Address(address))), TRANSACTION, MAC) is None


def test_a_domain_that_would_be_lines() -> None:
    """Text that becomes a part of resolv.conf cannot end its line."""
    answer = parse_answer(reply(bytes.fromhex("350105") + b"\x0f\x05a\nb c\xff"), TRANSACTION, MAC)
    assert answer is not None and answer.domain == ""


def test_a_request_has_what_a_server_needs() -> None:
    """A request has the address that is wanted, the server, the name, and asks for a broadcast."""
    identity = machine_identity(MAC, "box")
    data = encode_request(message.REQUEST, identity, transaction=TRANSACTION, requested=ADDRESS, server=SERVER)
    assert len(data) >= 300 and data[10:12] == b"\x80\0"
    for option in ("350103", "3204c0000207", "3604c0000201", "0c03626f78"):
        assert bytes.fromhex(option) in data


def test_what_ends_a_lease_asks_for_nothing() -> None:
    """It has who, which address and which server, and no option that would be a question."""
    identity = Identity(mac=MAC, identifier=b"\0pod/net/eth0", wanted=bytes((message.ROUTERS,)), options=((12, b"n"),))
    data = encode_request(message.RELEASE, identity, transaction=TRANSACTION, own=ADDRESS, server=SERVER)
    assert data[10:16] == b"\0\0" + ADDRESS.packed
    assert data[240:].rstrip(b"\0") == b"\x35\1\7\x3d\x0d\0pod/net/eth0\x36\4" + SERVER.packed + b"\xff"


def test_options_of_ones_own_count() -> None:
    """What a client has to say of itself takes the place of what it says otherwise."""
    identity = Identity(mac=MAC, identifier=b"\0a", wanted=b"\3", options=((message.CLIENT_IDENTIFIER, b"\0b"),))
    data = encode_request(message.DISCOVER, identity, transaction=TRANSACTION)
    assert b"\x3d\2\0b" in data and b"\x3d\2\0a" not in data


def test_routes() -> None:
    """Those of classes and those without are read; of what is no list of routes nothing counts."""
    classes = bytes.fromhex("350105 2110 0a000000c0000201 c6336407c0000202 ff")
    answer = parse_answer(reply(classes), TRANSACTION, MAC)
    assert answer is not None
    assert [(str(one.destination), str(one.router)) for one in answer.static_routes] == [
        ("10.0.0.0/8", "192.0.2.1"),
        ("198.51.100.0/24", "192.0.2.2"),
    ]
    without = bytes.fromhex("350105 7916 00c0000201 190a010280c0000202 16ac10fc00000000 00 ff")
    answer = parse_answer(reply(without), TRANSACTION, MAC)
    assert answer is not None
    assert [(str(one.destination), str(one.router)) for one in answer.classless_routes] == [
        ("0.0.0.0/0", "192.0.2.1"),
        ("10.1.2.128/25", "192.0.2.2"),
        ("172.16.252.0/22", "0.0.0.0"),
    ]
    for broken in ("7905 21 0a010203", "7904 00c00002", "7906 00c0000201 18"):
        answer = parse_answer(reply(bytes.fromhex(f"350105 {broken} ff")), TRANSACTION, MAC)
        assert answer is not None and answer.classless_routes == ()


def test_options_of_wrong_lengths() -> None:
    """A lease whose mask, time or server is of another length is none; any other such option is left out."""
    for broken in ("3503020202", "3603c00002", "0105ffffff0000", "330300000e", "330500000e1000"):
        rest = OFFER.replace(bytes.fromhex("330400000e10"), b"") if broken.startswith("33") else OFFER
        assert parse_answer(reply(bytes.fromhex(broken) + rest), TRANSACTION, MAC) is None
    loose = bytes.fromhex("350105 0305c000020101 0603c00002 1a01ff 2a05c000023501 7704036f6e65 3a0100 ff")
    assert parse_answer(reply(loose), TRANSACTION, MAC) == Answer(
        kind=message.ACK, address=IPv4Interface("192.0.2.7/24")
    )


def test_what_a_network_tells_beside_addresses() -> None:
    """The MTU, servers of time and domains to look in, which may point to each other, are read."""
    options = bytes.fromhex("350105 1a0205dc 2a08c0000235c0000236") + b"\x77\x10\3one\4test\0\3two\xc0\4\xff"
    answer = parse_answer(reply(options), TRANSACTION, MAC)
    assert answer is not None
    assert (answer.mtu, answer.search) == (1500, ("one.test", "two.test"))
    assert answer.ntp_servers == (IPv4Address("192.0.2.53"), IPv4Address("192.0.2.54"))


@pytest.mark.parametrize(
    "broken",
    [
        b"\3one",
        b"\3one\xc0\0",
        b"\xc0\0",
        b"\3one\xc0",
        b"\3o\ne\0",
        b"\3a.b\0",
        b"\x40one\0",
        b"\0\3one\0",
        b"\1\xff\0",
    ]
    + [(b"\x3f" + b"a" * 63) * 4 + b"\0"],
)
def test_no_list_of_domains(broken: bytes) -> None:
    """A name that is broken, endless, too long or no text of resolv.conf spoils the list."""
    assert parse_domain_names(broken, compressed=True) == ()


@given(
    st.binary(max_size=80) | st.lists(st.sampled_from([b"\1a", b"\0", b"\xc0\0", b"\xc0\2"])).map(b"".join),
    st.booleans(),
)
def test_any_list_of_domains(data: bytes, compressed: bool) -> None:
    """No list makes reading it fail or last, and each name is one of resolv.conf."""
    for name in parse_domain_names(data, compressed=compressed):
        assert 0 < len(name) <= 253 and is_domain_name(name)


def test_a_packet_holds_its_message() -> None:
    """A packet to the client's port is unwrapped; one to another port, or a damaged one, is not."""
    packet = bytearray(wrap(b"hello"))
    packet[20:24] = bytes((0, 67, 0, 68))
    assert unwrap(bytes(packet) + b"padding") == b"hello"
    assert unwrap(wrap(b"hello")) is None
    packet[8] ^= 1
    assert unwrap(bytes(packet)) is None


@given(st.binary(max_size=600))
def test_any_packet(data: bytes) -> None:
    """No packet makes the client fail."""
    unwrap(data)
    parse_answer(data, TRANSACTION, MAC)


@given(st.binary(max_size=80), st.integers(0, 0xFFFFFFFF))
def test_any_options(options: bytes, address: int) -> None:
    """No options make the client fail, whatever they say about lengths."""
    answer = parse_answer(reply(options, address), TRANSACTION, MAC)
    assert answer is None or 0 < answer.address.network.prefixlen <= 32
