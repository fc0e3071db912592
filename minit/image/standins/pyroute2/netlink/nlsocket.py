"""Stands in for pyroute2's sockets, which run on asyncio; minit.network.netlink has its own transport."""


class AsyncNetlinkSocket:
    """Never made: a base class beside the classes of messages."""


class NetlinkSocket:
    """Never made: a base class beside the classes of messages."""
