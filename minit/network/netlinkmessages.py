"""
The messages of netlink(7) as pyroute2 has them, loaded without what pyroute2 names and does not need for them.

Its modules import logging, typing, traceback and others to describe and report, and loading those takes as long as all
that is sent to connect a pod. In a stage1 image, where none of them is loaded, they are stood in for meanwhile.
"""

from __future__ import annotations

import _socket
import _thread
import _weakref

# Before anything is stood in for: these are needed, and must meet real modules whatever they import. The package itself
# is empty in the image; elsewhere it loads everything.
import collections  # noqa: F401
import enum  # noqa: F401
import functools  # noqa: F401
import importlib  # noqa: F401
import struct  # noqa: F401
import sys
import types

import pyroute2  # noqa: F401

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


class _Ignored(types.ModuleType):
    """A module, and whatever is found in it, called, or subscripted: nothing comes of it."""

    def __getattr__(self, name: str) -> _Ignored:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: object, **__: object) -> _Ignored:
        return self

    def __getitem__(self, _: object) -> _Ignored:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(())


class _Half(types.ModuleType):
    """A module with what its half in C has."""

    def __init__(self, name: str, **names: object) -> None:
        super().__init__(name)
        self.__dict__.update(names)


_STAND_INS = {
    **{name: _Ignored(name) for name in ("logging", "traceback", "typing")},
    "socket": _Half("socket", **{**vars(_socket), "AddressFamily": int}),
    "threading": _Half("threading", Lock=_thread.allocate_lock, RLock=_thread.RLock, local=_thread._local),
    "weakref": _weakref,
}

_stood_in_for = {name: module for name, module in _STAND_INS.items() if name not in sys.modules}
sys.modules.update(_stood_in_for)
try:
    from pyroute2.netlink import (
        NLA_F_NESTED,
        NLM_F_ACK,
        NLM_F_APPEND,
        NLM_F_CREATE,
        NLM_F_DUMP,
        NLM_F_EXCL,
        NLM_F_REQUEST,
        NLMSG_DONE,
        NLMSG_ERROR,
        nla,
    )
    from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_CTNETLINK, NFNL_SUBSYS_NFTABLES, nfgen_msg
    from pyroute2.netlink.nfnetlink.nftsocket import (
        NFT_MSG_DELTABLE,
        NFT_MSG_GETRULE,
        NFT_MSG_GETTABLE,
        NFT_MSG_NEWCHAIN,
        NFT_MSG_NEWRULE,
        NFT_MSG_NEWTABLE,
        nft_chain_msg,
        nft_map_be32,
        nft_rule_msg,
        nft_table_msg,
    )
    from pyroute2.netlink.rtnl import (
        RTM_DELADDR,
        RTM_DELLINK,
        RTM_GETADDR,
        RTM_GETLINK,
        RTM_GETROUTE,
        RTM_NEWADDR,
        RTM_NEWLINK,
        RTM_NEWROUTE,
        RTM_SETLINK,
    )
    from pyroute2.netlink.rtnl.ifaddrmsg import IFA_F_NOPREFIXROUTE, ifaddrmsg
    from pyroute2.netlink.rtnl.ifinfmsg import ifinfmsg
    from pyroute2.netlink.rtnl.rtmsg import rtmsg
finally:
    for _name in _stood_in_for:
        del sys.modules[_name]

__all__ = [
    "IFA_F_NOPREFIXROUTE",
    "NFNL_SUBSYS_CTNETLINK",
    "NFNL_SUBSYS_NFTABLES",
    "NFT_MSG_DELTABLE",
    "NFT_MSG_GETRULE",
    "NFT_MSG_GETTABLE",
    "NFT_MSG_NEWCHAIN",
    "NFT_MSG_NEWRULE",
    "NFT_MSG_NEWTABLE",
    "NLA_F_NESTED",
    "NLMSG_DONE",
    "NLMSG_ERROR",
    "NLM_F_ACK",
    "NLM_F_APPEND",
    "NLM_F_CREATE",
    "NLM_F_DUMP",
    "NLM_F_EXCL",
    "NLM_F_REQUEST",
    "RTM_DELADDR",
    "RTM_DELLINK",
    "RTM_GETADDR",
    "RTM_GETLINK",
    "RTM_GETROUTE",
    "RTM_NEWADDR",
    "RTM_NEWLINK",
    "RTM_NEWROUTE",
    "RTM_SETLINK",
    "ifaddrmsg",
    "ifinfmsg",
    "nfgen_msg",
    "nft_chain_msg",
    "nft_map_be32",
    "nft_rule_msg",
    "nft_table_msg",
    "nla",
    "rtmsg",
]
