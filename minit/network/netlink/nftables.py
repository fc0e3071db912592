"""
Tables of nf_tables, the kernel's packet filter, written and removed as a whole (nft(8)).

Tables of several families can share a name: they are written, and removed, together. The expressions of rules are in
`minit/network/netlink/nftexpressions.py`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any

from pyroute2.netlink import NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL
from pyroute2.netlink.nfnetlink import NFNL_SUBSYS_NFTABLES
from pyroute2.netlink.nfnetlink.nftsocket import (
    NFT_MSG_DELTABLE,
    NFT_MSG_GETRULE,
    NFT_MSG_GETTABLE,
    NFT_MSG_NEWCHAIN,
    NFT_MSG_NEWRULE,
    NFT_MSG_NEWTABLE,
    nft_rule_msg,
    nft_table_msg,
)

from minit.base.errors import NetworkError, describe
from minit.base.value import Value
from minit.network.netlink.nftexpressions import Expression
from minit.network.netlink.transport import (
    NETLINK_NETFILTER,
    Netlink,
    NetlinkError,
    WrittenMessage,
    attribute,
    nested,
    number,
    text,
)

# Families of tables, NFPROTO_…: both versions of IP, IPv4, IPv6, and all packets that come by an interface.
INET = 1
IP = 2
NETDEV = 5
IP6 = 10

NAT = "nat"
FILTER = "filter"

# Hooks and priorities of linux/netfilter.h and linux/netfilter_ipv4.h; INGRESS is a hook of NETDEV.
INGRESS = 0
PREROUTING = 0
INPUT = 1
FORWARD = 2
OUTPUT = 3
POSTROUTING = 4
PRIORITY_RAW = -300
PRIORITY_FILTER = 0
PRIORITY_DSTNAT = -100
PRIORITY_SRCNAT = 100

_EVERY_FAMILY = 0
_BATCH_BEGIN = 0x10
_BATCH_END = 0x11
_NFNETLINK_VERSION = 0
_DROP = 0
_ACCEPT = 1
_COMMENT_TYPE = 0  # NFTNL_UDATA_TABLE_COMMENT and NFTNL_UDATA_RULE_COMMENT of libnftnl
_COMMENT_BYTES = 128

# Expressions in modules of the kernel; the others come with nf_tables itself.
_MODULES = {
    "ct": "CONFIG_NFT_CT",
    "fib": "CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6",
    "fwd": "CONFIG_NFT_FWD_NETDEV",
    "masq": "CONFIG_NFT_MASQ",
    "nat": "CONFIG_NFT_NAT",
}
# By the family of a table: the missing option for which a chain at a hook is refused.
_LACKING = {
    INET: "the kernel's nf_tables has no tables of both families (CONFIG_NF_TABLES_INET)",
    IP: "the kernel's nf_tables has no NAT (CONFIG_NFT_NAT, CONFIG_NF_NAT)",
    IP6: "the kernel's nf_tables has no NAT of IPv6 (CONFIG_NF_TABLES_IPV6, CONFIG_NFT_NAT, CONFIG_NF_NAT)",
    NETDEV: "the kernel's nf_tables has no hook at interfaces (CONFIG_NF_TABLES_NETDEV, CONFIG_NETFILTER_INGRESS)",
}


class Rule(Value):
    """Expressions, evaluated until one does not match; the last may decide about the packet."""

    expressions: tuple[Expression, ...]
    comment: str = ""


class Hook(Value):
    """
    The point in a packet's way where a chain is evaluated; `kind` is NAT or FILTER.

    `device` is the interface of a hook of NETDEV. Packets without a decision of a rule pass, or with `drops` do not.
    """

    kind: str
    point: int
    priority: int
    device: str | None = None
    drops: bool = False


class Chain(Value):
    """Rules in order; without a hook the chain is reached by a jump only."""

    name: str
    rules: tuple[Rule, ...]
    hook: Hook | None = None


class Table(Value):
    """Chains, targets of jumps first; `family` is INET, IP, IP6 or NETDEV."""

    family: int
    name: str
    chains: tuple[Chain, ...]
    comment: str = ""


# Tables.


def replace_tables(tables: Sequence[Table]) -> None:
    """
    Write tables, and replace any tables of their names and families.

    NetworkError, with nothing changed, if the kernel refuses a table.
    """
    contents = [message for table in tables for message in _content_messages(table)]
    try:
        try:
            _commit([*(_table_message(NFT_MSG_NEWTABLE, table, NLM_F_EXCL) for table in tables), *contents])
        except NetlinkError as error:
            if error.errno != errno.EEXIST:
                raise
            # Deleting a missing table would fail, and making an existing table does nothing. Not always: after a
            # deletion the closing of the socket waits for the kernel to free the table.
            kinds = (NFT_MSG_NEWTABLE, NFT_MSG_DELTABLE, NFT_MSG_NEWTABLE)
            _commit([*(_table_message(kind, table) for table in tables for kind in kinds), *contents])
    except OSError as error:
        raise NetworkError(f"cannot write nftables table {tables[0].name}: {_reason(error)}") from error


def delete_tables(name: str, freed: ExitStack | None = None) -> None:
    """
    Remove the tables of this name, of all families, with all chains; no error if there are none.

    The kernel frees the memory afterwards. The end of `freed` waits for that, some ten milliseconds.
    """
    tables = [table for table in read_tables(name) if table.name == name]
    while tables:
        try:
            _commit([_table_message(NFT_MSG_DELTABLE, table) for table in tables], freed)
            return
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise NetworkError(f"cannot delete nftables table {name}: {_reason(error)}") from error
        # Another process has deleted a table meanwhile, and so no table was deleted.
        tables = [table for table in read_tables(name) if table.name == name]


def read_tables(prefix: str) -> list[Table]:
    """Return the tables of all families whose names begin with `prefix`, with comments and without chains."""
    tables = []
    for message in _dump(_request(_TableMessage, NFT_MSG_GETTABLE, _EVERY_FAMILY)):
        name = message.get_attr("NFTA_TABLE_NAME")
        if name.startswith(prefix):
            comment = _read_comment(message.get_attr("NFTA_TABLE_USERDATA"))
            tables.append(Table(family=message["nfgen_family"], name=name, chains=(), comment=comment))
    return tables


def read_rule_comments(table: Table, chain: str) -> list[str]:
    """Return the comments of the rules of a table's chain, in order; none if there is no such chain."""
    request = _request(_RuleMessage, NFT_MSG_GETRULE, table.family, NFTA_RULE_TABLE=table.name, NFTA_RULE_CHAIN=chain)
    return [
        _read_comment(message.get_attr("NFTA_RULE_USERDATA"))
        for message in _dump(request)
        if (message.get_attr("NFTA_RULE_TABLE"), message.get_attr("NFTA_RULE_CHAIN")) == (table.name, chain)
    ]


# Messages, by the numbers of linux/netfilter/nf_tables.h. Reading uses pyroute2's classes, but these take user data for
# a single comment, and cannot read the user data of other programs.


class _TableMessage(nft_table_msg):  # type: ignore[misc]
    nla_map = tuple((name, "cdata" if name.endswith("_USERDATA") else kind) for name, kind in nft_table_msg.nla_map)


class _RuleMessage(nft_rule_msg):  # type: ignore[misc]
    # The expressions are nobody's concern, and are not decoded.
    nla_map = tuple(
        (name, "cdata" if name.endswith(("_USERDATA", "_EXPRESSIONS")) else kind) for name, kind in nft_rule_msg.nla_map
    )


def _commit(messages: Sequence[WrittenMessage], freed: ExitStack | None = None) -> None:
    begin, end = (WrittenMessage(kind, 0, _header(0, NFNL_SUBSYS_NFTABLES)) for kind in (_BATCH_BEGIN, _BATCH_END))
    with ExitStack() as own:
        netlink = (freed or own).enter_context(Netlink(NETLINK_NETFILTER))
        # The kernel reports each refusal; the acknowledgement of the last message means that all were read.
        netlink.batch([begin, *messages, end], acknowledged=messages[-1:])


def _dump(request: Any) -> list[Any]:
    try:
        with Netlink(NETLINK_NETFILTER) as netlink:
            return netlink.dump(request)
    except OSError as error:
        if error.errno == errno.ENOENT or _is_unsupported(error):
            return []
        raise NetworkError(f"cannot read nftables: {_reason(error)}") from error


def _request(kind: type[Any], number: int, family: int, **attributes: object) -> Any:
    message = kind()
    message["header"]["type"] = NFNL_SUBSYS_NFTABLES << 8 | number
    message["nfgen_family"] = family
    message["attrs"] = list(attributes.items())
    return message


class _Written(WrittenMessage):
    """A message about a table, or about a `part` of the table."""

    def __init__(self, number: int, flags: int, table: Table, part: Table | Chain | Rule, *attributes: bytes) -> None:
        body = _header(table.family) + b"".join(attributes)
        super().__init__(NFNL_SUBSYS_NFTABLES << 8 | number, flags, body)
        self.table = table
        self.part = part


def _table_message(kind: int, table: Table, flags: int = 0) -> _Written:
    if kind == NFT_MSG_DELTABLE:
        return _Written(kind, flags, table, table, text(1, table.name))
    return _Written(kind, flags | NLM_F_CREATE, table, table, text(1, table.name), *_comment(6, table.comment))


def _content_messages(table: Table) -> Iterator[_Written]:
    for chain in table.chains:
        yield _chain_message(table, chain)
    for chain in table.chains:
        for rule in chain.rules:
            yield _rule_message(table, chain, rule)


def _chain_message(table: Table, chain: Chain) -> _Written:
    attributes = [text(1, table.name), text(3, chain.name)]
    if chain.hook is not None:
        hook = [number(1, chain.hook.point), number(2, chain.hook.priority)]
        if chain.hook.device is not None:
            hook.append(text(3, chain.hook.device))
        policy = _DROP if chain.hook.drops else _ACCEPT
        attributes += [nested(4, *hook), number(5, policy), text(7, chain.hook.kind)]
    return _Written(NFT_MSG_NEWCHAIN, NLM_F_CREATE, table, chain, *attributes)


def _rule_message(table: Table, chain: Chain, rule: Rule) -> _Written:
    expressions = nested(4, *(nested(1, text(1, name), nested(2, data)) for name, data in rule.expressions))
    place = (text(1, table.name), text(2, chain.name))
    flags = NLM_F_CREATE | NLM_F_APPEND
    return _Written(NFT_MSG_NEWRULE, flags, table, rule, *place, expressions, *_comment(7, rule.comment))


def _header(family: int, resource: int = 0) -> bytes:
    """Return `struct nfgenmsg`."""
    return bytes([family, _NFNETLINK_VERSION]) + resource.to_bytes(2, "big")


def _comment(kind: int, text: str) -> tuple[bytes, ...]:
    """Return a comment as user data: type, length and a string with a null byte at its end."""
    if not text:
        return ()
    value = text.encode("utf-8", "surrogateescape")[: _COMMENT_BYTES - 1] + b"\0"
    return (attribute(kind, bytes([_COMMENT_TYPE, len(value)]) + value),)


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
    is_about_a_part = isinstance(message, _Written) and not isinstance(message.part, Table)
    return error.errno in (errno.EPROTONOSUPPORT, errno.EOPNOTSUPP) and not is_about_a_part


def _reason(error: OSError) -> str:
    message = error.message if isinstance(error, NetlinkError) else None
    if _is_unsupported(error):
        return "the kernel has no nf_tables (CONFIG_NF_TABLES, CONFIG_NF_TABLES_IPV4)"
    if not isinstance(message, _Written):
        return describe(error)
    if isinstance(message.part, Chain) and error.errno in (errno.ENOENT, errno.EOPNOTSUPP):
        return _LACKING[message.table.family]
    if isinstance(message.part, Rule) and error.errno == errno.ENOENT:
        missing = sorted({_MODULES[name] for name, _ in message.part.expressions if name in _MODULES})
        return f"the kernel's nf_tables lacks one of {', '.join(missing)}"
    return describe(error)
