"""What of a link can be changed while it is there: ip-link(8), `set`."""

from __future__ import annotations

import errno
from typing import Any

from pyroute2.netlink.rtnl import RTM_GETLINK, RTM_SETLINK

from minit.base.errors import NetworkError, describe
from minit.base.value import Value
from minit.network.netlink.links import run_in_namespace
from minit.network.netlink.messages import link_message
from minit.network.netlink.transport import NETLINK_ROUTE, Netlink

_IFF_PROMISC = 0x100
_IFF_ALLMULTI = 0x200


class Attributes(Value):
    """Of a link, or to give to it, where None leaves what it has; `queue_length` is a number of packets."""

    mac: str | None = None
    mtu: int | None = None
    promiscuous: bool | None = None
    all_multicast: bool | None = None
    queue_length: int | None = None


class LinkAttributes:
    """The link of a name in the network namespace of a descriptor."""

    def __init__(self, namespace: int, name: str) -> None:
        self._name = name
        self._netlink = run_in_namespace(namespace, lambda: Netlink(NETLINK_ROUTE))

    def __enter__(self) -> LinkAttributes:
        return self

    def __exit__(self, *_: object) -> None:
        self._netlink.__exit__()

    def read(self) -> Attributes | None:
        """Return all that it has, None if there is no such link; NetworkError if that cannot be told."""
        message = link_message(RTM_GETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name]]
        try:
            answer = self._netlink.ask(message)
        except OSError as error:
            if error.errno == errno.ENODEV:
                return None
            raise NetworkError(f"cannot look up interface {self._name}: {describe(error)}") from error
        return Attributes(
            mac=answer.get_attr("IFLA_ADDRESS") or "",
            mtu=answer.get_attr("IFLA_MTU"),
            promiscuous=bool(answer["flags"] & _IFF_PROMISC),
            all_multicast=bool(answer["flags"] & _IFF_ALLMULTI),
            queue_length=answer.get_attr("IFLA_TXQLEN"),
        )

    def write(self, wanted: Attributes) -> None:
        """Give it what is wanted, one after the other; NetworkError names the first that it cannot have."""
        if wanted.mac is not None:
            self._change(f"the hardware address {wanted.mac}", ["IFLA_ADDRESS", wanted.mac])
        if wanted.promiscuous is not None:
            self._switch("promiscuous mode", _IFF_PROMISC, wanted.promiscuous)
        if wanted.mtu is not None:
            self._change(f"the MTU {wanted.mtu}", ["IFLA_MTU", wanted.mtu])
        if wanted.all_multicast is not None:
            self._switch("all-multicast mode", _IFF_ALLMULTI, wanted.all_multicast)
        if wanted.queue_length is not None:
            self._change(f"the queue length {wanted.queue_length}", ["IFLA_TXQLEN", wanted.queue_length])

    def _change(self, what: str, attribute: list[object]) -> None:
        message = link_message(RTM_SETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name], attribute]
        self._request(f"give interface {self._name} {what}", message)

    def _switch(self, what: str, flag: int, on: bool) -> None:
        message = link_message(RTM_SETLINK)
        message["attrs"] = [["IFLA_IFNAME", self._name]]
        message["flags"] = flag if on else 0
        message["change"] = flag
        self._request(f"switch {what} of interface {self._name} {'on' if on else 'off'}", message)

    def _request(self, what: str, message: Any) -> None:
        try:
            self._netlink.request(message)
        except OSError as error:
            raise NetworkError(f"cannot {what}: {describe(error)}") from error
