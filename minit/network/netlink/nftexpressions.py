"""
The matches and actions of a rule of nf_tables, as expressions of the kernel: linux/netfilter/nf_tables.h.

Everything is of family `ip`. `minit/network/netlink/nftables.py` has the tables that rules stand in.
"""

from __future__ import annotations

import sys
from socket import inet_aton

# Name and attributes, the latter without the prefix that they share.
Expression = tuple[str, tuple[tuple[str, object], ...]]
Match = tuple[Expression, ...]

_FAMILY_IPV4 = 2
_PROTOCOLS = {"tcp": 6, "udp": 17}
_REGISTER = 1
_SECOND_REGISTER = 2
_VERDICT_REGISTER = 0
_DROP = 0
_JUMP = -3
_RETURN = -5
_EQUAL = 0
_UNEQUAL = 1
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_SOURCE_OFFSET = 12
_DESTINATION_OFFSET = 16
_DESTINATION_PORT_OFFSET = 2
_META_INPUT_NAME = 6
_META_OUTPUT_NAME = 7
_META_PROTOCOL = 16
_FIB_RESULT_ADDRESS_TYPE = 3
_FIB_OF_DESTINATION = 2
_RTN_LOCAL = 2
_CT_STATUS = 2
_IPS_DST_NAT = 1 << 5
_NAT_OF_DESTINATION = 1
_INTERFACE_NAME_BYTES = 16


# Matches.


def source_in(subnet: str) -> Match:
    """Match packets from an address, or from a subnet in CIDR notation."""
    return _address(_SOURCE_OFFSET, subnet, _EQUAL)


def destination_in(subnet: str) -> Match:
    """Match packets to an address, or to a subnet in CIDR notation."""
    return _address(_DESTINATION_OFFSET, subnet, _EQUAL)


def destination_not_in(subnet: str) -> Match:
    """Match packets to anywhere but a subnet in CIDR notation."""
    return _address(_DESTINATION_OFFSET, subnet, _UNEQUAL)


def destination_is_local() -> Match:
    """Match packets to any address of this machine."""
    lookup = ("fib", (("DREG", _REGISTER), ("RESULT", _FIB_RESULT_ADDRESS_TYPE), ("FLAGS", _FIB_OF_DESTINATION)))
    return (lookup, _compare(_RTN_LOCAL.to_bytes(4, sys.byteorder)))


def destination_port(protocol: str, port: int) -> Match:
    """Match packets to a port; `protocol` is tcp or udp."""
    return (
        _meta(_META_PROTOCOL),
        _compare(bytes([_PROTOCOLS[protocol]])),
        _payload(_TRANSPORT_HEADER, _DESTINATION_PORT_OFFSET, 2),
        _compare(port.to_bytes(2, "big")),
    )


def enters_by(interface: str) -> Match:
    """Match packets that came in by an interface."""
    return (_meta(_META_INPUT_NAME), _compare(_interface_name(interface)))


def leaves_by(interface: str) -> Match:
    """Match packets that go out by an interface."""
    return (_meta(_META_OUTPUT_NAME), _compare(_interface_name(interface)))


def was_redirected() -> Match:
    """Match packets of connections whose destination was replaced."""
    mask = _IPS_DST_NAT.to_bytes(4, sys.byteorder)
    status = ("ct", (("DREG", _REGISTER), ("KEY", _CT_STATUS)))
    return (status, _mask(mask), _compare(bytes(4), _UNEQUAL))


# Statements.


def drop() -> Match:
    """Drop the packet."""
    return (_verdict(_DROP),)


def leave() -> Match:
    """Go back to the chain before, or end the evaluation of this one."""
    return (_verdict(_RETURN),)


def jump(chain: str) -> Match:
    """Go on in another chain of the table."""
    return (_verdict(_JUMP, chain),)


def masquerade() -> Match:
    """Replace the source by the address of the interface that the packet leaves by."""
    return (("masq", ()),)


def redirect_to(address: str, port: int) -> Match:
    """Replace the destination."""
    return (
        ("immediate", (("DREG", _REGISTER), ("DATA", _data(inet_aton(address))))),
        ("immediate", (("DREG", _SECOND_REGISTER), ("DATA", _data(port.to_bytes(2, "big"))))),
        (
            "nat",
            (
                ("TYPE", _NAT_OF_DESTINATION),
                ("FAMILY", _FAMILY_IPV4),
                ("REG_ADDR_MIN", _REGISTER),
                ("REG_PROTO_MIN", _SECOND_REGISTER),
            ),
        ),
    )


def _meta(key: int) -> Expression:
    return ("meta", (("DREG", _REGISTER), ("KEY", key)))


def _payload(base: int, offset: int, size_bytes: int) -> Expression:
    return ("payload", (("DREG", _REGISTER), ("BASE", base), ("OFFSET", offset), ("LEN", size_bytes)))


def _mask(mask: bytes) -> Expression:
    attributes = (("LEN", len(mask)), ("MASK", _data(mask)), ("XOR", _data(bytes(len(mask)))))
    return ("bitwise", (("SREG", _REGISTER), ("DREG", _REGISTER), *attributes))


def _compare(value: bytes, operation: int = _EQUAL) -> Expression:
    return ("cmp", (("SREG", _REGISTER), ("OP", operation), ("DATA", _data(value))))


def _verdict(code: int, chain: str | None = None) -> Expression:
    attributes: list[tuple[str, object]] = [("NFTA_VERDICT_CODE", code)]
    if chain is not None:
        attributes.append(("NFTA_VERDICT_CHAIN", chain))
    data = {"attrs": [("NFTA_DATA_VERDICT", {"attrs": attributes})]}
    return ("immediate", (("DREG", _VERDICT_REGISTER), ("DATA", data)))


def _data(value: bytes) -> dict[str, object]:
    return {"attrs": [("NFTA_DATA_VALUE", value)]}


def _address(offset: int, subnet: str, operation: int) -> Match:
    address, _, length = subnet.partition("/")
    bits = int(length or 32)
    mask = ((1 << 32) - (1 << (32 - bits))).to_bytes(4, "big")
    network = bytes(one & other for one, other in zip(inet_aton(address), mask))
    load = _payload(_NETWORK_HEADER, offset, 4)
    if bits == 32:
        return (load, _compare(network, operation))
    return (load, _mask(mask), _compare(network, operation))


def _interface_name(interface: str) -> bytes:
    return interface.encode("utf-8", "surrogateescape").ljust(_INTERFACE_NAME_BYTES, b"\0")
