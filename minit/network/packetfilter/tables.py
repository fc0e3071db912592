"""The names and comments of a pod's tables of nf_tables, by which tables are found again, and the lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator

from minit.base.errors import NetworkError, describe
from minit.network.netlink.nftables import Table
from minit.podfiles.podfile import file_lock
from minit.podfiles.usersdirectory import runtime_directory

TABLE_PREFIX = "minit-"

_PORTS = "-ports"
_BANDWIDTH = "-bandwidth"
_INGRESS = "-ingress"
_NETWORK = "network "
_MAX_NAME_BYTES = 64

_LOCK = "firewall.lock"


def table_name(container_id: str, interface: str) -> str:
    """Return the name of the tables of an interface of a pod."""
    return f"{TABLE_PREFIX}{container_id}-{interface}"


def bandwidth_table(container_id: str, interface: str) -> str:
    """Return the name of the table of an interface with limited bandwidth."""
    return f"{table_name(container_id, interface)}{_BANDWIDTH}"


def ports_table(container_id: str) -> str:
    """Return the name of the tables of a pod's forwarded ports."""
    return f"{TABLE_PREFIX}{container_id}{_PORTS}"


def pod_of_ports(table: str) -> str | None:
    """Return the pod in the name of a table of forwarded ports, None for other names."""
    if not (table.startswith(TABLE_PREFIX) and table.endswith(_PORTS)):
        return None
    return table[len(TABLE_PREFIX) : -len(_PORTS)]


def ingress_table(container_id: str, interface: str) -> str:
    """Return the name of the table with a container's ingress policy."""
    return f"{TABLE_PREFIX}{container_id}-{interface}{_INGRESS}"


def is_ingress_table(table: Table) -> bool:
    """Tell whether a table says from where a container may be reached."""
    return table.name.startswith(TABLE_PREFIX) and table.name.endswith(_INGRESS)


def is_bandwidth_table(table: Table) -> bool:
    """Tell whether a table limits the bandwidth of an interface."""
    return table.name.startswith(TABLE_PREFIX) and table.name.endswith(_BANDWIDTH)


def is_interface_table(table: Table) -> bool:
    """Tell whether a table has a name of `table_name`."""
    return table.name.startswith(TABLE_PREFIX) and not table.name.endswith((_PORTS, _BANDWIDTH, _INGRESS))


def table_comment(way: str, network: str) -> str:
    """Return the comment of a table: the way opened for the table, and its network; either may be empty."""
    return " ".join(filter(None, (way, network and f"{_NETWORK}{_short(network)}")))


def is_of_network(table: Table, network: str) -> bool:
    """Tell whether a table is of a network."""
    comment = table_comment("", network)
    return table.comment == comment or table.comment.endswith(f" {comment}")


def _short(network: str) -> str:
    # A comment has room for half of a longest file name.
    is_short = len(network.encode()) <= _MAX_NAME_BYTES and " " not in network
    return network if is_short else hashlib.sha256(network.encode()).hexdigest()


@contextlib.contextmanager
def firewall_lock() -> Iterator[None]:
    """
    Hold, for a with block, the lock of all who change tables that others may want as well; NetworkError without the
    lock.
    """
    with contextlib.ExitStack() as stack:
        try:
            os.makedirs(runtime_directory(), 0o755, exist_ok=True)
            stack.enter_context(file_lock(f"{runtime_directory()}/{_LOCK}"))
        except OSError as error:
            raise NetworkError(f"cannot lock the firewall: {describe(error)}") from error
        yield
