"""Messages of DHCP for IPv6 and options of routers: nothing from the network is more than a message or nothing."""

from __future__ import annotations

import struct
from ipaddress import IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.network.dhcp import message6
from minit.network.dhcp.message6 import (
    Answer6,
    LeasedAddress,
    RouterOption,
    encode_question,
    link_layer_duid,
    parse_answer,
    parse_router_options,
)
from tests.support.ipv6router import association, option

DUID = link_layer_duid(bytes.fromhex("525400123456"))
SERVER = b"\0\3\0\1server"
IAID, TRANSACTION = 0x12345678, 0xABCDEF
NUMBER = IAID.to_bytes(4, "big")
ADDRESS = IPv6Address("2001:db8::20")
WHO = option(1, DUID) + option(2, SERVER)


def parse(options: bytes, kind: int = message6.REPLY, transaction: int = TRANSACTION) -> Answer6 | None:
    """Return what a server's message with these options is."""
    return parse_answer(bytes((kind,)) + transaction.to_bytes(3, "big") + options, DUID, TRANSACTION, IAID)


def test_a_reply() -> None:
    """Address and times, name servers, domains, servers of time and the time of the next question are read."""
    told = option(23, ADDRESS.packed * 2) + option(24, b"\3lan\4test\0") + option(7, b"\xff")
    told += option(56, option(1, ADDRESS.packed) + option(3, b"\3ntp\4test\0")) + option(32, (900).to_bytes(4, "big"))
    assert parse(WHO + association(NUMBER, str(ADDRESS), (10, 20, 3600, 7200)) + told) == Answer6(
        kind=message6.REPLY,
        server=SERVER,
        leased=LeasedAddress(
            address=ADDRESS, preferred_seconds=3600, valid_seconds=7200, renewal_seconds=10, rebinding_seconds=20
        ),
        preference=255,
        name_servers=(ADDRESS, ADDRESS),
        search=("lan.test",),
        ntp_servers=(str(ADDRESS), "ntp.test"),
        refresh_seconds=900,
    )


def test_times_that_are_left_to_the_client() -> None:
    """Renewal is after a half of the preferred time, and rebinding after four fifths."""
    answer = parse(WHO + association(NUMBER, str(ADDRESS), (0, 0, 1000, 2000)))
    assert answer is not None and answer.leased is not None
    assert (answer.leased.renewal_seconds, answer.leased.rebinding_seconds) == (500, 800)


@pytest.mark.parametrize(
    "told",
    [
        option(1, DUID),
        option(2, SERVER),
        option(1, DUID[::-1]) + option(2, SERVER),
        WHO + option(2, SERVER),
        WHO + option(13, b"\0\1no"),
        WHO + b"\0\x17\0",
        WHO + b"\0\x17\0\x20short",
        option(1, DUID) + option(2, b"\0\1"),
    ],
)
def test_what_is_no_reply(told: bytes) -> None:
    """A message for or from nobody, with a failure, or with an option that does not fit is nothing."""
    assert parse(told) is None


def test_a_reply_to_somebody_else() -> None:
    """Another transaction, and a message of a client, are nothing."""
    assert parse(WHO) is not None
    assert parse(WHO, transaction=TRANSACTION + 1) is None
    assert parse(WHO, kind=message6.REQUEST) is None


@pytest.mark.parametrize(
    "told",
    [
        association(b"\0\0\0\1", str(ADDRESS)),
        association(NUMBER, str(ADDRESS), (30, 20, 3600, 7200)),
        association(NUMBER, str(ADDRESS), (0, 0, 7200, 3600)),
        association(NUMBER, str(ADDRESS), (0, 0, 0, 0)),
        association(NUMBER, "ff02::1"),
        association(NUMBER, "fe80::1"),
        association(NUMBER, "::1"),
        option(3, NUMBER + bytes(8) + option(13, b"\0\2none")),
        option(3, NUMBER + bytes(8) + option(5, ADDRESS.packed)),
        option(3, NUMBER),
    ],
)
def test_addresses_that_are_none(told: bytes) -> None:
    """An address of another interface, with impossible times, of no use as one, or refused, is left out."""
    answer = parse(WHO + told)
    assert answer is not None and answer.leased is None


def test_a_question() -> None:
    """A client says who it is, which address it wants, and how long it has waited."""
    data = encode_question(
        message6.REQUEST, DUID, transaction=1, elapsed_seconds=2.5, association=IAID, address=ADDRESS, server=SERVER
    )
    assert data[:4] == b"\3\0\0\1"
    for each in (option(1, DUID), option(2, SERVER), option(8, b"\0\xfa"), ADDRESS.packed):
        assert each in data


@given(st.binary(max_size=200), st.booleans())
def test_any_message(data: bytes, is_near: bool) -> None:
    """No message makes reading it fail, and no address in it is one that cannot be used."""
    for answer in (
        parse_answer(data, DUID, TRANSACTION, IAID),
        parse(WHO + option(3, NUMBER + data) if is_near else data),
    ):
        if answer is not None and answer.leased is not None:
            assert 0 < answer.leased.preferred_seconds <= answer.leased.valid_seconds
            assert not answer.leased.address.is_multicast


def kernel_message(options: bytes, icmp_type: int = 134) -> bytes:
    """Return what the kernel says of a router's options."""
    body = struct.pack("=BxHiBBxxxxxx", 10, len(options), 7, icmp_type, 0) + options
    return struct.pack("=IHHII", 16 + len(body), 68, 0, 0, 0) + body


def test_options_of_routers() -> None:
    """Name servers and domains come with the seconds in which they hold; what does not fit ends the list."""
    servers = struct.pack(">BBxxI", 25, 3, 600) + ADDRESS.packed
    domains = struct.pack(">BBxxI", 31, 3, 0) + b"\3lan\4test\0".ljust(16, b"\0")
    one = RouterOption(index=7, lifetime_seconds=600, name_servers=(ADDRESS,))
    other = RouterOption(index=7, lifetime_seconds=0, search=("lan.test",))
    assert list(parse_router_options(kernel_message(servers) + kernel_message(domains))) == [one, other]
    assert list(parse_router_options(kernel_message(servers + domains))) == [one, other]
    assert list(parse_router_options(kernel_message(servers[:-8]))) == []
    assert list(parse_router_options(kernel_message(b"\x19\0" + servers[2:] + domains))) == []
    half = struct.pack(">BBxxI", 25, 2, 600) + bytes(8)
    assert list(parse_router_options(kernel_message(half + domains))) == [other]
    assert list(parse_router_options(kernel_message(servers, icmp_type=137))) == []


@given(st.binary(max_size=200))
def test_any_options_of_routers(data: bytes) -> None:
    """No options make reading them fail."""
    list(parse_router_options(data))
    list(parse_router_options(kernel_message(data)))
