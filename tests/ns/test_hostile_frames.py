"""minit.network.packetfilter.confinement: what a pod says is not put together to something else by whoever gets it."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv6Address, ip_address
from pathlib import Path

import pytest

from minit.network.packetfilter.confinement import Sender, link_local_address, protect
from minit.network.packetfilter.tables import table_name
from tests.support.frames import (
    FRAGMENT,
    ICMPV6,
    OPTIONS,
    UDP,
    arp,
    checksum,
    fragment,
    frame_socket,
    icmp,
    icmpv6_message,
    ipv6,
    options,
    udp4,
    udp6,
)
from tests.support.topology import GATEWAY6, POD, SECOND_POD, Place, Topology, ipv6_of, make_topology

POD6 = ipv6_of(POD)
SECOND_POD6 = ipv6_of(SECOND_POD)
EVERYBODY = "ff02::1"
NO_NEXT = 59
TCP = 6
QUESTION = 1
MORE_FRAGMENTS = 0x20  # of the first byte of flags and offset
ROUTER, ADVERTISEMENT, ECHO = 134, 136, 128
REDIRECT4 = 5


class Bridged:
    """A pod that is kept to its addresses, and a neighbour on the same bridge who sees what comes."""

    def __init__(self, topology: Topology) -> None:
        self.pod, self.neighbour = topology.add_bridged_pod(POD), topology.add_bridged_pod(SECOND_POD)
        # Else the kernel drops what it cannot read, for the rules about what is routed.
        topology.filter_bridged(False)
        self.mac = self.pod.mac("eth0")
        self.local = str(link_local_address(self.mac))
        addresses = (ip_address(POD), ip_address(POD6))
        sender = Sender(link=topology.link_of(POD), mac=self.mac, addresses=addresses)
        topology.host.do(lambda: protect(table_name("x", "eth0"), sender=sender))

    def passed(self, frames: dict[str, bytes]) -> set[str]:
        """Send frames from the pod and return the names of those that the neighbour got."""
        return arrived(self.pod, self.neighbour, frames, udp4(POD, SECOND_POD, self.mac, ports=(9, 9)))


@pytest.fixture
def bridged(tmp_path: Path) -> Iterator[Bridged]:
    """A confined pod and its neighbour."""
    with make_topology(tmp_path) as topology:
        yield Bridged(topology)


def arrived(pod: Place, neighbour: Place, frames: dict[str, bytes], marker: bytes) -> set[str]:
    """Send frames and then a marker, which always arrives; return the names of those that came before it."""
    names = {frame: name for name, frame in frames.items()}
    with neighbour.do(lambda: frame_socket("eth0")) as seen, pod.do(lambda: frame_socket("eth0")) as sending:
        seen.settimeout(60)
        for frame in (*frames.values(), marker):
            sending.send(frame)
        found = set()
        while (got := seen.recv(2000)) != marker:
            if got in names:
                found.add(names[got])
        return found


def test_messages_in_fragments(bridged: Bridged) -> None:
    """No fragments are passed on that could be put together to a router's advertisement, or another's."""
    advertisement = icmpv6_message(ADVERTISEMENT, bridged.local, EVERYBODY, IPv6Address(GATEWAY6).packed)
    router = icmpv6_message(ROUTER, bridged.local, EVERYBODY, bytes(8))

    def frame(payload: bytes) -> bytes:
        return ipv6(bridged.local, EVERYBODY, FRAGMENT, payload, bridged.mac)

    header = options(ICMPV6, 2)
    hidden = {
        "router in one": frame(fragment(ICMPV6, 0, router)),
        "router in the first": frame(fragment(ICMPV6, 0, router, more=True)),
        "options alone": frame(fragment(OPTIONS, 0, header, more=True)),
        "options cut": frame(fragment(OPTIONS, 0, header[:8], more=True)),
        "options of options cut": frame(fragment(OPTIONS, 0, options(OPTIONS, 2)[:8], more=True)),
        "router behind options": frame(fragment(OPTIONS, len(header), router)),
        "nothing": frame(fragment(ICMPV6, 0, b"", more=True)),
        "another's target in the second": frame(fragment(ICMPV6, 0, advertisement[:8], more=True)),
        "fragment of a fragment": frame(fragment(FRAGMENT, 0, fragment(ICMPV6, 0, router, more=True))),
        "fragment of a fragment with options": frame(fragment(FRAGMENT, 0, fragment(OPTIONS, 0, header, more=True))),
    }
    assert bridged.passed(hidden) == set()


def test_servers_of_dhcp_in_fragments(bridged: Bridged) -> None:
    """No fragments are passed on that could be put together to the answer of a server of DHCP, or a redirect."""
    answer = udp6(POD6, EVERYBODY, bridged.mac, ports=(547, 546))[54:]

    def frame(payload: bytes) -> bytes:
        return ipv6(POD6, EVERYBODY, FRAGMENT, payload, bridged.mac)

    header = options(UDP, 2)
    hidden = {
        "in one": frame(fragment(UDP, 0, answer)),
        "in the first": frame(fragment(UDP, 0, answer[:8], more=True)),
        "options alone": frame(fragment(OPTIONS, 0, header, more=True)),
        "behind options": frame(fragment(OPTIONS, 0, header + answer[:8], more=True)),
        "nothing": frame(fragment(UDP, 0, b"", more=True)),
        "behind options of all hops": ipv6(POD6, EVERYBODY, 0, options(UDP) + answer, bridged.mac),
        "of IPv4": ipv4_fragment(udp4(POD, SECOND_POD, bridged.mac, ports=(67, 68)), 8),
        "of IPv4, to the client's port": ipv4_fragment(udp4(POD, SECOND_POD, bridged.mac, ports=(1, 68)), 8),
        "redirect of IPv4": ipv4_fragment(icmp(REDIRECT4, POD, SECOND_POD, bridged.mac), 8),
    }
    assert bridged.passed(hidden) == set()


def ipv4_fragment(frame: bytes, size_bytes: int) -> bytes:
    """Return the first fragment of a packet without options, with so much of what is in it."""
    header = bytearray(frame[14:34])
    header[2:4] = (len(header) + size_bytes).to_bytes(2, "big")
    header[6] |= MORE_FRAGMENTS
    header[10:12] = bytes(2)
    header[10:12] = checksum(bytes(header)).to_bytes(2, "big")
    return frame[:14] + bytes(header) + frame[34 : 34 + size_bytes]


def test_what_cannot_be_read(bridged: Bridged) -> None:
    """A packet whose headers lead past its end is not passed on, nor one of another version of IP."""
    # Not to a group: a bridge itself drops those that it cannot read.
    router = icmpv6_message(ROUTER, bridged.local, SECOND_POD6, bytes(8))
    whole = ipv6(bridged.local, SECOND_POD6, ICMPV6, router, bridged.mac)
    server = udp4(POD, SECOND_POD, bridged.mac, ports=(67, 68))
    hidden = {
        "longer than it is": whole[:18] + (len(router) + 8).to_bytes(2, "big") + whole[20:],
        "another version": whole[:14] + b"\x50" + whole[15:],
        "of IPv4, longer than it is": server[:16] + (len(server) - 14 + 1).to_bytes(2, "big") + server[18:],
        "of IPv4, shorter than its header": server[:16] + (19).to_bytes(2, "big") + server[18:],
        "of IPv4, without the words of its header": server[:14] + b"\x44" + server[15:],
        "of IPv4, another version": server[:14] + b"\x55" + server[15:],
    }
    assert bridged.passed(hidden) == set()


def test_honest_fragments(bridged: Bridged) -> None:
    """Fragments of what a pod may say are passed on, the later ones too."""
    echo = icmpv6_message(ECHO, POD6, EVERYBODY, bytes(40))
    datagram = udp6(POD6, EVERYBODY, bridged.mac, ports=(546, 547))[54:] + bytes(8)

    def frame(payload: bytes) -> bytes:
        return ipv6(POD6, EVERYBODY, FRAGMENT, payload, bridged.mac)

    frames = {
        "first": frame(fragment(ICMPV6, 0, echo[:24], more=True)),
        "second": frame(fragment(ICMPV6, 24, echo[24:])),
        "first of udp": frame(fragment(UDP, 0, datagram[:16], more=True, number=3)),
        "second of udp": frame(fragment(UDP, 16, datagram[16:], number=3)),
        "first of udp of IPv4": ipv4_fragment(udp4(POD, SECOND_POD, bridged.mac, ports=(68, 67)), 8),
        "first of tcp": frame(fragment(TCP, 0, bytes(24), more=True, number=2)),
        "second of tcp": frame(fragment(TCP, 24, bytes(16), number=2)),
        "behind options": ipv6(POD6, EVERYBODY, OPTIONS, options(ICMPV6) + echo, bridged.mac),
        "nothing": ipv6(POD6, EVERYBODY, NO_NEXT, b"", bridged.mac),
    }
    assert bridged.passed(frames) == frames.keys()


def test_questions_whether_an_address_is_free(bridged: Bridged) -> None:
    """A pod asks this about its own address alone: who also asks would take another's question for a conflict."""
    frames = {
        "own": arp(QUESTION, bridged.mac, "0.0.0.0", POD),
        "another's": arp(QUESTION, bridged.mac, "0.0.0.0", SECOND_POD),
        "nobody's": arp(QUESTION, bridged.mac, "0.0.0.0", "10.1.0.77"),
    }
    assert bridged.passed(frames) == {"own"}
