"""Undoing a pod's networks, whatever is left of them: after its end, or after a failure on the way to its start."""

from __future__ import annotations

from minit.base.errors import MinitError, NetworkError, describe
from minit.linux.stdio import complain
from minit.network.namespace import is_namespace, namespace_path, remove_namespace
from minit.network.netinfo import forget_configuration, read_attached
from minit.network.packetfilter.forwarding import ports_table, stop_forwarding
from minit.network.plugins.pluginlist import detach
from minit.network.plugins.pluginsearch import PluginSearch
from minit.network.podnames import withdraw
from minit.network.protocol.request import Request
from minit.plan.networks.networkplan import PlannedNetwork


def tear_down(uuid: str, search: PluginSearch, *, is_last: bool = True, debug: bool = False) -> list[str]:
    """
    Detach the pod in the working directory from its networks, the last one first, and return what went wrong.

    Nothing needs to be there any more: neither the namespace, nor plugins, nor records. A failure is not tried again if
    this is the last time, as in rkt: a plugin that cannot detach a network would keep the pod for ever. With `debug`
    each network is a line on stderr.
    """
    problems = withdraw_names(uuid)
    try:
        stop_forwarding(ports_table(uuid))
    except (MinitError, OSError) as error:
        problems.append(f"error removing forwarded ports: {describe(error)}")
    namespace = namespace_path(uuid)
    networks, unreadable = read_attached()
    problems += unreadable
    for network in reversed(networks):
        request = Request(
            container_id=uuid,
            namespace=namespace if is_namespace(namespace) else "",
            interface=network.interface,
            args=network.args,
        )
        if debug:
            complain(f"networking: teardown - executing net-plugin {network.config.plugins[0].type}")
        is_left = False
        try:
            detach(network, request, search)
            is_left = True
        except (MinitError, OSError) as error:
            problems.append(f'error deleting "{network.config.name}": {describe(error)}')
        if is_left or is_last:
            problems += _forget(network)
    try:
        remove_namespace(namespace)
    except OSError as error:
        problems.append(f"error removing the network namespace: {describe(error)}")
    return problems


def withdraw_names(uuid: str) -> list[str]:
    """Have others forget the names of a pod and return what went wrong."""
    try:
        withdraw(uuid)
    except NetworkError as error:
        return [describe(error)]
    return []


def _forget(network: PlannedNetwork) -> list[str]:
    try:
        forget_configuration(network.config.file_name)
    except OSError as error:
        # It will be detached once more, which does no harm.
        return [f'error forgetting "{network.config.name}": {describe(error)}']
    return []
