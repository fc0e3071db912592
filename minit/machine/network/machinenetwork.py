"""All interfaces of a machine, and the file that names its name servers."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from pyroute2.netlink.rtnl import RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_IFINFO, RTMGRP_LINK

from minit.base.errors import describe
from minit.linux.loop import wait_readable
from minit.linux.stdio import complain_at_once
from minit.machine.devices import MachineDevices
from minit.machine.network.connection import Connection
from minit.machine.network.networkstate import NetworkState
from minit.manifest.machineconfig import MachineConfig
from minit.network.dhcp.message6 import RouterOptions
from minit.network.netlink.links import Links
from minit.network.netlink.transport import KernelEvents
from minit.podfiles import paths

# Of C libraries: those of glibc before 2.26, and of musl.
_MAXIMUM_NAME_SERVERS = 3
_MAXIMUM_SEARCHED = 6
_LONGEST_SEARCH = 255


class MachineNetwork:
    """
    All interfaces of the configuration; `turn` is called when one of `filenos` can be read, and at `deadline`.

    `state` is the machine's state directory, if there is one.
    """

    def __init__(
        self, config: MachineConfig, resolv_conf: str = paths.MACHINE_RESOLV_CONF, state: str | None = None
    ) -> None:
        self._links = Links()
        self._resolv_conf = resolv_conf
        self._events = KernelEvents(RTMGRP_LINK | RTMGRP_IPV6_IFINFO | RTMGRP_IPV6_IFADDR)
        self._router_options = RouterOptions()
        self._static_name_servers = config.name_servers
        kept = NetworkState(state)
        self._interfaces = [
            Connection(interface, metric, config.hostname, kept, self.write_resolv_conf)
            for metric, interface in enumerate(config.interfaces)
        ]
        self._written: str | None = None
        # One that is there is of a helper that died, and as good as what can be said now.
        if not os.path.exists(resolv_conf):
            self.write_resolv_conf()

    @property
    def deadline(self) -> float | None:
        """The monotonic time at which something is due, None if nothing is."""
        return min((one.deadline for one in self._interfaces if one.deadline is not None), default=None)

    @property
    def ntp_servers(self) -> list[str]:
        """The servers that tell the time, by all leases."""
        return [server for one in self._interfaces for server in one.ntp_servers]

    def filenos(self) -> list[int]:
        """Return the descriptors to poll."""
        clients = [fd for one in self._interfaces for fd in one.filenos()]
        return [self._events.fileno(), self._router_options.fileno(), *clients]

    def turn(self) -> None:
        """Look at the links, and do what is due."""
        self._events.drop()
        for one in self._interfaces:
            one.turn(self._links)
        for option in self._router_options.take():
            for one in self._interfaces:
                one.hear(option)

    def wait(self, devices: MachineDevices) -> None:
        """Wait for the interfaces that apps wait for, each as long as it says."""
        begun = time.monotonic()
        while True:
            self.turn()
            now = time.monotonic()
            waits = [one.interface.wait_seconds for one in self._interfaces if not one.connected]
            left = begun + max(waits, default=0) - now
            if left <= 0:
                break
            until = now + left if self.deadline is None else min(self.deadline, now + left)
            if devices.fileno() in wait_readable([*self.filenos(), devices.fileno()], until - now):
                devices.look()
        for one in self._interfaces:
            if not one.connected and one.interface.wait_seconds:
                name, seconds = one.interface.name, one.interface.wait_seconds
                complain_at_once(f"minit: interface {name}: {one.missing} after {seconds} s")

    def write_resolv_conf(self) -> None:
        """Write the name servers, in place: the apps have this very file mounted."""
        servers = list(self._static_name_servers)
        domains: list[str] = []
        for one in self._interfaces:
            servers += one.name_servers
            domains += one.search
        search = _bounded(dict.fromkeys(domains))
        lines = [f"search {search}\n"] if search else []
        lines += [f"nameserver {server}\n" for server in list(dict.fromkeys(servers))[:_MAXIMUM_NAME_SERVERS]]
        text = "".join(lines)
        if text == self._written:
            return
        try:
            with open(self._resolv_conf, "w", encoding="ascii") as file:
                file.write(text)
            self._written = text
        except OSError as error:
            complain_at_once(f"minit: {describe(error)}")


def _bounded(domains: Iterable[str]) -> str:
    """Return as many of the names, from the first on, as any C library takes."""
    taken = ""
    for name in list(domains)[:_MAXIMUM_SEARCHED]:
        longer = f"{taken} {name}".strip()
        if len(longer) > _LONGEST_SEARCH:
            break
        taken = longer
    return taken
