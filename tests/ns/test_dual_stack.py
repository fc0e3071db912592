"""The built-in plugins with both families of addresses, and what a neighbour's packets can do to host and pods."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import NetworkError
from minit.network.builtin.attachment import host_end
from minit.network.netlink.bridges import add_bridge, filter_vlans
from minit.network.netlink.links import Links
from minit.network.protocol import Request
from tests.support.builtins import TIMEOUT_SECONDS, World, add, check, delete, links, listen, own_world, talk
from tests.support.networks import own_network, within

SETS = [[{"subnet": "10.9.8.0/24"}], [{"subnet": "fd00:9::/64"}]]
EVERYWHERE = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
KINDS: dict[str, dict[str, Any]] = {"ptp": {}, "bridge": {"isGateway": True, "bridge": "br-test"}}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    with own_world(tmp_path) as world:
        yield world


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each plugin that makes links."""
    return str(request.param)


def config_of(world: World, kind: str, **more: object) -> dict[str, object]:
    """Return the configuration of a network of both families."""
    return world.config(kind, ranges=SETS, routes=EVERYWHERE, **{**KINDS[kind], **more})


def sysctl(name: str, namespace: str | None = None) -> str:
    """Return a setting of net, of the host or of a pod."""

    def read() -> str:
        return Path(f"/proc/sys/net/{name}").read_text().strip()

    return read() if namespace is None else within(namespace, read)


def ip(*words: str, namespace: str | None = None) -> Any:
    """Return what ip(8) shows."""
    inside = ["nsenter", f"--net={namespace}"] if namespace else []
    done = subprocess.run([*inside, "ip", "-j", *words], check=True, capture_output=True, text=True)
    return json.loads(done.stdout or "[]")


def test_both_families_lead_to_the_host_and_to_pods(world: World, kind: str) -> None:
    """Pod and host reach each other by both families, and pods each other, each by its own address."""
    config = config_of(world, kind)
    requests = [world.pod(), world.pod()]
    results = [add(config, request) for request in requests]
    for index, gateway in ((0, "10.9.8.1"), (1, "fd00:9::1")):
        first, second = (str(result.addresses[index].address.ip) for result in results)
        with within(requests[0].namespace, partial(listen, first)) as server:
            assert talk(None, server) == gateway
            assert talk(requests[1].namespace, server) == second
        with listen(gateway) as server:
            assert talk(requests[0].namespace, server) == first
    for request, result in zip(requests, results):
        check(config, request, result)


def test_routes_of_ipv6(world: World, kind: str) -> None:
    """The default route goes by the gateway, which on ptp is the only neighbour."""
    request = world.pod()
    add(config_of(world, kind), request)
    shown = [
        f"{route['dst']} {route.get('gateway', '')}".strip()
        for route in ip("-6", "route", namespace=request.namespace)
        if not route["dst"].startswith("fe80")
    ]
    ptp = ["default fd00:9::1", "fd00:9::/64 fd00:9::1", "fd00:9::1"]
    assert sorted(shown) == sorted(ptp if kind == "ptp" else ["default fd00:9::1", "fd00:9::/64"])


def test_masquerading_of_both_families(world: World, kind: str) -> None:
    """A peer beyond the host sees the host's own address of either family."""
    outside = world.pod()
    peer = within(outside.namespace, lambda: os.open("/proc/self/ns/net", os.O_RDONLY))
    Links().add_veth("out", "eth0", peer)
    os.close(peer)
    for words in (["192.168.7.1/24", "dev", "out"], ["fd00:7::1/64", "dev", "out", "nodad"]):
        ip("address", "add", *words)
    for words in (["192.168.7.2/24", "dev", "eth0"], ["fd00:7::2/64", "dev", "eth0", "nodad"]):
        ip("address", "add", *words, namespace=outside.namespace)
    ip("link", "set", "eth0", "up", namespace=outside.namespace)
    Links().wait_until_running("out")
    request = world.pod()
    add(config_of(world, kind, ipMasq=True), request)
    for server_address, seen in (("192.168.7.2", "192.168.7.1"), ("fd00:7::2", "fd00:7::1")):
        with within(outside.namespace, partial(listen, server_address)) as server:
            assert talk(request.namespace, server) == seen


def test_addresses_can_be_used_at_once(world: World, kind: str) -> None:
    """No address is tentative when ADD has ended."""
    request = world.pod()
    add(config_of(world, kind), request)
    (link,) = ip("-6", "address", "show", "dev", "eth0", "scope", "global", namespace=request.namespace)
    assert [one for one in link["addr_info"] if one.get("local")][0].get("tentative") is None


def test_no_routers_are_followed(world: World, kind: str) -> None:
    """Neither end takes router advertisements, unless the network asks for it; the host's end never does."""
    plain, asking = world.pod(), world.pod()
    add(config_of(world, kind), plain)
    add(config_of(world, kind, acceptRa=True), asking)
    for request, pods in ((plain, "0"), (asking, "2")):
        assert sysctl("ipv6/conf/eth0/accept_ra", request.namespace) == pods
        assert sysctl(f"ipv6/conf/{host_end(request)}/accept_ra") == "0"
    if kind == "bridge":
        assert sysctl("ipv6/conf/br-test/accept_ra") == "0"


def test_the_host_goes_on_to_follow_its_routers(world: World, kind: str) -> None:
    """A link of the host that takes router advertisements does so when the host has begun to forward."""
    subprocess.run(["ip", "link", "add", "lan", "type", "veth", "peer", "name", "lan2"], check=True)
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("0")
    Path("/proc/sys/net/ipv6/conf/lan2/accept_ra").write_text("0")
    add(config_of(world, kind), world.pod())
    assert sysctl("ipv6/conf/all/forwarding") == "1"
    assert (sysctl("ipv6/conf/lan/accept_ra"), sysctl("ipv6/conf/lan2/accept_ra")) == ("2", "0")


def test_a_bridge_by_which_the_host_has_its_routers(world: World) -> None:
    """A bridge that was in use goes on to take router advertisements; one that was down has been made for pods."""
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("0")
    subprocess.run(["ip", "link", "add", "lan", "up", "type", "bridge"], check=True)
    subprocess.run(["ip", "link", "add", "down", "type", "bridge"], check=True)
    for bridge in ("lan", "down"):
        add(world.config("bridge", bridge=bridge), world.pod())
    assert (sysctl("ipv6/conf/lan/accept_ra"), sysctl("ipv6/conf/down/accept_ra")) == ("1", "0")
    add(world.config("bridge", bridge="lan", isGateway=True, subnet="fd00:77::/64"), world.pod())
    assert sysctl("ipv6/conf/lan/accept_ra") == "2"


def test_ipv4_alone_leaves_ipv6_as_it_is(world: World, kind: str) -> None:
    """A network without addresses of IPv6 does not make the host forward any."""
    Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("0")
    add(world.config(kind, **KINDS[kind]), world.pod())
    assert sysctl("ipv6/conf/all/forwarding") == "0"


def test_deleting_both_families(world: World, kind: str) -> None:
    """DEL gives back the addresses of both families, and removes the tables of all."""
    config = config_of(world, kind, ipMasq=True)
    before = links()
    request = world.pod()
    add(config, request)
    assert sorted(world.leased()) == ["10.9.8.2", "fd00:9::2"]
    delete(config, request)
    ruleset = subprocess.run(["nft", "list", "ruleset"], check=True, capture_output=True, text=True).stdout
    assert (world.leased(), ruleset) == ({}, "")
    assert [name for name in links() if name not in ("br-test", *before)] == []


def test_requested_addresses_of_both_families(world: World) -> None:
    """IP= takes an address of each family."""
    result = add(config_of(world, "ptp"), world.pod(args="IP=10.9.8.7,fd00:9::7"))
    assert [str(one.address) for one in result.addresses] == ["10.9.8.7/24", "fd00:9::7/64"]


def test_one_set_that_is_used_up_leaves_the_other_alone(world: World) -> None:
    """When one family has no address left none is leased of the other."""
    sets = [[{"subnet": "fd00:9::/64"}], [{"subnet": "10.9.8.0/30"}]]
    config = world.config("ptp", ranges=sets)
    add(config, world.pod())
    before = world.leased()
    with pytest.raises(NetworkError, match="no IP addresses available"):
        add(config, world.pod())
    assert world.leased() == before


@pytest.mark.parametrize("vlan", [0, 5])
def test_pods_that_come_to_a_new_bridge_at_once(request: pytest.FixtureRequest, world: World, vlan: int) -> None:
    """Whichever makes the bridge, or its VLAN, and gives it the gateway's addresses, all pods get on."""
    if vlan:
        request.getfixturevalue("vlans")
    config = config_of(world, "bridge", vlan=vlan)
    pods = [world.pod() for _ in range(8)]
    go, start = os.pipe()
    children = []
    for pod in pods:
        children.append(os.fork())
        if children[-1] == 0:
            os.close(start)
            os.read(go, 1)
            status = 1
            try:
                add(config, pod)
                status = 0
            finally:
                os._exit(status)
    os.close(go)
    os.close(start)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    (bridge,) = ip("address", "show", "dev", f"br-test.{vlan}" if vlan else "br-test")
    assert [one["local"] for one in bridge["addr_info"] if one["scope"] == "global"] == ["10.9.8.1", "fd00:9::1"]
    assert len(world.leased()) == 2 * len(pods)


def test_a_bridge_keeps_its_hardware_address(world: World) -> None:
    """A bridge without addresses is not renamed by its ports."""
    results = [add(world.config("bridge"), world.pod()) for _ in range(4)]
    assert len({result.interfaces[0].mac for result in results}) == 1


def test_addresses_of_ipv6_that_do_not_overlap_share_a_bridge(world: World) -> None:
    """A second subnet of IPv6 is no other gateway, as an overlapping one is."""
    first = world.config("bridge", ranges=[[{"subnet": "fd00:1::/64"}]], isGateway=True)
    second = {**world.config("bridge", ranges=[[{"subnet": "fd00:2::/64"}]], isGateway=True), "name": "other"}
    third = world.config("bridge", ranges=[[{"subnet": "fd00::/16", "rangeStart": "fd00:9::2"}]], isGateway=True)
    add(first, world.pod())
    add(second, world.pod())
    with pytest.raises(NetworkError, match="^bridge cni0 has the address fd00:[12]::1/64, not fd00::1/16$"):
        add({**third, "name": "third"}, world.pod())


@pytest.mark.parametrize("spoof_check", [True, False])
def test_a_pod_speaks_for_itself_alone(world: World, kind: str, spoof_check: bool) -> None:
    """A packet from another address than the pod's own gets to the host only where the network allows it."""
    request = world.pod()
    add(config_of(world, kind, spoofCheck=spoof_check), request)
    for gateway, own, other in (("10.9.8.1", "10.9.8.2", "10.9.8.77"), ("fd00:9::1", "fd00:9::2", "fd00:9::77")):
        words = [other, "dev", "eth0", *(["nodad"] if ":" in other else [])]
        ip("address", "add", *words, namespace=request.namespace)
        assert first_to_arrive(request, [other, own], gateway) == (own if spoof_check else other)


def first_to_arrive(request: Request, sources: list[str], gateway: str) -> str:
    """Return whose datagram a socket of the host gets first, when the pod sends one from each address in turn."""
    family = socket.AF_INET6 if ":" in gateway else socket.AF_INET

    def send(address: tuple[str, int]) -> None:
        for source in sources:
            with socket.socket(family, socket.SOCK_DGRAM) as client:
                client.bind((source, 0))
                client.sendto(b"x", address)

    with socket.socket(family, socket.SOCK_DGRAM) as server:
        server.settimeout(TIMEOUT_SECONDS)
        server.bind((gateway, 0))
        within(request.namespace, lambda: send(server.getsockname()[:2]))
        return str(server.recvfrom(1)[1][0])


@pytest.fixture
def vlans() -> None:
    """Skip where bridges know no VLANs."""
    with own_network():
        add_bridge(Links(), "probe", None)
        try:
            filter_vlans(Links(), Links().get("probe"))
        except NetworkError as error:
            assert "CONFIG_BRIDGE_VLAN_FILTERING" in str(error)
            pytest.skip("the kernel's bridges know no VLANs")


def vlan_config(world: World, vlan: int, **more: Any) -> dict[str, object]:
    """Return the configuration of a network of both families in a VLAN of the bridge cni0."""
    sets = [[{"subnet": f"10.9.{vlan}.0/24"}], [{"subnet": f"fd00:{vlan}::/64"}]]
    return {**world.config("bridge", ranges=sets, vlan=vlan, **more), "name": f"v{vlan}"}


def test_vlans_of_a_bridge(vlans: None, world: World) -> None:
    """Pods of a VLAN reach its gateway and each other by both families; only what they share stays after DEL."""
    pods = [(vlan, vlan_config(world, vlan, isGateway=True), world.pod()) for vlan in (5, 5, 6)]
    results = [add(config, request) for _, config, request in pods]
    for index, gateway in ((0, "10.9.{}.1"), (1, "fd00:{}::1")):
        addresses = [str(result.addresses[index].address.ip) for result in results]
        for (vlan, _, request), address in zip(pods, addresses):
            with within(request.namespace, partial(listen, address)) as server:
                assert talk(None, server) == gateway.format(vlan)
        with within(pods[0][2].namespace, partial(listen, addresses[0])) as server:
            assert talk(pods[1][2].namespace, server) == addresses[1]
    shared = {*links()} - {host_end(request) for _, _, request in pods}
    for (_, config, request), result in zip(pods, results):
        check(config, request, result)
        delete(config, request)
        delete(config, request)
    assert {*links()} == shared
    assert sorted(name for name in shared if not name.startswith("veth")) == ["cni0", "cni0.5", "cni0.6"]
    assert (world.leased("v5"), world.leased("v6")) == ({}, {})


def test_vlans_are_apart(vlans: None, world: World) -> None:
    """A pod finds a neighbour of its own VLAN and none of another one, though they have addresses of one subnet."""
    config = world.config("bridge", ranges=SETS)
    here, there, beside = world.pod(), world.pod(), world.pod()
    for request, vlan in ((here, 5), (there, 6), (beside, 5)):
        add({**config, "vlan": vlan}, request)
    for family in ("ipv4", "ipv6"):
        solicitations = Path(f"/proc/sys/net/{family}/neigh/eth0/mcast_solicit")
        within(here.namespace, partial(solicitations.write_text, "1"))
    for other, near in (("10.9.8.3", "10.9.8.4"), ("fd00:9::3", "fd00:9::4")):
        with (
            within(there.namespace, partial(listen, other)) as server,
            pytest.raises(OSError, match="No route to host"),
        ):
            talk(here.namespace, server)
        with within(beside.namespace, partial(listen, near)) as server:
            talk(here.namespace, server)


def test_a_vlan_whose_gateway_is_half_there(vlans: None, world: World) -> None:
    """The host's own port in a VLAN is mended that was left by somebody who was killed before it was one."""
    config = vlan_config(world, 5, isGateway=True, preserveDefaultVlan=False)
    add(config, world.pod())
    (port,) = [one["ifname"] for one in ip("link", "show", "type", "veth") if one.get("link") == "cni0.5"]
    ip("link", "set", port, "nomaster")
    request = world.pod()
    result = add(config, request)
    with within(request.namespace, partial(listen, str(result.addresses[0].address.ip))) as server:
        assert talk(None, server) == "10.9.5.1"


def test_a_vlan_whose_gateway_is_somebody_elses(vlans: None, world: World) -> None:
    """A link of the host's administrator that has the name of the gateway's is that of the gateway."""
    config = vlan_config(world, 5, isGateway=True)
    ip("link", "add", "cni0", "type", "bridge", "vlan_filtering", "1")
    ip("link", "add", "cni0.5", "link", "cni0", "type", "vlan", "id", "5")
    request = world.pod()
    result = add(config, request)
    with within(request.namespace, partial(listen, str(result.addresses[0].address.ip))) as server:
        assert talk(None, server) == "10.9.5.1"
    assert len(links()) == 3


@pytest.mark.parametrize("keeps_default", [True, False])
def test_trunks_of_a_bridge(vlans: None, world: World, keeps_default: bool) -> None:
    """A port carries the VLANs of its trunk, with a tag, beside the untagged one, and no default one if told so."""
    trunk = [{"minID": 10, "maxID": 12}, {"id": 20}]
    request = world.pod()
    config = vlan_config(world, 7, vlanTrunk=trunk, preserveDefaultVlan=keeps_default)
    check(config, request, add(config, request))
    shown = subprocess.run(["bridge", "-j", "vlan", "show"], check=True, capture_output=True, text=True).stdout
    (port,) = [one for one in json.loads(shown) if one["ifname"] == host_end(request)]
    untagged = [1, 7] if keeps_default else [7]
    assert [one["vlan"] for one in port["vlans"]] == [*untagged, 10, 11, 12, 20]
    assert [one["vlan"] for one in port["vlans"] if "PVID" in one.get("flags", [])] == [7]
    assert [one["vlan"] for one in port["vlans"] if "Egress Untagged" in one.get("flags", [])] == untagged


def test_isolated_ports(world: World) -> None:
    """Ports are isolated as configured."""
    request = world.pod()
    add(world.config("bridge", isGateway=True, portIsolation=True), request)
    (port,) = ip("-d", "link", "show", "dev", host_end(request))
    assert port["linkinfo"]["info_slave_data"]["isolated"] is True


def test_a_hardware_address_of_the_users_choice(world: World) -> None:
    """MAC= and the capability `mac` decide about the pod's end."""
    mac = "02:11:22:33:44:55"
    assert add(world.config("bridge"), world.pod(args=f"MAC={mac}")).interfaces[2].mac == mac
    other = world.config("bridge", runtimeConfig={"mac": "02:11:22:33:44:66"})
    assert add(other, world.pod(args=f"MAC={mac}")).interfaces[2].mac == "02:11:22:33:44:66"


def test_an_interface_that_stays_down(world: World) -> None:
    """With disableContainerInterface the pod's end is there and down."""
    request = world.pod()
    config = {"cniVersion": "0.4.0", "name": "net", "type": "bridge", "disableContainerInterface": True}
    result = add(config, request)
    assert not within(request.namespace, lambda: Links().get("eth0")).up
    check(config, request, result)
