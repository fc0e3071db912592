"""
Modules that the stage1 image carries in the place of some of the standard library and of PyPI.

trio, structlog and others import these for functions that a stage1 never calls. Without the real ones the image is a
third smaller (2.6 MB, most of it OpenSSL), and PID 1 takes 6 MB less memory and is ready 13 ms sooner. They stand apart
from pythonmodules.py, their only importer, as texts that it knows nothing of.
"""

from __future__ import annotations

from pathlib import Path

STANDINS = {
    # structlog imports it for its asynchronous methods: PID 1 runs trio.
    "asyncio.py": "",
    # It runs ldconfig and a compiler to find libraries of the host. It is asked for threads, which are in the C library
    # since glibc 2.34, and by pyudev for libudev, which the image carries.
    "ctypes/util.py": """\
def find_library(name):
    return {"pthread": "libc.so.6", "udev": "libudev.so.1"}.get(name)
""",
    # trio imports it to resolve names that are not ASCII: PID 1 resolves none.
    "idna.py": "",
    # structlog imports an error of it: PID 1 pickles nothing.
    "pickle.py": """\
class PicklingError(Exception):
    pass
""",
    # The package's own module loads all of pyroute2: a stage1 uses the classes of messages.
    "pyroute2/__init__.py": "",
    # It loads multiprocessing. These are the settings that the classes of messages look at.
    "pyroute2/config.py": """\
AF_BRIDGE = 7
AF_NETLINK = 16
data_plugins_pkgs = []
data_plugins_path = []
""",
    # Sockets on asyncio, never made, and bases beside the classes of messages: minit.network.netlink has its own.
    "pyroute2/netlink/nlsocket.py": """\
class AsyncNetlinkSocket:
    pass
class NetlinkSocket:
    pass
""",
    # Kinds of links have modules of their own, with the class of a kind's data: a stage1 looks only into those of its
    # plugins.
    "pyroute2/netlink/rtnl/ifinfmsg/plugins.py": """\
from pyroute2.netlink import nla
class Kind:
    def __init__(self, name, *attributes):
        self.__name__ = name
        setattr(self, name, type(name, (nla,), {"prefix": "IFLA_", "nla_map": attributes}) if attributes else nla)
names = "bond can geneve gtp ipoib team tun tuntap vrf vti vti6 vxlan xfrm"
globals().update((name, Kind(name)) for name in names.split())
ipvlan = Kind("ipvlan", ("IFLA_IPVLAN_UNSPEC", "none"), ("IFLA_IPVLAN_MODE", "uint16"))
vlan = Kind("vlan", ("IFLA_VLAN_UNSPEC", "none"), ("IFLA_VLAN_ID", "uint16"))
""",
    # Messages of wireless links, which no pod has.
    "pyroute2/netlink/rtnl/iw_event.py": """\
from pyroute2.netlink import nla
class iw_event(nla):
    pass
""",
    # trio imports it for its TLS streams: a stage1 never speaks TLS.
    "ssl.py": "",
    # trio's DTLS endpoints need pyOpenSSL: nothing in a stage1 opens one.
    "trio/_dtls.py": """\
class DTLSChannel:
    pass
class DTLSChannelStatistics:
    pass
class DTLSEndpoint:
    pass
""",
    # A megabyte of tables that attrs and tracebacks ask about names, which are ASCII: in every normal form, and of one
    # column a character.
    "unicodedata.py": """\
def normalize(form, text, /):
    return text
def east_asian_width(character, /):
    return "N"
""",
    # pathlib imports it to write file: URIs, which nothing in a stage1 does. ipaddress and unicodedata come with it.
    "urllib/parse.py": """\
def quote_from_bytes(text):
    raise NotImplementedError(text)
""",
}
"""Their texts, by the files of the modules that they stand in for."""


def write_standins(directory: Path) -> None:
    """Write the modules below a directory."""
    for name, text in STANDINS.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
