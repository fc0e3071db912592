"""minit.network.builtin.firewall: from where containers on bridges may be reached, beside the reference plugin."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ManifestError, NetworkError
from minit.manifest.reader import Node
from minit.network.builtin import ask_builtin
from minit.network.builtin.call import Call
from minit.network.protocol import Request, read_result
from tests.support.effects import killed_child
from tests.support.topology import BRIDGE, HOST, OUTSIDE, POD, SECOND_POD, Place, Topology, make_topology

REFERENCE = Path("/usr/lib/cni/firewall")
OTHER_BRIDGE = "cni1"
OTHER_GATEWAY = "10.2.0.1"
OTHER_POD = "10.2.0.2"
BRIDGES = {POD: BRIDGE, SECOND_POD: BRIDGE, OTHER_POD: OTHER_BRIDGE}
ELSEWHERE = "this plugin has rules of nftables; the CNI's own, in /usr/lib/rkt/plugins/net, stands in for it"
Json = dict[str, Any]


class World:
    """Two containers on one bridge, and one on another."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        topology.outside.run(f"ip route add 10.0.0.0/8 via {HOST}")
        self.pods = {address: topology.add_bridged_pod(address) for address in (POD, SECOND_POD)}
        topology.filter_bridged(False)
        self.pods[OTHER_POD] = self._add_other()

    def _add_other(self) -> Place:
        pod = self.topology.add_place("other")
        link = self.topology.link_of(OTHER_POD)
        self.topology.host.run(
            f"ip link add {OTHER_BRIDGE} type bridge",
            f"ip address add {OTHER_GATEWAY}/24 dev {OTHER_BRIDGE}",
            f"ip link set {OTHER_BRIDGE} up",
            f"ip link add {link} type veth peer name eth0 netns {pod.path}",
            f"ip link set {link} master {OTHER_BRIDGE}",
            f"ip link set {link} up",
        )
        pod.run(f"ip address add {OTHER_POD}/24 dev eth0", "ip link set eth0 up")
        pod.run(f"ip route add default via {OTHER_GATEWAY}")
        pod.wait_for_link("eth0")
        self.topology.host.wait_for_link(link)
        return pod

    def config(self, address: str, **more: Any) -> Json:
        """Return a configuration with the result of the bridge of a container."""
        interfaces = [
            {"name": BRIDGES[address]},
            {"name": self.topology.link_of(address)},
            {"name": "eth0", "sandbox": str(self.pods[address].path)},
        ]
        ips = [{"address": f"{address}/24", "interface": 2}]
        previous = {"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips}
        return {"cniVersion": "1.0.0", "name": "lan", "type": "firewall", "prevResult": previous, **more}

    def ask(self, command: str, address: str, config: Json | None = None, **more: Any) -> None:
        """Make a request of the built-in plugin about a container, whose address is its name."""
        config = config or self.config(address, **more)
        previous = read_result(config["prevResult"], "result", "1.0.0") if config.get("prevResult") else None
        request = Request(container_id=address, namespace="", interface="eth0")

        def unexpected(*_: object) -> Any:
            raise AssertionError("firewall delegates nothing")

        call = Call(config=Node(config, None, "lan.conf"), request=request, delegate=unexpected, previous=previous)
        answer = self.topology.host.do(lambda: ask_builtin(command, "firewall", call))
        assert command != "ADD" or answer == previous

    def ask_reference(self, command: str, address: str, **more: Any) -> None:
        """Make a request of the reference plugin."""
        variables = {"CNI_COMMAND": command, "CNI_CONTAINERID": address, "CNI_NETNS": "/x", "CNI_IFNAME": "eth0"}
        subprocess.run(
            ["nsenter", f"--net={self.topology.host.path}", REFERENCE],
            input=json.dumps(self.config(address, **more)),
            env={**variables, "CNI_PATH": "/nowhere", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
            text=True,
            check=True,
            capture_output=True,
        )

    def reached(self) -> set[tuple[str, str]]:
        """Return who reaches whom."""
        places = {**self.pods, OUTSIDE: self.topology.outside, HOST: self.topology.host}
        found = set()
        for to, target in places.items():
            with target.listen("tcp", 80) as server:
                for name, place in places.items():
                    if name != to and place.send("tcp", to, 80, server) is not None:
                        found.add((name, to))
        return found


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A host with two bridges."""
    with make_topology(tmp_path) as topology:
        yield World(topology)


BETWEEN_BRIDGES = {(one, OTHER_POD) for one in (POD, SECOND_POD)} | {(OTHER_POD, one) for one in (POD, SECOND_POD)}
NEIGHBOURS = {(POD, SECOND_POD), (SECOND_POD, POD)}


@pytest.mark.parametrize("policy", [None, "", "open", "same-bridge"])
def test_as_the_reference(world: World, policy: str | None) -> None:
    """Containers are reached from where they are with the reference plugin."""
    everything = world.reached()
    more: Json = {} if policy is None else {"ingressPolicy": policy}
    for address in BRIDGES:
        world.ask("ADD", address, **more)
    ours = world.reached()
    for address in BRIDGES:
        world.ask("CHECK", address, **more)
        world.ask("DEL", address)
    assert world.topology.rules() == ""
    assert ours == (everything - BETWEEN_BRIDGES if policy == "same-bridge" else everything)
    if REFERENCE.exists():
        for address in BRIDGES:
            world.ask_reference("ADD", address, **more)
        assert world.reached() == ours


@pytest.mark.parametrize("is_filtered", [False, True])
def test_isolated(world: World, is_filtered: bool) -> None:
    """Isolated containers do not reach each other either, whether or not bridged packets are filtered."""
    world.topology.filter_bridged(is_filtered)
    everything = world.reached()
    for address in BRIDGES:
        world.ask("ADD", address, ingressPolicy="isolated")
    assert world.reached() == everything - BETWEEN_BRIDGES - NEIGHBOURS


def test_one_bridge_with_a_policy(world: World) -> None:
    """Other bridges are none of its business, as with the reference plugin."""
    everything = world.reached()
    world.ask("ADD", POD, ingressPolicy="same-bridge")
    assert world.reached() == everything


def test_the_last_container_of_a_bridge(world: World) -> None:
    """A policy holds as long as a container has it."""
    everything = world.reached()
    for address in BRIDGES:
        world.ask("ADD", address, ingressPolicy="same-bridge")
    world.ask("DEL", POD)
    assert world.reached() == everything - BETWEEN_BRIDGES
    world.ask("DEL", SECOND_POD)
    assert world.reached() == everything
    # Without result or policy, and twice.
    for _ in range(2):
        world.ask("DEL", OTHER_POD, {"cniVersion": "1.0.0", "name": "lan", "type": "firewall"})
    assert world.topology.rules() == ""


def test_what_is_written(world: World) -> None:
    """The common table says for which bridges it is."""
    world.ask("ADD", POD, ingressPolicy="same-bridge")
    world.ask("ADD", OTHER_POD, ingressPolicy="isolated")
    written = world.topology.host.run("nft list table inet minit-isolation")
    assert [line.strip() for line in written.splitlines() if " comment " in line] == [
        f'iifname "{OTHER_BRIDGE}" jump bridges comment "isolated {OTHER_BRIDGE}"',
        f'iifname "{BRIDGE}" oifname != "{BRIDGE}" jump bridges comment "same-bridge {BRIDGE}"',
    ]
    assert f'comment "same-bridge {BRIDGE} network lan"' in world.topology.rules()


def test_checking(world: World) -> None:
    """A policy that is not carried out any more is named."""
    world.ask("ADD", POD, ingressPolicy="same-bridge")
    world.ask("CHECK", POD, ingressPolicy="same-bridge")
    message = f"the ingress policy same-bridge of bridge {BRIDGE} is not carried out"
    world.topology.host.run("nft flush chain inet minit-isolation forward")
    with pytest.raises(NetworkError) as caught:
        world.ask("CHECK", POD, ingressPolicy="same-bridge")
    assert str(caught.value) == message
    # The next container mends it.
    world.ask("ADD", SECOND_POD, ingressPolicy="same-bridge")
    world.ask("CHECK", POD, ingressPolicy="same-bridge")


def test_collecting(world: World) -> None:
    """Policies of attachments to the network that are no more are forgotten, and no others."""
    for address in BRIDGES:
        world.ask("ADD", address, ingressPolicy="same-bridge")
    valid = [{"containerID": SECOND_POD, "ifname": "eth0"}]
    request = {**world.config(POD), "prevResult": None, "cni.dev/valid-attachments": valid}
    world.ask("GC", POD, request | {"name": "wan"})
    assert world.topology.rules().count("-ingress") == 3
    world.ask("GC", POD, request)
    rules = world.topology.rules()
    assert rules.count("-ingress") == 1
    assert SECOND_POD in rules
    assert OTHER_BRIDGE not in rules


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"backend": "iptables"}, f'backend: expected nothing here: {ELSEWHERE}, got "iptables"'),
        ({"iptablesAdminChainName": "MINE"}, f'iptablesAdminChainName: expected nothing here: {ELSEWHERE}, got "MINE"'),
        (
            {"ingressPolicy": "closed"},
            'ingressPolicy: expected "" or "open" or "same-bridge" or "isolated", got "closed"',
        ),
    ],
)
def test_configurations_that_are_refused(world: World, more: Json, message: str) -> None:
    """The message names file, key and value, and nothing is written."""
    with pytest.raises(ManifestError) as caught:
        world.ask("ADD", POD, **more)
    assert str(caught.value) == f"lan.conf: {message}"
    assert world.topology.rules() == ""


def test_no_bridge(world: World) -> None:
    """A container that is on none has no such policy."""
    config = world.config(POD, ingressPolicy="same-bridge")
    config["prevResult"]["interfaces"] = config["prevResult"]["interfaces"][1:]
    config["prevResult"]["ips"] = []
    with pytest.raises(NetworkError) as caught:
        world.ask("ADD", POD, config)
    assert str(caught.value) == "ingressPolicy: the plugins before have not connected the container to a bridge"
    with pytest.raises(NetworkError) as caught:
        world.ask("ADD", POD, config | {"prevResult": None})
    assert str(caught.value) == "lan.conf: prevResult is missing: the plugin has to follow another one in a list"


def test_killed_at_any_step(world: World) -> None:
    """Whenever it is killed, deleting leaves what others have."""
    world.ask("ADD", OTHER_POD, ingressPolicy="same-bridge")
    before = only_rules(world)
    for command in ("ADD", "DEL"):
        step = 1
        while killed_child(lambda command=command: world.ask(command, POD, ingressPolicy="isolated"), step):  # type: ignore[misc]
            world.ask("DEL", POD)
            assert only_rules(world) == before
            if command == "DEL":
                world.ask("ADD", POD, ingressPolicy="isolated")
            step += 1
        assert step > 2
        world.ask(command, POD, ingressPolicy="isolated")
    assert only_rules(world) == before


def only_rules(world: World) -> str:
    """Return all that the packet filter of the host has, without the handles, which differ each time."""
    return world.topology.host.run("nft --stateless list ruleset")
