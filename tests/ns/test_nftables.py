"""minit.network.netlink: tables of nf_tables and their comments, and the reasons that the kernel has for a refusal."""

from __future__ import annotations

import errno
import re
import subprocess
from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address, ip_network

import pytest
from pyroute2.netlink import NLM_F_CREATE, NLM_F_REPLACE
from pyroute2.netlink.rtnl import RTM_GETROUTE, RTM_NEWROUTE
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from minit.base.errors import NetworkError, describe
from minit.network.netlink import nftables, nftexpressions
from minit.network.netlink.nftables import Chain, Hook, Rule, Table
from minit.network.netlink.nftexpressions import Match
from minit.network.netlink.transport import NETLINK_ROUTE, Netlink, NetlinkError
from tests.support.networks import own_network

# No kernel has an expression of this name.
UNKNOWN = ("offload", b"")

_TARGET = re.compile("@th,64,128 (0x[0-9a-f]{32})")  # so older versions of nft show the target of a neighbour's message


@pytest.fixture(autouse=True)
def network() -> Iterator[None]:
    """A network namespace of this process."""
    with own_network():
        yield


def nft(*words: str) -> str:
    """Return what nft(8) prints."""
    return subprocess.run(["nft", *words], check=True, capture_output=True, text=True).stdout


def table_with(
    *rules: Rule, hook: Hook | None = None, comment: str = "", family: int = nftables.IP, name: str = "minit-test"
) -> Table:
    """Return a table of one chain."""
    return Table(family=family, name=name, chains=(Chain(name="only", rules=rules, hook=hook),), comment=comment)


def listed(family: str) -> list[str]:
    """Return the rules of the chain of a family's table, as nft has them."""
    written = nft("list", "chain", family, "minit-test", "only").splitlines()
    rules = [line.strip() for line in written[2:-2] if not line.strip().startswith("type ")]
    return [_TARGET.sub(lambda match: f"icmpv6 taddr {IPv6Address(int(match[1], 16))}", rule) for rule in rules]


IPV4_RULES = {
    "ip saddr 10.1.2.3 return": (*nftexpressions.source_in(ip_address("10.1.2.3")), *nftexpressions.leave()),
    "ip saddr 10.0.0.0/8 return": (*nftexpressions.source_in(ip_network("10.0.0.0/8")), *nftexpressions.leave()),
    "ip saddr != 10.1.2.3 return": (*nftexpressions.source_not_in(ip_address("10.1.2.3")), *nftexpressions.leave()),
    "ip daddr 10.1.0.0/20 return": (*nftexpressions.destination_in(ip_network("10.1.0.0/20")), *nftexpressions.leave()),
    "ip daddr 10.1.0.9 return": (*nftexpressions.destination_in(ip_network("10.1.0.9/32")), *nftexpressions.leave()),
    "ip daddr != 10.1.2.3 return": (
        *nftexpressions.destination_not_in(ip_address("10.1.2.3")),
        *nftexpressions.leave(),
    ),
    "fib daddr type local drop": (*nftexpressions.destination_is_local(), *nftexpressions.drop()),
    "tcp dport 443 dnat to 10.0.0.1:8443": (
        *nftexpressions.destination_ports("tcp", 443),
        *nftexpressions.redirect_to(ip_address("10.0.0.1"), 8443),
    ),
    "udp dport 5000-5009 dnat to 10.0.0.1": (
        *nftexpressions.destination_ports("udp", 5000, 10),
        *nftexpressions.redirect_to(ip_address("10.0.0.1"), None),
    ),
    "udp dport 53 accept": (*nftexpressions.destination_ports("udp", 53), *nftexpressions.accept()),
    'iifname "in" return': (*nftexpressions.enters_by("in"), *nftexpressions.leave()),
    'iifname "fifteen-letters" return': (*nftexpressions.enters_by("fifteen-letters"), *nftexpressions.leave()),
    'iifname != "lo" return': (*nftexpressions.enters_not_by("lo"), *nftexpressions.leave()),
    "ct status dnat return": (*nftexpressions.was_redirected(), *nftexpressions.leave()),
    "ct direction reply return": (*nftexpressions.is_answer(), *nftexpressions.leave()),
    "icmp type redirect drop": (*nftexpressions.icmp(nftexpressions.REDIRECT4), *nftexpressions.drop()),
    "sctp dport 7 return": (*nftexpressions.destination_ports("sctp", 7), *nftexpressions.leave()),
}

IPV6_RULES = {
    "ip6 saddr 2001:db8::1 return": (*nftexpressions.source_in(ip_address("2001:db8::1")), *nftexpressions.leave()),
    "ip6 daddr 2001:db8:0:1230::/60 return": (
        *nftexpressions.destination_in(ip_network("2001:db8:0:1230::/60")),
        *nftexpressions.leave(),
    ),
    "ip6 daddr != ff00::/8 return": (
        *nftexpressions.destination_not_in(ip_network("ff00::/8")),
        *nftexpressions.leave(),
    ),
    "fib daddr type local drop": (*nftexpressions.destination_is_local(), *nftexpressions.drop()),
    "tcp dport 443 dnat to [2001:db8::1]:8443": (
        *nftexpressions.destination_ports("tcp", 443),
        *nftexpressions.redirect_to(ip_address("2001:db8::1"), 8443),
    ),
    "udp dport 5000-5009 dnat to 2001:db8::1": (
        *nftexpressions.destination_ports("udp", 5000, 10),
        *nftexpressions.redirect_to(ip_address("2001:db8::1"), None),
    ),
    "icmpv6 type nd-neighbor-advert icmpv6 taddr 2001:db8::1 drop": (
        *nftexpressions.icmpv6(nftexpressions.NEIGHBOR_ADVERTISEMENT, IPv6Address("2001:db8::1")),
        *nftexpressions.drop(),
    ),
    "@nh,128,64 0x102030405060708 drop": (*nftexpressions.source_ends_in(bytes(range(1, 9))), *nftexpressions.drop()),
    "icmpv6 type nd-router-advert drop": (
        *nftexpressions.icmpv6(nftexpressions.ROUTER_ADVERTISEMENT),
        *nftexpressions.drop(),
    ),
}


@pytest.mark.parametrize(
    ("family", "name", "rules"), [(nftables.IP, "ip", IPV4_RULES), (nftables.IP6, "ip6", IPV6_RULES)]
)
def test_every_match_and_action(family: int, name: str, rules: dict[str, Match]) -> None:
    """nft reads each rule back as it was meant."""
    hook = Hook(kind=nftables.NAT, point=nftables.PREROUTING, priority=-100)
    chosen = tuple(Rule(expressions=rule) for rule in rules.values())
    nftables.replace_tables([table_with(*chosen, hook=hook, family=family)])
    assert listed(name) == list(rules)
    hook = Hook(kind=nftables.NAT, point=nftables.POSTROUTING, priority=100)
    leaving = [
        Rule(expressions=(*match("out"), *nftexpressions.masquerade()))
        for match in (nftexpressions.leaves_by, nftexpressions.leaves_not_by)
    ]
    nftables.replace_tables([table_with(*leaving, hook=hook, family=family)])
    assert listed(name) == ['oifname "out" masquerade', 'oifname != "out" masquerade']


def test_tables_of_several_families() -> None:
    """They are written and deleted at once, and none of another name is."""
    families = (nftables.INET, nftables.IP, nftables.IP6, nftables.NETDEV)
    tables = [table_with(family=family, name=name) for family in families for name in ("minit-a", "minit-ab")]
    for _ in range(2):
        nftables.replace_tables(tables[::2])
        nftables.replace_tables(tables[1::2])
    found = nftables.read_tables("minit-a")
    assert sorted((table.name, table.family) for table in found) == sorted(
        (table.name, table.family) for table in tables
    )
    nftables.delete_tables("minit-a")
    assert {table.name for table in nftables.read_tables("minit-")} == {"minit-ab"}
    nftables.delete_tables("minit-a")
    nftables.delete_tables("minit-ab")
    assert nft("list", "ruleset") == ""


@pytest.mark.parametrize("comment", ["", "a comment", "ünïcödé", "x" * 300])
def test_comments(comment: str) -> None:
    """Comments of tables and rules are read back, as far as there is space for them."""
    shown = comment[:127]
    nftables.replace_tables([table_with(Rule(expressions=nftexpressions.leave(), comment=comment), comment=comment)])
    [table] = nftables.read_tables("minit-")
    assert (table.family, table.name, table.comment) == (nftables.IP, "minit-test", shown)
    assert nftables.read_rule_comments(table, "only") == [shown]


def test_comments_of_nft() -> None:
    """Tables and rules of nft itself are read; other names and chains are left out."""
    nft('add table ip minit-nft { comment "by hand"; }')
    nft('add table ip6 minit-six; add table ip other { comment "no"; }')
    nft("add chain ip minit-nft a; add chain ip minit-nft b")
    nft('add rule ip minit-nft a accept comment "first"; add rule ip minit-nft a accept')
    nft('add rule ip minit-nft b accept comment "other"')
    by_hand, six = nftables.read_tables("minit-")
    assert (by_hand.family, by_hand.name, by_hand.comment) == (nftables.IP, "minit-nft", "by hand")
    assert (six.family, six.name, six.comment) == (nftables.IP6, "minit-six", "")
    assert nftables.read_rule_comments(by_hand, "a") == ["first", ""]
    assert nftables.read_rule_comments(by_hand, "c") == []
    assert nftables.read_rule_comments(six, "a") == []
    assert nftables.read_rule_comments(table_with(name="nobody"), "a") == []


def test_a_table_that_is_refused_changes_nothing() -> None:
    """The table that was there stays as it was."""
    nftables.replace_tables([table_with(Rule(expressions=nftexpressions.leave(), comment="stays"))])
    before = nft("--handle", "list", "ruleset")
    with pytest.raises(NetworkError):
        nftables.replace_tables([table_with(Rule(expressions=(UNKNOWN,)))])
    assert nft("--handle", "list", "ruleset") == before


def refusal_of(table: Table) -> str:
    """Return why a table cannot be."""
    with pytest.raises(NetworkError) as caught:
        nftables.replace_tables([table])
    return str(caught.value)


def test_a_kernel_without_a_part() -> None:
    """A feature that the kernel lacks is named by its options; a misspelt part is such a feature to it."""
    start = "cannot write nftables table minit-test: the kernel's nf_tables "
    misspelt = Hook(kind="nat-misspelt", point=0, priority=0)
    for family, missing in {
        nftables.IP: "no NAT (CONFIG_NFT_NAT, CONFIG_NF_NAT)",
        nftables.IP6: "no NAT of IPv6 (CONFIG_NF_TABLES_IPV6, CONFIG_NFT_NAT, CONFIG_NF_NAT)",
        nftables.INET: "no tables of both families (CONFIG_NF_TABLES_INET)",
        nftables.NETDEV: "no hook at interfaces (CONFIG_NF_TABLES_NETDEV, CONFIG_NETFILTER_INGRESS)",
    }.items():
        assert refusal_of(table_with(hook=misspelt, family=family)) == f"{start}has {missing}"
    rule = Rule(expressions=(*nftexpressions.was_redirected(), *nftexpressions.destination_is_local(), UNKNOWN))
    assert refusal_of(table_with(rule)) == (
        start + "lacks one of CONFIG_NFT_CT, CONFIG_NFT_FIB_IPV4, CONFIG_NFT_FIB_IPV6"
    )


def test_a_part_in_the_wrong_place() -> None:
    """A refusal that is not about a missing part has the kernel's own reason."""
    hook = Hook(kind=nftables.FILTER, point=nftables.PREROUTING, priority=0)
    assert refusal_of(table_with(Rule(expressions=nftexpressions.masquerade()), hook=hook)) == (
        "cannot write nftables table minit-test: operation not supported"
    )


def route(number: int, address: str, gateway: str | None = None) -> rtmsg:
    """Return a message about a route."""
    message = rtmsg()
    message["header"]["type"] = number
    message["header"]["flags"] = NLM_F_CREATE | NLM_F_REPLACE if number == RTM_NEWROUTE else 0
    message["family"] = 2
    message["dst_len"] = 32
    message["table"] = 254
    message["type"] = 1
    message["attrs"] = [("RTA_DST", address)] + ([("RTA_GATEWAY", gateway)] if gateway else [])
    return message


def test_the_kernels_own_words() -> None:
    """An error has the text that came with it, and which of several messages it is about."""
    good, bad = route(RTM_NEWROUTE, "127.1.1.1", "127.0.0.1"), route(RTM_NEWROUTE, "10.1.1.1", "192.0.2.77")
    with Netlink(NETLINK_ROUTE) as netlink:
        for messages in ([bad], [bad, good], [good, bad]):
            with pytest.raises(NetlinkError) as caught:
                netlink.batch(messages)
            assert caught.value.explanation
    with pytest.raises(NetlinkError) as caught, Netlink(NETLINK_ROUTE) as netlink:
        netlink.request(bad)
    assert caught.value.message is bad
    assert caught.value.errno == errno.ENETUNREACH
    assert describe(caught.value) == "network is unreachable (Nexthop has invalid gateway)"


def test_a_question() -> None:
    """One answer is one message, and a refusal leaves the socket as it was."""
    with Netlink(NETLINK_ROUTE) as netlink:
        assert netlink.ask(route(RTM_GETROUTE, "127.0.0.1")).get_attr("RTA_OIF") == 1
        with pytest.raises(NetlinkError):
            netlink.ask(route(RTM_GETROUTE, "192.0.2.1"))
        assert netlink.ask(route(RTM_GETROUTE, "127.0.0.1")).get_attr("RTA_OIF") == 1
