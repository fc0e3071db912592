"""
The built-in plugins, with addresses of host-local, static or dhcp.

ptp and bridge have a link on the host and another in the pod; loopback, macvlan, ipvlan, vlan, host-device and dummy
have a link in the pod alone. flannel has a bridge made. tuning and bandwidth change the link of another plugin, portmap
leads ports to the pod, and firewall keeps bridges apart.

Each behaves as the reference plugin of its name, for machines without the reference plugins.
`minit/network/pluginrequests.py` calls them. Read `call.py` first.
"""

from __future__ import annotations

from functools import partial

from minit.network.builtin import (
    attachment,
    bandwidth,
    bridge,
    dhcp,
    firewall,
    flannel,
    hostdevice,
    hostlocal,
    podlink,
    portmap,
    ptp,
    static,
    tuning,
)
from minit.network.builtin.call import Builtin, Call
from minit.network.netlink.messages import DUMMY, IPVLAN, MACVLAN, VLAN
from minit.network.protocol import Result

_BY_LINKS = {"collect": attachment.collect, "status": attachment.status}

BUILTINS = {
    "bandwidth": Builtin(add=bandwidth.add, delete=bandwidth.delete, check=bandwidth.check, collect=bandwidth.collect),
    "bridge": Builtin(add=bridge.add, delete=bridge.delete, check=bridge.check, **_BY_LINKS),
    "dhcp": Builtin(add=dhcp.add, delete=dhcp.delete, check=dhcp.check, collect=dhcp.collect),
    "dummy": Builtin(
        add=podlink.add_dummy, delete=partial(podlink.delete, kind=DUMMY), check=podlink.check_dummy, **_BY_LINKS
    ),
    "firewall": Builtin(add=firewall.add, delete=firewall.delete, check=firewall.check, collect=firewall.collect),
    "flannel": Builtin(
        add=flannel.add,
        delete=flannel.delete,
        check=flannel.check,
        collect=flannel.collect,
        status=flannel.status,
    ),
    "host-device": Builtin(add=hostdevice.add, delete=hostdevice.delete, check=hostdevice.check, **_BY_LINKS),
    "host-local": Builtin(
        add=hostlocal.add,
        delete=hostlocal.delete,
        check=hostlocal.check,
        collect=hostlocal.collect,
        status=hostlocal.status,
    ),
    "ipvlan": Builtin(
        add=podlink.add_ipvlan, delete=partial(podlink.delete, kind=IPVLAN), check=podlink.check_ipvlan, **_BY_LINKS
    ),
    "loopback": Builtin(add=podlink.add_loopback, delete=podlink.delete_loopback, check=podlink.check_loopback),
    "macvlan": Builtin(
        add=podlink.add_macvlan, delete=partial(podlink.delete, kind=MACVLAN), check=podlink.check_macvlan, **_BY_LINKS
    ),
    "portmap": Builtin(add=portmap.add, delete=portmap.delete, check=portmap.check, collect=portmap.collect),
    "ptp": Builtin(add=ptp.add, delete=ptp.delete, check=ptp.check, **_BY_LINKS),
    "static": Builtin(add=static.add, delete=static.delete, check=static.check),
    "tuning": Builtin(add=tuning.add, delete=tuning.delete, check=tuning.check),
    "vlan": Builtin(
        add=podlink.add_vlan, delete=partial(podlink.delete, kind=VLAN), check=podlink.check_vlan, **_BY_LINKS
    ),
}
"""The plugins by their type."""


def ask_builtin(command: str, plugin_type: str, call: Call) -> Result:
    """Return the answer of a plugin of BUILTINS to ADD, an empty result for all other commands."""
    builtin = BUILTINS[plugin_type]
    if command == "ADD":
        return builtin.add(call)
    others = {"DEL": builtin.delete, "CHECK": builtin.check, "GC": builtin.collect, "STATUS": builtin.status}
    answer = others[command]
    if answer is not None:
        answer(call)
    return Result()
