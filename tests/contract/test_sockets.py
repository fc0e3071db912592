"""Socket-activated ports: what an app is started with, which sockets of the caller it gets, and what goes wrong."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

import pytest

from minit.linux import syscalls
from tests.support.activation import activated
from tests.support.faults import Call, Faults, Roles
from tests.support.guest import GUEST
from tests.support.pods import MakePod, PodDirectory, guest, handlers, shell
from tests.support.processes import descriptors_of
from tests.support.waiting import wait_for

KINDS = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}
PORT = 8080


def port(name: str, number: int, protocol: str = "tcp", **fields: Any) -> dict[str, Any]:
    """Return a socket-activated port of a manifest."""
    return {"name": name, "port": number, "protocol": protocol, "socketActivated": True, **fields}


def answering(*ports: dict[str, Any], clients: int = 1, **fields: Any) -> dict[str, Any]:
    """Return an app that answers so many clients on any of its sockets and exits 0."""
    return guest("answer", "/tmp/report", str(clients), ports=list(ports), **fields)


def said(result: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the lines of stage1 itself."""
    return [line for line in result.stderr.splitlines() if line.startswith("stage1: ")]


def assumed(name: str, number: int) -> str:
    """Return the warning about a port that has no port of the host."""
    what = f'warning: no --port option for socket-activated port "{name}", assuming port {number}'
    return f"stage1: {what} as specified in the manifest"


@contextmanager
def network_of(pod: PodDirectory) -> Iterator[None]:
    """Be in the pod's network for a while."""
    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{pod.pid}/ns/net") as theirs:
        syscalls.setns(theirs.fileno(), syscalls.CLONE_NEWNET)
        try:
            yield
        finally:
            syscalls.setns(own.fileno(), syscalls.CLONE_NEWNET)


def listener(protocol: str = "tcp", number: int = 0, address: str = "127.0.0.1") -> socket.socket:
    """Return a bound socket, which listens if it can."""
    bound = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, KINDS[protocol])
    bound.bind((address, number))
    if protocol == "tcp":
        bound.listen()
    return bound


def number_of(bound: socket.socket) -> int:
    """Return the port of a socket."""
    number: int = bound.getsockname()[1]
    return number


def ask(number: int, protocol: str = "tcp", address: str = "127.0.0.1") -> str:
    """Return what an app answers on a port: its name and the descriptor."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, KINDS[protocol]) as client:
        client.settimeout(60)
        client.connect((address, number))
        if protocol == "udp":
            client.send(b"x")
        return client.recv(512).decode()


# Sockets of the pod's own.


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("net", ["none", "host"])
@pytest.mark.private_users
@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_an_app_finds_its_socket_open(make_pod: MakePod, net: str, protocol: str, address: str) -> None:
    """Descriptor 3 is bound to the port in the pod's network, for IPv4 and IPv6, and three variables say so."""
    pod = make_pod({"a": answering(port("http", PORT, protocol), user="1000", group="1000")})
    process = pod.start(net=net)
    pod.wait_ready()
    with network_of(pod):
        assert ask(PORT, protocol, address) == "a 3"
    result = pod.finish(process)
    assert (result.returncode, said(result)) == (0, [assumed("http", PORT)])
    report = pod.report("a")
    environment = report.environment
    listen = {name: value for name, value in environment.items() if name.startswith("LISTEN_")}
    assert listen == {"LISTEN_FDS": "1", "LISTEN_PID": report.one("pid"), "LISTEN_FDNAMES": "http"}
    assert sorted(report.descriptors) == [0, 1, 2, 3]
    flags, target = report.descriptors[3]
    assert target.startswith("socket:[") and not flags & os.O_NONBLOCK


@pytest.mark.private_users
@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_a_low_port_of_an_app_that_is_not_root(make_pod: MakePod) -> None:
    """PID 1 may bind what the app itself may not."""
    pod = make_pod({"a": answering(port("http", 80), user="1000", group="1000")})
    process = pod.start()
    pod.wait_ready()
    with network_of(pod):
        assert ask(80) == "a 3"
    assert pod.finish(process).returncode == 0


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_many_sockets_in_the_order_of_the_ports(make_pod: MakePod) -> None:
    """They are 3, 4 and so on, whichever descriptors PID 1 had them on; an ordinary port is left out."""
    ports = [port(f"p{index}", 9000 - index, ("tcp", "udp")[index % 2]) for index in range(30)]
    plain = {"name": "plain", "port": 7000, "protocol": "tcp"}
    pod = make_pod({"a": answering(plain, *ports, clients=30)})
    process = pod.start()
    pod.wait_ready()
    with network_of(pod):
        for index in range(30):
            assert ask(9000 - index, ("tcp", "udp")[index % 2]) == f"a {3 + index}"
    assert pod.finish(process).returncode == 0
    report = pod.report("a")
    assert report.environment["LISTEN_FDNAMES"] == ":".join(f"p{index}" for index in range(30))
    assert sorted(report.descriptors) == list(range(33))


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_a_range_of_ports_is_its_first_one(make_pod: MakePod) -> None:
    """`count` makes no further sockets, as in rkt."""
    pod = make_pod({"a": answering(port("http", PORT, count=3))})
    process = pod.start()
    pod.wait_ready()
    with network_of(pod):
        assert ask(PORT) == "a 3"
    assert pod.finish(process).returncode == 0
    assert pod.report("a").environment["LISTEN_FDS"] == "1"


def test_the_port_of_the_host_is_listened_on(make_pod: MakePod) -> None:
    """If the pod has one for the port by its name, without any warning."""
    pod = make_pod({"a": answering(port("http", 80))}, ports=[{"name": "http", "hostPort": PORT}])
    process = pod.start(net="host")
    pod.wait_ready()
    assert ask(PORT) == "a 3"
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.host_root("the command makes the network of a user, and here is none")
def test_a_forwarded_port_leads_to_the_socket(make_pod: MakePod, protocol: str) -> None:
    """In a network of its own the pod is reached by the host's port, which the app finds open."""
    ports = [{"name": "http", "hostPort": PORT}]
    pod = make_pod({"a": answering(port("http", 80, protocol))}, ports=ports)
    process = pod.start(net="default")
    pod.wait_ready()
    assert ask(PORT, protocol) == "a 3"
    assert pod.finish(process).returncode == 0
    assert pod.gc().returncode == 0


@pytest.mark.parametrize(("address", "other"), [("127.0.0.1", "::1"), ("::1", "127.0.0.1"), ("::", "127.0.0.1")])
def test_a_port_of_one_address_of_the_host(make_pod: MakePod, address: str, other: str) -> None:
    """In the host's network the socket is at the address of the port alone."""
    ports = [{"name": "http", "hostPort": PORT, "hostIP": address}]
    pod = make_pod({"a": answering(port("http", 80))}, ports=ports)
    process = pod.start(net="host")
    pod.wait_ready()
    with pytest.raises(ConnectionRefusedError):
        ask(PORT, address=other)
    assert ask(PORT, address="::1" if address == "::" else address) == "a 3"
    assert pod.finish(process).returncode == 0


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
@pytest.mark.host_root("the command makes the network of a user, and here is none")
def test_a_forwarded_port_of_each_family(make_pod: MakePod, tmp_path: Path, address: str) -> None:
    """A port of one address of the host leads to the socket, which is open for both families."""
    ranges = [[{"subnet": "10.99.29.0/24"}], [{"subnet": "fd00:1d::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    config = {"cniVersion": "1.0.0", "name": "both", "type": "ptp", "ipMasq": True, "ipam": ipam}
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d" / "both.conf").write_text(json.dumps(config))
    ports = [{"name": "http", "hostPort": PORT, "hostIP": address}]
    pod = make_pod({"a": answering(port("http", 80))}, ports=ports)
    process = pod.start(f"--local-config={tmp_path}", net="both")
    pod.wait_ready()
    assert ask(PORT, address=address) == "a 3"
    assert pod.finish(process).returncode == 0
    assert pod.gc().returncode == 0


@pytest.mark.host_root("the command makes the network of a user, and here is none")
def test_two_forwarded_ports_of_one_name(make_pod: MakePod) -> None:
    """The socket is bound to the first one's number, and both lead to it."""
    ports = [{"name": "http", "hostPort": number} for number in (PORT, PORT + 1)]
    pod = make_pod({"a": answering(port("http", 80), clients=2)}, ports=ports)
    process = pod.start(net="default")
    pod.wait_ready()
    assert [ask(number) for number in (PORT, PORT + 1)] == ["a 3", "a 3"]
    assert pod.finish(process).returncode == 0


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_two_apps_have_their_own(make_pod: MakePod) -> None:
    """Each has its socket as 3, and not the other's."""
    pod = make_pod({"a": answering(port("http", 80)), "b": answering(port("http", 81)), "c": shell("env")})
    process = pod.start()
    pod.wait_ready()
    with network_of(pod):
        assert (ask(81), ask(80)) == ("b 3", "a 3")
    result = pod.finish(process)
    assert result.returncode == 0
    assert "LISTEN" not in result.stdout
    for name in ("a", "b"):
        assert sorted(pod.report(name).descriptors) == [0, 1, 2, 3]


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_they_are_the_apps_alone(make_pod: MakePod) -> None:
    """Neither its event handlers, nor who enters it, nor `rkt/env` has the sockets or a word about them."""
    reports = handlers(pre_start=(GUEST, "report", "/tmp/pre"))
    pod = make_pod({"a": answering(port("http", PORT), eventHandlers=reports)})
    process = pod.start()
    pod.wait_ready()
    assert "LISTEN" not in pod.enter("a", "/bin/env").stdout
    assert "LISTEN" not in (pod.stage1 / "rkt/env/a").read_text()
    assert sorted(pod.report("a", "/tmp/pre").descriptors) == [0, 1, 2]
    assert not [name for name in pod.report("a", "/tmp/pre").environment if name.startswith("LISTEN")]
    with network_of(pod):
        ask(PORT)
    assert pod.finish(process).returncode == 0


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_variables_of_the_app_itself(make_pod: MakePod) -> None:
    """LISTEN_FDS of its image counts for an app without sockets, and for no other."""
    own = [{"name": "LISTEN_FDS", "value": "7"}]
    pod = make_pod({"a": answering(port("http", PORT), environment=own), "b": shell("env", environment=own)})
    process = pod.start()
    pod.wait_ready()
    with network_of(pod):
        ask(PORT)
    assert "LISTEN_FDS=7" in pod.finish(process).stdout
    assert pod.report("a").environment["LISTEN_FDS"] == "1"


def test_connections_wait_when_the_app_has_ended(make_pod: MakePod) -> None:
    """The socket is open for as long as the pod lives, and goes with it."""
    pod = make_pod({"a": answering(port("http", PORT)), "b": shell("while [ ! -e /tmp/go ]; do sleep 0.01; done")})
    process = pod.start(net="host")
    pod.wait_ready()
    ask(PORT)
    assert pod.wait_status("a") == 0
    with socket.create_connection(("127.0.0.1", PORT), timeout=60) as client:
        pod.file("b", "/tmp/go").touch()
        assert pod.finish(process).returncode == 0
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", PORT))


def test_a_machine_without_ipv6(make_pod: MakePod, tmp_path: Path) -> None:
    """The socket is one of IPv4 then."""
    faults = Faults(tmp_path, 2)
    recorded = make_pod({"a": shell("true", ports=[port("http", PORT)])})
    with open(tmp_path / "calls", "w+") as log:
        recorded.run(net="host", under=faults.recording(log.fileno()), pass_fds=(log.fileno(),))
        log.seek(0)
        calls = faults.read_calls(log)
    pid_1 = Roles(calls).pid_1
    # After the control socket's.
    made = [call for call in calls if call.who == pid_1 and call.name == "socket"][1]
    pod = make_pod({"a": answering(port("http", PORT))})
    reader, writer = os.pipe()
    with ExitStack() as stack:
        stack.callback(os.close, reader)
        fault = faults.fault(writer, Call(pid_1, "socket", made.nth), errno.EAFNOSUPPORT)
        process = pod.start(net="host", under=fault, pass_fds=(writer,))
        os.close(writer)
        pod.wait_ready()
        assert ask(PORT) == "a 3"
        with pytest.raises(ConnectionRefusedError):
            ask(PORT, address="::1")
        assert pod.finish(process).returncode == 0
        assert os.read(reader, 64)


# Sockets of the caller.


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
@pytest.mark.parametrize("net", ["none", "host"])
@pytest.mark.parametrize("flags", [(), ("--disable-capabilities-restriction",)])
@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_a_socket_of_the_caller(make_pod: MakePod, flags: tuple[str, ...], net: str, protocol: str) -> None:
    """An app gets the one of its protocol and port, whichever network the pod is in; one on another port is its own."""
    with listener(protocol) as bound:
        number = number_of(bound)
        pod = make_pod({"a": answering(port("own", PORT), port("http", number, protocol), clients=2)})
        process = pod.start(*flags, net=net, **activated(bound.fileno(), names=["x.socket"]))
        pod.wait_ready()
        assert ask(number, protocol) == "a 4"
        with network_of(pod):
            assert ask(PORT) == "a 3"
        result = pod.finish(process)
    assert result.returncode == 0
    assert said(result) == [assumed("own", PORT), assumed("http", number)]
    assert sorted(pod.report("a").descriptors) == [0, 1, 2, 3, 4]
    assert pod.report("a").environment["LISTEN_FDNAMES"] == "own:http"


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_socket_of_the_caller_is_no_port_to_forward(make_pod: MakePod, protocol: str) -> None:
    """A message to the host's port reaches the app by the host's socket, though the pod has another network."""
    with listener(protocol) as bound:
        number = number_of(bound)
        ports = [{"name": "http", "hostPort": number}]
        pod = make_pod({"a": answering(port("http", 80, protocol))}, ports=ports)
        process = pod.start(net="default", **activated(bound.fileno()))
        pod.wait_ready()
        assert ask(number, protocol) == "a 3"
        assert pod.finish(process).returncode == 0
    assert pod.gc().returncode == 0


def test_sockets_of_the_caller_for_two_apps(make_pod: MakePod, tmp_path: Path) -> None:
    """Each goes where it is wanted, in any order; for all else there is a warning, and it is closed."""
    with ExitStack() as stack:
        first, second, unwanted = (stack.enter_context(listener()) for _ in range(3))
        unbound = stack.enter_context(socket.socket())
        unix = stack.enter_context(socket.socket(socket.AF_UNIX))
        datagrams = stack.enter_context(listener("udp", number_of(first)))
        file = stack.enter_context(open(tmp_path / "file", "w"))
        passed: list[socket.socket | TextIO] = [second, unwanted, unbound, unix, datagrams, file, first]
        pod = make_pod({"a": answering(port("http", number_of(first))), "b": answering(port("x", number_of(second)))})
        process = pod.start(**activated(*(each.fileno() for each in passed), names=["s", "u", "", "", "", "f", "1"]))
        unwanted_number = number_of(unwanted)
        for each in (unwanted, file):
            each.close()
        pod.wait_ready()
        with pytest.raises(ConnectionRefusedError):
            ask(unwanted_number)
        assert str(tmp_path / "file") not in descriptors_of(process.pid).values()
        assert (ask(number_of(second)), ask(number_of(first))) == ("b 3", "a 3")
        result = pod.finish(process)
        numbers = number_of(first), number_of(second)
    ignoring = "stage1: warning: ignoring descriptor"
    nobody = "no app has a socket-activated port for"
    assert result.returncode == 0
    assert said(result) == [
        f"{ignoring} 5 of LISTEN_FDS: expected a listening socket",
        f"{ignoring} 6 of LISTEN_FDS: expected a TCP or UDP socket",
        f'{ignoring} 8 ("f") of LISTEN_FDS: socket operation on non-socket',
        *(assumed(*each) for each in zip(("http", "x"), numbers)),
        f'{ignoring} 4 ("u") of LISTEN_FDS: {nobody} tcp port {unwanted_number}',
        f"{ignoring} 7 of LISTEN_FDS: {nobody} udp port {numbers[0]}",
    ]


def test_sockets_of_the_caller_on_one_port(make_pod: MakePod) -> None:
    """Each port of an app gets the socket of its address, in whichever order they are passed."""
    with ExitStack() as stack:
        first = stack.enter_context(listener())
        number = number_of(first)
        second = stack.enter_context(listener(number=number, address="::1"))
        addresses = {"six": "::1", "four": "127.0.0.1"}
        ports = [{"name": name, "hostPort": number, "hostIP": address} for name, address in addresses.items()]
        pod = make_pod({"a": answering(port("six", 80), port("four", 81), clients=2)}, ports=ports)
        process = pod.start(net="host", **activated(first.fileno(), second.fileno()))
        pod.wait_ready()
        assert ask(number, address="::1") == "a 3"
        assert ask(number) == "a 4"
        result = pod.finish(process)
    assert (result.returncode, result.stderr) == (0, "")


def test_one_of_two_sockets_on_one_port(make_pod: MakePod) -> None:
    """An app gets one for each of its ports; the other one is closed with a warning."""
    with ExitStack() as stack:
        first = stack.enter_context(listener())
        second = stack.enter_context(listener(number=number_of(first), address="::1"))
        pod = make_pod({"a": answering(port("http", number_of(first)))})
        process = pod.start(**activated(first.fileno(), second.fileno()))
        pod.wait_ready()
        assert ask(number_of(first)) == "a 3"
        result = pod.finish(process)
    assert result.returncode == 0
    assert "ignoring descriptor 4 of LISTEN_FDS: no app has" in result.stderr


def test_a_multipath_socket_of_the_caller(make_pod: MakePod) -> None:
    """MPTCP counts as TCP: clients of either find it."""
    try:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
    except OSError:
        pytest.skip("the kernel has no MPTCP")
    with bound:
        bound.bind(("127.0.0.1", 0))
        bound.listen()
        pod = make_pod({"a": answering(port("http", number_of(bound)))})
        process = pod.start(**activated(bound.fileno()))
        pod.wait_ready()
        assert ask(number_of(bound)) == "a 3"
    assert pod.finish(process).returncode == 0


@pytest.mark.host_root("it enters networks of pods as the machine's root")
def test_what_was_passed_to_another_process(make_pod: MakePod) -> None:
    """It is closed like anything the caller leaks, and nothing is said about it."""
    with listener() as bound:
        number = number_of(bound)
        pod = make_pod({"a": answering(port("http", number))})
        process = pod.start(**activated(bound.fileno(), own=False))
        bound.close()
        pod.wait_ready()
        with pytest.raises(ConnectionRefusedError):
            ask(number)
        with network_of(pod):
            assert ask(number) == "a 3"
        result = pod.finish(process)
    assert result.returncode == 0
    assert "ignoring" not in result.stderr


@pytest.mark.rootless
def test_more_announced_than_passed(make_pod: MakePod) -> None:
    """A missing descriptor is told, and none of ours is taken for it."""
    with listener() as bound:
        pod = make_pod({"a": answering(port("http", number_of(bound)))})
        process = pod.start(env={"LISTEN_FDS": "4", "LISTEN_FDNAMES": "x"}, **activated(bound.fileno()))
        pod.wait_ready()
        assert ask(number_of(bound)) == "a 3"
        result = pod.finish(process)
    assert result.returncode == 0
    missing = [f"stage1: warning: ignoring descriptor {fd} of LISTEN_FDS: bad file descriptor" for fd in (4, 5, 6)]
    assert said(result)[:3] == missing


@pytest.mark.parametrize("text", ["x", "-1", "1025", "1" * 5000, "", "1 ", "٣"])
def test_a_number_that_makes_no_sense(make_pod: MakePod, text: str) -> None:
    """The start ends with one line."""
    pod = make_pod({"a": shell("true")})
    result = pod.run(env={"LISTEN_FDS": text}, **activated())
    assert result.returncode == 254
    assert result.stderr == f"stage1: LISTEN_FDS={text}: expected a number up to 1024\n"


# What cannot be.


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_port_in_use(make_pod: MakePod, protocol: str) -> None:
    """The start ends with one line that names the app and the port, no app was started, and nothing is left."""
    with listener(protocol, address="0.0.0.0") as bound:
        number = number_of(bound)
        pod = make_pod({"a": shell("true"), "b": answering(port("http", number, protocol))})
        result = pod.run(net="host")
    assert (result.returncode, result.stdout) == (254, "")
    line = f'stage1: app "b": cannot listen on {protocol} port {number}: address already in use'
    assert said(result) == [assumed("http", number), line]
    pod.wait_exited()
    wait_for(lambda: pod.members() == [], "the end of all processes")
    assert pod.gc().returncode == 0


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_one_port_of_two_apps(make_pod: MakePod, protocol: str) -> None:
    """The second one cannot have it."""
    pod = make_pod({name: answering(port("http", PORT, protocol)) for name in ("a", "b")})
    result = pod.run()
    assert result.returncode == 254
    assert said(result)[-1] == f'stage1: app "b": cannot listen on {protocol} port 8080: address already in use'


def test_a_protocol_that_has_no_sockets(make_pod: MakePod) -> None:
    """Only tcp and udp can be socket-activated."""
    result = make_pod({"a": answering(port("x", PORT, "sctp"))}).run()
    assert (result.returncode, result.stderr) == (254, 'stage1: app "a": port x: unrecognized protocol: sctp\n')
