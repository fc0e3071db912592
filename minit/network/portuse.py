"""
The users of ports of the host that a pod wants: other pods, or programs that listen there.

nf_tables itself lets any number of tables claim a port. A pod's ports are in the comments of its table's rules.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Iterator, Sequence

from minit.errors import NetworkError, describe
from minit.network.netlink.nftables import Table, read_rule_comments, read_tables
from minit.plan.networks.networkplan import ForwardedPort
from minit.plan.networks.ports import EVERY_ADDRESS, overlap
from minit.podlock import is_locked

PORTS_CHAIN = "ports"

_PREFIX = "minit-"
_SUFFIX = "-ports"
_COMMENT_ARROW = " to pod port "
# Relative to the pod directory, where a pod that has ended may be; in `run` it need not have ended.
_RUNNING = ".."
_ENDED = ("../../exited-garbage", "../../garbage")
# States of a socket that takes whatever comes to its port, linux/net/tcp_states.h.
_TAKING_STATES = {"tcp": "0A", "udp": "07"}
_SOCKET_KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
_MAPPED_PREFIX = bytes(10) + b"\xff\xff"


def ports_table(container_id: str) -> str:
    """Return the name of the table of a pod's forwarded ports."""
    return f"{_PREFIX}{container_id}{_SUFFIX}"


def refuse_taken_ports(ports: Sequence[ForwardedPort], own_table: str) -> list[str]:
    """
    Return the tables of pods that have ended and hold some of the ports still.

    NetworkError for the first port that a running pod has or that somebody on the host listens at. The working
    directory is the pod's; `own_table` is that of the pod which wants the ports.
    """
    ended = [table for table, held in _tables(own_table) if _refuse_held(ports, table, held)]
    for port in ports:
        listener = _find_listener(port)
        if listener is not None:
            raise NetworkError(f"{_name(port)} is in use: a program on the host listens at {listener}")
    return ended


def read_ports(table: Table) -> list[ForwardedPort]:
    """Return the ports that a table forwards."""
    ports = map(parse_port_comment, read_rule_comments(table, PORTS_CHAIN))
    return [port for port in ports if port is not None]


def port_comment(port: ForwardedPort) -> str:
    """Return the comment of the rule that forwards a port."""
    return f"{port.protocol} {port.host_ip or EVERY_ADDRESS}:{port.host_port}{_COMMENT_ARROW}{port.pod_port}"


def parse_port_comment(text: str) -> ForwardedPort | None:
    """Return the port that a rule forwards, None if the comment is not one of ours."""
    place, arrow, pod_port = text.partition(_COMMENT_ARROW)
    protocol, _, address = place.partition(" ")
    host_ip, _, host_port = address.rpartition(":")
    if not (arrow and protocol in _SOCKET_KINDS and _is_number(host_port) and _is_number(pod_port)):
        return None
    return ForwardedPort(
        protocol=protocol,
        host_port=int(host_port),
        pod_port=int(pod_port),
        host_ip=None if host_ip == EVERY_ADDRESS else host_ip,
    )


def _tables(own_table: str) -> Iterator[tuple[str, list[ForwardedPort]]]:
    for table in sorted(read_tables(_PREFIX), key=lambda table: table.name):
        if table.name.endswith(_SUFFIX) and table.name != own_table:
            yield table.name, read_ports(table)


def _refuse_held(ports: Sequence[ForwardedPort], table: str, held: Sequence[ForwardedPort]) -> bool:
    """Tell whether a table holds one of the ports for a pod that has ended; NetworkError if that still runs."""
    taken = next((port for port in ports if any(overlap(port, other) for other in held)), None)
    if taken is None:
        return False
    pod = table[len(_PREFIX) : -len(_SUFFIX)]
    if _may_run(pod):
        raise NetworkError(f"{_name(taken)} is in use: forwarded to pod {pod} (nftables table {table})")
    return True


def _may_run(uuid: str) -> bool:
    """Tell whether a pod may be running: its directory is locked, or belongs to another data directory."""
    try:
        return is_locked(f"{_RUNNING}/{uuid}")
    except FileNotFoundError:
        return not any(os.path.isdir(f"{place}/{uuid}") for place in _ENDED)


def _find_listener(port: ForwardedPort) -> str | None:
    """Return the address at which somebody in this network namespace takes what the pod is to get."""
    for address in _listening(f"/proc/self/net/{port.protocol}", port):
        if overlap(port, _at(port, address)):
            return f"{address}:{port.host_port}"
    for address in _listening(f"/proc/self/net/{port.protocol}6", port):
        if address == "::":
            if _is_taken(port):
                return f"[::]:{port.host_port}"
        elif ":" not in address and overlap(port, _at(port, address)):
            return f"{address}:{port.host_port}"
    return None


def _at(port: ForwardedPort, address: str) -> ForwardedPort:
    host_ip = None if address == EVERY_ADDRESS else address
    return ForwardedPort(protocol=port.protocol, host_port=port.host_port, pod_port=port.pod_port, host_ip=host_ip)


def _listening(path: str, port: ForwardedPort) -> Iterator[str]:
    """Yield the addresses of sockets that are open to anybody at a port, proc_net_tcp.txt of the kernel."""
    state = _TAKING_STATES[port.protocol]
    suffix = f":{port.host_port:04X}"
    try:
        with open(path, encoding="utf-8") as lines:
            next(lines, None)  # the heading
            for line in lines:
                _, local, _, state_of_line = line.split(None, 4)[:4]
                if state_of_line == state and local.endswith(suffix):
                    yield _address(local.partition(":")[0])
                elif state_of_line != state and port.protocol == "tcp":
                    return  # connections come after all that listen, and may be many
    except FileNotFoundError:
        return  # a kernel without IPv6
    except OSError as error:
        raise NetworkError(f"cannot see which ports are in use: {describe(error)}") from error


def _address(words: str) -> str:
    """Return an address that the kernel wrote as words of 32 bits in its own order."""
    data = bytes.fromhex(words)
    if sys.byteorder == "little":
        data = b"".join(data[index : index + 4][::-1] for index in range(0, len(data), 4))
    if data.startswith(_MAPPED_PREFIX):
        data = data[len(_MAPPED_PREFIX) :]
    return socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)


def _is_taken(port: ForwardedPort) -> bool:
    """Tell whether the socket at [::] takes IPv4 too, of which the kernel's list says nothing."""
    probe = socket.socket(socket.AF_INET, _SOCKET_KINDS[port.protocol] | socket.SOCK_CLOEXEC)
    try:
        if port.protocol == "tcp":
            # Of what is bound there only what listens counts, not the remains of connections.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((port.host_ip or EVERY_ADDRESS, port.host_port))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    finally:
        probe.close()
    return False


def _name(port: ForwardedPort) -> str:
    return f"{port.protocol} port {port.host_port} of {port.host_ip or 'every address'}"


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5
