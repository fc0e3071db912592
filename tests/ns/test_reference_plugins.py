"""The built-in plugins and the reference plugins of the CNI: one configuration, the same network."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from minit.podfiles import paths
from tests.support.campaign import thinned
from tests.support.cniruntime import Runtime
from tests.support.comparison import Case, read_observations, script
from tests.support.referencecases import BOTH_DEFAULT, CASES, REFERENCE, is_understood
from tests.support.samenetwork import Seen, assert_same
from tests.support.topology import IPV4, IPV6, SUBNET, SUBNET6, Family, Place, make_topology

pytestmark = pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed")

SERVICES = {"10.96.0.10": IPV4, "fd00:96::10": IPV6}
"""Addresses of services whose program is on the host, as kube-proxy leads to it."""

_IP_PKTINFO = 8
_TELLS_WHAT_IS_ASKED = {
    socket.AF_INET: (socket.IPPROTO_IP, _IP_PKTINFO),
    socket.AF_INET6: (socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO),
}


def play(case: Case, plugins: Path, directory: Path) -> Seen:
    """Return what is seen of a case, by stages; its host and pod are gone afterwards."""
    directory.mkdir()
    path = directory / "script"
    path.write_text(script([case], str(plugins), str(directory / "leases")))
    place = "mount -t tmpfs none /run && mkdir /run/netns && exec sh"
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", f"{place} {path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return read_observations(done.stdout.splitlines())[case.name]


@pytest.mark.parametrize("case", thinned(CASES), ids=lambda case: case.name.replace(" ", "-"))
def test_the_same_network(stage1_tree: Path, tmp_path: Path, case: Case) -> None:
    """Results, links, addresses, routes and settings are those of the reference plugins, but for what is listed."""
    is_understood(case)
    theirs = play(case, REFERENCE, tmp_path / "theirs")
    assert_same(case, theirs, play(case, stage1_tree / "rootfs" / paths.PLUGINS, tmp_path / "ours"))


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
@pytest.mark.parametrize("whose", ["theirs", "ours"])
def test_who_answers_for_a_service(stage1_tree: Path, tmp_path: Path, kind: str, whose: str) -> None:
    """A server of UDP that is not told what was asked answers from the gateway's address, not from the service's."""
    plugins = REFERENCE if whose == "theirs" else stage1_tree / "rootfs" / paths.PLUGINS
    ranges = [[{"subnet": SUBNET}], [{"subnet": SUBNET6}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": BOTH_DEFAULT, "dataDir": str(tmp_path / "leases")}
    with make_topology(tmp_path) as topology:
        host, pod = topology.host, topology.add_place("pod")
        for address, family in SERVICES.items():
            _lead_to_host(host, address, family)
        runtime = Runtime(plugins, tmp_path, str(pod.path))
        config = runtime.config(kind, cniVersion="0.4.0", ipam=ipam, isGateway=True)
        host.do(lambda: runtime.ask("ADD", config))
        pod.wait_for_link("eth0")
        for address, family in SERVICES.items():
            assert _answering(pod, address, host.listen("udp", 53, family.every)) == family.gateway
            assert _answering(pod, address, host.listen("udp", 53, family.host)) == address
            careful = host.listen("udp", 53, family.every)
            careful.setsockopt(*_TELLS_WHAT_IS_ASKED[careful.family], 1)
            assert _answering(pod, address, careful) == address


def _lead_to_host(host: Place, service: str, family: Family) -> None:
    table = f"ip{'6' if family is IPV6 else ''}"
    target = f"[{family.host}]" if family is IPV6 else family.host
    host.run(
        f"nft add table {table} proxy",
        f"nft add chain {table} proxy prerouting {{ type nat hook prerouting priority -100 ; }}",
        f"nft add rule {table} proxy prerouting {table} daddr {service} udp dport 53 dnat to {target}:53",
    )


def _answering(pod: Place, service: str, server: socket.socket) -> str:
    """Ask a service from a pod, answer from the address that the server was told, if any, and return who answered."""
    with server, pod.do(lambda: socket.socket(server.family, socket.SOCK_DGRAM)) as client:
        client.sendto(b"question", (service, 53))
        for one in (server, client):
            one.settimeout(60)
        _, asked, _, peer = server.recvmsg(100, 100)
        server.sendmsg([b"answer"], asked, 0, peer)
        return str(client.recvfrom(100)[1][0])
