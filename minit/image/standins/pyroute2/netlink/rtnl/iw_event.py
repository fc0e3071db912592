"""Stands in for pyroute2's messages of wireless links, which no pod has."""

from pyroute2.netlink import nla


class iw_event(nla):  # type: ignore[misc]  # pyroute2 has no types
    """Undecoded."""
