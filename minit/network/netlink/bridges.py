"""Bridges, ports, and VLANs of both: rtnetlink(7), bridge(8), linux/if_bridge.h."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any

from pyroute2.netlink import NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.rtnl import RTM_DELLINK, RTM_NEWLINK, RTM_SETLINK

from minit.base.value import Value
from minit.network.netlink.links import Links
from minit.network.netlink.messages import Link, link_message

_AF_BRIDGE = 7
_PVID = 0x2
_UNTAGGED = 0x4
_RANGE_BEGIN = 0x8
_RANGE_END = 0x10
_SELF = 2  # BRIDGE_FLAGS_SELF: the bridge itself, not the port of another one
_DEFAULT_VLAN = 1


class Vlans(Value):
    """The VLANs of a port: the VLAN of untagged packets, 0 for none, and ranges of tagged VLANs."""

    untagged: int = 0
    tagged: tuple[tuple[int, int], ...] = ()
    keeps_default: bool = True


def add_bridge(links: Links, name: str, mtu: int | None) -> None:
    """Make a bridge, unless there is a link of that name."""
    # Without an address of its own a bridge takes the lowest address of its ports, and another whenever the ports
    # change.
    mac = bytes([0x02]) + os.urandom(5)
    attributes: list[Any] = [["IFLA_IFNAME", name], ["IFLA_ADDRESS", mac.hex(":")]]
    if mtu is not None:
        attributes.append(["IFLA_MTU", mtu])
    message = link_message(RTM_NEWLINK, NLM_F_CREATE | NLM_F_EXCL)
    message["attrs"] = [*attributes, ["IFLA_LINKINFO", {"attrs": [["IFLA_INFO_KIND", "bridge"]]}]]
    links.change(f"create bridge {name}", message, unless=errno.EEXIST)


def join_bridge(links: Links, link: Link, bridge: Link, *, hairpin: bool = False, isolated: bool = False) -> None:
    """
    Make a link a port of a bridge.

    With `hairpin` the bridge may send a packet back by the port of its arrival. `isolated` ports reach only ports that
    are not isolated.
    """
    message = link_message(RTM_SETLINK)
    message["index"] = link.index
    message["attrs"] = [["IFLA_MASTER", bridge.index]]
    links.change(f"connect {link.name} to bridge {bridge.name}", message)
    modes = {"IFLA_BRPORT_MODE": hairpin, "IFLA_BRPORT_ISOLATED": isolated}
    chosen = [name for name, is_on in modes.items() if is_on]
    if chosen:
        _set_modes(links, link, chosen)


def isolate_port(links: Links, port: Link) -> None:
    """Have a port of a bridge reach only ports that are not isolated."""
    _set_modes(links, port, ["IFLA_BRPORT_ISOLATED"])


def _set_modes(links: Links, port: Link, names: Sequence[str]) -> None:
    message = link_message(RTM_NEWLINK)
    message["index"] = port.index
    data = [["IFLA_INFO_SLAVE_KIND", "bridge"], ["IFLA_INFO_SLAVE_DATA", {"attrs": [[name, 1] for name in names]}]]
    message["attrs"] = [["IFLA_LINKINFO", {"attrs": data}]]
    links.change(f"set the modes of {port.name} as a port of its bridge", message)


def filter_vlans(links: Links, bridge: Link) -> None:
    """Have a bridge keep VLANs apart."""
    message = link_message(RTM_NEWLINK)
    message["index"] = bridge.index
    data = [["IFLA_INFO_KIND", "bridge"], ["IFLA_INFO_DATA", {"attrs": [["IFLA_BR_VLAN_FILTERING", 1]]}]]
    message["attrs"] = [["IFLA_LINKINFO", {"attrs": data}]]
    links.change(f"switch on VLANs of bridge {bridge.name} (CONFIG_BRIDGE_VLAN_FILTERING)", message)


def set_vlans(links: Links, port: Link, vlans: Vlans) -> None:
    """Make a port a member of VLANs."""
    if not vlans.keeps_default:
        _change_vlans(links, port, _DEFAULT_VLAN, _DEFAULT_VLAN, is_removed=True)
    for first, last in vlans.tagged:
        _change_vlans(links, port, first, last)
    if vlans.untagged:
        _change_vlans(links, port, vlans.untagged, vlans.untagged, flags=_PVID | _UNTAGGED)


def allow_vlan(links: Links, bridge: Link, vlan: int) -> None:
    """Make the bridge itself a member of a VLAN."""
    _change_vlans(links, bridge, vlan, vlan, own=_SELF)


def _change_vlans(
    links: Links, link: Link, first: int, last: int, flags: int = 0, own: int = 0, is_removed: bool = False
) -> None:
    bounds = [(flags, first)] if first == last else [(flags | _RANGE_BEGIN, first), (flags | _RANGE_END, last)]
    attributes: list[Any] = [["IFLA_BRIDGE_FLAGS", own]] if own else []
    attributes += [["IFLA_BRIDGE_VLAN_INFO", {"flags": one, "vid": vid}] for one, vid in bounds]
    message = link_message(RTM_DELLINK if is_removed else RTM_SETLINK)
    message["family"] = _AF_BRIDGE
    message["index"] = link.index
    message["attrs"] = [["IFLA_AF_SPEC", {"attrs": attributes}]]
    what = f"{first}" if first == last else f"{first}-{last}"
    links.change(f"{'remove' if is_removed else 'add'} VLAN {what} of {link.name}", message)
