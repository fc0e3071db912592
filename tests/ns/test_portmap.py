"""minit.network.builtin.portmap: ports that a runtime asks for, beside the reference plugin."""

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
from tests.support.effects import each_failure, killed_child
from tests.support.topology import (
    BRIDGE,
    IPV4,
    IPV6,
    OTHER_HOST,
    OUTSIDE,
    POD,
    SECOND_POD,
    Family,
    Place,
    Topology,
    ipv6_of,
    make_topology,
)

ID = "8f1b6a3e-3c3e-4b1c-9a57-000000000078"
TABLE = f"minit-{ID}-eth0-ports"
REFERENCE = Path("/usr/lib/cni/portmap")
MAPPING = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}
FAMILIES = pytest.mark.parametrize("ip", [IPV4, IPV6], ids=["ipv4", "ipv6"])
Json = dict[str, Any]


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """A host and an outside."""
    with make_topology(tmp_path) as topology:
        yield topology


def config_of(pod: Place, *mappings: Json, addresses: tuple[str, ...] = (POD, ipv6_of(POD)), **more: Any) -> Json:
    """Return a configuration with the result of a plugin before."""
    prefixes = {False: 24, True: 64}
    ips = [{"address": f"{one}/{prefixes[':' in one]}", "interface": 0} for one in addresses]
    interfaces = [{"name": "eth0", "sandbox": str(pod.path)}]
    return {
        "cniVersion": "1.0.0",
        "name": "lan",
        "type": "portmap",
        "runtimeConfig": {"portMappings": list(mappings)},
        "prevResult": {"cniVersion": "1.0.0", "interfaces": interfaces, "ips": ips},
        **more,
    }


def ask(topology: Topology, command: str, config: Json, container: str = ID) -> None:
    """Make a request of the built-in plugin on the host."""
    topology.host.do(lambda: ask_here(command, config, container))


def ask_here(command: str, config: Json, container: str = ID) -> None:
    """Make a request of the built-in plugin in this network."""
    previous = read_result(config["prevResult"], "result", "1.0.0") if config.get("prevResult") else None
    request = Request(container_id=container, namespace="", interface="eth0")

    def unexpected(*_: object) -> Any:
        raise AssertionError("portmap delegates nothing")

    call = Call(config=Node(config, None, "lan.conf"), request=request, delegate=unexpected, previous=previous)
    answer = ask_builtin(command, "portmap", call)
    assert command != "ADD" or answer == previous


def ask_reference(topology: Topology, command: str, config: Json) -> None:
    """Make a request of the reference plugin on the host."""
    environment = {"CNI_COMMAND": command, "CNI_CONTAINERID": ID, "CNI_NETNS": "/x", "CNI_IFNAME": "eth0"}
    subprocess.run(
        ["nsenter", f"--net={topology.host.path}", REFERENCE],
        input=json.dumps(config),
        env={**environment, "CNI_PATH": "/nowhere", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        text=True,
        check=True,
        capture_output=True,
    )


ASKERS = {"ours": ask, "reference": ask_reference}


def reached(topology: Topology, ip: Family, pod: Place, neighbour: Place, port: int) -> dict[str, str | None]:
    """Return from where a container is reached by a port, and the address that it sees then."""
    ways = {
        "outside": (topology.outside, ip.host),
        "outside by another address": (topology.outside, ip.other_host),
        "host": (topology.host, ip.host),
        "loopback": (topology.host, ip.loopback),
        "itself": (pod, ip.host),
        "neighbour": (neighbour, ip.host),
    }
    with pod.listen("tcp", 80, ip.every) as server:
        found = {}
        for name, (place, address) in ways.items():
            answer = place.send("tcp", address, port, server)
            found[name] = None if answer is None else answer[0]
        return found


CASES: dict[str, tuple[Json, Json]] = {
    "plain": ({}, {}),
    "every address of IPv4": ({"hostIP": "0.0.0.0"}, {}),
    "every address of IPv6": ({"hostIP": "::"}, {}),
    "one address": ({"hostIP": OTHER_HOST}, {}),
    "a condition": ({}, {"conditionsV4": ["!", "-s", OUTSIDE]}),
    "another condition": ({}, {"conditionsV4": ["-d", f"{OTHER_HOST}/32"], "conditionsV6": ["-i", "eth0"]}),
    "a mark": ({}, {"markMasqBit": 7}),
}


@FAMILIES
@pytest.mark.parametrize("case", CASES)
def test_as_the_reference(topology: Topology, ip: Family, case: str) -> None:
    """The container is reached from where it is with the reference plugin, and by ::1, and sees the same addresses."""
    if not REFERENCE.exists():
        pytest.skip("no reference plugin portmap")
    pod, neighbour = bridged_pods(topology)
    mapping, more = CASES[case]
    config = config_of(pod, MAPPING | mapping, **more)
    answers = {}
    for name, asker in ASKERS.items():
        asker(topology, "ADD", config)
        answers[name] = reached(topology, ip, pod, neighbour, 8080)
        asker(topology, "DEL", config)
        assert set(reached(topology, ip, pod, neighbour, 8080).values()) == {None}
    if ip is IPV6 and answers["reference"]["host"] is not None:
        answers["reference"]["loopback"] = ip.gateway
    assert answers["ours"] == answers["reference"]


def bridged_pods(topology: Topology) -> tuple[Place, Place]:
    """Return two containers on a bridge."""
    pods = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    topology.filter_bridged(False)
    return pods


@FAMILIES
def test_all_masqueraded(topology: Topology, ip: Family) -> None:
    """With masqAll the container sees the host alone."""
    pod, neighbour = bridged_pods(topology)
    ask(topology, "ADD", config_of(pod, MAPPING, masqAll=True))
    assert set(reached(topology, ip, pod, neighbour, 8080).values()) == {ip.gateway}


@FAMILIES
def test_nothing_masqueraded(topology: Topology, ip: Family) -> None:
    """Without snat the container is reached by those who get its answers, and no way is opened for others."""
    pod, neighbour = bridged_pods(topology)
    ask(topology, "ADD", config_of(pod, MAPPING, snat=False))
    found = reached(topology, ip, pod, neighbour, 8080)
    assert {name for name, seen in found.items() if seen} == {"outside", "outside by another address", "host"}
    assert topology.host.sysctl(f"conf/{BRIDGE}/route_localnet") == "0"
    assert f"local ::1 dev {BRIDGE}" not in topology.host.run("ip -6 route show table local")


def test_a_container_that_the_host_does_not_reach(topology: Topology) -> None:
    """Its ports are forwarded to where the network may lead."""
    pod = topology.add_pod(POD)
    topology.host.run(f"ip route add unreachable {SECOND_POD}")
    config = config_of(pod, MAPPING, addresses=(SECOND_POD,))
    ask(topology, "ADD", config)
    assert f"dnat to {SECOND_POD}:80" in topology.rules()
    ask(topology, "DEL", config)
    assert topology.rules() == ""


def test_sctp(topology: Topology) -> None:
    """Its ports are forwarded, too, and the protocol may be in capitals."""
    pod = topology.add_pod(POD)
    config = config_of(pod, MAPPING | {"protocol": "SCTP"})
    ask(topology, "ADD", config)
    ask(topology, "CHECK", config)
    assert f"sctp dport 8080 dnat to {POD}:80" in topology.rules()


def test_nothing_to_forward(topology: Topology) -> None:
    """Without ports, or without addresses, nothing is written."""
    pod = topology.add_pod(POD)
    ask(topology, "ADD", config_of(pod))
    ask(topology, "ADD", config_of(pod, MAPPING, addresses=()))
    ask(topology, "ADD", config_of(pod, MAPPING | {"hostIP": "::1"}, addresses=(POD,)))
    assert topology.rules() == ""
    ask(topology, "CHECK", config_of(pod))


def test_deleting(topology: Topology) -> None:
    """It needs neither the result nor the ports, and can be done twice."""
    pod = topology.add_pod(POD)
    ask(topology, "ADD", config_of(pod, MAPPING))
    for _ in range(2):
        ask(topology, "DEL", {"cniVersion": "1.0.0", "name": "lan", "type": "portmap"})
        assert topology.rules() == ""


def test_checking(topology: Topology) -> None:
    """A port that is not forwarded any more is named."""
    pod = topology.add_pod(POD)
    config = config_of(pod, MAPPING, MAPPING | {"hostPort": 8081, "hostIP": "::1"})
    ask(topology, "ADD", config)
    ask(topology, "CHECK", config)
    topology.host.run(f"nft flush chain ip6 {TABLE} ports")
    with pytest.raises(NetworkError) as caught:
        ask(topology, "CHECK", config)
    assert str(caught.value) == f"port tcp-[::]:8080 is not forwarded to {ipv6_of(POD)}"


def test_collecting(topology: Topology) -> None:
    """Tables of attachments to the network that are no more are removed, and no others."""
    pod, _ = bridged_pods(topology)
    config = config_of(pod, MAPPING | {"protocol": "udp"})
    for container in ("dead", "alive"):
        ask(topology, "ADD", config, container)
    ask(topology, "ADD", config | {"name": "wan"}, "other")
    valid = [{"containerID": "alive", "ifname": "eth0"}]
    ask(topology, "GC", {**config, "prevResult": None, "cni.dev/valid-attachments": valid})
    rules = topology.rules()
    assert "minit-dead-" not in rules
    assert "minit-alive-eth0-ports" in rules
    assert "minit-other-eth0-ports" in rules
    # Which the others still need.
    assert topology.host.sysctl(f"conf/{BRIDGE}/route_localnet") == "1"
    for container in ("alive", "other"):
        ask(topology, "DEL", config, container)
    assert topology.host.sysctl(f"conf/{BRIDGE}/route_localnet") == "0"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"backend": "iptables"},
            'lan.conf: backend: expected nothing here: ports are forwarded by nftables, got "iptables"',
        ),
        (
            {"externalSetMarkChain": "KUBE-MARK-MASQ"},
            "lan.conf: externalSetMarkChain: expected nothing here: a chain of iptables cannot be called by nftables,"
            ' got "KUBE-MARK-MASQ"',
        ),
        ({"markMasqBit": 32}, "lan.conf: markMasqBit: expected an integer from 0 to 31, got 32"),
        (
            {"conditionsV4": ["-m", "mark"]},
            "lan.conf: conditionsV4[0]: expected nothing here: of the options of iptables there are -s, -d and -i,"
            ' got "-m"',
        ),
        (
            {"conditionsV4": ["!"]},
            'lan.conf: conditionsV4: expected options of iptables, each with its value, got ["!"]',
        ),
        ({"conditionsV6": ["-s", "10.0.0.1"]}, 'lan.conf: conditionsV6[1]: expected a subnet of IPv6, got "10.0.0.1"'),
        ({"conditionsV4": ["-s", "nowhere"]}, 'lan.conf: conditionsV4[1]: expected a subnet, got "nowhere"'),
    ],
)
def test_configurations_that_are_refused(topology: Topology, more: Json, message: str) -> None:
    """The message names file, key and value, and nothing is written."""
    pod = topology.add_pod(POD)
    with pytest.raises(ManifestError) as caught:
        ask(topology, "ADD", config_of(pod, MAPPING, **more))
    assert str(caught.value) == message
    assert topology.rules() == ""


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"hostPort": 0}, "hostPort: expected an integer from 1 to 65535, got 0"),
        ({"containerPort": 65536}, "containerPort: expected an integer from 1 to 65535, got 65536"),
        ({"protocol": "icmp"}, 'protocol: expected tcp, udp or sctp, got "icmp"'),
        ({"hostIP": "host"}, 'hostIP: expected an IP address, got "host"'),
    ],
)
def test_ports_that_are_refused(topology: Topology, mapping: Json, message: str) -> None:
    """The message names the port."""
    pod = topology.add_pod(POD)
    with pytest.raises(ManifestError) as caught:
        ask(topology, "ADD", config_of(pod, MAPPING, MAPPING | mapping))
    assert str(caught.value) == f"lan.conf: runtimeConfig.portMappings[1].{message}"


def test_without_a_result(topology: Topology) -> None:
    """There is no container to forward to."""
    config = config_of(topology.host, MAPPING) | {"prevResult": None}
    for command, message in {
        "ADD": "lan.conf: prevResult is missing: the plugin has to follow another one in a list",
        "CHECK": "CHECK needs the result of ADD",
    }.items():
        with pytest.raises(NetworkError) as caught:
            ask(topology, command, config)
        assert str(caught.value) == message


def test_killed_at_any_step(topology: Topology) -> None:
    """Whenever it is killed, deleting leaves nothing."""
    pod = topology.add_pod(POD)
    config = config_of(pod, MAPPING | {"protocol": "udp"})
    for command in ("ADD", "DEL"):
        step = 1
        while killed_child(lambda command=command: ask(topology, command, config), step):  # type: ignore[misc]
            ask(topology, "DEL", config)
            assert topology.rules() == ""
            assert topology.host.sysctl(f"conf/{topology.link_of(POD)}/route_localnet") == "0"
            assert "local ::1 dev veth" not in topology.host.run("ip -6 route show table local")
            if command == "DEL":
                ask(topology, "ADD", config)
            step += 1
        assert step > 3
        ask(topology, "ADD" if command == "ADD" else "DEL", config)


def test_failing_at_any_step_of_add(topology: Topology) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    pod = topology.add_pod(POD)
    config = config_of(pod, MAPPING | {"protocol": "udp"})

    failures = 0
    for error in each_failure(lambda: ask_here("ADD", config), at=topology.host.do):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert topology.rules() == ""
            assert topology.host.sysctl(f"conf/{topology.link_of(POD)}/route_localnet") == "0"
        ask(topology, "DEL", config)
    assert failures > 3
