"""The built-in plugin tuning, behind a bridge."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import MinitError, NetworkError
from minit.base.value import replace
from minit.network.builtin.tuning import Sysctl, refuse_forbidden
from minit.network.protocol import Request, Result, write_result
from tests.support.builtins import call_builtin
from tests.support.chains import REFERENCE, VERSION, Pods, call_reference, pods
from tests.support.effects import each_failure, killed_child

TIMEOUT_SECONDS = 60
MAC = "02:00:5e:10:00:0f"
ALL = {"mac": MAC, "mtu": 1300, "promisc": True, "allmulti": True, "txQLen": 77}
SYSCTLS = {"net.ipv4.conf.IFNAME.arp_filter": "1", "net/ipv4/ip_local_port_range": "2000 3000"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Pods]:
    """A host with a bridge."""
    with pods(tmp_path) as made:
        yield made


def config(world: Pods, **more: Any) -> dict[str, Any]:
    """Return a configuration."""
    return {"cniVersion": VERSION, "name": "net", "type": "tuning", "dataDir": str(world.directory / "data"), **more}


def tune(command: str, configuration: dict[str, Any], request: Request, previous: Result | None = None) -> Result:
    """Make a request of the plugin."""
    return call_builtin(command, "tuning", configuration, request, previous)


def inside(request: Request, *command: str) -> str:
    """Run a command in the pod's network and return its output."""
    words = ["nsenter", f"--net={request.namespace}", *command]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def link(request: Request) -> dict[str, object]:
    """Return what the pod's interface has of all that can be changed."""
    [found] = json.loads(inside(request, "ip", "-j", "link", "show", request.interface))
    return {
        "mac": found["address"],
        "mtu": found["mtu"],
        "promisc": "PROMISC" in found["flags"],
        "allmulti": "ALLMULTI" in found["flags"],
        "txQLen": found.get("txqlen", 0),
    }


def sysctl(request: Request, name: str) -> str:
    """Return a parameter of the pod's network."""
    return " ".join(inside(request, "cat", f"/proc/sys/{name}").split())


def kept(world: Pods) -> dict[str, dict[str, Any]]:
    """Return the files with what interfaces had."""
    return {path.name: json.loads(path.read_text()) for path in (world.directory / "data").glob("*")}


def test_everything_is_changed_and_given_back(world: Pods) -> None:
    """The interface has what is asked for until DEL; the result has its new address and size."""
    request, before = world.connected()
    had = link(request)
    configuration = config(world, sysctl=SYSCTLS, **ALL)
    result = tune("ADD", configuration, request, before)
    pod = replace(before.interfaces[2], mac=MAC, mtu=1300)
    assert result == replace(before, interfaces=(*before.interfaces[:2], pod))
    assert link(request) == ALL
    assert sysctl(request, "net/ipv4/conf/eth0/arp_filter") == "1"
    assert sysctl(request, "net/ipv4/ip_local_port_range") == "2000 3000"
    assert kept(world) == {f"{request.container_id}_eth0.json": had}
    tune("CHECK", configuration, request, result)
    for _ in range(2):
        tune("DEL", configuration, request, result)
        assert (link(request), kept(world)) == (had, {})


def first_heard(request: Request, *addresses: str) -> str:
    """Have the pod send its address from each of these, in order; return the first one that the host gets."""
    program = "import socket, sys; s = socket.socket(type=socket.SOCK_DGRAM); s.bind((sys.argv[1], 0)); "
    program += "s.sendto(sys.argv[1].encode(), (sys.argv[2], int(sys.argv[3])))"
    with socket.socket(type=socket.SOCK_DGRAM) as server:
        server.bind(("10.9.8.1", 0))
        server.settimeout(TIMEOUT_SECONDS)
        for address in addresses:
            inside(request, sys.executable, "-c", program, address, *map(str, server.getsockname()))
        heard = server.recv(100)
    return heard.decode()


def test_another_hardware_address_is_the_pods_own(world: Pods) -> None:
    """The host takes packets of it, and still none from an address of somebody else; after DEL it is as before."""
    request, before = world.connected()
    had = before.interfaces[2].mac
    inside(request, "ip", "address", "add", "10.9.8.99/24", "dev", "eth0")
    for mac in (MAC, "02:00:00:00:00:01"):
        result = tune("ADD", config(world, mac=mac), request, before)
        assert confined_to(request) == mac
        assert first_heard(request, "10.9.8.99", "10.9.8.2") == "10.9.8.2"
        tune("DEL", config(world), request, result)
        assert confined_to(request) == had
        assert first_heard(request, "10.9.8.99", "10.9.8.2") == "10.9.8.2"
    with pytest.raises(NetworkError, match="^cannot give interface eth0 the MTU 1: "):
        tune("ADD", config(world, mac=MAC, mtu=1), request, before)
    assert confined_to(request) == had


def confined_to(request: Request) -> str:
    """Return the only hardware address that the host takes packets of the pod from."""
    command = ["nft", "list", "table", "netdev", f"minit-{request.container_id}-{request.interface}"]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    [digits] = re.findall(r"@ll,48,48 0x([0-9a-f]+) jump", text)
    return bytes.fromhex(digits.rjust(12, "0")).hex(":")


def test_what_is_not_asked_for_stays(world: Pods) -> None:
    """Without any wish the result is passed on, and no file is made; a mode can also be switched off."""
    request, before = world.connected()
    had = link(request)
    assert tune("ADD", config(world, promisc=False, mac="", mtu=0), request, before) == before
    assert (link(request), kept(world)) == (had, {})
    subprocess.run(
        ["nsenter", f"--net={request.namespace}", "ip", "link", "set", "eth0", "allmulticast", "on"], check=True
    )
    tune("ADD", config(world, allmulti=False, txQLen=0), request, before)
    assert link(request) == {**had, "allmulti": False, "txQLen": 0}
    tune("DEL", config(world), request, before)
    assert link(request) == {**had, "allmulti": True}


def test_who_has_the_last_word(world: Pods) -> None:
    """CNI_ARGS stand in for the configuration, the runtime for both, and args for all."""
    request, before = world.connected("MAC=02:00:00:00:00:02;IP=10.9.8.7")
    configuration = config(world, mac="02:00:00:00:00:01", mtu=1400, sysctl={"net.ipv4.ip_forward": "1"})
    tune("ADD", configuration, request, before)
    assert link(request)["mac"] == "02:00:00:00:00:02"
    configuration |= {"runtimeConfig": {"mac": "02:00:00:00:00:03"}}
    tune("ADD", configuration, request, before)
    assert link(request)["mac"] == "02:00:00:00:00:03"
    asked = {"mac": "02-00-00-00-00-04", "mtu": 1401, "promisc": True, "sysctl": {"net/ipv4/ip_forward": "0"}}
    tune("ADD", {**configuration, "args": {"cni": asked}}, request, before)
    assert link(request)["mac"] == "02:00:00:00:00:04"
    assert (link(request)["mtu"], link(request)["promisc"]) == (1401, True)
    assert sysctl(request, "net/ipv4/ip_forward") == "0"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"sysctl": {"kernel.domainname": "x"}}, 'net.conf: sysctl: expected parameters of the network, net.…, got "k'),
        ({"sysctl": {"net/../kernel/domainname": "x"}}, "net.conf: sysctl: expected parameters of the network, net.…"),
        ({"sysctl": {"net": "x"}}, "net.conf: sysctl: expected parameters of the network, net.…"),
        ({"sysctl": {"net..x": "x"}}, "net.conf: sysctl: expected parameters of the network, net.…"),
        ({"sysctl": {"net.x": 1}}, "net.conf: sysctl["),
        ({"sysctl": {"net.a.b": "1", "net/a/b": "2"}}, 'net.conf: sysctl: expected each parameter once, got "net.a.b"'),
        ({"sysctl": {"net.none": "1"}}, "cannot read sysctl net.none: /proc/sys/net/none: no such file or directory"),
        ({"sysctl": {"net.ipv4.ip_forward": "x"}}, "cannot set sysctl net.ipv4.ip_forward to x: invalid argument"),
        ({"mac": "02:00"}, "net.conf: mac: expected a hardware address, got"),
        ({"mac": "ff:ff:ff:ff:ff:ff"}, "cannot give interface eth0 the hardware address ff:ff:ff:ff:ff:ff: "),
        ({"mtu": 70000}, "net.conf: mtu: expected an integer from 0 to 65535"),
        ({"mtu": 1}, "cannot give interface eth0 the MTU 1: invalid argument"),
        ({"txQLen": -1}, "net.conf: txQLen: expected an integer from 0"),
        ({"promisc": "yes"}, "net.conf: promisc: expected true or false"),
        ({"args": {"cni": {"mtu": "x"}}}, "net.conf: args.cni.mtu: expected an integer"),
    ],
)
def test_what_cannot_be(world: Pods, more: dict[str, Any], message: str) -> None:
    """The error names it, and what was changed before is as it was."""
    request, before = world.connected()
    had = link(request), sysctl(request, "net/ipv4/conf/eth0/arp_filter")
    first = {"net.ipv4.conf.eth0.arp_filter": "1"}
    configuration = config(world, **{"promisc": True, **more, "sysctl": {**first, **more.get("sysctl", {})}})
    with pytest.raises(MinitError) as caught:
        tune("ADD", configuration, request, before)
    assert str(caught.value).startswith(message)
    assert (link(request), sysctl(request, "net/ipv4/conf/eth0/arp_filter")) == had
    assert kept(world) == {}


def test_it_needs_a_plugin_before_it(world: Pods) -> None:
    """Neither ADD nor CHECK does anything without a result."""
    request, _ = world.connected()
    with pytest.raises(NetworkError, match="^net.conf: prevResult is missing: the plugin has to follow"):
        tune("ADD", config(world, mtu=1300), request)
    with pytest.raises(NetworkError, match="^CHECK needs the result of ADD$"):
        tune("CHECK", config(world, mtu=1300), request)


def test_an_interface_with_a_dot(world: Pods) -> None:
    """Its name can stand in a key that is separated by slashes, and for IFNAME; with dots it has a slash itself."""
    request, before = world.connected()
    inside(request, "ip", "link", "set", "eth0", "down")
    inside(request, "ip", "link", "set", "eth0", "name", "eth0.5")
    dotted = replace(request, interface="eth0.5")
    keys = ("net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/eth0.5/arp_ignore", "net.ipv4.conf.eth0/5.arp_announce")
    tune("ADD", config(world, sysctl=dict.fromkeys(keys, "1")), dotted, before)
    for name in ("arp_filter", "arp_ignore", "arp_announce"):
        assert sysctl(request, f"net/ipv4/conf/eth0.5/{name}") == "1"


def test_the_list_of_the_administrator(tmp_path: Path) -> None:
    """Without a file all is allowed, with one what any of its expressions finds; a broken one is named."""
    path = tmp_path / "allowlist.conf"
    wanted = (Sysctl(key="net.ipv4.conf.IFNAME.arp_filter", path="", value="1"),)
    refuse_forbidden(wanted, str(path))
    path.write_text("^net.core\\.\n\n  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$  \n")
    refuse_forbidden(wanted, str(path))
    path.write_text("^net.core\n")
    with pytest.raises(NetworkError, match=r"^sysctl net\.ipv4\.conf\.IFNAME\.arp_filter is not allowed by /.*\.conf$"):
        refuse_forbidden(wanted, str(path))
    path.write_text("")
    with pytest.raises(NetworkError, match="is not allowed by"):
        refuse_forbidden(wanted, str(path))
    path.write_text("[\n")
    with pytest.raises(NetworkError, match=r'allowlist\.conf: expected regular expressions, got "\["$'):
        refuse_forbidden(wanted, str(path))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (["link", "set", "eth0", "mtu", "1301"], "^interface eth0: mtu is 1301, not 1300$"),
        (["link", "set", "eth0", "address", "02:00:00:00:00:01"], '^interface eth0: mac is "02:00:00:00:00:01", not "'),
        (["link", "set", "eth0", "promisc", "off"], "^interface eth0: promisc is false, not true$"),
        (["link", "set", "eth0", "allmulticast", "off"], "^interface eth0: allmulti is false, not true$"),
        (["link", "set", "eth0", "txqueuelen", "78"], "^interface eth0: txQLen is 78, not 77$"),
        (["link", "del", "eth0"], "^cannot read sysctl net.ipv4.conf.IFNAME.arp_filter: "),
    ],
)
def test_check_names_what_differs(world: Pods, spoil: list[str], message: str) -> None:
    """Each attribute is compared, and each parameter."""
    request, before = world.connected()
    configuration = config(world, sysctl=SYSCTLS, **ALL)
    result = tune("ADD", configuration, request, before)
    inside(request, "ip", *spoil)
    with pytest.raises(NetworkError, match=message):
        tune("CHECK", configuration, request, result)


def test_check_of_parameters(world: Pods) -> None:
    """A parameter with another value is named, with both."""
    request, before = world.connected()
    result = tune("ADD", config(world, sysctl=SYSCTLS), request, before)
    inside(request, "sh", "-c", "echo 2000 4000 >/proc/sys/net/ipv4/ip_local_port_range")
    with pytest.raises(NetworkError, match="^sysctl net/ipv4/ip_local_port_range is 2000\t4000, not 2000 3000$"):
        tune("CHECK", config(world, sysctl=SYSCTLS), request, result)


def test_deleting_what_is_gone(world: Pods) -> None:
    """Without the interface, the namespace or the file nothing is left, nor with a file that is broken."""
    request, before = world.connected()
    configuration = config(world, mtu=1300)
    tune("ADD", configuration, request, before)
    inside(request, "ip", "link", "del", "eth0")
    tune("DEL", configuration, request, before)
    assert kept(world) == {}
    # The last as after a reboot, when a file is where the namespace was.
    (world.directory / "file").touch()
    for namespace in ("", "/nowhere", str(world.directory / "file")):
        request, before = world.connected()
        tune("ADD", configuration, request, before)
        tune("DEL", configuration, replace(request, namespace=namespace), before)
        assert kept(world) == {}
    (world.directory / "data" / f"{request.container_id}_eth0.json").write_text("{")
    tune("DEL", configuration, request)
    assert list((world.directory / "data").iterdir()) == []


@pytest.mark.parametrize("command", ["ADD", "DEL"])
def test_killed_at_any_step(world: Pods, command: str) -> None:
    """Whenever ADD or DEL is killed, another DEL gives back what the interface had."""
    request, before = world.connected()
    had = link(request)
    configuration = config(world, sysctl=SYSCTLS, **ALL)
    step, killed = 1, True
    while killed:
        if command == "DEL":
            tune("ADD", configuration, request, before)
        killed = killed_child(lambda: tune(command, configuration, request, before), step)
        tune("DEL", configuration, request, before)
        assert (link(request), list((world.directory / "data").glob("*"))) == (had, [])
        step += 1
    assert step > 4


def test_failing_at_any_step_of_add(world: Pods) -> None:
    """Whichever step of ADD fails, all is as it was and the error is one line."""
    request, before = world.connected()
    names = ("net/ipv4/conf/eth0/arp_filter", "net/ipv4/ip_local_port_range")
    had = link(request), [sysctl(request, name) for name in names]

    failures = 0
    for error in each_failure(lambda: tune("ADD", config(world, sysctl=SYSCTLS, **ALL), request, before)):
        if error is not None:
            assert "annot allocate memory" in error
            failures += 1
            assert (link(request), [sysctl(request, name) for name in names]) == had
            assert kept(world) == {}
        tune("DEL", config(world), request, before)
        for name, value in zip(names, had[1]):
            inside(request, "sh", "-c", f"echo {value} >/proc/sys/{name}")
    assert failures > 10


def written(result: Result) -> dict[str, Any]:
    """Return a result as the reference plugins write it, its interfaces as fields of their own."""
    fields = write_result(result, VERSION)
    interfaces: Any = fields["interfaces"]
    return {**fields, **{f"{at} {key}": one[key] for at, one in enumerate(interfaces) for key in one}}


def difference(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return what has changed, but for the list of all interfaces."""
    assert before.keys() == after.keys()
    return {key: after[key] for key in after if after[key] != before[key] and key != "interfaces"}


@pytest.mark.skipif(not (REFERENCE / "tuning").exists(), reason="needs the reference plugins")
@pytest.mark.parametrize(
    ("args", "more"),
    [
        ("", {key: value for key, value in ALL.items() if key != "txQLen"}),
        ("", {"sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}}),
        ("MAC=02:00:00:00:00:02", {"mac": MAC, "runtimeConfig": {"mac": "02:00:00:00:00:03"}}),
        ("", {"sysctl": {}, "args": {"cni": {"mac": MAC, "mtu": 1300, "sysctl": {"net.ipv4.ip_forward": "1"}}}}),
        ("", {"allmulti": False}),
        ("", {}),
    ],
)
def test_as_the_reference_plugin(world: Pods, args: str, more: dict[str, Any]) -> None:
    """Result, interface, parameters and the file are the same, and each restores what the other has kept."""
    (ours, our_result), (theirs, their_result) = world.connected(args), world.connected(args)
    had = link(ours), link(theirs)
    configuration = config(world, **more)
    result = tune("ADD", configuration, ours, our_result)
    reference, error = call_reference("ADD", configuration, theirs, their_result)
    assert reference is not None, error
    assert difference(written(our_result), written(result)) == difference(written(their_result), written(reference))
    assert difference(had[0], link(ours)) == difference(had[1], link(theirs))
    for name in ("net/ipv4/conf/eth0/arp_filter", "net/ipv4/ip_forward"):
        assert sysctl(ours, name) == sysctl(theirs, name)
    files = [kept(world).get(f"{request.container_id}_eth0.json", {}) for request in (ours, theirs)]
    assert [{key: own[key] for key in file} for file, own in zip(files, had)] == files
    assert files[0].keys() == files[1].keys()
    tune("CHECK", configuration, theirs, reference)
    assert call_reference("CHECK", configuration, ours, result)[1] == ""
    tune("DEL", configuration, theirs, reference)
    call_reference("DEL", configuration, ours, result)
    assert (link(ours), link(theirs), kept(world)) == (*had, {})
