"""Stands in for pyroute2's kinds of links in modules of their own: a stage1 looks only into those of its plugins."""

from pyroute2.netlink import nla


class Kind:
    """A module of that name with the class of a kind's data."""

    def __init__(self, name: str, *attributes: tuple[str, str]) -> None:
        self.__name__ = name
        setattr(self, name, type(name, (nla,), {"prefix": "IFLA_", "nla_map": attributes}) if attributes else nla)


_NAMES = "bond can geneve gtp ipoib team tun tuntap vrf vti vti6 vxlan xfrm"

globals().update((name, Kind(name)) for name in _NAMES.split())
ipvlan = Kind("ipvlan", ("IFLA_IPVLAN_UNSPEC", "none"), ("IFLA_IPVLAN_MODE", "uint16"))
vlan = Kind("vlan", ("IFLA_VLAN_UNSPEC", "none"), ("IFLA_VLAN_ID", "uint16"))
