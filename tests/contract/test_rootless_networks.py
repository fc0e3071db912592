"""Networks of pods of a user without root: the uplink, names, and ports of the machine."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import socketserver
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import pytest

from minit.network.namespace import run_in_namespace
from tests.contract.test_rootless import DATA, IMAGE, clean, user
from tests.support.campaign import campaign
from tests.support.dnsserver import DnsServer
from tests.support.ordinaryuser import HOME, OrdinaryUser
from tests.support.processes import descriptors_of, program_of, status_of
from tests.support.stage0_world import without_progress
from tests.support.waiting import wait_for

__all__ = ["clean", "user"]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes a user, which needs root")

STAGE1 = f"--stage1-path={HOME}/stage1.aci"
PORT = 18080
ADDRESS = "198.51.100.1"
SERVER = "echo page > /tmp/index.html; exec busybox httpd -f -p 80 -h /tmp"


class _Answer(socketserver.BaseRequestHandler):
    """Says a word to everybody, and no more."""

    def handle(self) -> None:
        self.request.sendall(b"out\n")


@pytest.fixture
def machine() -> Iterator[tuple[str, int]]:
    """A server of the machine at an address outside of its loopback interface."""
    for words in (("link", "add", "uplink0", "type", "veth"), ("link", "set", "uplink0", "up")):
        subprocess.run(["ip", *words], check=True)
    subprocess.run(["ip", "address", "add", f"{ADDRESS}/32", "dev", "uplink0"], check=True)
    with socketserver.TCPServer(("", 0), _Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield ADDRESS, server.server_address[1]
        server.shutdown()
        thread.join()
    subprocess.run(["ip", "link", "del", "uplink0"], check=True)


def serve(user: OrdinaryUser, *flags: str, name: str = "web") -> None:
    """Start a pod that answers by HTTP."""
    done = user.minit("run", "--detach", f"--name={name}", STAGE1, *flags, IMAGE, "--", "-c", SERVER)
    assert done.returncode == 0, done.stderr


def run(user: OrdinaryUser, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a script as the app of a pod on the default network."""
    return user.minit("run", "--rm", STAGE1, *flags, IMAGE, "--", "-c", script)


def fetch(address: str) -> str:
    """Return the page behind a port of the machine, once there is one."""

    def page() -> str | None:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=20) as answer:
                return str(answer.read().decode())
        except OSError:
            return None

    return wait_for(page, "the page")


def process_of(user: OrdinaryUser, name: str) -> int:
    """Return the only process of a user with a name."""
    [pid] = [pid for pid, each in user.processes().items() if each == name]
    return pid


def socket_in_pod(user: OrdinaryUser, port: int, kind: socket.SocketKind) -> socket.socket:
    """Return a socket in the network of the only pod, which listens if there are connections."""
    namespace = os.open(f"/proc/{process_of(user, 'minit')}/ns/net", os.O_RDONLY)

    def bind() -> socket.socket:
        sock = socket.socket(socket.AF_INET, kind)
        sock.settimeout(20)
        sock.bind(("", port))
        if kind == socket.SOCK_STREAM:
            sock.listen()
        return sock

    try:
        return run_in_namespace(namespace, bind)
    finally:
        os.close(namespace)


def uplinks(user: OrdinaryUser) -> list[int]:
    """Return the processes of slirp4netns."""
    return [pid for pid, name in user.processes().items() if name == "slirp4netns"]


def test_ports_of_the_machine_lead_to_a_pod(clean: OrdinaryUser) -> None:
    """By TCP of both families and by UDP, until the pod has ended."""
    serve(clean, f"--publish={PORT}:80", f"--publish={PORT}:53/udp")
    assert fetch(f"127.0.0.1:{PORT}") == fetch(f"[::1]:{PORT}") == "page\n"
    with (
        closing(socket_in_pod(clean, 53, socket.SOCK_DGRAM)) as pod,
        closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock,
    ):
        sock.sendto(b"question", ("127.0.0.1", PORT))
        question, peer = pod.recvfrom(100)
        pod.sendto(b"answer", peer)
        sock.settimeout(20)
        assert (question, sock.recv(100)) == (b"question", b"answer")
    assert clean.minit("stop", "web").returncode == 0
    with closing(socket.socket()) as sock:
        assert sock.connect_ex(("127.0.0.1", PORT)) != 0


def connect_to_pod(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    """Return both ends of a connection by a port of the machine, of which the last are the pod's."""
    client = socket.create_connection(("127.0.0.1", PORT + 1), 20)
    server, _ = listener.accept()
    server.settimeout(20)
    return client, server


def fill(sock: socket.socket) -> bytes:
    """Send until nobody takes any more, or much, and return what was sent."""
    data, count = os.urandom(8 << 20), 0
    sock.settimeout(0.5)
    with suppress(TimeoutError):
        while count < len(data):
            count += sock.send(memoryview(data)[count:])
    sock.settimeout(20)
    assert count > 1 << 20
    return data[:count]


def read(sock: socket.socket, length: int) -> bytes:
    """Return so many bytes."""
    found = b""
    while len(found) < length and (block := sock.recv(length - len(found))):
        found += block
    return found


@contextmanager
def connecting() -> Iterator[list[BaseException]]:
    """Have a thread connect to a port of the machine over and over; yield the errors, of which there are to be none."""
    errors: list[BaseException] = []
    is_over = threading.Event()

    def connect() -> None:
        while not is_over.is_set():
            try:
                with socket.create_connection(("127.0.0.1", PORT), 20) as sock:
                    sock.sendall(b"GET / HTTP/1.0\r\n\r\n")
                    assert read(sock, 15) == b"HTTP/1.1 200 OK"
            except (OSError, AssertionError) as error:
                errors.append(error)

    thread = threading.Thread(target=connect)
    thread.start()
    try:
        yield errors
    finally:
        is_over.set()
        thread.join()


def test_forwarded_ports_of_an_upgraded_pod(clean: OrdinaryUser, later_stage1: Path) -> None:
    """The same forwarder goes on in the new program: connections, bytes on the way and datagrams lose nothing."""
    clean.give("later.aci", later_stage1)
    serve(clean, f"--publish={PORT}:80", f"--publish={PORT + 1}:7000", f"--publish={PORT}:53/udp")
    fetch(f"127.0.0.1:{PORT}")
    forwarder, launcher = process_of(clean, "minit-ports"), process_of(clean, "minit-launcher")
    with ExitStack() as opened:
        listener = opened.enter_context(closing(socket_in_pod(clean, 7000, socket.SOCK_STREAM)))
        pod = opened.enter_context(closing(socket_in_pod(clean, 53, socket.SOCK_DGRAM)))
        client, server = map(opened.enter_context, connect_to_pod(listener))
        half, half_server = map(opened.enter_context, connect_to_pod(listener))
        half.shutdown(socket.SHUT_WR)
        assert half_server.recv(1) == b""
        asking = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        asking.settimeout(20)
        errors = opened.enter_context(connecting())
        peers = set()
        for image in ("later.aci", "stage1.aci", "later.aci"):
            asking.sendto(b"question", ("127.0.0.1", PORT))
            question, peer = pod.recvfrom(100)
            peers.add(peer)
            there, back = fill(client), fill(server)
            before = program_of(forwarder)
            done = clean.minit("upgrade", "--quiet", f"--stage1-path={HOME}/{image}", "web")
            assert done.returncode == 0, done.stderr
            wait_for(lambda: program_of(forwarder) not in (before, None), "the new program")  # noqa: B023
            wait_for(lambda: program_of(launcher) == program_of(forwarder), "the new program of the launcher")
            wait_for(lambda: status_of(forwarder)["Name"] == "minit-ports", "the name of the forwarder")
            pod.sendto(b"answer", peer)
            assert (question, asking.recv(100)) == (b"question", b"answer")
            assert read(server, len(there)) == there
            assert read(client, len(back)) == back
            half_server.sendall(b"later")
            assert read(half, 5) == b"later"
            assert fetch(f"127.0.0.1:{PORT}") == "page\n"
        client.shutdown(socket.SHUT_WR)
        server.close()
        half_server.close()
        assert client.recv(1) == half.recv(1) == b""
        assert len(peers) == 1
    assert errors == []


def test_a_forwarder_without_room_for_the_image(clean: OrdinaryUser, later_stage1: Path) -> None:
    """With as many descriptors as allowed the forwarder goes on in the old program, with its connections."""
    clean.give("later.aci", later_stage1)
    serve(clean, f"--publish={PORT + 1}:7000")
    forwarder, launcher = process_of(clean, "minit-ports"), process_of(clean, "minit-launcher")
    with ExitStack() as opened:
        listener = opened.enter_context(closing(socket_in_pod(clean, 7000, socket.SOCK_STREAM)))
        client, server = map(opened.enter_context, connect_to_pod(listener))
        before, taken = program_of(forwarder), descriptors_of(forwarder)
        limited = clean.run("prlimit", f"--pid={forwarder}", "--nofile", "--raw", "--noheadings", "--output=SOFT")
        most = next(number for number in range(len(taken) + 1) if number not in taken)
        assert clean.run("prlimit", f"--pid={forwarder}", f"--nofile={most}:").returncode == 0
        assert clean.minit("upgrade", "--quiet", f"--stage1-path={HOME}/later.aci", "web").returncode == 0
        wait_for(lambda: program_of(launcher) not in (before, None), "the new program of the launcher")
        # The forwarder was told before, and comes to this byte later.
        client.sendall(b".")
        assert server.recv(1) == b"."
        assert clean.run("prlimit", f"--pid={forwarder}", f"--nofile={limited.stdout.strip()}:").returncode == 0
        assert program_of(forwarder) == before
        for sock in connect_to_pod(listener):
            sock.close()
        assert clean.minit("upgrade", "--quiet", STAGE1, "web").returncode == 0
        assert clean.minit("upgrade", "--quiet", f"--stage1-path={HOME}/later.aci", "web").returncode == 0
        wait_for(lambda: program_of(forwarder) == program_of(launcher) != before, "the new programs")
        server.sendall(b".")
        assert client.recv(1) == b"."


def test_a_forwarder_that_is_killed_meanwhile(clean: OrdinaryUser, later_stage1: Path) -> None:
    """Its end at any moment of an upgrade is told, and the pod goes on in the new version."""
    clean.give("later.aci", later_stage1)
    words = ("run", "--name=web", STAGE1, f"--publish={PORT}:80", IMAGE, "--", "-c", SERVER)
    for sample in range(campaign(4)):
        with subprocess.Popen(
            clean.words(clean.minit_words(*words)), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as running:
            fetch(f"127.0.0.1:{PORT}")
            launcher, forwarder = (process_of(clean, name) for name in ("minit-launcher", "minit-ports"))
            before = program_of(launcher)
            assert clean.minit("upgrade", "--quiet", f"--stage1-path={HOME}/later.aci", "web").returncode == 0
            time.sleep(sample * 0.008)
            os.kill(forwarder, signal.SIGKILL)
            wait_for(lambda: program_of(launcher) not in (before, None), "the new program of the launcher")  # noqa: B023
            assert clean.minit("stop", "web").returncode == 0
            _, said = running.communicate()
        assert "stage1: warning: no port of the machine leads to the pod any more: the process that did it died" in said
        assert clean.minit("rm", "web").returncode == 0


def test_pods_find_each_other_and_the_way_out(clean: OrdinaryUser, machine: tuple[str, int]) -> None:
    """A pod reaches another one by name, and the machine's network, but not the loopback interface of the machine."""
    serve(clean)
    address, port = machine
    question = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' >/tmp/q; busybox nc -w 5 web 80 </tmp/q"
    out = f"busybox nc -w 5 {address} {port} </dev/null"
    closed = f"busybox nc -w 2 10.0.2.2 {port} </dev/null || echo closed"
    done = run(clean, f"{question}; {out}; {closed}")
    lines = [line.partition("]: ")[2] for line in done.stdout.splitlines()]
    assert "page" in lines and lines[-2:] == ["out", "closed"], done


def test_a_name_server_on_the_loopback_interface(clean: OrdinaryUser) -> None:
    """The uplink passes the questions of a pod on to a server that only the machine reaches."""
    address = f"127.53.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
    (clean.home / "resolv.conf").write_text(f"nameserver {address}\n")
    mounts = clean.words(())[:2]
    subprocess.run([*mounts, "mount", "--bind", f"{HOME}/resolv.conf", "/etc/resolv.conf"], check=True)
    try:
        with DnsServer(address) as server:
            server.hosts["db.example.com"] = ["192.0.2.7"]
            done = run(clean, "busybox nslookup -type=a db.example.com")
    finally:
        subprocess.run([*mounts, "umount", "/etc/resolv.conf"], check=True)
    assert "Address: 192.0.2.7" in done.stdout and address not in done.stdout, done.stderr


def test_packets_of_pods_are_as_large_as_those_of_the_uplink(clean: OrdinaryUser) -> None:
    """Only a pod with a limit of bandwidth has the usual size, since a limit drops what is larger than a burst."""
    limits = {"ingressRate": 8_000_000, "ingressBurst": 160_000, "egressRate": 8_000_000, "egressBurst": 160_000}
    ipam = {"type": "host-local", "subnet": "198.18.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}
    plugins = [{"type": "ptp", "ipam": ipam}, {"type": "bandwidth", **limits}]
    network = {"cniVersion": "1.0.0", "name": "slow", "plugins": plugins}
    directory = clean.home / ".config/minit/net.d"
    clean.run("mkdir", "-p", f"{HOME}/.config/minit/net.d")
    (directory / "slow.conflist").write_text(json.dumps(network))
    sizes = {
        name: run(clean, "busybox ip link show eth0", f"--net={name}").stdout.partition(" mtu ")[2].split()[0]
        for name in ("default", "slow")
    }
    shutil.rmtree(clean.home / ".config")
    assert sizes == {"default": "65520", "slow": "1500"}


def test_a_dead_uplink_is_started_again(clean: OrdinaryUser, machine: tuple[str, int]) -> None:
    """The pods have a way out again, and the log says that there was none."""
    serve(clean)
    [pid] = uplinks(clean)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: uplinks(clean) not in ([], [pid]), "the next uplink")
    address, port = machine
    assert (
        "out\n" in run(clean, f"until busybox nc -w 5 {address} {port} </dev/null; do busybox sleep 0.1; done").stdout
    )
    log = clean.minit("unshare", "cat", f"{DATA}/runtime/uplink.log")
    assert "is started again" in log.stdout


def test_the_next_pod_replaces_the_process_of_the_uplink(clean: OrdinaryUser, machine: tuple[str, int]) -> None:
    """After a kill of the process that starts the uplink, the pods before it have a way out by the next pod's."""
    serve(clean)
    [pid] = [pid for pid, name in clean.processes().items() if name == "minit-uplink"]
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not uplinks(clean), "the end of the uplink")
    serve(clean, name="next")
    address, port = machine
    done = clean.minit("enter", "web", "/bin/busybox", "nc", address, str(port))
    assert done.stdout == "out\n", done.stderr


def test_the_uplink_ends_with_the_last_pod(clean: OrdinaryUser) -> None:
    """Two pods share one uplink, which stays with the second and is gone after it, with the keeper."""
    serve(clean, name="one")
    serve(clean, name="two")
    assert len(uplinks(clean)) == 1
    assert clean.minit("stop", "one").returncode == 0
    assert len(uplinks(clean)) == 1
    assert clean.minit("stop", "two").returncode == 0
    clean.wait_end()
    assert not (clean.home / ".local/share/minit/runtime/netns").exists()


def test_a_logout(clean: OrdinaryUser, machine: tuple[str, int]) -> None:
    """After the removal of $XDG_RUNTIME_DIR a new pod joins the network and the uplink of a running pod."""
    serve(clean)
    before = uplinks(clean)
    shutil.rmtree(clean.home / "run/minit")
    address, port = machine
    question = "printf 'GET / HTTP/1.0\\r\\n\\r\\n' >/tmp/q; busybox nc -w 5 web 80 </tmp/q"
    done = run(clean, f"{question}; busybox nc -w 5 {address} {port} </dev/null")
    assert "page\n" in done.stdout and "out\n" in done.stdout, done
    assert uplinks(clean) == before


def test_an_uplink_that_does_not_start(clean: OrdinaryUser) -> None:
    """The pod is refused in a line, and the log of the uplink says why."""
    programs = clean.home / "bin"
    programs.mkdir()
    program = programs / "slirp4netns"
    program.write_text("#!/bin/sh\necho no way out\nexit 3\n")
    program.chmod(0o755)
    for path in (programs, program):
        os.chown(path, clean.uid, clean.uid)
    before = clean.environment["PATH"]
    clean.environment["PATH"] = f"{HOME}/bin:{before}"
    try:
        done = run(clean, "echo ran")
        assert done.returncode == 254 and "ran" not in done.stdout
        assert "the uplink of pods does not work: slirp4netns has ended with 3" in done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        clean.wait_end()
    finally:
        clean.environment["PATH"] = before
        shutil.rmtree(programs)


def test_a_network_that_cannot_be_made(clean: OrdinaryUser) -> None:
    """The pod is refused in a line, with the reason."""
    words = clean.minit_words("run", "--rm", STAGE1, IMAGE, "--", "-c", "true")
    netns = f"{DATA}/runtime/netns"
    script = f'mkdir -p {netns} && mount -t tmpfs -o ro none {netns}; exec "$@"'
    done = clean.minit("unshare", "sh", "-c", script, "-", *words)
    assert done.returncode == 254
    assert "the network of pods cannot be made: cannot make a network namespace: " in done.stderr
    assert without_progress(done.stderr).count("\n") == 1, done.stderr


def test_ports_that_cannot_be_had(clean: OrdinaryUser) -> None:
    """A low port is refused with the limit, and a used one as such, in a line before anything of the pod runs."""
    low = run(clean, "echo ran", "--publish=80:80")
    assert (low.returncode, low.stdout) == (254, "")
    assert without_progress(low.stderr) == (
        "stage1: pod: ports[0]: tcp port 80 of the machine: users may have ports from 1024 on"
        " (net.ipv4.ip_unprivileged_port_start)\n"
    )
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        used = run(clean, "echo ran", f"--publish={taken.getsockname()[1]}:80")
    assert used.returncode == 254 and "address already in use" in used.stderr and used.stdout == ""


def test_plugins_of_root_are_refused(clean: OrdinaryUser) -> None:
    """A network on links of the machine is refused by the name of its plugin."""
    directory = clean.home / ".config/minit/net.d"
    directory.mkdir(parents=True)
    config = '{"name": "lan", "type": "macvlan", "master": "eth0", "ipam": {"type": "dhcp"}}'
    (directory / "10-lan.conf").write_text(config)
    done = run(clean, "true", "--net=lan")
    assert done.returncode == 254
    assert '"lan": the plugin "macvlan" needs root' in done.stderr
