"""
Tables of nf_tables, the kernel's packet filter, which are written and removed as a whole (nft(8)).

Everything is of family `ip`. The expressions of rules are in `minit/network/netlink/nftexpressions.py`.
"""

from __future__ import annotations

import errno
from typing import Any

from pyroute2.netlink import NLM_F_APPEND, NLM_F_CREATE
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES, nfgen_msg
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

from minit.errors import NetworkError, describe
from minit.network.netlink.nftexpressions import Expression
from minit.network.netlink.transport import NETLINK_NETFILTER, Netlink, NetlinkError
from minit.value import Value

NAT = "nat"
FILTER = "filter"

# Hooks and priorities of linux/netfilter.h and linux/netfilter_ipv4.h.
PREROUTING = 0
OUTPUT = 3
POSTROUTING = 4
PRIORITY_RAW = -300
PRIORITY_DSTNAT = -100
PRIORITY_SRCNAT = 100

_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_FAMILY_IPV4 = 2
_ACCEPT = 1
_COMMENT_TYPE = 0  # NFTNL_UDATA_TABLE_COMMENT and NFTNL_UDATA_RULE_COMMENT of libnftnl
_COMMENT_BYTES = 128

# Expressions that are modules of the kernel; the others come with nf_tables itself.
_MODULES = {
    "ct": "CONFIG_NFT_CT",
    "fib": "CONFIG_NFT_FIB_IPV4",
    "masq": "CONFIG_NFT_MASQ",
    "nat": "CONFIG_NFT_NAT",
}


class Rule(Value):
    """Expressions that are evaluated until one does not match; the last may decide about the packet."""

    expressions: tuple[Expression, ...]
    comment: str = ""


class Hook(Value):
    """The point in a packet's way where a chain is evaluated; `kind` is NAT or FILTER."""

    kind: str
    point: int
    priority: int


class Chain(Value):
    """Rules in order; without a hook the chain is reached by a jump only."""

    name: str
    rules: tuple[Rule, ...]
    hook: Hook | None = None


class Table(Value):
    """Chains, of which those that are jumped to come first."""

    name: str
    chains: tuple[Chain, ...]
    comment: str = ""


# Tables.


def replace_table(table: Table) -> None:
    """Write a table in place of the one of its name, if there is one; NetworkError if the kernel refuses it."""
    messages = [_table_message(NFT_MSG_NEWTABLE, table)]
    if table.name in read_tables(table.name):
        # Deleting what is not there would fail, and making what is there does nothing. Not always: whoever has deleted
        # something waits about ten milliseconds when the socket is closed, for the kernel to free it.
        messages += [_table_message(NFT_MSG_DELTABLE, table), _table_message(NFT_MSG_NEWTABLE, table)]
    messages += [_chain_message(table, chain) for chain in table.chains]
    messages += [_rule_message(table, chain, rule) for chain in table.chains for rule in chain.rules]
    try:
        _commit(messages)
    except OSError as error:
        raise NetworkError(f"cannot write nftables table {table.name}: {_reason(error)}") from error


def delete_table(name: str) -> None:
    """Remove a table with everything in it; no error if there is none."""
    try:
        _commit([_table_message(NFT_MSG_DELTABLE, Table(name=name, chains=()))])
    except OSError as error:
        if error.errno != errno.ENOENT and not _is_unsupported(error):
            raise NetworkError(f"cannot delete nftables table {name}: {_reason(error)}") from error


def read_tables(prefix: str) -> dict[str, str]:
    """Return the comments of the tables whose names begin with `prefix`, by name."""
    found = {}
    for message in _dump(_message(_TableMessage, NFT_MSG_GETTABLE)):
        name = message.get_attr("NFTA_TABLE_NAME")
        if message["nfgen_family"] == _FAMILY_IPV4 and name.startswith(prefix):
            found[name] = _read_comment(message.get_attr("NFTA_TABLE_USERDATA"))
    return found


def read_rule_comments(table: str, chain: str) -> list[str]:
    """Return the comments of the rules of a chain, in order; none if there is no such chain."""
    request = _message(_RuleMessage, NFT_MSG_GETRULE, NFTA_RULE_TABLE=table, NFTA_RULE_CHAIN=chain)
    return [
        _read_comment(message.get_attr("NFTA_RULE_USERDATA"))
        for message in _dump(request)
        if (message.get_attr("NFTA_RULE_TABLE"), message.get_attr("NFTA_RULE_CHAIN")) == (table, chain)
    ]


# Messages. pyroute2 takes user data for one comment, and cannot read that of other programs.


class _TableMessage(nft_table_msg):  # type: ignore[misc]
    nla_map = tuple((name, "cdata" if name.endswith("_USERDATA") else kind) for name, kind in nft_table_msg.nla_map)


class _RuleMessage(nft_rule_msg):  # type: ignore[misc]
    nla_map = tuple((name, "cdata" if name.endswith("_USERDATA") else kind) for name, kind in nft_rule_msg.nla_map)

    class nft_expr(nft_rule_msg.nft_expr):  # type: ignore[misc]
        class nft_fib(nft_rule_msg.nft_expr.nft_fib):  # type: ignore[misc]
            class fib_result(nft_map_be32):  # type: ignore[misc]
                """A number; pyroute2 takes it for a set of flags."""


def _commit(messages: list[Any]) -> None:
    begin, end = nfgen_msg(), nfgen_msg()
    begin["header"]["type"] = _BATCH_BEGIN
    end["header"]["type"] = _BATCH_END
    begin["res_id"] = end["res_id"] = NFNL_SUBSYS_NFTABLES
    with Netlink(NETLINK_NETFILTER) as netlink:
        # Refusals come for every message, and an acknowledgement of the last means that all were read.
        netlink.batch([begin, *messages, end], acknowledged=messages[-1:])


def _dump(request: Any) -> list[Any]:
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            return netlink.dump(request)
    except OSError as error:
        if error.errno == errno.ENOENT or _is_unsupported(error):
            return []
        raise NetworkError(f"cannot read nftables: {_reason(error)}") from error


def _message(kind: type[Any], number: int, flags: int = 0, **attributes: object) -> Any:
    message = kind()
    message["header"]["type"] = NFNL_SUBSYS_NFTABLES << 8 | number
    message["header"]["flags"] = flags
    message["nfgen_family"] = _FAMILY_IPV4
    message["attrs"] = [(name, value) for name, value in attributes.items() if value is not None]
    return message


def _table_message(number: int, table: Table) -> Any:
    comment = _comment(table.comment) if number == NFT_MSG_NEWTABLE else None
    flags = NLM_F_CREATE if number == NFT_MSG_NEWTABLE else 0
    return _message(_TableMessage, number, flags, NFTA_TABLE_NAME=table.name, NFTA_TABLE_USERDATA=comment)


def _chain_message(table: Table, chain: Chain) -> Any:
    hook = None
    if chain.hook is not None:
        numbers = (("NFTA_HOOK_HOOKNUM", chain.hook.point), ("NFTA_HOOK_PRIORITY", chain.hook.priority))
        hook = {"attrs": list(numbers)}
    return _message(
        nft_chain_msg,
        NFT_MSG_NEWCHAIN,
        NLM_F_CREATE,
        NFTA_CHAIN_TABLE=table.name,
        NFTA_CHAIN_NAME=chain.name,
        NFTA_CHAIN_HOOK=hook,
        NFTA_CHAIN_POLICY=None if hook is None else _ACCEPT,
        NFTA_CHAIN_TYPE=None if chain.hook is None else chain.hook.kind,
    )


def _rule_message(table: Table, chain: Chain, rule: Rule) -> Any:
    return _message(
        _RuleMessage,
        NFT_MSG_NEWRULE,
        NLM_F_CREATE | NLM_F_APPEND,
        NFTA_RULE_TABLE=table.name,
        NFTA_RULE_CHAIN=chain.name,
        NFTA_RULE_EXPRESSIONS=[_expression(expression) for expression in rule.expressions],
        NFTA_RULE_USERDATA=_comment(rule.comment),
    )


def _expression(expression: Expression) -> dict[str, object]:
    name, attributes = expression
    data = [(f"NFTA_{name.upper()}_{key}", value) for key, value in attributes]
    return {"attrs": [("NFTA_EXPR_NAME", name), ("NFTA_EXPR_DATA", {"attrs": data})]}


def _comment(text: str) -> bytes | None:
    """Return a comment as user data: its type, its length and a string that ends with a null byte."""
    if not text:
        return None
    value = text.encode("utf-8", "surrogateescape")[: _COMMENT_BYTES - 1] + b"\0"
    return bytes([_COMMENT_TYPE, len(value)]) + value


def _read_comment(data: bytes | None) -> str:
    data = data or b""
    while len(data) >= 2:
        kind, size = data[0], data[1]
        if kind == _COMMENT_TYPE:
            return data[2 : 2 + size].rstrip(b"\0").decode("utf-8", "surrogateescape")
        data = data[2 + size :]
    return ""


# Errors.


def _is_unsupported(error: OSError) -> bool:
    """Tell whether the kernel has no nf_tables at all, and so no table either."""
    message = error.message if isinstance(error, NetlinkError) else None
    is_about_a_part = isinstance(message, (nft_chain_msg, nft_rule_msg))
    return error.errno in (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP) and not is_about_a_part


def _reason(error: OSError) -> str:
    message = error.message if isinstance(error, NetlinkError) else None
    if _is_unsupported(error):
        return "the kernel has no nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4)"
    if error.errno == errno.ENOENT and isinstance(message, nft_chain_msg):
        return "the kernel's nf_tables has no NAT (CONFIG_NFT_NAT, CONFIG_NF_NAT)"
    if error.errno == errno.ENOENT and isinstance(message, _RuleMessage):
        names = [one["attrs"][0][1] for one in message.get_attr("NFTA_RULE_EXPRESSIONS")]
        missing = sorted({_MODULES[name] for name in names if name in _MODULES})
        return f"the kernel's nf_tables lacks one of {', '.join(missing)}"
    return describe(error)
