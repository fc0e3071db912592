"""
The matches and actions of a rule of nf_tables, as expressions of the kernel: linux/netfilter/nf_tables.h.

Addresses are IPv4 in a table of IPv4, IPv6 in a table of IPv6. A table of an interface sees both, and more: its rules
first name the protocol. `minit/network/netlink/nftables.py` has the tables for the rules.
"""

from __future__ import annotations

import sys
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import TypeAlias

from minit.network.addresses import IPAddress, IPNetwork
from minit.network.netlink.transport import attribute, nested, number, text

# The name of an expression, and its attributes.
Expression: TypeAlias = tuple[str, bytes]
Match: TypeAlias = tuple[Expression, ...]

# Protocols of a link, linux/if_ether.h.
IPV4 = 0x0800
ARP = 0x0806
IPV6 = 0x86DD
# Messages of ICMP, RFC 792 and RFC 1256.
REDIRECT4 = 5
ROUTER_ADVERTISEMENT4 = 9
# Messages of ICMPv6, RFC 4861 and RFC 3810.
ROUTER_SOLICITATION = 133
ROUTER_ADVERTISEMENT = 134
NEIGHBOR_SOLICITATION = 135
NEIGHBOR_ADVERTISEMENT = 136
REDIRECT = 137
LISTENER_REPORT = 143

_FAMILIES = {4: 2, 6: 10}
_PROTOCOLS = {"icmp": 1, "tcp": 6, "udp": 17, "icmpv6": 58, "sctp": 132}
_REGISTER = 1
_SECOND_REGISTER = 2
_VERDICT_REGISTER = 0
_DROP = 0
_ACCEPT = 1
_JUMP = -3
_RETURN = -5
_EQUAL = 0
_UNEQUAL = 1
_LINK_HEADER = 0
_NETWORK_HEADER = 1
_TRANSPORT_HEADER = 2
_LINK_SOURCE_OFFSET = 6
_SOURCE_OFFSETS = {4: 12, 6: 8}
_DESTINATION_OFFSETS = {4: 16, 6: 24}
_SENDER_OFFSET = 8  # of an ARP packet: the hardware address, and then that of IPv4
_SENDER_ADDRESS_OFFSET = 14
_TARGET_ADDRESS_OFFSET = 24
_SOURCE_PORT_OFFSET = 0
_DESTINATION_PORT_OFFSET = 2
_PORT_BYTES = 2
_ICMPV6_TARGET_OFFSET = 8
_ADDRESS_BYTES = 16  # of IPv6
_FRAGMENT_HEADER = 44
_ROUTING_HEADER = 43
_IS_PRESENT = 1
_FRAGMENT_OFFSET_MASK = 0xFFF8
# Neither a protocol nor a type of ICMPv6: both are reserved.
_NOTHING = 255
_HARDWARE_ADDRESS_BYTES = 6
_META_LINK_PROTOCOL = 1
_META_INPUT_NAME = 6
_META_OUTPUT_NAME = 7
_META_PROTOCOL = 16
_FIB_RESULT_ADDRESS_TYPE = 3
_FIB_OF_DESTINATION = 2
_RTN_LOCAL = 2
_CT_DIRECTION = 1
_CT_STATUS = 2
_CT_REPLY = 1
_IPS_DST_NAT = 1 << 5
_NAT_OF_DESTINATION = 1
_INTERFACE_NAME_BYTES = 16


# Matches.


def source_in(subnet: IPAddress | IPNetwork) -> Match:
    """Match packets from an address, or from a subnet."""
    return _address(_SOURCE_OFFSETS, subnet, _EQUAL)


def source_not_in(subnet: IPAddress | IPNetwork) -> Match:
    """Match packets from anywhere but an address, or a subnet."""
    return _address(_SOURCE_OFFSETS, subnet, _UNEQUAL)


def source_ends_in(identifier: bytes) -> Match:
    """Match packets of IPv6 from addresses with an interface identifier at the end, whatever the prefix."""
    offset = _SOURCE_OFFSETS[6] + _ADDRESS_BYTES - len(identifier)
    return (_payload(_NETWORK_HEADER, offset, len(identifier)), _compare(identifier))


def destination_in(subnet: IPAddress | IPNetwork) -> Match:
    """Match packets to an address, or to a subnet."""
    return _address(_DESTINATION_OFFSETS, subnet, _EQUAL)


def destination_not_in(subnet: IPAddress | IPNetwork) -> Match:
    """Match packets to anywhere but an address, or a subnet."""
    return _address(_DESTINATION_OFFSETS, subnet, _UNEQUAL)


def destination_is_local() -> Match:
    """Match packets to any address of this machine."""
    lookup = _expression(
        "fib", number(1, _REGISTER), number(2, _FIB_RESULT_ADDRESS_TYPE), number(3, _FIB_OF_DESTINATION)
    )
    return (lookup, _compare(_RTN_LOCAL.to_bytes(4, sys.byteorder)))


def destination_ports(protocol: str, first: int, count: int = 1) -> Match:
    """Match packets to `count` ports from the first on; `protocol` is tcp, udp or sctp."""
    ports = _compare(_port(first)) if count == 1 else _in_range(_port(first), _port(first + count - 1))
    return (*_transports(protocol), _payload(_TRANSPORT_HEADER, _DESTINATION_PORT_OFFSET, _PORT_BYTES), ports)


def source_port(protocol: str, port: int) -> Match:
    """Match packets from a port; `protocol` is tcp, udp or sctp."""
    load = _payload(_TRANSPORT_HEADER, _SOURCE_PORT_OFFSET, _PORT_BYTES)
    return (*_transports(protocol), load, _compare(_port(port)))


def has_ports(protocol: str) -> Match:
    """Match packets long enough for both ports; no port is 0."""
    load = _payload(_TRANSPORT_HEADER, _SOURCE_PORT_OFFSET, 2 * _PORT_BYTES)
    return (*_transports(protocol), load, _compare(bytes(2 * _PORT_BYTES), _UNEQUAL))


def comes_from(mac: str) -> Match:
    """Match packets sent by the link's address `mac`, six octets in hexadecimal with colons."""
    load = _payload(_LINK_HEADER, _LINK_SOURCE_OFFSET, _HARDWARE_ADDRESS_BYTES)
    return (load, _compare(_octets(mac)))


def carries(protocol: int) -> Match:
    """Match the packets of a single protocol on a link: IPV4, ARP or IPV6."""
    return (_meta(_META_LINK_PROTOCOL), _compare(protocol.to_bytes(2, "big")))


def arp_sender(mac: str, address: IPv4Address | None = None) -> Match:
    """Match packets of ARP whose sender claims to be at `mac` and to have the address."""
    hardware = (_payload(_NETWORK_HEADER, _SENDER_OFFSET, _HARDWARE_ADDRESS_BYTES), _compare(_octets(mac)))
    if address is None:
        return hardware
    return (*hardware, _payload(_NETWORK_HEADER, _SENDER_ADDRESS_OFFSET, 4), _compare(address.packed))


def arp_target(address: IPv4Address) -> Match:
    """Match packets of ARP about an address."""
    return (_payload(_NETWORK_HEADER, _TARGET_ADDRESS_OFFSET, 4), _compare(address.packed))


def has_protocol(protocol: str | None = None) -> Match:
    """Match packets with headers readable up to the header of a protocol, or of any protocol."""
    if protocol is not None:
        return _transports(protocol)
    return (_meta(_META_PROTOCOL), _compare(bytes([_NOTHING]), _UNEQUAL))


def icmpv6_of_any_type() -> Match:
    """Match messages of ICMPv6 long enough for the type."""
    return (*_transports("icmpv6"), _payload(_TRANSPORT_HEADER, 0, 1), _compare(bytes([_NOTHING]), _UNEQUAL))


def has_route() -> Match:
    """Match packets of IPv6 with a header of the nodes to pass by."""
    return (_header(_ROUTING_HEADER, 0, 1, number(5, _IS_PRESENT)), _compare(b"\x01"))


def is_later_fragment() -> Match:
    """Match fragments of IPv6 but for the first."""
    offset = _header(_FRAGMENT_HEADER, 2, 2)
    return (offset, _mask(_FRAGMENT_OFFSET_MASK.to_bytes(2, "big")), _compare(bytes(2), _UNEQUAL))


def icmp(kind: int) -> Match:
    """Match messages of ICMP of a type."""
    return _message("icmp", kind)


def icmpv6(kind: int, target: IPv6Address | bytes | None = None) -> Match:
    """
    Match messages of ICMPv6 of a type, for neighbour discovery also by the address in question.

    Bytes are the end of such an address.
    """
    message = _message("icmpv6", kind)
    if target is None:
        return message
    end = target if isinstance(target, bytes) else target.packed
    offset = _ICMPV6_TARGET_OFFSET + _ADDRESS_BYTES - len(end)
    return (*message, _payload(_TRANSPORT_HEADER, offset, len(end)), _compare(end))


def enters_by(interface: str) -> Match:
    """Match packets from an interface."""
    return (_meta(_META_INPUT_NAME), _compare(_interface_name(interface)))


def enters_not_by(interface: str) -> Match:
    """Match packets from any other interface."""
    return (_meta(_META_INPUT_NAME), _compare(_interface_name(interface), _UNEQUAL))


def leaves_by(interface: str) -> Match:
    """Match packets to an interface."""
    return (_meta(_META_OUTPUT_NAME), _compare(_interface_name(interface)))


def leaves_not_by(interface: str) -> Match:
    """Match packets to any other interface."""
    return (_meta(_META_OUTPUT_NAME), _compare(_interface_name(interface), _UNEQUAL))


def was_redirected() -> Match:
    """Match packets of connections whose destination was replaced."""
    mask = _IPS_DST_NAT.to_bytes(4, sys.byteorder)
    status = _expression("ct", number(1, _REGISTER), number(2, _CT_STATUS))
    return (status, _mask(mask), _compare(bytes(4), _UNEQUAL))


def is_answer() -> Match:
    """Match packets of connections begun by the other end."""
    direction = _expression("ct", number(1, _REGISTER), number(2, _CT_DIRECTION))
    return (direction, _compare(bytes([_CT_REPLY])))


# Statements.


def drop() -> Match:
    """Drop the packet."""
    return (_verdict(_DROP),)


def leave() -> Match:
    """Go back to the calling chain, or end the evaluation of this chain."""
    return (_verdict(_RETURN),)


def jump(chain: str) -> Match:
    """Go on in another chain of the table."""
    return (_verdict(_JUMP, chain),)


def masquerade() -> Match:
    """Replace the source by the address of the outgoing interface."""
    return (_expression("masq"),)


def accept() -> Match:
    """Let the packet pass; chains of other tables at the same hook may still refuse the packet."""
    return (_verdict(_ACCEPT),)


def send_by(index: int) -> Match:
    """Send the packet out by the interface of an index; the evaluation ends."""
    return (_load(_REGISTER, index.to_bytes(4, sys.byteorder)), _expression("fwd", number(1, _REGISTER)))


def redirect_to(address: IPAddress, port: int | None) -> Match:
    """Replace the destination, and its port unless None is given."""
    loads = [_load(_REGISTER, address.packed)]
    registers = [number(3, _REGISTER)]
    if port is not None:
        loads.append(_load(_SECOND_REGISTER, port.to_bytes(2, "big")))
        registers.append(number(5, _SECOND_REGISTER))
    nat = _expression("nat", number(1, _NAT_OF_DESTINATION), number(2, _FAMILIES[address.version]), *registers)
    return (*loads, nat)


# Expressions: attributes are numbered from 1 on in the order of linux/netfilter/nf_tables.h.


def _expression(name: str, *attributes: bytes) -> Expression:
    return (name, b"".join(attributes))


def _meta(key: int) -> Expression:
    return _expression("meta", number(1, _REGISTER), number(2, key))


def _payload(base: int, offset: int, size_bytes: int) -> Expression:
    return _expression("payload", number(1, _REGISTER), number(2, base), number(3, offset), number(4, size_bytes))


def _header(kind: int, offset: int, size_bytes: int, *flags: bytes) -> Expression:
    kind_attribute = attribute(2, bytes([kind]))
    return _expression("exthdr", number(1, _REGISTER), kind_attribute, number(3, offset), number(4, size_bytes), *flags)


def _load(register: int, value: bytes) -> Expression:
    return _expression("immediate", number(1, register), _data(2, value))


def _mask(mask: bytes) -> Expression:
    registers = (number(1, _REGISTER), number(2, _REGISTER))
    return _expression("bitwise", *registers, number(3, len(mask)), _data(4, mask), _data(5, bytes(len(mask))))


def _compare(value: bytes, operation: int = _EQUAL) -> Expression:
    return _expression("cmp", number(1, _REGISTER), number(2, operation), _data(3, value))


def _in_range(first: bytes, last: bytes) -> Expression:
    return _expression("range", number(1, _REGISTER), number(2, _EQUAL), _data(3, first), _data(4, last))


def _verdict(code: int, chain: str | None = None) -> Expression:
    attributes = (number(1, code),) if chain is None else (number(1, code), text(2, chain))
    return _expression("immediate", number(1, _VERDICT_REGISTER), nested(2, nested(2, *attributes)))


def _data(kind: int, value: bytes) -> bytes:
    return nested(kind, attribute(1, value))


def _address(offsets: dict[int, int], subnet: IPAddress | IPNetwork, operation: int) -> Match:
    if isinstance(subnet, (IPv4Network, IPv6Network)) and subnet.prefixlen < subnet.max_prefixlen:
        load = _payload(_NETWORK_HEADER, offsets[subnet.version], len(subnet.netmask.packed))
        return (load, _mask(subnet.netmask.packed), _compare(subnet.network_address.packed, operation))
    address = subnet if isinstance(subnet, (IPv4Address, IPv6Address)) else subnet.network_address
    return (
        _payload(_NETWORK_HEADER, offsets[address.version], len(address.packed)),
        _compare(address.packed, operation),
    )


def _port(number: int) -> bytes:
    return number.to_bytes(_PORT_BYTES, "big")


def _transports(protocol: str) -> Match:
    return (_meta(_META_PROTOCOL), _compare(bytes([_PROTOCOLS[protocol]])))


def _message(protocol: str, kind: int) -> Match:
    return (*_transports(protocol), _payload(_TRANSPORT_HEADER, 0, 1), _compare(bytes([kind])))


def _octets(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))


def _interface_name(interface: str) -> bytes:
    return interface.encode("utf-8", "surrogateescape").ljust(_INTERFACE_NAME_BYTES, b"\0")
