"""Duplicate address detection: waiting for the kernel to find out whether a neighbour has an address, RFC 4862."""

from __future__ import annotations

import time
from collections.abc import Collection

from pyroute2.netlink.rtnl import RTMGRP_IPV6_IFADDR
from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_DADFAILED, IFA_F_TENTATIVE

from minit.errors import NetworkError
from minit.loop import wait_readable
from minit.network.addresses import IPInterface
from minit.network.netlink.events import KernelEvents
from minit.network.netlink.links import Links, run_in_namespace
from minit.network.netlink.messages import Link

_TIMEOUT_SECONDS = 10.0  # as long as the reference plugins wait


class DuplicateDetection:
    """The kernel's events about addresses in the namespace of a descriptor, from before any is added."""

    def __init__(self, namespace: int, timeout_seconds: float = _TIMEOUT_SECONDS) -> None:
        self._timeout_seconds = timeout_seconds
        self._events = run_in_namespace(namespace, lambda: KernelEvents(RTMGRP_IPV6_IFADDR))

    def __enter__(self) -> DuplicateDetection:
        return self

    def __exit__(self, *_: object) -> None:
        self._events.__exit__()

    def wait(self, links: Links, link: Link, addresses: Collection[IPInterface]) -> None:
        """Wait until a link that is up can use its addresses; NetworkError if somebody else has one of them."""
        end = time.monotonic() + self._timeout_seconds
        while True:
            flags = {address: flag for address, flag in links.address_flags(link) if address in addresses}
            duplicate = next((address for address, flag in flags.items() if flag & IFA_F_DADFAILED), None)
            if duplicate is not None:
                raise NetworkError(f"address {duplicate} of {link.name} is a neighbour's already: it needs another one")
            tentative = next((address for address, flag in flags.items() if flag & IFA_F_TENTATIVE), None)
            if tentative is None:
                return
            remaining = end - time.monotonic()
            if remaining <= 0:
                reason = "" if links.get(link.name).carrier else ": the link below has no carrier"
                raise NetworkError(f"address {tentative} of {link.name} is still tentative{reason}")
            wait_readable([self._events.fileno()], remaining)
            self._events.drop()
