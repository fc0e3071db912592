"""minit.plan.networks.networkplan: which networks are joined, in which order, by which interfaces."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.networkconfig import NetworkConfig
from minit.plan.networks.networkplan import NetworkPlan, plan_networks, wants_network


def config(name: str, file_name: str | None = None, directory: str = "/etc/rkt/net.d", **fields: Any) -> NetworkConfig:
    """Return the configuration of a network."""
    return NetworkConfig(name=name, file_name=file_name or f"{name}.conf", directory=directory, text=b"", **fields)


def test_networks_are_joined_in_the_order_of_their_files() -> None:
    """The file's name counts: neither the directory, nor the network's name, nor the order in --net."""
    configs = [config("a", "30.conf", "/a"), config("b", "10.conf", "/z"), config("c", "20.conflist", "/b")]
    planned = plan_networks(configs, ("a", "c", "b:IP=10.0.0.9;K=V"))
    assert [(network.config.name, network.interface, network.args) for network in planned] == [
        ("b", "eth0", "IP=10.0.0.9;K=V"),
        ("c", "eth1", ""),
        ("a", "eth2", ""),
    ]


def test_only_what_is_asked_for_is_joined() -> None:
    """A network that nobody names is left alone."""
    planned = plan_networks([config("a"), config("b")], ("b",))
    assert [(network.config.name, network.interface) for network in planned] == [("b", "eth0")]


def test_all_of_them() -> None:
    """`all` is every network there is, and one may be named beside it for its arguments."""
    planned = plan_networks([config("a"), config("b")], ("all", "b:K=V"))
    assert [(network.config.name, network.args) for network in planned] == [("a", ""), ("b", "K=V")]
    assert plan_networks([], ("all",)) == ()


def test_a_missing_network() -> None:
    """All that are missing are named, sorted."""
    with pytest.raises(PlanError, match="^failed to setup network: networks not found: a, c$"):
        plan_networks([config("b")], ("c:x=y", "b", "a", "all"))


def test_two_networks_of_one_file_name() -> None:
    """The pod directory could keep only one of the files, and the other network would never be left."""
    configs = [config("a", "10.conf", "/etc/rkt/net.d"), config("b", "10.conf", "/usr/lib/rkt/net.d")]
    with pytest.raises(PlanError, match=r"different networks in 10\.conf of /etc/rkt/net\.d and /usr/lib/rkt/net\.d"):
        plan_networks(configs, ("a", "b"))
    assert len(plan_networks(configs, ("a",))) == 1


def test_what_ports_are_forwarded_to() -> None:
    """The first network that masquerades counts, else the last, else there is none."""
    configs = [config("a"), config("b", ip_masq=True), config("c", ip_masq=True), config("d")]
    planned = plan_networks(configs, ("all",))
    assert NetworkPlan(networks=planned).forwardable == planned[1]
    assert NetworkPlan(networks=(planned[0], planned[3])).forwardable == planned[3]
    assert NetworkPlan().forwardable is None


@given(st.sets(st.sampled_from("abcdefgh")), st.sets(st.sampled_from("abcdefgh")))
def test_every_network_named_is_joined_or_missing(there: set[str], named: set[str]) -> None:
    """Interfaces have no gaps, and no network is joined twice or forgotten."""
    wanted = tuple(sorted(named, reverse=True))
    try:
        planned = plan_networks([config(name) for name in there], wanted)
    except PlanError as error:
        assert str(error).endswith(": " + ", ".join(sorted(named - there)))
    else:
        assert [network.config.name for network in planned] == sorted(named)
        assert [network.interface for network in planned] == [f"eth{index}" for index in range(len(named))]


def test_asking_for_a_network() -> None:
    """An entry asks for the network before its colon."""
    assert wants_network(("a:all",), "a") and not wants_network(("a:all",), "all")
    assert wants_network(("all",), "x") and not wants_network((), "x")
