"""The names of a pod's tables of nf_tables, by which they are found again."""

from __future__ import annotations

TABLE_PREFIX = "minit-"

_PORTS = "-ports"


def table_name(container_id: str, interface: str) -> str:
    """Return the name of the tables of one of a pod's interfaces."""
    return f"{TABLE_PREFIX}{container_id}-{interface}"


def ports_table(container_id: str) -> str:
    """Return the name of the tables of a pod's forwarded ports."""
    return f"{TABLE_PREFIX}{container_id}{_PORTS}"


def pod_of_ports(table: str) -> str | None:
    """Return the pod whose forwarded ports are in the tables of a name, None if there are none in them."""
    if not (table.startswith(TABLE_PREFIX) and table.endswith(_PORTS)):
        return None
    return table[len(TABLE_PREFIX) : -len(_PORTS)]
