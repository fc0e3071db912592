"""The built-in plugin bandwidth, behind a bridge: what passes, what does not, and what is left."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.network.addresses import parse_interface
from minit.network.builtin.attachment import host_end
from minit.network.netlink.links import Links
from minit.network.protocol import Request, Result
from tests.support.builtins import call_builtin
from tests.support.chains import REFERENCE, VERSION, Pods, call_reference, pods
from tests.support.effects import each_failure, killed_child
from tests.support.networks import within

TIMEOUT_SECONDS = 60
DATAGRAM_BYTES = 500
DATAGRAMS = 200
# A kilobyte a second, two at once: of two hundred datagrams that are sent in less than a minute most are dropped.
SLOW = {"ingressRate": 8000, "ingressBurst": 16000}
SLOW_OUT = {"egressRate": 8000, "egressBurst": 16000}
FAST = {"ingressRate": 800_000_000, "ingressBurst": 8_000_000, "egressRate": 800_000_000, "egressBurst": 8_000_000}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Pods]:
    """A host with a bridge, whose address is 10.9.8.1."""
    with pods(tmp_path) as made:
        yield made


def config(**more: Any) -> dict[str, Any]:
    """Return a configuration."""
    return {"cniVersion": VERSION, "name": "net", "type": "bandwidth", **more}


def limit(command: str, configuration: dict[str, Any], request: Request, previous: Result | None = None) -> Result:
    """Make a request of the plugin."""
    return call_builtin(command, "bandwidth", configuration, request, previous)


def shown(*command: str) -> Any:
    """Return what a command of iproute2 prints as JSON."""
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout or "[]")


def buckets(device: str) -> list[dict[str, Any]]:
    """Return the token buckets of a link with their counts."""
    return [one for one in shown("tc", "-s", "-j", "qdisc", "show", "dev", device) if one["kind"] == "tbf"]


def remains() -> tuple[list[str], list[str], list[str]]:
    """Return what there is of limits on the host: ifbs, tables, and links with a bucket."""
    ifbs = [one["ifname"] for one in shown("ip", "-j", "link", "show", "type", "ifb")]
    tables = subprocess.run(["nft", "list", "tables"], check=True, capture_output=True, text=True).stdout.splitlines()
    limited = [one["dev"] for one in shown("tc", "-j", "qdisc", "show") if one["kind"] == "tbf"]
    return ifbs, [line for line in tables if line.endswith("-bandwidth")], limited


NOTHING: tuple[list[str], list[str], list[str]] = ([], [], [])


def address_of(result: Result) -> str:
    """Return the pod's address."""
    return str(result.addresses[0].address.ip)


def datagrams(address: str = "") -> socket.socket:
    """Return a socket for datagrams in the present namespace."""
    opened = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    opened.settimeout(TIMEOUT_SECONDS)
    if address:
        opened.bind((address, 0))
    return opened


def test_most_of_a_flood_from_a_pod_is_dropped(world: Pods) -> None:
    """What is over the limit is dropped at the ifb, where all passes that the pod sends; what it receives is not."""
    request, before = world.connected()
    result = limit("ADD", config(**SLOW_OUT), request, before)
    ifb = result.interfaces[-1]
    assert (result.interfaces[:-1], ifb.sandbox) == (before.interfaces, "")
    assert ifb.mac == Links().get(ifb.name).mac
    with datagrams("10.9.8.1") as server, within(request.namespace, datagrams) as client:
        for _ in range(DATAGRAMS):
            client.sendto(bytes(DATAGRAM_BYTES), server.getsockname())
        assert len(server.recv(DATAGRAM_BYTES * 2)) == DATAGRAM_BYTES
    [bucket] = buckets(ifb.name)
    assert bucket["packets"] >= 1
    assert bucket["drops"] > DATAGRAMS / 2
    assert buckets(host_end(request)) == []
    limit("DEL", config(**SLOW_OUT), request, result)
    assert remains() == NOTHING


def test_most_of_a_flood_to_a_pod_is_dropped(world: Pods) -> None:
    """What is over the limit is dropped at the host's end of the link; no ifb is made."""
    request, before = world.connected()
    assert limit("ADD", config(**SLOW), request, before) == before
    with within(request.namespace, lambda: datagrams(address_of(before))) as server, datagrams() as client:
        for _ in range(DATAGRAMS):
            client.sendto(bytes(DATAGRAM_BYTES), server.getsockname())
        assert len(server.recv(DATAGRAM_BYTES * 2)) == DATAGRAM_BYTES
    [bucket] = buckets(host_end(request))
    assert bucket["packets"] >= 1
    assert bucket["drops"] > DATAGRAMS / 2
    limit("DEL", config(**SLOW), request, before)
    assert remains() == NOTHING


def test_what_is_within_the_limits_arrives_whole(world: Pods) -> None:
    """A connection carries megabytes both ways, in large segments, and all of it passes the buckets."""
    request, before = world.connected()
    result = limit("ADD", config(**FAST), request, before)
    sent = os.urandom(4 << 20)
    with within(request.namespace, lambda: socket.create_server((address_of(before), 0))) as server:
        client = socket.create_connection(server.getsockname(), TIMEOUT_SECONDS)
        peer, _ = server.accept()
    with client, peer:
        peer.settimeout(TIMEOUT_SECONDS)
        for source, target in ((client, peer), (peer, client)):
            sender = threading.Thread(target=source.sendall, args=(sent,))
            sender.start()
            received = b""
            while len(received) < len(sent):
                received += target.recv(1 << 20)
            sender.join()
            assert received == sent
    for device in (host_end(request), result.interfaces[-1].name):
        [bucket] = buckets(device)
        assert bucket["bytes"] > len(sent)


def test_a_limit_is_no_way_around_the_packet_filter(world: Pods) -> None:
    """A pod that has a limit to what it sends still cannot send from an address that is not its own."""
    request, before = world.connected()
    limit("ADD", config(**FAST), request, before)
    own, foreign = address_of(before), "10.9.8.99"
    within(request.namespace, lambda: Links().add_address(Links().get("eth0"), parse_interface(f"{foreign}/24")))
    with datagrams("10.9.8.1") as server:
        for address in (foreign, own):
            with within(request.namespace, partial(datagrams, address)) as client:
                client.sendto(address.encode(), server.getsockname())
        assert server.recv(100) == own.encode()


def test_without_a_limit_nothing_is_made(world: Pods) -> None:
    """The result is passed on."""
    request, before = world.connected()
    assert limit("ADD", config(), request, before) == before
    limit("CHECK", config(), request, before)
    limit("DEL", config(), request, before)
    assert remains() == NOTHING


def test_what_has_no_end_on_the_host(world: Pods) -> None:
    """An interface that is no veth to the host is refused, and so is the plugin without another before it."""
    request, before = world.connected()
    with pytest.raises(NetworkError, match="^net.conf: prevResult is missing"):
        limit("ADD", config(**FAST), request)
    for interface, message in (
        ("lo", "interface lo is no veth with its other end on the host"),
        ("eth7", "eth7 is gone"),
    ):
        with pytest.raises(NetworkError, match=message):
            limit("ADD", config(**FAST), replace(request, interface=interface), before)
    assert remains() == NOTHING


def test_another_add_of_what_is_there(world: Pods) -> None:
    """It is refused, with the place of the limit, and the first one stays."""
    request, before = world.connected()
    result = limit("ADD", config(**FAST), request, before)
    there = remains()
    with pytest.raises(NetworkError, match="^net.conf: egressRate: interface bwp.* exists already: the limit of"):
        limit("ADD", config(**FAST), request, before)
    with pytest.raises(NetworkError, match="^net.conf: ingressRate: interface veth.* has a limit already$"):
        limit("ADD", config(**SLOW), request, before)
    assert remains() == there
    limit("CHECK", config(**FAST), request, result)


def test_a_burst_that_no_packet_fits_into(world: Pods) -> None:
    """What the kernel refuses is told with its place, and nothing is left."""
    request, before = world.connected()
    for place in ("egress", "ingress"):
        fast = {f"{place}Rate": 1 << 60, f"{place}Burst": 8}
        with pytest.raises(NetworkError, match=f"^net.conf: {place}Rate: cannot limit .*: invalid argument"):
            limit("ADD", config(**fast), request, before)
        assert remains() == NOTHING


def test_check_names_what_differs(world: Pods) -> None:
    """Buckets, the ifb and what leads to it are looked for."""

    def fails(message: str, *command: str) -> None:
        request, before = world.connected()
        result = limit("ADD", config(**FAST), request, before)
        limit("CHECK", config(**FAST), request, result)
        names = {"HOST": host_end(request), "IFB": result.interfaces[-1].name, "ID": request.container_id}
        for name, value in names.items():
            command = tuple(word.replace(name, value) for word in command)
        subprocess.run(command, check=True)
        with pytest.raises(NetworkError, match=message):
            limit("CHECK", config(**FAST), request, result)
        limit("DEL", config(**FAST), request, result)
        call_builtin("DEL", "bridge", world.bridge(), request)

    tbf = ("root", "handle", "1:", "tbf", "burst", "1mb", "latency", "25ms", "rate", "400mbit")
    fails("^interface veth.* has no limit$", "tc", "qdisc", "del", "dev", "HOST", "root")
    fails("^interface bwp.* has no limit$", "tc", "qdisc", "del", "dev", "IFB", "root")
    fails("^interface veth.* has the limit 50000000 bytes a second", "tc", "qdisc", "replace", "dev", "HOST", *tbf)
    fails("^interface bwp.* is gone or down$", "ip", "link", "del", "IFB")
    fails("^interface bwp.* is gone or down$", "ip", "link", "set", "IFB", "down")
    fails(
        "^nftables table minit-.*-eth0-bandwidth is gone", "nft", "delete", "table", "netdev", "minit-ID-eth0-bandwidth"
    )
    fails("^interface eth0 is no veth|eth0 is gone", "ip", "link", "del", "HOST")
    assert remains() == NOTHING


def test_deleting_what_is_gone(world: Pods) -> None:
    """Twice, without the result, without link, without namespace, or as after a reboot: nothing is left."""
    (world.directory / "file").touch()
    for namespace in (None, "", "/nowhere", str(world.directory / "file")):
        request, before = world.connected()
        limit("ADD", config(**FAST), request, before)
        if namespace is not None:
            # As bridge does after this one.
            subprocess.run(["ip", "link", "del", host_end(request)], check=True)
        gone = request if namespace is None else replace(request, namespace=namespace)
        limit("DEL", config(**FAST), gone)
        limit("DEL", config(), gone)
        assert remains() == NOTHING


def test_attachments_that_are_no_more(world: Pods) -> None:
    """GC removes their limits, and none of another network or of pods that there are."""
    pairs = [world.connected() for _ in range(3)]
    names = ("net", "net", "other")
    for (request, before), name in zip(pairs, names):
        limit("ADD", {**config(**FAST), "name": name}, request, before)
    stays, gone, other = (request for request, _ in pairs)
    valid = [{"containerID": stays.container_id, "ifname": "eth0"}]
    nobody = replace(gone, container_id="", interface="", namespace="")
    for _ in range(2):
        limit("GC", {**config(), "cni.dev/valid-attachments": valid}, nobody)
        ifbs, tables, _ = remains()
        assert len(ifbs) == 2
        assert sorted(line.split("minit-")[1] for line in tables) == sorted(
            f"{one.container_id}-eth0-bandwidth" for one in (stays, other)
        )


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_any_step(world: Pods, command: str) -> None:
    """Whenever ADD or DEL is killed, another DEL leaves nothing."""
    request, before = world.connected()
    step, killed = 1, True
    while killed:
        if command == "DEL":
            limit("ADD", config(**FAST), request, before)
        killed = killed_child(lambda: limit(command, config(**FAST), request, before), step)
        limit("DEL", config(**FAST), request, before)
        assert remains() == NOTHING
        step += 1
    assert step > 6


def test_failing_at_any_step_of_add(world: Pods) -> None:
    """Whichever step of ADD fails, nothing is left and the error is one line."""
    request, before = world.connected()

    failures = 0
    for error in each_failure(lambda: limit("ADD", config(**FAST), request, before)):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert remains() == NOTHING
        limit("DEL", config(**FAST), request, before)
        assert remains() == NOTHING
    assert failures > 8


@pytest.mark.skipif(not (REFERENCE / "bandwidth").exists(), reason="needs the reference plugins")
@pytest.mark.parametrize(
    "limits",
    [
        FAST,
        SLOW,
        SLOW_OUT,
        {"runtimeConfig": {"bandwidth": SLOW_OUT}},
        {**SLOW, "runtimeConfig": {"bandwidth": SLOW_OUT}},
        {"ingressRate": 12_345_678, "ingressBurst": 7_654_321},
        {"ingressRate": 1 << 36, "ingressBurst": 1 << 30},
    ],
)
def test_as_the_reference_plugin(world: Pods, limits: dict[str, Any]) -> None:
    """Result, links and limits are the same but for names, and CHECK of each is content with those of the other."""
    (ours, our_result), (theirs, their_result) = world.connected(), world.connected()
    result = limit("ADD", config(**limits), ours, our_result)
    reference, error = call_reference("ADD", config(**limits), theirs, their_result)
    assert reference is not None, error
    assert len(result.interfaces) == len(reference.interfaces)
    assert (result.addresses, result.routes, result.dns) == (our_result.addresses, our_result.routes, our_result.dns)
    for one, other in zip(result.interfaces[3:], reference.interfaces[3:]):
        assert (one.sandbox, bool(one.mac)) == (other.sandbox, bool(other.mac))
        assert link(one.name) == link(other.name)
        assert bucket_of(one.name) == bucket_of(other.name)
    assert bucket_of(host_end(ours)) == bucket_of(host_end(theirs))
    call_reference("DEL", config(**limits), theirs, reference)
    limit("DEL", config(**limits), ours, result)
    limit("DEL", config(**limits), theirs, reference)
    assert remains() == NOTHING


def link(name: str) -> dict[str, Any]:
    """Return what a link is like, but for its name, number and addresses."""
    [found] = shown("ip", "-d", "-j", "link", "show", name)
    return {key: value for key, value in found.items() if key not in ("ifname", "ifindex", "address")}


def bucket_of(name: str) -> list[dict[str, Any]]:
    """Return the token buckets of a link without their counts."""
    return [one["options"] for one in shown("tc", "-d", "-j", "qdisc", "show", "dev", name) if one["kind"] == "tbf"]
