"""Stands in for pyroute2's kinds of links beyond veth and bridge: a stage1 makes none, and does not look into them."""

from pyroute2.netlink import nla


class Kind:
    """A module of that name with the class of a kind's data."""

    def __init__(self, name: str) -> None:
        self.__name__ = name
        setattr(self, name, nla)


_NAMES = "bond can geneve gtp ipoib ipvlan team tun tuntap vlan vrf vti vti6 vxlan xfrm"

globals().update((name, Kind(name)) for name in _NAMES.split())
