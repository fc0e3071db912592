"""The built-in plugins, between network namespaces that stand for a host and its pods."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ManifestError, NetworkError
from minit.base.value import replace
from minit.manifest.reader import Node
from minit.network.addresses import parse_address, parse_destination, parse_interface, parse_subnet
from minit.network.builtin.attachment import host_end
from minit.network.builtin.hostlocal import read_range_sets, reserve
from minit.network.netlink.bridges import join_bridge
from minit.network.netlink.links import Links
from minit.network.netlink.messages import NewRoute
from minit.network.protocol import Dns, Request, Result, Route
from tests.support.builtins import World, add, call_builtin, check, delete, links, listen, own_world, talk
from tests.support.effects import each_failure, killed_child
from tests.support.networks import within

PLUGINS = Path("/usr/lib/cni")
EVERYWHERE = [{"dst": "0.0.0.0/0"}]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    with own_world(tmp_path) as world:
        yield world


def address_of(result: Result) -> str:
    """Return the pod's address without the prefix length."""
    return str(result.addresses[0].address.ip)


def to(destination: str, gateway: str | None = None) -> Route:
    """Return a route."""
    return Route(
        destination=parse_destination(destination), gateway=None if gateway is None else parse_address(gateway)
    )


def routes(namespace: str | None = None, table: str = "main") -> list[str]:
    """Return the routes of a table of a namespace as ip(8) shows them."""

    def show() -> str:
        return subprocess.run(
            ["ip", "-4", "route", "show", "table", table], check=True, capture_output=True, text=True
        ).stdout

    text = show() if namespace is None else within(namespace, show)
    return [" ".join(line.split()) for line in text.splitlines()]


def tables() -> list[str]:
    """Return the names of the nf_tables tables here."""
    shown = subprocess.run(["nft", "list", "tables", "ip"], check=True, capture_output=True, text=True)
    return [line.split()[-1] for line in shown.stdout.splitlines()]


KINDS: dict[str, dict[str, Any]] = {"ptp": {}, "bridge": {"isGateway": True, "bridge": "br-test"}}


@pytest.fixture(params=sorted(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    """Each plugin that makes links."""
    return str(request.param)


def test_pod_and_host_and_pods_talk(world: World, kind: str) -> None:
    """Pod and host reach each other, a pod reaches another one, and everybody is seen by the own address."""
    config = world.config(kind, **KINDS[kind])
    requests = [world.pod(), world.pod()]
    results = [add(config, request) for request in requests]
    first, second = map(address_of, results)
    assert (first, second) == ("10.9.8.2", "10.9.8.3")
    with within(requests[0].namespace, lambda: listen(first)) as server:
        assert talk(None, server) == "10.9.8.1"
        assert talk(requests[1].namespace, server) == second
    with listen("10.9.8.1") as server:
        assert talk(requests[0].namespace, server) == first


def test_the_result_of_ptp(world: World) -> None:
    """The result has both ends with their hardware addresses, the address with its gateway, routes and DNS."""
    dns = {"nameservers": ["10.9.8.1"], "domain": "d", "search": ["s", "t"], "options": ["o"]}
    config = world.config("ptp", routes=[{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16", "gw": "10.9.8.1"}], dns=dns)
    request = world.pod("eth3")
    result = add(config, request)
    host, pod = result.interfaces
    assert (host.name, host.sandbox) == (host_end(request), "")
    assert (pod.name, pod.sandbox) == ("eth3", request.namespace)
    assert host.mac == Links().get(host.name).mac
    assert pod.mac == within(request.namespace, lambda: Links().get("eth3")).mac
    assert [(str(a.address), str(a.gateway), a.interface) for a in result.addresses] == [("10.9.8.2/24", "10.9.8.1", 1)]
    assert result.routes == (to("0.0.0.0/0"), to("10.1.0.0/16", "10.9.8.1"))
    assert result.dns == Dns(nameservers=("10.9.8.1",), domain="d", search=("s", "t"), options=("o",))


def test_the_routes_of_ptp(world: World) -> None:
    """In the pod only the gateway is on the link and all else goes by it; the host has a route to the pod alone."""
    config = world.config("ptp", gateway="10.9.8.254", routes=[{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16"}])
    request = world.pod()
    add(config, request)
    assert routes(request.namespace) == [
        "default via 10.9.8.254 dev eth0",
        "10.1.0.0/16 via 10.9.8.254 dev eth0",
        "10.9.8.0/24 via 10.9.8.254 dev eth0 src 10.9.8.1",
        "10.9.8.254 dev eth0 scope link src 10.9.8.1",
    ]
    assert routes() == [f"10.9.8.1 dev {host_end(request)} scope host"]


@pytest.mark.parametrize("kind", KINDS)
def test_routes_with_options(world: World, kind: str) -> None:
    """Sizes, metric, table and scope of a route are those of the configuration, and CHECK looks in its table."""
    wanted = [
        {"dst": "10.2.0.0/16", "mtu": 1300, "advmss": 1200, "priority": 7},
        {"dst": "10.3.0.0/16", "table": 1000},
        {"dst": "10.4.0.0/16", "scope": 253},
    ]
    config, request = world.config(kind, gateway="10.9.8.254", routes=wanted, **KINDS[kind]), world.pod()
    result = add(config, request)
    assert {
        "10.2.0.0/16 via 10.9.8.254 dev eth0 metric 7 mtu 1300 advmss 1200",
        "10.4.0.0/16 dev eth0 scope link",
    } < set(routes(request.namespace))
    assert routes(request.namespace, "1000") == ["10.3.0.0/16 via 10.9.8.254 dev eth0"]
    check(config, request, result)
    within(request.namespace, lambda: subprocess.run(["ip", "route", "flush", "table", "1000"], check=True))
    with pytest.raises(NetworkError, match="^the route to 10.3.0.0/16 is gone$"):
        check(config, request, result)


def test_the_result_of_bridge(world: World) -> None:
    """The bridge comes first, and its hardware address stays when more pods come."""
    config = world.config("bridge", isDefaultGateway=True, routes=[{"dst": "10.1.0.0/16"}])
    request = world.pod()
    result = add(config, request)
    bridge, host, pod = result.interfaces
    assert (bridge.name, host.name, pod.name) == ("cni0", host_end(request), "eth0")
    assert [a.interface for a in result.addresses] == [2]
    assert result.routes == (to("10.1.0.0/16"), to("0.0.0.0/0", "10.9.8.1"))
    assert routes(request.namespace) == [
        "default via 10.9.8.1 dev eth0",
        "10.1.0.0/16 via 10.9.8.1 dev eth0",
        "10.9.8.0/24 dev eth0 proto kernel scope link src 10.9.8.2",
    ]
    assert routes() == ["10.9.8.0/24 dev cni0 proto kernel scope link src 10.9.8.1"]
    lowest = ["ip", "link", "add", "low", "address", "02:00:00:00:00:00", "type", "veth", "peer", "low2"]
    subprocess.run(lowest, check=True)
    join_bridge(Links(), Links().get("low"), Links().get("cni0"))
    assert add(config, world.pod()).interfaces[0] == bridge


def test_what_config_and_resolv_conf_say_about_dns(world: World, tmp_path: Path) -> None:
    """The host's resolv.conf counts where the configuration says nothing itself."""
    (tmp_path / "resolv.conf").write_text(
        "# x\nnameserver 9.9.9.9 x\nnameserver 8.8.8.8\nsearch a b\noptions c\nnonsense\n"
    )
    config = world.config("ptp", resolvConf=str(tmp_path / "resolv.conf"))
    assert add(config, world.pod()).dns == Dns(nameservers=("9.9.9.9", "8.8.8.8"), search=("a", "b"), options=("c",))
    assert add({**config, "dns": {"domain": "d"}}, world.pod()).dns == Dns(domain="d")
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(NetworkError, match="resolvConf: .*fifo is not a regular file"):
        add(world.config("ptp", resolvConf=str(tmp_path / "fifo")), world.pod())


def test_both_ends_have_the_mtu(world: World, kind: str) -> None:
    """The configured MTU holds for the pod's end and the host's."""
    request = world.pod()
    add(world.config(kind, mtu=1400, **KINDS[kind]), request)
    assert Links().get(host_end(request)).mtu == 1400
    assert within(request.namespace, lambda: Links().get("eth0")).mtu == 1400


def test_forwarding_is_switched_on(world: World, kind: str) -> None:
    """A host that forwards nothing forwards after the first pod with a gateway."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    forwarding.write_text("0")
    add(world.config(kind, **KINDS[kind]), world.pod())
    assert forwarding.read_text() == "1\n"


def test_a_bridge_without_gateway_or_addresses(world: World) -> None:
    """The bridge gets no address and nothing is forwarded; a pod without an address has an interface that is up."""
    forwarding = Path("/proc/sys/net/ipv4/ip_forward")
    forwarding.write_text("0")
    request = world.pod()
    add(world.config("bridge"), request)
    assert routes() == [] and forwarding.read_text() == "0\n"
    other = world.pod()
    config: dict[str, object] = {"name": "net", "type": "bridge", "ipam": {}}
    result = add(config, other)
    assert (result.addresses, result.routes) == ((), ())
    assert within(other.namespace, lambda: Links().get("eth0")).up
    check(config, other, result)
    delete(config, other)
    assert links() == ["cni0", host_end(request)]


def test_hairpin_and_promiscuous_mode(world: World) -> None:
    """Both are set as configured, and not at once."""
    request = world.pod()
    add(world.config("bridge", hairpinMode=True), request)
    shown = subprocess.run(["ip", "-d", "link", "show", host_end(request)], capture_output=True, text=True, check=True)
    assert "hairpin on" in shown.stdout
    add(world.config("bridge", promiscMode=True, bridge="loose"), world.pod())
    assert (
        ",PROMISC,"
        in subprocess.run(["ip", "link", "show", "loose"], capture_output=True, text=True, check=True).stdout
    )
    with pytest.raises(ManifestError, match="net.conf: hairpinMode: expected false with promiscMode, got true"):
        add(world.config("bridge", promiscMode=True, hairpinMode=True), world.pod())


def test_a_bridge_has_one_address(world: World) -> None:
    """A bridge with another address is refused, and given the new one only by force."""
    first = world.config("bridge", isGateway=True)
    add(first, world.pod())
    second = {**world.config("bridge", "10.7.7.0/24", isGateway=True), "name": "other"}
    with pytest.raises(NetworkError, match="^bridge cni0 has the address 10.9.8.1/24, not 10.7.7.1/24$"):
        add(second, world.pod())
    assert world.leased("other") == {}
    add({**second, "forceAddress": True}, world.pod())
    assert routes() == ["10.7.7.0/24 dev cni0 proto kernel scope link src 10.7.7.1"]


def test_what_is_no_bridge_is_refused(world: World) -> None:
    """Another link of the bridge's name is left alone."""
    subprocess.run(["ip", "tuntap", "add", "cni0", "mode", "tun"], check=True)
    with pytest.raises(NetworkError, match="^interface cni0 exists already and is no bridge$"):
        add(world.config("bridge"), world.pod())
    assert links() == ["cni0"] and world.leased() == {}


def test_addresses_go_round(world: World) -> None:
    """The next pod gets the next address, not the one that was given back, until the end of the range."""
    config = world.config("ptp", rangeStart="10.9.8.4", rangeEnd="10.9.8.6")
    first, second = world.pod(), world.pod()
    assert address_of(add(config, first)) == "10.9.8.4"
    delete(config, first)
    assert address_of(add(config, second)) == "10.9.8.5"
    assert [address_of(add(config, world.pod())) for _ in range(2)] == ["10.9.8.6", "10.9.8.4"]
    with pytest.raises(NetworkError, match='^no IP addresses available in network "net": 10.9.8.4-10.9.8.6$'):
        add(config, world.pod())
    delete(config, second)
    assert address_of(add(config, world.pod())) == "10.9.8.5"


def test_network_gateway_and_broadcast_are_never_leased(world: World) -> None:
    """Of the smallest subnet one address is left, even if the range names all four."""
    config = world.config("ptp", "10.9.8.0/30", rangeStart="10.9.8.0", rangeEnd="10.9.8.3", gateway="10.9.8.2")
    assert address_of(add(config, world.pod())) == "10.9.8.1"
    with pytest.raises(NetworkError, match="no IP addresses available"):
        add(config, world.pod())
    for address in ("10.9.8.0", "10.9.8.2", "10.9.8.3"):
        with pytest.raises(NetworkError, match=f"^requested address {address} is "):
            add(config, world.pod(args=f"IP={address}"))


def test_a_requested_address(world: World, kind: str) -> None:
    """A pod gets the address that it asks for, unless it is taken or none of the network's."""
    config = world.config(kind, rangeStart="10.9.8.10", **KINDS[kind])
    request = world.pod(args="IgnoreUnknown=true;IP=10.9.8.77/24;X=y")
    assert address_of(add(config, request)) == "10.9.8.77"
    taken = f'^requested IP address "10.9.8.77" is not available in network: net: .* to {request.container_id}$'
    with pytest.raises(NetworkError, match=taken):
        add(config, world.pod(args="IP=10.9.8.77"))
    foreign = '^requested address 10.9.8.9 is not one of network "net": 10.9.8.10-10.9.8.254$'
    with pytest.raises(NetworkError, match=foreign):
        add(config, world.pod(args="IP=10.9.8.9"))
    with pytest.raises(NetworkError, match='^CNI_ARGS: "X=y": unknown; IgnoreUnknown=1 allows it$'):
        add(config, world.pod(args="IP=10.9.8.78;X=y"))
    assert list(world.leased()) == ["10.9.8.77"]
    assert [name for name in links() if name.startswith("veth")] == [host_end(request)]


def test_deleting_gives_all_back(world: World, kind: str) -> None:
    """Afterwards there are neither links nor leases of the pod; once more and without a namespace is no error."""
    config = world.config(kind, ipMasq=True, **KINDS[kind])
    request, other = world.pod(), world.pod()
    add(config, other)
    before = links(), world.leased(), tables()
    add(config, request)
    assert tables() == [f"minit-{pod.container_id}-eth0" for pod in (other, request)]
    for namespace in (request.namespace, request.namespace, "", "/nowhere"):
        delete(config, replace(request, namespace=namespace))
        assert (links(), world.leased(), tables()) == before
    assert within(request.namespace, links) == []


def test_only_masquerading_networks_hide_their_pods(world: World, kind: str) -> None:
    """A peer beyond the host sees the host's address with ipMasq, and the pod's without."""
    outside = world.pod()
    peer = within(outside.namespace, lambda: os.open("/proc/self/ns/net", os.O_RDONLY))
    beyond = Links(peer)
    Links().add_veth("out", "eth0", peer)
    Links().add_address(Links().get("out"), parse_interface("192.168.7.1/24"))
    beyond.add_address(beyond.get("eth0"), parse_interface("192.168.7.2/24"))
    beyond.set_up(beyond.get("eth0"))
    back = NewRoute(destination=parse_subnet("10.9.8.0/24"), gateway=parse_address("192.168.7.1"))
    beyond.add_route(beyond.get("eth0"), back)
    Links().wait_until_running("out")
    os.close(peer)
    hidden, shown = world.pod(), world.pod()
    add(world.config(kind, ipMasq=True, routes=EVERYWHERE, **KINDS[kind]), hidden)
    address = address_of(add(world.config(kind, routes=EVERYWHERE, **KINDS[kind]), shown))
    with within(outside.namespace, lambda: listen("192.168.7.2")) as server:
        assert talk(hidden.namespace, server) == "192.168.7.1"
        assert talk(shown.namespace, server) == address


def test_deleting_without_the_namespace(world: World, kind: str) -> None:
    """The host's end and the lease go even if nobody knows the pod's namespace any more."""
    config = world.config(kind, **KINDS[kind])
    request = world.pod()
    add(config, request)
    delete(config, replace(request, namespace=""))
    assert host_end(request) not in links() and world.leased() == {}
    # As after a reboot: the file is there, and nothing is mounted on it.
    (world.directory / "old").touch()
    delete(config, replace(request, namespace=str(world.directory / "old")))


def test_deleting_what_never_was(world: World, kind: str) -> None:
    """Without any lease or directory of leases there is nothing to do, and none is made."""
    delete(world.config(kind), world.pod())
    assert not world.leases.exists()


def test_deleting_goes_on_after_a_failure(world: World) -> None:
    """The links go even if the lease cannot be given back, and the reason is told."""
    config = world.config("ptp")
    request = world.pod()
    add(config, request)
    (world.leases / "net").rename(world.leases / "moved")
    (world.leases / "net").touch()
    with pytest.raises(NetworkError, match="^leases: .*/net: not a directory$"):
        delete(config, request)
    assert links() == []


def test_an_interface_that_exists(world: World, kind: str) -> None:
    """A second attachment by the same name is refused, and the first one stays whole."""
    config = world.config(kind, **KINDS[kind])
    request = world.pod()
    result = add(config, request)
    with pytest.raises(NetworkError, match='^eth0 has the address 10.9.8.2 in network "net" already$'):
        add(config, request)
    other = {**world.config(kind, "10.7.7.0/24", **KINDS[kind]), "name": "other"}
    with pytest.raises(NetworkError, match="^interface eth0 exists already in the pod's network namespace$"):
        add(other, request)
    check(config, request, result)
    assert world.leased("other") == {}


def test_a_namespace_that_is_none(world: World) -> None:
    """A path that is no network namespace is named in the error, and nothing is leased."""
    config = world.config("ptp")
    with pytest.raises(NetworkError, match="^network namespace /nowhere: no such file or directory$"):
        add(config, replace(world.pod(), namespace="/nowhere"))
    assert not world.leases.exists()


def test_check_names_what_differs(world: World, kind: str) -> None:
    """Each thing that is taken away after the fact is found."""
    config = world.config(kind, routes=EVERYWHERE, **KINDS[kind])

    def fails(spoil: Callable[[Request], object], message: str) -> None:
        request = world.pod()
        result = add(config, request)
        check(config, request, result)
        spoil(request)
        with pytest.raises(NetworkError, match=message):
            check(config, request, result)
        delete(config, request)

    def ip(*words: str) -> Callable[[Request], object]:
        return lambda request: subprocess.run(["nsenter", f"--net={request.namespace}", "ip", *words], check=True)

    fails(ip("addr", "flush", "dev", "eth0"), r"^interface eth0 does not have the address 10\.9\.8\.\d+/24$")
    fails(ip("route", "del", "default"), "^the route to 0.0.0.0/0 is gone$")
    fails(ip("link", "set", "eth0", "address", "02:00:00:00:00:01"), "^interface eth0 has the hardware address 02:")
    fails(ip("link", "set", "eth0", "down"), "^interface eth0 is down$")
    fails(ip("link", "del", "eth0"), "^interface eth0 is gone$")
    host = Links()
    fails(lambda request: host.set_up(host.get(host_end(request)), up=False), "^interface veth.* is down$")
    lease = "has no lease"
    fails(lambda _: [path.unlink() for path in (world.leases / "net").iterdir() if path.name[0].isdigit()], lease)
    if kind == "bridge":
        detach = ["ip", "link", "set", "nomaster", "dev"]
        gone = "^interface veth.* is not connected to bridge br-test$"
        fails(lambda request: subprocess.run([*detach, host_end(request)], check=True), gone)
    with pytest.raises(NetworkError, match="^CHECK needs the result of ADD$"):
        check(config, world.pod(), None)


def test_loopback(world: World) -> None:
    """lo goes up and down, and what plugins before returned is passed on."""
    config: dict[str, object] = {"cniVersion": "0.4.0", "name": "lo", "type": "loopback"}
    request = world.pod()
    within(request.namespace, lambda: Links().set_up(Links().get("lo"), up=False))
    with pytest.raises(NetworkError, match="^interface lo is down$"):
        check(config, request, None)
    result = add(config, request)
    assert [str(a.address) for a in result.addresses][:1] == ["127.0.0.1/8"]
    assert (result.interfaces[0].name, result.interfaces[0].sandbox) == ("lo", request.namespace)
    check(config, request, result)
    earlier = Result(dns=Dns(domain="d"))
    assert call_builtin("ADD", "loopback", config, request, earlier) is earlier
    delete(config, request)
    with pytest.raises(NetworkError):
        check(config, request, result)
    delete(config, replace(request, namespace=""))


def test_killed_at_any_step_of_add(world: World, kind: str) -> None:
    """Whenever ADD is killed, DEL finds all that it left, and the next ADD gets the same address."""
    config = world.config(kind, ipMasq=True, routes=EVERYWHERE, rangeEnd="10.9.8.2", **KINDS[kind])
    request = world.pod()
    step = 1
    while killed_child(lambda: add(config, request), step):
        delete(config, request)
        assert [name for name in links() if name.startswith("veth")] == []
        assert (world.leased(), tables()) == ({}, [])
        step += 1
    assert step > 10
    delete(config, request)
    assert address_of(add(config, request)) == "10.9.8.2"


def test_killed_at_any_step_of_delete(world: World, kind: str) -> None:
    """Whenever DEL is killed, another DEL finishes it."""
    config = world.config(kind, ipMasq=True, **KINDS[kind])
    request = world.pod()
    step, killed = 1, True
    while killed:
        add(config, request)
        killed = killed_child(lambda: delete(config, request), step)
        delete(config, request)
        assert [name for name in links() if name.startswith("veth")] == []
        assert (world.leased(), tables()) == ({}, [])
        step += 1
    assert step > 4


def test_failing_at_any_step_of_add(world: World, kind: str) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    config = world.config(kind, ipMasq=True, routes=EVERYWHERE, **KINDS[kind])
    add(config, world.pod())
    before = links(), world.leased(), tables()
    request = world.pod()

    failures = 0
    for error in each_failure(lambda: add(config, request)):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert (links(), world.leased(), tables()) == before
            assert within(request.namespace, links) == []
        # Some failures do no harm.
        delete(config, request)
    assert failures > 10


def test_leases_of_a_killed_plugin(world: World) -> None:
    """An empty file, which only a plugin that was killed leaves, takes no address away."""
    config = world.config("ptp", "10.9.8.0/30")
    (world.leases / "net").mkdir(parents=True)
    (world.leases / "net/10.9.8.2").touch()
    (world.leases / "net/.new").write_text("half")
    assert address_of(add(config, world.pod())) == "10.9.8.2"


def test_leases_taken_at_once_differ(world: World) -> None:
    """Pods that start together get an address each."""
    sets = read_range_sets(Node(world.config("ptp"), None, "net.conf"))
    go, start = os.pipe()
    children = []
    for number in range(16):
        request = Request(container_id=f"pod-{number}", namespace="", interface="eth0")
        children.append(os.fork())
        if children[-1] == 0:
            os.close(start)
            os.read(go, 1)
            status = 1
            try:
                reserve(str(world.leases / "net"), "net", sets, request, ())
                status = 0
            finally:
                os._exit(status)
    os.close(go)
    os.close(start)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 16
    assert sorted(world.leased().values()) == sorted(f"pod-{number}\r\neth0" for number in range(16))


def test_what_leases_look_like(world: World) -> None:
    """The files are those of host-local, to the byte."""
    request = world.pod("eth7")
    add(world.config("ptp"), request)
    files = {path.name: path.read_bytes() for path in (world.leases / "net").iterdir()}
    assert files == {
        "10.9.8.2": f"{request.container_id}\r\neth7".encode(),
        "last_reserved_ip.0": b"10.9.8.2",
        "lock": b"",
    }


def test_leases_of_old_plugins(world: World) -> None:
    """A lease that names only the container is given back, unless there is one of the interface."""
    config = world.config("ptp")
    request = world.pod()
    (world.leases / "net").mkdir(parents=True)
    (world.leases / "net/10.9.8.9").write_text(request.container_id)
    delete(config, request)
    assert world.leased() == {}


def host_local(command: str, config: dict[str, object], request: Request) -> Any:
    """Run Debian's host-local."""
    environment = {
        "CNI_COMMAND": command,
        "CNI_CONTAINERID": request.container_id,
        "CNI_NETNS": request.namespace,
        "CNI_IFNAME": request.interface,
        "CNI_PATH": str(PLUGINS),
    }
    text = json.dumps(config)
    done = subprocess.run([PLUGINS / "host-local"], env=environment, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout or "{}")


@pytest.mark.skipif(not (PLUGINS / "host-local").exists(), reason="needs the reference plugins")
def test_leases_are_shared_with_the_reference_plugin(world: World) -> None:
    """Both take turns in one directory, skip what the other has leased, and give back each other's leases."""
    config = world.config("ptp", "10.9.8.0/29")
    requests = [world.pod() for _ in range(5)]
    addresses = []
    for number, request in enumerate(requests):
        if number % 2:
            addresses.append(host_local("ADD", config, request)["ips"][0]["address"])
        else:
            addresses.append(add(config, request).addresses[0].address)
    assert list(map(str, addresses)) == [f"10.9.8.{number}/29" for number in range(2, 7)]
    with pytest.raises(NetworkError, match="no IP addresses available"):
        add(config, world.pod())
    host_local("CHECK", config, requests[0])
    host_local("DEL", config, requests[0])
    delete(config, requests[1])
    assert sorted(world.leased()) == ["10.9.8.4", "10.9.8.5", "10.9.8.6"]
    assert host_local("ADD", config, requests[0])["ips"][0]["address"] == "10.9.8.2/29"
    assert address_of(add(config, requests[1])) == "10.9.8.3"
