"""
The plugins that are built in: loopback, ptp and bridge, with the addresses of host-local or static; and tuning.

They do what the reference plugins of these names do, for machines that have none. They are called by
`minit/network/pluginrequests.py`. Read `call.py` first.
"""

from __future__ import annotations

from minit.network.builtin import attachment, bridge, flannel, loopback, ptp, tuning
from minit.network.builtin.call import Builtin, Call
from minit.network.builtin.ipam import hostlocal, static
from minit.network.result import Result

_BY_LINKS = {"collect": attachment.collect, "status": attachment.status}

BUILTINS = {
    "bridge": Builtin(add=bridge.add, delete=bridge.delete, check=bridge.check, **_BY_LINKS),
    "flannel": Builtin(
        add=flannel.add,
        delete=flannel.delete,
        check=flannel.check,
        collect=flannel.collect,
        status=flannel.status,
    ),
    "host-local": Builtin(
        add=hostlocal.add,
        delete=hostlocal.delete,
        check=hostlocal.check,
        collect=hostlocal.collect,
        status=hostlocal.status,
    ),
    "loopback": Builtin(add=loopback.add, delete=loopback.delete, check=loopback.check),
    "ptp": Builtin(add=ptp.add, delete=ptp.delete, check=ptp.check, **_BY_LINKS),
    "static": Builtin(add=static.add, delete=static.delete, check=static.check),
    "tuning": Builtin(add=tuning.add, delete=tuning.delete, check=tuning.check),
}
"""The plugins by their type."""


def ask_builtin(command: str, plugin_type: str, call: Call) -> Result:
    """Return what a plugin of BUILTINS answers to ADD, an empty result for all other commands."""
    builtin = BUILTINS[plugin_type]
    if command == "ADD":
        return builtin.add(call)
    others = {"DEL": builtin.delete, "CHECK": builtin.check, "GC": builtin.collect, "STATUS": builtin.status}
    answer = others[command]
    if answer is not None:
        answer(call)
    return Result()
