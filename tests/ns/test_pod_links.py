"""The built-in plugins whose link is in the pod alone, between network namespaces for a host, pods and a neighbour."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.network.addresses import parse_interface
from minit.network.builtin.sides import DuplicateDetection
from minit.network.netlink.links import Links
from minit.network.protocol import Interface
from tests.support.builtins import listen, talk
from tests.support.effects import each_failure, killed_child
from tests.support.linkkinds import lacking_kinds, need_kind
from tests.support.networks import remove_network, within
from tests.support.podlinks import (
    OWN_CONFIG,
    World,
    add,
    check,
    delete,
    in_pod,
    own_world,
    pod_link,
    run,
    set_default,
    sysctl,
)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The process is in a network namespace of its own while a test runs."""
    with own_world(tmp_path) as world:
        yield world


@pytest.fixture(params=sorted(OWN_CONFIG))
def kind(request: pytest.FixtureRequest) -> str:
    """Each plugin that makes a link or moves one, if the kernel can."""
    kind = str(request.param)
    if kind != "host-device":
        need_kind(kind.partition("-")[0])
    return kind


def test_an_attachment_from_beginning_to_end(world: World, kind: str) -> None:
    """The pod has the link with addresses and routes of both families; CHECK finds it so; DEL leaves nothing of it."""
    config, request = world.config(kind), world.pod()
    before = world.traces()
    result = add(config, request)
    link = pod_link(request)
    assert link is not None and link.up
    assert result.interfaces == (Interface(name="eth0", mac=link.mac, sandbox=request.namespace),)
    assert [(str(one.address), one.interface) for one in result.addresses] == [("10.5.0.2/24", 0), ("fd00:5::2/64", 0)]
    routes = in_pod(request, "ip", "route") + in_pod(request, "ip", "-6", "route")
    for destination in ("default via 10.5.0.1", "default via fd00:5::1", "10.77.0.0/16 via 10.5.0.9"):
        assert f"{destination} dev eth0" in routes
    assert sysctl(request, "ipv6/conf/eth0/accept_ra") == "0"
    has_neighbours = str(int(kind != "dummy"))
    assert sysctl(request, "ipv4/conf/eth0/arp_notify") == has_neighbours
    assert sysctl(request, "ipv6/conf/eth0/ndisc_notify") == has_neighbours
    check(config, request, result)
    for namespace in (request.namespace, request.namespace, "", "/nowhere"):
        delete(config, replace(request, namespace=namespace))
        assert world.traces() == before
        assert pod_link(request) is None


@pytest.mark.parametrize("kind", ["host-device", "ipvlan", "macvlan", "vlan"])
def test_a_neighbour_is_reached(world: World, kind: str) -> None:
    """The pod and another machine in the network of the link below reach each other by both families."""
    end = "far"
    if kind != "host-device":
        need_kind(kind)
    if kind == "vlan":
        end = "far.7"
        world.at_neighbour("ip", "link", "add", "far.7", "link", "far", "type", "vlan", "id", "7")
        world.at_neighbour("ip", "link", "set", "far.7", "up")
    world.at_neighbour("ip", "address", "add", "10.5.0.200/24", "dev", end)
    world.at_neighbour("ip", "address", "add", "fd00:5::200/64", "dev", end)
    request = world.pod()
    add(world.config(kind), request)
    for address in ("10.5.0.2", "fd00:5::2"):
        world.at_neighbour("busybox", "ping", "-c", "1", "-W", "10", address)


@pytest.mark.parametrize("kind", ["ipvlan", "ipvlan-l3", "macvlan"])
def test_pods_reach_each_other(world: World, kind: str) -> None:
    """Pods on top of one link of the host reach each other by both families."""
    need_kind(kind.partition("-")[0])
    one, other = world.pod(), world.pod()
    config = world.config(kind)
    results = [add(config, one), add(config, other)]
    for index in range(2):
        first, second = (str(result.addresses[index].address.ip) for result in results)
        with within(one.namespace, partial(listen, first)) as server:
            assert talk(other.namespace, server) == second


def test_deleting_after_a_reboot(world: World, kind: str) -> None:
    """The addresses are given back if nothing is mounted any more where the namespace was."""
    config, request = world.config(kind), world.pod()
    add(config, request)
    remove_network(request.namespace)
    Path(request.namespace).touch()
    delete(config, request)
    os.unlink(request.namespace)
    assert world.leased() == []


def test_an_interface_that_exists(world: World, kind: str) -> None:
    """It is left alone, by ADD and by the DEL after it."""
    config, request = world.config(kind), world.pod()
    before = world.traces()
    in_pod(request, "ip", "link", "add", "eth0", "type", "bridge")
    with pytest.raises(NetworkError, match="^interface eth0 exists already in the pod's network namespace$"):
        add(config, request)
    delete(config, request)
    assert world.traces() == before
    link = pod_link(request)
    assert link is not None and link.kind == "bridge"


def test_check_names_what_differs(world: World, kind: str) -> None:
    """Each thing that is taken away after the fact is found."""
    config = world.config(kind)

    def fails(message: str, *words: str) -> None:
        request = world.pod()
        result = add(config, request)
        check(config, request, result)
        in_pod(request, "ip", *words)
        with pytest.raises(NetworkError, match=message):
            check(config, request, result)
        delete(config, request)
        run("ip", "link", "set", "up0", "up")

    fails("^interface eth0 does not have the address", "address", "flush", "dev", "eth0")
    fails("^the route to ::/0 is gone$", "-6", "route", "delete", "default")
    fails("^interface eth0 is down$", "link", "set", "eth0", "down")
    with pytest.raises(NetworkError, match="^CHECK needs the result of ADD$"):
        check(config, world.pod(), None)
    if kind != "host-device":
        fails("^interface eth0 is gone$", "link", "delete", "eth0")


def test_router_advertisements_if_they_are_asked_for(world: World) -> None:
    """With `acceptRa` the pod's link takes them."""
    request = world.pod()
    add(world.config("host-device", acceptRa=True), request)
    assert sysctl(request, "ipv6/conf/eth0/accept_ra") == "2"


@pytest.mark.parametrize("kind", ["host-device", "macvlan"])
def test_a_duplicate_address(world: World, kind: str) -> None:
    """An address that a neighbour has is refused within the detection of the kernel, and all is undone."""
    world.at_neighbour("ip", "address", "add", "fd00:5::2/64", "dev", "far")
    request = world.pod()
    within(request.namespace, lambda: set_default("accept_dad", "1"))
    before = world.traces()
    with pytest.raises(NetworkError, match="^address fd00:5::2/64 of eth0 is a neighbour's already"):
        add(world.config(kind), request)
    assert world.traces() == before
    assert pod_link(request) is None


def test_an_address_is_usable_when_add_returns(world: World) -> None:
    """Nobody else has it, and it is not tentative any more."""
    request = world.pod()
    within(request.namespace, lambda: set_default("accept_dad", "1"))
    add(world.config("macvlan"), request)
    shown = in_pod(request, "ip", "-6", "address", "show", "dev", "eth0", "scope", "global")
    assert "fd00:5::2/64" in shown and "tentative" not in shown


def test_a_link_that_nobody_can_be_asked_by(world: World) -> None:
    """An address stays tentative without a carrier, and the reason is told."""
    request = world.pod()
    within(request.namespace, lambda: set_default("accept_dad", "1"))
    in_pod(request, *["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth1"])
    address = parse_interface("fd00:5::2/64")

    def wait() -> None:
        links = Links()
        link = links.get("eth0")
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        with DuplicateDetection(own, timeout_seconds=0.1) as detection:
            os.close(own)
            links.add_address(link, address, duplicates=True)
            links.set_up(link)
            detection.wait(links, link, [address])

    message = "^address fd00:5::2/64 of eth0 is still tentative: the link below has no carrier$"
    with pytest.raises(NetworkError, match=message):
        within(request.namespace, wait)


def test_a_kind_that_the_kernel_lacks(world: World) -> None:
    """The error names the option of the kernel, and nothing is left."""
    lacking = [kind for kind in lacking_kinds() if kind in OWN_CONFIG]
    if not lacking:
        pytest.skip("the kernel has links of every kind")
    request = world.pod()
    with pytest.raises(NetworkError, match=rf"^cannot create {lacking[0]} eth0: the kernel has no .*\(CONFIG_"):
        add(world.config(lacking[0]), request)
    assert world.leased() == []


def test_killed_at_any_step_of_add(world: World, kind: str) -> None:
    """Whenever ADD is killed, DEL finds all that it left, and the next ADD works."""
    config, request = world.config(kind), world.pod()
    before = world.traces()
    step = 1
    while killed_child(lambda: add(config, request), step):
        delete(config, request)
        assert world.traces() == before
        assert pod_link(request) is None
        step += 1
    assert step > 10
    delete(config, request)
    assert len(add(config, request).addresses) == 2


def test_killed_at_any_step_of_delete(world: World, kind: str) -> None:
    """Whenever DEL is killed, another DEL finishes it."""
    config, request = world.config(kind), world.pod()
    before = world.traces()
    step, killed = 1, True
    while killed:
        add(config, request)
        killed = killed_child(lambda: delete(config, request), step)
        delete(config, request)
        assert world.traces() == before
        assert pod_link(request) is None
        step += 1
    assert step > 4


def test_failing_at_any_step_of_add(world: World, kind: str) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    config, request = world.config(kind), world.pod()
    before = world.traces()

    failures = 0
    for error in each_failure(lambda: add(config, request)):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert world.traces() == before
            assert pod_link(request) is None
            assert Links().get("up0").up
        # Some failures do no harm.
        delete(config, request)
        run("ip", "link", "set", "up0", "up")
    assert failures > 10
