"""A request to a built-in plugin, the configuration of plugins with the keys of the reference plugins, and CNI_ARGS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack

from minit.base import jsontext
from minit.base.errors import NetworkError, UnsupportedFieldError
from minit.base.value import Value
from minit.manifest.reader import Node
from minit.network import uplink
from minit.network.addresses import (
    IPAddress,
    IPInterface,
    parse_address,
    parse_hardware_address,
    parse_interface,
)
from minit.network.protocol import Dns, Request, Result, Route, read_dns, read_route
from minit.podfiles.usersdirectory import is_of_user

Delegate = Callable[[str, str, Mapping[str, object], Result | None], Result]
"""
Makes a request of another plugin, built in or a program: command, type, its configuration, the result before.

The answer to anything but ADD is an empty result. NetworkError has the plugin's words (CNI, "Plugin Delegation").
"""

VALID_ATTACHMENTS = "cni.dev/valid-attachments"

_MAX_MTU = 65535
_MAX_INTERFACE_NAME = 15

_TRUTHS = {"1": True, "true": True, "0": False, "false": False}


class Call(Value):
    """
    A request about an interface of a pod.

    `config` is the configuration for an external plugin, whose errors name its file; unknown keys are ignored, as by
    the reference plugins. `previous` is the result of the plugin before or, for CHECK and DEL, of the last ADD. When
    the descriptor `cancelled` becomes readable, nobody waits for ADD any more. The end of `freed` waits for the
    kernel to free what DEL has removed; without `freed` DEL waits.
    """

    config: Node
    request: Request
    delegate: Delegate
    previous: Result | None = None
    cancelled: int | None = None
    freed: ExitStack | None = None

    @property
    def fields(self) -> Mapping[str, object]:
        """The configuration unchanged, for another plugin to delegate to."""
        raw = self.config.raw()
        assert isinstance(raw, dict)  # it was one when the configuration was parsed
        return raw

    @property
    def asked(self) -> Node:
        """
        The object `args.cni` of the configuration, or an absent value.

        The form of `args` is not fixed (CNI, "Configuration format"): rkt's plugins ignore a list there, for example.
        """
        return self.config["args"].if_object()["cni"].if_object()

    def need_result_before(self) -> Result:
        """Return the result of the plugin before; NetworkError if this plugin is the first of its list."""
        if self.previous is None:
            where = self.config.where
            raise NetworkError(f"{where}: prevResult is missing: the plugin has to follow another one in a list")
        return self.previous

    def need_result_of_add(self) -> Result:
        """Return the result for CHECK to compare with; NetworkError if there is none."""
        if self.previous is None:
            raise NetworkError("CHECK needs the result of ADD")
        return self.previous


class Builtin(Value):
    """
    A plugin as functions, one for each command. The functions raise MinitError or OSError.

    `collect` is GC and `status` STATUS, which are about no interface; None for a plugin that ignores the command.
    """

    add: Callable[[Call], Result]
    delete: Callable[[Call], None]
    check: Callable[[Call], None]
    collect: Callable[[Call], None] | None = None
    status: Callable[[Call], None] | None = None


def network_name(config: Node) -> str:
    """Return the name of the network, which names the directory of its leases; ManifestError for an invalid name."""
    return config["name"].matching(_is_file_name, "the name of a network")


def ipam_type(config: Node) -> str | None:
    """Return the type of the address manager, None for a network without addresses."""
    ipam = config["ipam"]
    return ipam["type"].matching(_is_file_name, "the name of a plugin") if ipam.raw() else None


class Protection(Value):
    """
    The part of the packet filter in a pod's network.

    `ipMasq` hides the pod behind the host's address. `spoofCheck`, unless off, keeps the pod to its addresses;
    `macspoofchk` at least to its hardware address. `restricted` keeps the pod to its own subnet.
    """

    masquerades: bool
    checks_senders: bool
    checks_macs: bool
    restricts: bool

    @property
    def is_needed(self) -> bool:
        """Tell whether any rule is needed."""
        return self.masquerades or self.checks_senders or self.checks_macs or self.restricts


def protection(config: Node) -> Protection:
    """Return the configuration of the packet filter."""
    return Protection(
        masquerades=truth(config["ipMasq"]),
        checks_senders=config["spoofCheck"].optional(Node.boolean) is not False,
        checks_macs=truth(config["macspoofchk"]),
        restricts=truth(config["restricted"]),
    )


def accepts_routers(config: Node) -> bool:
    """Tell whether a pod follows router advertisements of the network, `acceptRa`."""
    return truth(config["acceptRa"])


def dns(config: Node) -> Dns:
    """Return the DNS settings of a configuration."""
    return read_dns(config["dns"])


def routes(ipam: Node) -> tuple[Route, ...]:
    """Return the routes beside the addresses."""
    return ipam["routes"].each(read_route)


def mtu(config: Node) -> int | None:
    """Return the MTU in bytes, None to leave the MTU to the kernel."""
    return config["mtu"].optional(lambda node: node.integer(0, _MAX_MTU)) or None


def mtu_of_pair(config: Node) -> int | None:
    """Return the MTU of a pair of links: by default a user's is the uplink's, since each packet costs the uplink."""
    return mtu(config) or (uplink.MTU if is_of_user() else None)


def file_name(node: Node, expected: str) -> str:
    """Return a string that is a valid file name."""
    return node.matching(_is_file_name, expected)


def interface_name(node: Node) -> str | None:
    """Return the name of an interface, None for an absent node."""
    return node.matching(_is_interface_name, "the name of an interface") if node.raw() else None


def valid_attachments(config: Node) -> frozenset[tuple[str, str]]:
    """Return container and interface of each living attachment, which a request for GC has to list."""
    node = config[VALID_ATTACHMENTS]
    if not node.given:
        raise node.error("a list")
    return frozenset(node.each(lambda one: (one["containerID"].string(), one["ifname"].string())))


def mac_address(node: Node) -> str | None:
    """Return a hardware address, None for an absent node."""
    return node.parsed(parse_hardware_address, "a hardware address") if node.raw() else None


def truth(node: Node) -> bool:
    """Return true or false; false is the default."""
    return bool(node.optional(Node.boolean))


def refuse(node: Node, reason: str) -> UnsupportedFieldError:
    """Build the error for a key that is known and not provided."""
    return UnsupportedFieldError(str(node.error(f"nothing here: {reason}")))


def _is_file_name(text: str) -> bool:
    return text not in ("", ".", "..") and "/" not in text


def _is_interface_name(text: str) -> bool:
    # As the kernel's dev_valid_name(), but without %, which the kernel replaces by a number: the link's name would
    # differ.
    return _is_file_name(text) and len(text.encode()) <= _MAX_INTERFACE_NAME and not set(text) & set("%: \t\n\v\f\r")


class Arguments(Value):
    """The request of CNI_ARGS: addresses to have, some with a prefix length, gateways, and a hardware address."""

    addresses: tuple[IPAddress | IPInterface, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    mac: str | None = None


def requested_addresses(call: Call) -> tuple[IPAddress | IPInterface, ...]:
    """
    Return the addresses that CNI_ARGS, `args.cni.ips` and the capability `ips` ask for (CNI, "Well-known
    Capabilities").
    """
    config = call.config
    asked = [*call.asked["ips"].each(_address_at), *config["runtimeConfig"]["ips"].each(_address_at)]
    return (*parse_arguments(call.request.args).addresses, *asked)


def requested_mac(call: Call) -> str | None:
    """
    Return the hardware address that CNI_ARGS, `args.cni.mac` or the capability `mac` ask for; the last has priority.
    """
    config = call.config
    asked = mac_address(config["runtimeConfig"]["mac"]) or mac_address(call.asked["mac"])
    return asked or parse_arguments(call.request.args).mac


def parse_arguments(text: str) -> Arguments:
    """
    Return the arguments in `text`.

    NetworkError for text other than `KEY=VALUE`, and for an unknown key without `IgnoreUnknown=1`: the user should
    notice an unfulfilled wish. A key for another plugin of a chain is known.
    """
    addresses: tuple[IPAddress | IPInterface, ...] = ()
    gateways: tuple[IPAddress, ...] = ()
    mac = None
    ignored = False
    unknown = []
    for pair in text.split(";") if text else ():
        key, equals, value = pair.partition("=")
        if not equals or "=" in value:
            raise _refused(pair, "expected KEY=VALUE")
        try:
            if key == "IP":
                # Said once for each address, too: --net separates networks by commas.
                addresses += tuple(map(_parse, value.split(",") if value else ()))
            elif key == "GATEWAY":
                gateways += tuple(map(parse_address, value.split(",") if value else ()))
            elif key == "MAC":
                mac = parse_hardware_address(value) if value else None
            elif key == "IgnoreUnknown":
                if value.lower() not in _TRUTHS:
                    raise _refused(pair, "expected 1, true, 0 or false")
                ignored = _TRUTHS[value.lower()]
            else:
                unknown.append(pair)
        except ValueError as error:
            raise _refused(pair, f"expected {'a hardware' if key == 'MAC' else 'an IP'} address") from error
    if unknown and not ignored:
        raise _refused(unknown[0], "unknown; IgnoreUnknown=1 allows it")
    return Arguments(addresses=addresses, gateways=gateways, mac=mac)


def _parse(text: str) -> IPAddress | IPInterface:
    return parse_interface(text) if "/" in text else parse_address(text)


def _address_at(node: Node) -> IPAddress | IPInterface:
    return node.parsed(_parse, "an IP address")


def _refused(pair: str, reason: str) -> NetworkError:
    return NetworkError(f"CNI_ARGS: {jsontext.quote(pair)}: {reason}")
