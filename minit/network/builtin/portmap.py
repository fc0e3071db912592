"""The meta plugin portmap: ports of the host that lead to the container, on request of the runtime."""

from __future__ import annotations

from ipaddress import ip_interface

from minit.base.errors import NetworkError
from minit.manifest.reader import Node
from minit.network.addresses import IPInterface, parse_address, parse_interface
from minit.network.builtin.call import Call, network_name, refuse, truth, valid_attachments
from minit.network.builtin.sides import Undo
from minit.network.netlink import nftexpressions
from minit.network.netlink.nftexpressions import Match
from minit.network.packetfilter.forwarding import (
    Forwarding,
    forwarded_ports,
    map_ports,
    ports_of,
    stop_forwarding,
    stop_forwarding_of,
)
from minit.network.packetfilter.hostroutes import interface_towards
from minit.network.packetfilter.tables import ports_table
from minit.network.protocol import Result
from minit.plan.networks.networkplan import ForwardedPort
from minit.plan.networks.ports import describe_port

_MAX_PORT = 65535
_MAX_MARK_BIT = 31
_PROTOCOLS = ("tcp", "udp", "sctp")
_VERSIONS = {4: "conditionsV4", 6: "conditionsV6"}
_NOT = "!"
_DESTINATION = ("-d", "--dst", "--destination")
_SOURCE = ("-s", "--src", "--source")
_INPUT = ("-i", "--in-interface")


def add(call: Call) -> Result:
    """Forward the ports in the runtime's request, and pass on the result of the plugins before."""
    previous = call.need_result_before()
    wanted = _read(call.config, previous)
    if any(one.ports for one in wanted):
        table = _table(call.request.container_id, call.request.interface)
        with Undo() as undo:
            undo.add(lambda: stop_forwarding(table))
            map_ports(table, wanted, network_name(call.config))
    return previous


def delete(call: Call) -> None:
    """Forward nothing any more."""
    stop_forwarding(_table(call.request.container_id, call.request.interface))


def check(call: Call) -> None:
    """Raise NetworkError with the first port that is not forwarded."""
    previous = call.need_result_of_add()
    present = forwarded_ports(_table(call.request.container_id, call.request.interface))
    for one in _read(call.config, previous):
        for port in one.ports:
            if port not in present:
                raise NetworkError(f"port {describe_port(port)} is not forwarded to {one.address}")


def collect(call: Call) -> None:
    """Stop forwarding to vanished attachments to this network."""
    valid = [_table(*attachment) for attachment in valid_attachments(call.config)]
    stop_forwarding_of(network_name(call.config), valid)


def _table(container_id: str, interface: str) -> str:
    return ports_table(f"{container_id}-{interface}")


def _read(config: Node, previous: Result) -> list[Forwarding]:
    """Return the ports of a configuration, for each family in which the container has an address."""
    ports = config["runtimeConfig"]["portMappings"].each(_port)
    masquerades = config["snat"].optional(Node.boolean) is not False
    always = truth(config["masqAll"])
    conditions = {version: _conditions(config[key], version) for version, key in _VERSIONS.items()}
    # No packet is marked here: the masquerading rules know the packets by destination.
    config["markMasqBit"].optional(lambda node: node.integer(0, _MAX_MARK_BIT))
    if config["externalSetMarkChain"].raw():
        raise refuse(config["externalSetMarkChain"], "a chain of iptables cannot be called by nftables")
    if config["backend"].raw() not in (None, "", "nftables"):
        raise refuse(config["backend"], "ports are forwarded by nftables")
    found = []
    for version in _VERSIONS:
        address = previous.first_address(version)
        if address is not None:
            found.append(
                Forwarding(
                    address=address.address.ip,
                    interface=interface_towards(address.address.ip),
                    ports=ports_of(ports, version),
                    conditions=conditions[version],
                    masquerades=masquerades,
                    always=always,
                )
            )
    return found


def _port(node: Node) -> ForwardedPort:
    host_ip = node["hostIP"]
    return ForwardedPort(
        protocol=node["protocol"].matching(lambda text: text.lower() in _PROTOCOLS, "tcp, udp or sctp").lower(),
        host_port=node["hostPort"].integer(1, _MAX_PORT),
        pod_port=node["containerPort"].integer(1, _MAX_PORT),
        host_ip=host_ip.parsed(parse_address, "an IP address") if host_ip.raw() else None,
    )


def _conditions(node: Node, version: int) -> Match:
    """Return the conditions on source, destination or interface in a list of words for iptables(8)."""
    words = node.elements()
    match: list[nftexpressions.Expression] = []
    while words:
        word = words.pop(0)
        is_not = word.string() == _NOT
        option = _next(node, words) if is_not else word
        value = _next(node, words)
        match += _condition(option, value, version, is_not=is_not)
    return tuple(match)


def _next(node: Node, words: list[Node]) -> Node:
    if not words:
        raise node.error("options of iptables, each with its value")
    return words.pop(0)


def _condition(option: Node, value: Node, version: int, *, is_not: bool) -> Match:
    name = option.string()
    if name in _INPUT:
        return (nftexpressions.enters_not_by if is_not else nftexpressions.enters_by)(value.non_empty())
    if name not in _SOURCE + _DESTINATION:
        raise refuse(option, "of the options of iptables there are -s, -d and -i")
    subnet = value.parsed(_parse_subnet, "a subnet")
    if subnet.version != version:
        raise value.error(f"a subnet of IPv{version}")
    if name in _SOURCE:
        return (nftexpressions.source_not_in if is_not else nftexpressions.source_in)(subnet.network)
    return (nftexpressions.destination_not_in if is_not else nftexpressions.destination_in)(subnet.network)


def _parse_subnet(text: str) -> IPInterface:
    return parse_interface(text) if "/" in text else ip_interface(parse_address(text))
