"""The settings of links in /proc/sys/net that the plugins change (ip-sysctl.rst of the kernel)."""

from __future__ import annotations

import os
from collections.abc import Iterable

from minit.base.errors import NetworkError, describe
from minit.network.addresses import IPInterface
from minit.network.netlink.links import run_in_namespace, write_sysctl
from minit.network.netlink.messages import Link

_IPV6 = "/proc/sys/net/ipv6/conf"
_FORWARDING = "net/ipv6/conf/all/forwarding"
_SPECIAL = ("all", "default", "lo")


def ignore_routers(name: str) -> None:
    """Have the host's end of a link take no router advertisement: no pod may be taken for a router."""
    _write_ipv6(name, "accept_ra", "0")


def prepare_pod_link(
    namespace: int,
    link: Link,
    addresses: Iterable[IPInterface],
    *,
    accept_ra: bool,
    accept_dad: bool | None = None,
    tells_neighbours: bool = True,
) -> None:
    """
    Settle how the pod's end behaves before it is up; `namespace` is a descriptor of the pod's network namespace.

    It takes router advertisements only if the network says so, and tells its neighbours at once that it has an address,
    which another pod may have had a moment ago, if it has any. With `accept_dad` it asks whether its own one is free,
    and knows its question again when it comes back; with False it does not; None leaves that to the pod's network.
    """
    versions = {address.version for address in addresses}

    def write() -> None:
        _write_ipv6(link.name, "accept_ra", "2" if accept_ra else "0")
        if accept_dad is not None:
            _write_ipv6(link.name, "accept_dad", str(int(accept_dad)))
        if accept_dad:
            _write_ipv6(link.name, "enhanced_dad", "1")
        if versions and tells_neighbours:
            write_sysctl(f"net/ipv4/conf/{link.name}/arp_notify", "1")
        if 6 in versions:
            write_sysctl(f"net/ipv6/conf/{link.name}/disable_ipv6", "0")
            write_sysctl("net/ipv6/conf/lo/disable_ipv6", "0")
            # As the reference plugins have it: a link that is down for a while keeps its addresses, as it does of IPv4.
            write_sysctl(f"net/ipv6/conf/{link.name}/keep_addr_on_down", "1")
            if tells_neighbours:
                write_sysctl(f"net/ipv6/conf/{link.name}/ndisc_notify", "1")

    run_in_namespace(namespace, write)


def enable_forwarding(addresses: Iterable[IPInterface]) -> None:
    """Let the host pass packets of the families of these addresses on, from pods and to them."""
    versions = {address.version for address in addresses}
    if 4 in versions:
        write_sysctl("net/ipv4/ip_forward", "1")
    if 6 in versions:
        _keep_routers()
        write_sysctl(_FORWARDING, "1")


def _keep_routers() -> None:
    """
    Have the host's links that follow router advertisements go on to.

    A machine that forwards takes none, and would lose its own way out when the last one has run out.
    """
    if _read(f"/proc/sys/{_FORWARDING}") != "0":
        return
    try:
        names = [name for name in os.listdir(_IPV6) if name not in _SPECIAL]
    except OSError as error:
        raise NetworkError(f"cannot forward IPv6: {describe(error)}") from error
    for name in names:
        if _read(f"{_IPV6}/{name}/accept_ra") == "1":
            _write_ipv6(name, "accept_ra", "2")


def _write_ipv6(name: str, key: str, value: str) -> None:
    # Without IPv6 there is nothing to settle.
    if os.path.exists(f"{_IPV6}/{name}/{key}"):
        write_sysctl(f"net/ipv6/conf/{name}/{key}", value)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""  # it has vanished, or there is no IPv6
