"""
The users of ports of the host that a pod wants: other pods, or listening programs.

nf_tables itself lets any number of tables claim a port. The comments of rules have a pod's ports.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address

from minit.base.errors import NetworkError, describe
from minit.manifest.hostports import HostPorts, overlap
from minit.network.addresses import IPAddress
from minit.network.netlink.nftables import Table, read_rule_comments, read_tables
from minit.network.packetfilter.tables import TABLE_PREFIX, pod_of_ports
from minit.plan.networks.networkplan import ForwardedPort
from minit.plan.networks.ports import host_text, numbers_text
from minit.podfiles.podfile import is_locked

PORTS_CHAIN = "ports"

_COMMENT_ARROW = " to pod port "
# Relative to the pod directory: places of pods that have ended; a pod in `run` need not have ended.
_RUNNING = ".."
_ENDED = ("../../exited-garbage", "../../garbage")
# States of a socket that accepts packets to its port, linux/net/tcp_states.h.
_TAKING_STATES = {"tcp": "0A", "udp": "07"}
_PROTOCOLS = ("tcp", "udp", "sctp")
_SOCKET_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_EVERY_IPV4 = IPv4Address("0.0.0.0")
_EVERY_IPV6 = IPv6Address("::")


def refuse_taken_ports(ports: Sequence[ForwardedPort], own_table: str) -> list[str]:
    """
    Return the tables of ended pods that still hold a port.

    NetworkError for the first port of a running pod or of a listener on the host. The working directory is the pod's;
    `own_table` belongs to the pod. Each port has an address.
    """
    ended = [table for table, held in _tables(own_table).items() if _refuse_held(ports, table, held)]
    # The kernel takes milliseconds for each of its lists, however short.
    listening = {protocol: list(_listening(protocol, ports)) for protocol in {port.protocol for port in ports}}
    for port in ports:
        listener = _find_listener(port, listening[port.protocol])
        if listener is not None:
            raise NetworkError(f"{_name(port)} is in use: a program on the host listens at {listener}")
    return ended


def read_ports(table: Table) -> list[ForwardedPort]:
    """Return the forwarded ports of a table."""
    ports = map(parse_port_comment, read_rule_comments(table, PORTS_CHAIN))
    return [port for port in ports if port is not None]


def port_comment(port: ForwardedPort) -> str:
    """Return the comment of a rule that forwards a port with an address."""
    return f"{port.protocol} {_place(port)}{_COMMENT_ARROW}{port.pod_port}"


def parse_port_comment(text: str) -> ForwardedPort | None:
    """Return the forwarded port in a rule's comment, None for a foreign comment."""
    place, _, pod_port = text.partition(_COMMENT_ARROW)
    protocol, _, address = place.partition(" ")
    host_ip, _, host_ports = address.rpartition(":")
    first, _, last = host_ports.partition("-")
    if protocol not in _PROTOCOLS or not all(map(_is_number, (first, last or first, pod_port))):
        return None
    count = int(last or first) - int(first) + 1
    if count < 1:
        return None
    try:
        return ForwardedPort(
            protocol=protocol,
            host_port=int(first),
            pod_port=int(pod_port),
            host_ip=ip_address(host_ip.removeprefix("[").removesuffix("]")),
            count=count,
        )
    except ValueError:
        return None


def _tables(own_table: str) -> dict[str, list[ForwardedPort]]:
    """Return the ports in the tables of other pods, by the names of the tables."""
    tables: dict[str, list[ForwardedPort]] = {}
    for table in sorted(read_tables(TABLE_PREFIX), key=lambda table: table.name):
        if pod_of_ports(table.name) is not None and table.name != own_table:
            tables.setdefault(table.name, []).extend(read_ports(table))
    return tables


def _refuse_held(ports: Sequence[ForwardedPort], table: str, held: Sequence[ForwardedPort]) -> bool:
    """Tell whether a table holds a port for an ended pod; NetworkError if the pod still runs."""
    places = [other.host_ports for other in held]
    taken = next((port for port in ports if any(overlap(port.host_ports, place) for place in places)), None)
    if taken is None:
        return False
    pod = pod_of_ports(table)
    if pod and _may_run(pod):
        raise NetworkError(f"{_name(taken)} is in use: forwarded to pod {pod} (nftables table {table})")
    return True


def _may_run(uuid: str) -> bool:
    """Tell whether a pod may be running: its directory is locked, or belongs to another data directory."""
    try:
        return is_locked(f"{_RUNNING}/{uuid}")
    except FileNotFoundError:
        return not any(os.path.isdir(f"{place}/{uuid}") for place in _ENDED)


def _find_listener(port: ForwardedPort, listening: Sequence[tuple[IPAddress, int]]) -> str | None:
    """Return the address of a listener in this network namespace that would take the pod's packets."""
    for address, number in listening:
        place = HostPorts(protocol=port.protocol, address=address, first=number)
        is_there = port.host_port <= number < port.host_port + port.count
        if overlap(port.host_ports, place) or (is_there and address == _EVERY_IPV6 and _is_taken(port, number)):
            return f"{host_text(address)}:{number}"
    return None


def _listening(protocol: str, ports: Sequence[ForwardedPort]) -> Iterator[tuple[IPAddress, int]]:
    """Yield where sockets are open to anybody at some of the ports, proc_net_tcp.txt of the kernel."""
    state = _TAKING_STATES[protocol]
    ranges = [range(port.host_port, port.host_port + port.count) for port in ports if port.protocol == protocol]
    wanted: set[int] = set().union(*ranges)
    for path in (f"/proc/self/net/{protocol}", f"/proc/self/net/{protocol}6"):
        try:
            with open(path, encoding="utf-8") as lines:
                next(lines, None)  # the heading
                for line in lines:
                    _, local, _, state_of_line = line.split(None, 4)[:4]
                    address, _, number = local.partition(":")
                    if state_of_line == state and int(number, 16) in wanted:
                        yield _address(address), int(number, 16)
                    elif state_of_line != state and protocol == "tcp":
                        break  # connections come after all that listen, and may be many
        except FileNotFoundError:
            pass  # a kernel without IPv6
        except OSError as error:
            raise NetworkError(f"cannot see which ports are in use: {describe(error)}") from error


def _address(words: str) -> IPAddress:
    """Return an address from the kernel's form, words of 32 bits in the machine's byte order."""
    data = bytes.fromhex(words)
    if sys.byteorder == "little":
        data = b"".join(data[index : index + 4][::-1] for index in range(0, len(data), 4))
    address = ip_address(data)
    return (address.ipv4_mapped if isinstance(address, IPv6Address) else None) or address


def _is_taken(port: ForwardedPort, number: int) -> bool:
    """Tell whether a socket at [::] takes IPv4 too, which the kernel's list does not show."""
    if not isinstance(port.host_ip, IPv4Address):
        return False
    probe = socket.socket(socket.AF_INET, _SOCKET_KINDS[port.protocol] | socket.SOCK_CLOEXEC)
    try:
        if port.protocol == "tcp":
            # Only a listening socket counts, not the remains of connections.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((str(port.host_ip), number))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    finally:
        probe.close()
    return False


def _place(port: ForwardedPort) -> str:
    assert port.host_ip is not None
    return f"{host_text(port.host_ip)}:{numbers_text(port.host_port, port.count)}"


def _name(port: ForwardedPort) -> str:
    at: dict[IPAddress, str] = {_EVERY_IPV4: "every address", _EVERY_IPV6: "every IPv6 address"}
    ports = f"port{'' if port.count == 1 else 's'} {numbers_text(port.host_port, port.count)}"
    assert port.host_ip is not None
    return f"{port.protocol} {ports} of {at.get(port.host_ip, port.host_ip)}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5
