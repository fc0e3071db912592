"""minit.network.packetfilter.confinement: what a pod sends in the name of another does not get anywhere."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_address, ip_interface
from pathlib import Path

import pytest

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.network.packetfilter.confinement import Sender, delete_table, follow_sender, link_local_address, protect
from minit.network.packetfilter.tables import table_name
from tests.support.effects import killed_child
from tests.support.frames import arp, ethernet, frame_socket, icmp, icmpv6, udp4, udp6, vlan
from tests.support.topology import (
    GATEWAY,
    GATEWAY6,
    OUTSIDE,
    OUTSIDE6,
    Place,
    Topology,
    ipv6_of,
    make_topology,
)
from tests.support.waiting import wait_for

POD = "10.1.0.2"
SECOND_POD = "10.1.0.3"
POD6 = ipv6_of(POD)
SECOND_POD6 = ipv6_of(SECOND_POD)
TABLE = table_name("x", "eth0")
OTHER_MAC = "02:00:00:00:00:77"
PROVIDERS = 0x88A8  # the tag of a VLAN of VLANs
TAGS = (b"\x81\x00", b"\x88\xa8")
STP = 0x0027  # the length of a frame of the spanning tree, in the place of a protocol
RARP = 0x8035
QUESTION, ANSWER = 1, 2
REDIRECT4, ECHO4, ROUTER4 = 5, 8, 9
ROUTER_SOLICITATION, ROUTER, SOLICITATION, ADVERTISEMENT, REDIRECT, REPORT = 133, 134, 135, 136, 137, 143


@pytest.fixture
def topology(tmp_path: Path) -> Iterator[Topology]:
    """A host and an outside."""
    with make_topology(tmp_path) as topology:
        yield topology


def sender_of(topology: Topology, pod: Place, address: str = POD) -> Sender:
    """Return what a pod may say it is."""
    addresses = (ip_address(address), ip_address(ipv6_of(address)))
    return Sender(link=topology.link_of(address), mac=pod.mac("eth0"), addresses=addresses)


def confine(topology: Topology, sender: Sender) -> None:
    """Keep a pod to its addresses."""
    topology.host.do(lambda: protect(TABLE, sender=sender))


def arrived(pod: Place, seen_at: Place, link: str, frames: dict[str, bytes], marker: bytes) -> set[str]:
    """Send frames from a pod and return the names of those that got to a link elsewhere; the marker always does."""
    with seen_at.do(lambda: frame_socket(link)) as seen, pod.do(lambda: frame_socket("eth0")) as sending:
        seen.settimeout(60)
        for frame in frames.values():
            sending.send(frame)
        sending.send(marker)
        # The first tag of a frame is told apart from it.
        payloads = {frame[18 if frame[12:14] in TAGS else 14 :]: name for name, frame in frames.items()}
        found = set()
        while (got := seen.recv(2000)[14:]) != marker[14:]:
            if got in payloads:
                found.add(payloads[got])
        return found


def own_frames(mac: str) -> dict[str, bytes]:
    """Return what a pod has to be able to say to its neighbours."""
    local = str(link_local_address(mac))
    return {
        "question for an address": arp(QUESTION, mac, POD, SECOND_POD),
        "echo": icmp(ECHO4, POD, SECOND_POD, mac),
        "own address": arp(ANSWER, mac, POD, GATEWAY),
        "question whether an address is free": arp(QUESTION, mac, "0.0.0.0", POD),
        "datagram": udp4(POD, SECOND_POD, mac),
        "datagram to all": udp4(POD, "255.255.255.255", mac),
        "datagram of a client of DHCP": udp4(POD, SECOND_POD, mac, ports=(68, 67)),
        "datagram of a client of DHCPv6": udp6(local, "ff02::1:2", mac, ports=(546, 547)),
        "datagram of IPv6": udp6(POD6, SECOND_POD6, mac),
        "datagram from the link's address": udp6(local, "ff02::1", mac),
        "solicitation": icmpv6(SOLICITATION, POD6, mac, SECOND_POD6),
        "solicitation from the link's address": icmpv6(SOLICITATION, local, mac, SECOND_POD6),
        "question whether the address is free": icmpv6(SOLICITATION, "::", mac, POD6),
        "question whether the link's address is free": icmpv6(SOLICITATION, "::", mac, local),
        "advertisement": icmpv6(ADVERTISEMENT, POD6, mac, POD6),
        "advertisement by another own address": icmpv6(ADVERTISEMENT, local, mac, POD6),
        "question for routers": icmpv6(ROUTER_SOLICITATION, "::", mac),
        "groups": icmpv6(REPORT, "::", mac, destination="ff02::16"),
    }


def foreign_frames(mac: str) -> dict[str, bytes]:
    """Return what a pod may say to nobody."""
    local, other_local = str(link_local_address(mac)), str(link_local_address(OTHER_MAC))
    return {
        "hardware address": udp4(POD, SECOND_POD, OTHER_MAC, ports=(1, 1)),
        "hardware address with IPv6": udp6(POD6, "ff02::2", OTHER_MAC),
        "hardware address with ARP": arp(QUESTION, mac, POD, "10.1.0.9", sent_by=OTHER_MAC),
        "address": udp4(SECOND_POD, GATEWAY, mac),
        "address of the gateway": udp4(GATEWAY, SECOND_POD, mac),
        "address outside": udp4(OUTSIDE, SECOND_POD, mac),
        "no address": udp4("0.0.0.0", SECOND_POD, mac),
        "no address, as who asks for one": udp4("0.0.0.0", "255.255.255.255", mac, ports=(68, 67)),
        "address of the loopback": udp4("127.0.0.1", SECOND_POD, mac),
        "to the loopback": udp4(POD, "127.0.0.1", mac),
        "address in ARP": arp(ANSWER, mac, SECOND_POD, GATEWAY),
        "gateway in ARP": arp(ANSWER, mac, GATEWAY, SECOND_POD),
        "gateway in a question": arp(QUESTION, mac, GATEWAY, SECOND_POD),
        "hardware address in ARP": arp(ANSWER, OTHER_MAC, POD, GATEWAY, sent_by=mac),
        "address of IPv6": udp6(SECOND_POD6, GATEWAY6, mac),
        "gateway of IPv6": udp6(GATEWAY6, SECOND_POD6, mac),
        "link's address of another": udp6(other_local, "ff02::1", mac),
        "no address of IPv6": udp6("::", "ff02::3", mac),
        "loopback of IPv6": udp6("::1", SECOND_POD6, mac),
        "advertisement of another": icmpv6(ADVERTISEMENT, POD6, mac, SECOND_POD6),
        "advertisement of the gateway": icmpv6(ADVERTISEMENT, local, mac, GATEWAY6),
        "advertisement behind options": icmpv6(ADVERTISEMENT, local, mac, GATEWAY6, hop_by_hop=True),
        "advertisement from another": icmpv6(ADVERTISEMENT, SECOND_POD6, mac, POD6),
        "claim of another's address": icmpv6(SOLICITATION, "::", mac, SECOND_POD6),
        "router": icmpv6(ROUTER, local, mac),
        "router behind options": icmpv6(ROUTER, local, mac, "::1", hop_by_hop=True),
        "better router": icmpv6(REDIRECT, local, mac),
        "router of IPv4": icmp(ROUTER4, POD, "224.0.0.1", mac),
        "better router of IPv4": icmp(REDIRECT4, POD, SECOND_POD, mac),
        "tagged router of IPv4": vlan(icmp(ROUTER4, POD, SECOND_POD, mac), 7),
        "server of DHCP": udp4(POD, "255.255.255.255", mac, ports=(67, 68)),
        "relay of DHCP": udp4(POD, SECOND_POD, mac, ports=(67, 67)),
        "server of DHCP by another port": udp4(POD, SECOND_POD, mac, ports=(1067, 68)),
        "tagged server of DHCP": vlan(udp4(POD, SECOND_POD, mac, ports=(67, 1068)), 7),
        "server of DHCP in a VLAN of VLANs": vlan(udp4(POD, SECOND_POD, mac, ports=(67, 3068)), 7, PROVIDERS),
        "server of DHCP with an empty tag": vlan(udp4(POD, SECOND_POD, mac, ports=(67, 2068)), 0),
        "server of DHCPv6 with an empty tag": vlan(udp6(POD6, SECOND_POD6, mac, ports=(547, 2546)), 0),
        "server of DHCPv6": udp6(local, "ff02::1", mac, ports=(547, 546)),
        "server of DHCPv6 by its address": udp6(POD6, SECOND_POD6, mac, ports=(547, 1546)),
        "server of DHCPv6 by another port": udp6(POD6, SECOND_POD6, mac, ports=(1547, 546)),
        "tagged address": vlan(udp4(SECOND_POD, GATEWAY, mac, ports=(2, 2)), 7),
        "doubly tagged address": vlan(vlan(udp4(SECOND_POD, GATEWAY, mac, ports=(3, 3)), 7), 8),
        "spanning tree": ethernet(STP, bytes(39), mac, "01:80:c2:00:00:0e"),
        "reverse ARP": ethernet(RARP, arp(3, mac, POD, POD)[14:], mac),
    }


def test_a_pod_on_a_bridge(topology: Topology) -> None:
    """Its neighbour gets what it says for itself, and nothing that it says for others."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    mac = pod.mac("eth0")
    frames = own_frames(mac) | foreign_frames(mac)
    marker = udp4(POD, SECOND_POD, mac, ports=(9, 9))
    # No bridge passes on what is meant for bridges.
    assert arrived(pod, neighbour, "eth0", frames, marker) == frames.keys() - {"spanning tree"}
    confine(topology, sender_of(topology, pod))
    assert arrived(pod, neighbour, "eth0", frames, marker) == own_frames(mac).keys()


def test_a_routed_pod(topology: Topology) -> None:
    """The outside gets what has its source, and nothing that has another's."""
    pod = topology.add_pod(POD)
    link, mac = topology.link_of(POD), pod.mac("eth0")
    to = topology.host.mac(link)
    foreign = {
        "address": udp4(SECOND_POD, OUTSIDE, mac, to),
        "address outside": udp4("192.0.2.77", OUTSIDE, mac, to),
        "hardware address": udp4(POD, OUTSIDE, OTHER_MAC, to, ports=(1, 1)),
        "address of IPv6": udp6(SECOND_POD6, OUTSIDE6, mac, to),
        "address outside of IPv6": udp6("2001:db8:2::77", OUTSIDE6, mac, to),
        "hardware address with IPv6": udp6(POD6, OUTSIDE6, OTHER_MAC, to),
    }
    marker = udp4(POD, OUTSIDE, mac, to, ports=(9, 9))
    sender = sender_of(topology, pod)
    confine(topology, sender)
    assert forwarded(pod, topology, foreign, marker) == set()
    topology.host.do(lambda: delete_table(TABLE))
    assert forwarded(pod, topology, foreign, marker) == foreign.keys()


def forwarded(pod: Place, topology: Topology, frames: dict[str, bytes], marker: bytes) -> set[str]:
    """Return the names of the frames that the host passes on to the outside, where a hop less is left to go."""

    def ends(frame: bytes) -> bytes:
        # The addresses and what follows: time to live and checksum are the router's to change.
        return frame[14 + 12 :] if frame[14] >> 4 == 4 else frame[14 + 8 :]

    with topology.outside.do(lambda: frame_socket("eth0")) as seen, pod.do(lambda: frame_socket("eth0")) as sending:
        seen.settimeout(60)
        for frame in (*frames.values(), marker):
            sending.send(frame)
        names = {ends(frame): name for name, frame in frames.items()}
        found = set()
        while (got := ends(seen.recv(2000))) != ends(marker):
            if got in names:
                found.add(names[got])
        return found


def test_neighbours_of_the_host(topology: Topology) -> None:
    """The host does not learn from a routed pod where anybody else is."""
    pod = topology.add_pod(POD)
    link, mac = topology.link_of(POD), pod.mac("eth0")
    topology.host.sysctl(f"conf/{link}/arp_accept", "1")
    claim, own = arp(ANSWER, mac, SECOND_POD, GATEWAY), arp(ANSWER, mac, POD, GATEWAY)
    confine(topology, sender_of(topology, pod))
    with pod.do(lambda: frame_socket("eth0")) as sending:
        sending.send(claim)
        sending.send(own)
        # In the order in which they were sent.
        wait_for(lambda: POD in neighbours(topology, link), "the pod's address")
        assert SECOND_POD not in neighbours(topology, link)
        topology.host.do(lambda: delete_table(TABLE))
        sending.send(claim)
    wait_for(lambda: SECOND_POD in neighbours(topology, link), "the neighbour's address")


def neighbours(topology: Topology, link: str) -> str:
    """Return what the host knows about the neighbours at a link."""
    return topology.host.run(f"ip neigh show dev {link}")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("add", [Topology.add_pod, Topology.add_bridged_pod])
def test_honest_pods(topology: Topology, protocol: str, add: Callable[[Topology, str], Place]) -> None:
    """Confined pods reach each other, the host and the outside, and are reached."""
    topology.outside.run("ip route add 10.1.0.0/24 via 192.0.2.1", "ip route add 2001:db8:1::/64 via 2001:db8:2::1")
    pods = [add(topology, address) for address in (POD, SECOND_POD)]
    for index, (pod, address) in enumerate(zip(pods, (POD, SECOND_POD))):
        sender = sender_of(topology, pod, address)
        topology.host.do(lambda sender=sender, index=index: protect(f"minit-{index}", sender=sender))  # type: ignore[misc]
    pod, other = pods
    for any_address, own, target, outside, gateway in (
        ("0.0.0.0", POD, SECOND_POD, OUTSIDE, GATEWAY),
        ("::", POD6, SECOND_POD6, OUTSIDE6, GATEWAY6),
    ):
        servers = [place.listen(protocol, 7, any_address) for place in (other, topology.outside, topology.host, pod)]
        there, beyond, host, here = servers
        assert pod.send(protocol, target, 7, there) == (own, 0)
        assert pod.send(protocol, outside, 7, beyond) == (own, 0)
        assert pod.send(protocol, gateway, 7, host) == (own, 0)
        assert topology.outside.send(protocol, own, 7, here) == (outside, 0)
        assert topology.host.send(protocol, own, 7, here) == (gateway, 0)


def test_an_address_that_the_kernel_asks_about(topology: Topology) -> None:
    """Duplicate address detection of a confined pod's own address goes well."""
    pod = topology.add_bridged_pod(POD)
    confine(topology, sender_of(topology, pod))
    pod.sysctl6("conf/eth0/accept_dad", "1")
    pod.sysctl6("conf/eth0/dad_transmits", "1")
    pod.run(f"ip address delete {POD6}/64 dev eth0", f"ip address add {POD6}/64 dev eth0")
    with pod.do(lambda: socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)) as client:
        # Not to be bound until it is known to be free.
        wait_for(lambda: can_bind(client, POD6), "the end of duplicate address detection")


def can_bind(client: socket.socket, address: str) -> bool:
    """Tell whether a socket can have an address, which it has then."""
    try:
        client.bind((address, 0))
    except OSError:
        return False
    return True


def test_a_pod_without_known_addresses(topology: Topology) -> None:
    """It has any address, but not any hardware address."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    mac = pod.mac("eth0")
    marker = udp4(POD, SECOND_POD, mac, ports=(9, 9))
    confine(topology, replace(sender_of(topology, pod), addresses=()))
    found = arrived(pod, neighbour, "eth0", own_frames(mac) | foreign_frames(mac), marker)
    assert not [name for name in found if name.startswith("hardware")]
    assert found >= own_frames(mac).keys() | {"address", "address in ARP", "address of IPv6"}


def test_a_pod_that_asks_for_its_address(topology: Topology) -> None:
    """Who has its address by DHCP may ask without one, and for nothing else."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    mac = pod.mac("eth0")
    marker = udp4(POD, SECOND_POD, mac, ports=(9, 9))
    confine(topology, replace(sender_of(topology, pod), uses_dhcp=True))
    found = arrived(pod, neighbour, "eth0", foreign_frames(mac), marker)
    assert found == {"no address, as who asks for one"}


def test_a_pod_that_follows_routers(topology: Topology) -> None:
    """It may have any address that ends in its own identifier, and none that ends otherwise."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    mac = pod.mac("eth0")
    marker = udp4(POD, SECOND_POD, mac, ports=(9, 9))
    made, others = (
        str(ip_address("2001:db8:9::") + (int(link_local_address(one)) & (1 << 64) - 1)) for one in (mac, OTHER_MAC)
    )
    frames = {
        "datagram": udp6(made, "ff02::4", mac),
        "advertisement": icmpv6(ADVERTISEMENT, made, mac, made),
        "question whether it is free": icmpv6(SOLICITATION, "::", mac, made),
    }
    foreign = {
        "another's": udp6(others, "ff02::4", mac),
        "another's advertisement": icmpv6(ADVERTISEMENT, made, mac, others),
        "claim of another's": icmpv6(SOLICITATION, "::", mac, others),
    }
    confine(topology, sender_of(topology, pod))
    assert arrived(pod, neighbour, "eth0", frames | foreign, marker) == set()
    confine(topology, replace(sender_of(topology, pod), follows_routers=True))
    assert arrived(pod, neighbour, "eth0", frames | foreign, marker) == frames.keys()
    assert arrived(pod, neighbour, "eth0", own_frames(mac) | foreign_frames(mac), marker) == own_frames(mac).keys()


def test_one_family(topology: Topology) -> None:
    """A pod of IPv4 alone has its link's address of IPv6 and no other."""
    pod, neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
    mac = pod.mac("eth0")
    marker = udp4(POD, SECOND_POD, mac, ports=(9, 9))
    confine(topology, replace(sender_of(topology, pod), addresses=(ip_address(POD),)))
    found = arrived(pod, neighbour, "eth0", own_frames(mac) | foreign_frames(mac), marker)
    assert "datagram" in found
    assert "datagram from the link's address" in found
    assert "datagram of IPv6" not in found


@pytest.mark.parametrize("add", [Topology.add_pod, Topology.add_bridged_pod])
def test_the_hosts_loopback(topology: Topology, add: Callable[[Topology, str], Place]) -> None:
    """A confined pod does not reach 127.0.0.1 of the host, even where somebody has made that possible."""
    pod = add(topology, POD)
    private = topology.host.listen("udp", 22, "127.0.0.1")
    topology.host.sysctl("conf/all/route_localnet", "1")
    pod.run("ip address flush dev lo", "ip link set lo up")
    pod.sysctl("conf/all/route_localnet", "1")
    pod.run("ip route flush table local dev lo", f"ip route add 127.0.0.1 via {GATEWAY}")
    assert pod.send("udp", "127.0.0.1", 22, private) == (POD, 0)
    confine(topology, sender_of(topology, pod))
    assert pod.send("udp", "127.0.0.1", 22, private) is None


def test_the_table_goes(topology: Topology) -> None:
    """It can be deleted after its link, and twice."""
    pod = topology.add_pod(POD)
    sender = sender_of(topology, pod)
    confine(topology, sender)
    topology.host.run(f"ip link delete {sender.link}")
    topology.host.do(lambda: delete_table(TABLE))
    assert topology.rules() == ""
    topology.host.do(lambda: delete_table(TABLE))


def test_a_link_that_is_gone(topology: Topology) -> None:
    """Nothing is written, and the message names the link."""
    with pytest.raises(NetworkError) as caught:
        confine(topology, Sender(link="veth-gone", mac=OTHER_MAC))
    assert str(caught.value) == "interface veth-gone has vanished"
    assert topology.rules() == ""


def test_rules_that_are_saved(topology: Topology) -> None:
    """What nft(8) prints of them it reads again."""
    pod = topology.add_pod(POD)
    confine(topology, sender_of(topology, pod))
    saved = topology.rules()
    command = ["nsenter", f"--net={topology.host.path}", "nft", "-f", "-"]
    subprocess.run(command, input=f"flush ruleset\n{saved}", text=True, check=True)
    # It joins comparisons of bytes that stand side by side.
    assert topology.rules().count("handle") == saved.count("handle")


def test_killed_at_any_step(topology: Topology) -> None:
    """Whenever it is killed there are all tables or none, and deleting leaves nothing."""
    pod = topology.add_pod(POD)
    sender = sender_of(topology, pod)

    def work() -> None:
        protect(TABLE, [ip_interface(f"{POD}/24"), ip_interface(f"{POD6}/64")], sender)

    step = 1
    while killed_child(lambda: topology.host.do(work), step):
        assert topology.rules().count("table ") in (0, 3)
        topology.host.do(lambda: delete_table(TABLE))
        assert topology.rules() == ""
        step += 1
    assert step > 1
    topology.host.do(work)
    step = 1
    while killed_child(lambda: topology.host.do(lambda: delete_table(TABLE)), step):
        assert topology.rules().count("table ") in (0, 3)
        topology.host.do(work)
        step += 1
    assert step > 2
    assert topology.rules() == ""


@pytest.mark.parametrize("freedom", ["its addresses", "any address", "asking for one", "making one"])
def test_a_sender_with_another_hardware_address(topology: Topology, freedom: str) -> None:
    """The rules become those that it would have had with it from the start, and none are made if there are none."""
    pod = topology.add_pod(POD)
    sender = sender_of(topology, pod)
    sender = replace(sender, uses_dhcp=freedom == "asking for one", follows_routers=freedom == "making one")
    if freedom == "any address":
        sender = replace(sender, addresses=())
    changed = replace(sender, mac=OTHER_MAC)
    tables: list[str] = []
    for own in (changed, sender):
        topology.host.do(lambda own=own: protect(TABLE, sender=own, network="net"))  # type: ignore[misc]
        tables.append(topology.host.run("nft list ruleset"))
    # What is told of its freedoms does not count.
    told = replace(sender_of(topology, pod), mac=OTHER_MAC)
    topology.host.do(lambda: follow_sender(TABLE, told))
    assert topology.host.run("nft list ruleset") == tables[0] != tables[1]
    topology.host.do(lambda: delete_table(TABLE))
    topology.host.do(lambda: follow_sender(TABLE, told))
    assert topology.host.run("nft list ruleset") == ""
