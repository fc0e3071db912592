"""Pods with networks: what `run` makes of --net, what the apps get of it, and that `gc` leaves nothing."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.linux import syscalls
from tests.support.cniplugin import calls, install_plugin
from tests.support.hostnet import LEASES, leftovers
from tests.support.networks import within
from tests.support.pods import MakePod, PodDirectory, app_section, shell
from tests.support.processes import children_of, descriptors_of, namespace_of, status_of
from tests.support.waiting import TIMEOUT_SECONDS, wait_for

# busybox's ping(8) opens a raw socket only.
BY_RAW_SOCKET = pytest.mark.host_users("root of a user namespace has no raw sockets in a network of the host's")

REFERENCE = Path("/usr/lib/cni/ptp")
DEFAULT = ipaddress.ip_network("172.16.28.0/24")
RESTRICTED = ipaddress.ip_network("172.31.0.0/16")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Pods of any test leave nothing in the host's network once they are collected."""
    assert leftovers() == []
    yield
    assert leftovers() == []


class LocalConfig:
    """A directory of local configuration, with networks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.networks = path / "net.d"
        self.networks.mkdir()
        self.flag = f"--local-config={path}"
        self.record = path / "record"

    def write(self, name: str, config: object) -> None:
        """Write a configuration file."""
        self.networks.joinpath(name).write_text(config if isinstance(config, str) else json.dumps(config))

    def plugin(self, name: str, file_name: str | None = None, **config: Any) -> None:
        """Configure the network `name` of a plugin that records what it gets and does what `config` says."""
        install_plugin(self.networks, "recorder")
        config = {"record": str(self.record), "ADD": {"print": {}}, **config}
        self.write(file_name or f"{name}.conf", {"cniVersion": "0.1.0", "name": name, "type": "recorder", **config})

    @property
    def calls(self) -> list[str]:
        """The requests to plugins, with the network's name."""
        return [
            f"{call['environment']['CNI_COMMAND']} {json.loads(call['stdin'])['name']}" for call in calls(self.record)
        ]


@pytest.fixture
def local(tmp_path: Path) -> LocalConfig:
    """A directory of local configuration."""
    return LocalConfig(tmp_path)


def collect(pod: PodDirectory, local: LocalConfig | None = None) -> str:
    """Run `gc`, which must succeed, and return what it had to say."""
    result = pod.call("gc", *([] if local is None else [local.flag]), pod.uuid)
    assert result.returncode == 0, result.stderr
    return result.stderr


def networks_of(pod: PodDirectory) -> list[dict[str, str]]:
    """Return what stage0 would show of a pod's networks."""
    found: list[dict[str, str]] = json.loads((pod.path / "net-info.json").read_text())
    return found


@BY_RAW_SOCKET
def test_the_default_network(make_pod: MakePod) -> None:
    """The pod has an address, a default route by the host's address, and reaches the host; gc undoes it."""
    pod = make_pod({"a": shell("ip -4 addr show eth0; ip route; ping -c 1 -W 5 172.16.28.1")})
    result = pod.run(net="default")
    assert result.returncode == 0, result.stdout + result.stderr
    [network] = networks_of(pod)
    assert ipaddress.ip_address(network["ip"]) in DEFAULT
    assert f"inet {network['ip']}/24" in result.stdout
    assert "default via 172.16.28.1 dev eth0" in result.stdout
    assert network == {
        "netName": "default",
        "netConf": "net/99-default.conf",
        "pluginPath": "stage1/rootfs/usr/lib/rkt/plugins/net/ptp",
        "ifName": "eth0",
        "ip": network["ip"],
        "args": "",
        "mask": "255.255.255.0",
    }
    assert (pod.path / "netns").read_text() == f"/var/run/netns/cni-{pod.uuid}"
    assert (LEASES / "default" / network["ip"]).read_text().split() == [pod.uuid, "eth0"]
    assert collect(pod) == ""
    assert leftovers() == []
    assert collect(pod) == ""


@BY_RAW_SOCKET
def test_a_default_network_of_both_families(make_pod: MakePod, local: LocalConfig) -> None:
    """A file that says so gives the pod an address and a way out of both families, and net-info.json has them."""
    ranges = [[{"subnet": "10.99.28.0/24"}], [{"subnet": "fd00:1c::/64"}]]
    ipam = {"type": "host-local", "ranges": ranges, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    config = {"cniVersion": "1.0.0", "name": "default", "type": "ptp", "ipMasq": True, "ipam": ipam}
    local.write("99-default.conf", config)
    pod = make_pod({"a": shell("ip route; ip -6 route; ping -c 1 -W 5 10.99.28.1 && ping -c 1 -W 5 fd00:1c::1")})
    result = pod.run(local.flag, net="default")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "default via 10.99.28.1 dev eth0" in result.stdout
    assert "default via fd00:1c::1 dev eth0" in result.stdout
    [network] = networks_of(pod)
    assert ipaddress.ip_address(network["ip"]) in ipaddress.ip_network("10.99.28.0/24")
    assert ipaddress.ip_interface(network["ip6"]).network == ipaddress.ip_network("fd00:1c::/64")
    assert collect(pod, local) == ""
    assert leftovers() == []


@BY_RAW_SOCKET
def test_the_restricted_network(make_pod: MakePod) -> None:
    """The pod reaches the host and its own network, and has no default route."""
    pod = make_pod({"a": shell("ip route; ping -c 1 -W 5 172.31.0.1")})
    result = pod.run(net="default-restricted")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "default" not in result.stdout
    [network] = networks_of(pod)
    assert ipaddress.ip_address(network["ip"]) in RESTRICTED
    collect(pod)


@pytest.mark.private_users
def test_two_networks(make_pod: MakePod) -> None:
    """They get eth0 and eth1 by the names of their files, whatever their order in --net; arguments go to theirs."""
    pod = make_pod({"a": shell("ip -4 addr")})
    result = pod.run(net="default-restricted:IP=172.31.7.7,default")
    assert result.returncode == 0, result.stdout + result.stderr
    assert [(network["netName"], network["ifName"], network["args"]) for network in networks_of(pod)] == [
        ("default-restricted", "eth0", "IP=172.31.7.7"),
        ("default", "eth1", ""),
    ]
    assert "inet 172.31.7.7/16" in result.stdout
    collect(pod)


@pytest.mark.private_users
def test_two_pods_meet(make_pod: MakePod) -> None:
    """A pod on the default network reaches another one by its address."""
    server = make_pod({"a": shell("echo hello | nc -l -p 8080")})
    process = server.start(net="default")
    server.wait_ready()
    [network] = networks_of(server)
    client = make_pod({"a": shell(f"until nc -w 5 {network['ip']} 8080 </dev/null; do sleep 0.05; done")})
    assert "hello" in client.run(net="default").stdout
    assert server.finish(process).returncode == 0
    for pod in (server, client):
        collect(pod)


@pytest.mark.private_users
def test_a_port_of_the_host(make_pod: MakePod) -> None:
    """A forwarded port is reached by the host's loopback and is gone after gc."""
    script = "while :; do echo hello | nc -l -p 80; done"
    section = app_section("/bin/sh", "-c", script, ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    pod = make_pod({"a": section}, ports=[{"name": "http", "hostPort": 8080}])
    process = pod.start(net="default")
    pod.wait_ready()
    assert wait_for(lambda: said_at(8080), "an answer") == b"hello\n"
    process.terminate()
    assert pod.finish(process).returncode == 0
    collect(pod)


def test_a_udp_port_of_the_host(make_pod: MakePod) -> None:
    """Datagrams to a forwarded port get into the pod, and nothing is left of it after gc."""
    section = app_section("/bin/sleep", "100", ports=[{"name": "dns", "protocol": "udp", "port": 53}])
    pod = make_pod({"a": section}, ports=[{"name": "dns", "hostPort": 5353}])
    process = pod.start(net="default")
    pod.wait_ready()
    server = within(f"/var/run/netns/cni-{pod.uuid}", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    with server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        server.bind(("0.0.0.0", 53))
        server.settimeout(TIMEOUT_SECONDS)
        client.sendto(b"question", ("127.0.0.1", 5353))
        assert server.recvfrom(100)[0] == b"question"
    process.terminate()
    pod.finish(process)
    collect(pod)


def said_at(port: int) -> bytes:
    """Return what whoever listens at a port of the host's loopback says first; nothing if nobody does."""
    command = ["busybox", "nc", "-w", "5", "127.0.0.1", str(port)]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).stdout


@pytest.mark.private_users
def test_a_pod_with_loopback_only(make_pod: MakePod) -> None:
    """`none` is recorded as networks that are none of any, with rkt's words, and nothing is made on the host."""
    pod = make_pod({"a": shell("true")})
    _, stderr = pod.start(net="none").communicate()
    assert stderr == b"networking: networking namespace with loopback only\n"
    assert networks_of(pod) is None
    assert leftovers() == []
    assert not (pod.path / "netns").exists()


def test_the_host_network_is_not_recorded(make_pod: MakePod) -> None:
    """A pod in the host's network has no networks, and none are set up."""
    pod = make_pod({"a": shell("true")})
    assert pod.run(net="default,host").returncode == 0
    assert not (pod.path / "net-info.json").exists()


def test_the_pod_is_in_its_namespace_and_the_launcher_too(make_pod: MakePod) -> None:
    """PID 1 and the launcher are in the namespace that has a name, with `lo` up; the helper is gone."""
    pod = make_pod({"a": shell("while :; do sleep 1; done")})
    process = pod.start(net="default")
    pod.wait_ready()
    named = os.stat(f"/run/netns/cni-{pod.uuid}").st_ino
    assert namespace_of(pod.pid, "net") == namespace_of(process.pid, "net") == f"net:[{named}]"
    assert children_of(process.pid) == [pod.pid]
    assert "<LOOPBACK,UP,LOWER_UP>" in pod.enter("a", "/bin/ip", "link", "show", "lo").stdout
    pod.stop()
    pod.finish(process)
    collect(pod)


def test_a_plugin_gets_what_rkts_gives(make_pod: MakePod, local: LocalConfig) -> None:
    """File, environment and working directory of a plain configuration are rkt's; gc asks it to undo."""
    local.plugin("lan", ADD={"print": {"ip4": {"ip": "10.1.2.3/20"}}})
    pod = make_pod({"a": shell("true")})
    result = pod.run(local.flag, net="lan:A=1;B=2")
    assert (result.returncode, result.stderr) == (0, "")
    [network] = networks_of(pod)
    assert (network["ip"], network["mask"], network["args"]) == ("10.1.2.3", "255.255.240.0", "A=1;B=2")
    assert network["pluginPath"] == str(local.networks / "recorder")
    collect(pod, local)
    add, delete = calls(local.record)
    for call, command in ((add, "ADD"), (delete, "DEL")):
        environment = {name: value for name, value in call["environment"].items() if name.startswith("CNI_")}
        assert environment == {
            "CNI_VERSION": "0.1.0",
            "CNI_COMMAND": command,
            "CNI_CONTAINERID": pod.uuid,
            "CNI_NETNS": f"/var/run/netns/cni-{pod.uuid}",
            "CNI_ARGS": "A=1;B=2",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": f"{local.networks}:/usr/lib/rkt/plugins/net:stage1/rootfs/usr/lib/rkt/plugins/net",
        }
        assert call["stdin"] == (local.networks / "lan.conf").read_text()
        assert call["cwd"] == str(pod.path)
        assert call["network"] == os.readlink("/proc/self/ns/net")
        assert call["descriptors"] == ["0", "1", "2", "3"]  # the last is the listing's own


@pytest.mark.skipif(not REFERENCE.exists(), reason="containernetworking-plugins is not installed")
def test_a_plugin_finds_those_of_the_image(make_pod: MakePod, local: LocalConfig) -> None:
    """A plugin of somebody else delegates to one of the image by its name, as with rkt's images."""
    (local.networks / "ptp").symlink_to(REFERENCE)
    ipam = {"type": "host-local", "subnet": "10.1.2.0/24"}
    local.write("lan.conf", {"cniVersion": "0.4.0", "name": "lan", "type": "ptp", "ipMasq": True, "ipam": ipam})
    pod = make_pod({"a": shell("ip -4 addr show eth0")})
    result = pod.run(local.flag, net="lan:IP=10.1.2.9")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "inet 10.1.2.9/24" in result.stdout
    [network] = networks_of(pod)
    assert (network["ip"], network["pluginPath"]) == ("10.1.2.9", str(local.networks / "ptp"))
    assert (LEASES / "lan/10.1.2.9").read_text().split() == [pod.uuid, "eth0"]
    collect(pod, local)


def test_name_servers_of_a_network(make_pod: MakePod, local: LocalConfig) -> None:
    """The first network with an opinion about DNS gives the apps their resolv.conf, in rkt's form."""
    result = {"ip4": {"ip": "10.1.2.3/24"}}
    dns = {"nameservers": ["10.1.2.1", "10.1.2.2"], "domain": "d", "search": ["s", "t"], "options": ["ndots:2"]}
    local.plugin("a-silent", ADD={"print": result})
    local.plugin("b-first", ADD={"print": {**result, "dns": dns}})
    local.plugin("c-second", ADD={"print": {**result, "dns": {"nameservers": ["9.9.9.9"]}}})
    pod = make_pod({"a": shell("cat /etc/resolv.conf")})
    run = pod.run(local.flag, net="a-silent,b-first,c-second")
    lines = [line.partition(": ")[2] for line in run.stdout.splitlines()]
    assert lines == [
        "# Generated by rkt from network b-first",
        "",
        "search s t",
        "nameserver 10.1.2.1",
        "nameserver 10.1.2.2",
        "options ndots:2",
        "domain d",
    ]
    assert run.stderr == (
        "networking: Warning: network c-second plugin specified DNS configuration, but DNS already supplied\n"
    )
    collect(pod, local)


def test_name_servers_that_are_not_wanted(make_pod: MakePod, local: LocalConfig) -> None:
    """With another mode for resolv.conf what the networks say does not count."""
    local.plugin("lan", ADD={"print": {"ip4": {"ip": "10.1.2.3/24"}, "dns": {"nameservers": ["10.1.2.1"]}}})
    pod = make_pod({"a": shell("test ! -e /etc/resolv.conf")})
    assert pod.run(local.flag, "--dns-conf-mode=resolv=none,hosts=default", net="lan").returncode == 0
    collect(pod, local)


RESOLV_CONF = (
    "# of the host\nsearch example.com\nnameserver 127.0.0.1\nnameserver 192.0.2.53\nnameserver 2001:db8::53\n"
)


def test_name_servers_of_the_host(make_pod: MakePod, own_rootfs: Path, tmp_path: Path) -> None:
    """
    A pod of stage0's has those that it reaches, unless an option, a network or a volume says something else, and none
    where it has no way out; in the host's network it has the host's file.
    """
    (tmp_path / "resolv.conf").write_text(RESOLV_CONF)
    (own_rootfs / "etc/resolv.conf").write_text("the image's\n")
    (tmp_path / "volume").write_text("the volume's\n")
    volume = {"volumes": [{"name": "v", "kind": "host", "source": str(tmp_path / "volume")}]}
    bind = f'mount --bind {tmp_path}/resolv.conf /etc/resolv.conf && exec "$@"'
    reached = "# Generated by minit from the host's\n\nsearch example.com\nnameserver 192.0.2.53\n"
    for net, value, flags, is_mounted, expected in (
        ("default", "host", (), False, reached),
        ("default,default-restricted", "host", (), False, reached),
        ("default", "none", (), False, "the image's\n"),
        ("default", None, (), False, "the image's\n"),
        ("default", "host", ("--dns-conf-mode=resolv=none,hosts=default",), False, "the image's\n"),
        ("default", "host", (), True, "the volume's\n"),
        ("default-restricted", "host", (), False, "the image's\n"),
        ("none", "host", (), False, "the image's\n"),
        (None, "host", (), False, RESOLV_CONF),
    ):
        mounts = {"mounts": [{"volume": "v", "path": "/etc/resolv.conf"}]} if is_mounted else {}
        annotations = {} if value is None else {"minit/dns": value}
        section = shell("cat /etc/resolv.conf", **mounts)
        pod = make_pod({"a": section}, own_rootfs, annotations=annotations, **(volume if is_mounted else {}))
        result = pod.finish(pod.start(*flags, net=net, under=("unshare", "--mount", "/bin/sh", "-c", bind, "sh")))
        said = "".join(f"{line.partition(': ')[2]}\n" for line in result.stdout.splitlines())
        assert said == expected, (net, value, flags, result)
        if net not in (None, "none"):
            collect(pod)


def test_the_metadata_service_is_at_the_hosts_address(make_pod: MakePod) -> None:
    """Apps are given the address of the host in the network of the pod."""
    pod = make_pod({"a": shell("echo $AC_METADATA_URL")})
    assert "http://172.16.28.1:18112/0a0b\n" in pod.run("--mds-token=0a0b", net="default").stdout
    collect(pod)


def test_every_network(make_pod: MakePod, local: LocalConfig) -> None:
    """`all` means every configured one, also those of the image; one of the local configuration takes the place of
    the image's of its name, which is said."""
    own = {"type": "host-local", "subnet": "10.9.0.0/24"}
    local.write("10-lan.conf", {"name": "lan", "type": "ptp", "ipam": {**own, "subnet": "10.8.0.0/24"}})
    local.write("20-default.conf", {"name": "default", "type": "ptp", "ipam": own})
    pod = make_pod({"a": shell("true")})
    result = pod.run(local.flag, net="all")
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr == f'networking: overriding "default" network with one from {local.networks}\n'
    found = [(network["netName"], network["ifName"], network["ip"].split(".")[:2]) for network in networks_of(pod)]
    assert found == [
        ("lan", "eth0", ["10", "8"]),
        ("default", "eth1", ["10", "9"]),
        ("default-restricted", "eth2", ["172", "31"]),
    ]
    collect(pod, local)


@BY_RAW_SOCKET
def test_a_list_of_built_in_and_other_plugins(make_pod: MakePod, local: LocalConfig) -> None:
    """The result of a built-in plugin is passed to programs that stand in for others, and their work is undone."""
    for name in ("firewall", "tuning"):
        (local.networks / name).symlink_to(REFERENCE.with_name(name))
    bridge = {"type": "bridge", "bridge": "br-test", "isGateway": True, "ipMasq": True}
    local.write(
        "lan.conflist",
        {
            "cniVersion": "0.4.0",
            "name": "lan",
            "plugins": [
                {**bridge, "ipam": {"type": "host-local", "subnet": "10.7.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
                {"type": "firewall", "backend": "iptables"},
                {"type": "tuning", "sysctl": {"net.ipv4.conf.all.log_martians": "1"}},
            ],
        },
    )
    pod = make_pod({"a": shell("cat /proc/sys/net/ipv4/conf/all/log_martians; ping -c 1 -W 5 10.7.0.1; exec sleep 60")})
    process = pod.start(local.flag, net="lan")
    pod.wait_ready()
    try:
        assert forwarding_rules("10.7.0.2/32")
        pod.stop()
        result = pod.finish(process)
        assert (result.returncode, result.stderr) == (0, "")
        assert "1 packets received" in result.stdout
        assert result.stdout.splitlines()[0].endswith(": 1")
        collect(pod, local)
        assert not forwarding_rules("10.7.0.2/32")
    finally:
        subprocess.run(["ip", "link", "delete", "br-test"], check=False)


def forwarding_rules(address: str) -> list[str]:
    """Return the rules of iptables that name an address."""
    listed = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if address in line]


# Failures.


def refused(pod: PodDirectory, local: LocalConfig, net: str, *flags: str) -> str:
    """Run a pod whose network cannot be, check that nothing is left of it, and return why."""
    result = pod.run(local.flag, *flags, net=net)
    assert (result.returncode, result.stdout) == (254, "")
    [line] = result.stderr.splitlines()
    assert line.startswith("stage1: failed to setup network: ")
    assert leftovers() == []
    assert not (pod.path / "net-info.json").exists()
    assert not (pod.path / "netns").exists()
    assert not (pod.path / "net").exists() or os.listdir(pod.path / "net") == []
    collect(pod, local)
    return line.removeprefix("stage1: failed to setup network: ")


def test_an_unknown_network(make_pod: MakePod, local: LocalConfig) -> None:
    """All that are unknown are named."""
    pod = make_pod({"a": shell("true")})
    assert refused(pod, local, "x,default,b") == "networks not found: b, x"


def test_a_missing_plugin(make_pod: MakePod, local: LocalConfig) -> None:
    """The first network is not joined either."""
    local.plugin("a")
    local.write("b.conf", {"name": "b", "type": "no-such"})
    assert refused(make_pod({"a": shell("true")}), local, "a,b") == 'Could not find plugin "no-such"'
    assert local.calls == []


@pytest.mark.parametrize(
    ("action", "text"),
    [
        ({"print": {"code": 7, "msg": "no", "details": "more"}, "exit": 1}, "no; more"),
        ({"print": "junk", "exit": 3}, 'plugin "recorder" exited with code 3: junk'),
        ({"print": "junk"}, 'plugin "recorder" printed no result: junk'),
        ({"signal": 9}, 'plugin "recorder" was killed by signal 9'),
    ],
)
def test_a_failing_plugin(make_pod: MakePod, local: LocalConfig, action: dict[str, Any], text: str) -> None:
    """Its message is shown; it is told to undo its work, and so are those before it, the last one first."""
    local.plugin("a")
    local.plugin("b", ADD=action)
    local.plugin("c")
    assert refused(make_pod({"a": shell("true")}), local, "default,a,b,c").endswith(text)
    assert local.calls == ["ADD a", "ADD b", "DEL b", "DEL a"]


def test_a_port_that_is_taken(make_pod: MakePod, local: LocalConfig) -> None:
    """A port that a program of the host listens on is refused."""
    section = app_section("/bin/true", ports=[{"name": "http", "protocol": "tcp", "port": 80}])
    pod = make_pod({"a": section}, ports=[{"name": "http", "hostPort": 8081}])
    with socket.create_server(("127.0.0.1", 8081)):
        assert "8081" in refused(pod, local, "default")


def test_an_address_that_is_taken(make_pod: MakePod, local: LocalConfig) -> None:
    """The second pod that asks for it is refused, and the first keeps it."""
    first = make_pod({"a": shell("while :; do sleep 1; done")})
    process = first.start(net="default:IP=172.16.28.9")
    first.wait_ready()
    result = make_pod({"a": shell("true")}).run(net="default:IP=172.16.28.9")
    assert result.returncode == 254
    assert re.fullmatch(r"stage1: failed to setup network: .*172\.16\.28\.9.*\n", result.stderr)
    assert "inet 172.16.28.9/24" in first.enter("a", "/bin/ip", "addr").stdout
    first.stop()
    first.finish(process)
    collect(first)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_a_plugin_hangs(make_pod: MakePod, local: LocalConfig, number: signal.Signals) -> None:
    """The plugin is killed, the networks are undone, and `run` ends at once."""
    local.plugin("a")
    local.plugin("b", ADD={"hang": True})
    pod = make_pod({"a": shell("true")})
    process = pod.start(local.flag, net="a,b")
    wait_for((local.record / "hanging").exists, "the plugin")
    process.send_signal(number)
    result = pod.finish(process)
    assert result.returncode == 254
    assert result.stderr == f"stage1: failed to setup network: interrupted by signal {int(number)}\n"
    assert local.calls == ["ADD a", "ADD b", "DEL b", "DEL a"]
    collect(pod, local)


def test_the_helper_holds_what_it_needs(make_pod: MakePod, local: LocalConfig) -> None:
    """It has its socket, the image, its name, and the lock, without which the pod could be collected beside it."""
    local.plugin("lan", ADD={"hang": True})
    pod = make_pod({"a": shell("true")})
    process = pod.start(local.flag, net="lan")
    wait_for((local.record / "hanging").exists, "the plugin")
    [helper] = children_of(process.pid)
    assert status_of(helper)["Name"] == "minit-network"
    held = [target for fd, target in descriptors_of(helper).items() if fd > 2]
    assert sum(target == str(pod.path) for target in held) == 1
    others = [re.sub(r"\d+", "N", target) for target in held if target != str(pod.path)]
    # The root of a mount of its own; pidfd and pipe are the plugin's.
    assert sorted(others) == ["/", "anon_inode:[pidfd]", "pipe:[N]", "socket:[N]"]
    process.terminate()
    pod.finish(process)


def test_a_launcher_that_is_killed_while_a_plugin_hangs(make_pod: MakePod, local: LocalConfig) -> None:
    """The helper undoes the networks, and the pod counts as running until it has."""
    local.plugin("a")
    local.plugin("b", ADD={"hang": True})
    pod = make_pod({"a": shell("true")})
    process = pod.start(local.flag, net="default,a,b")
    wait_for((local.record / "hanging").exists, "the plugin")
    process.kill()
    pod.finish(process)
    pod.wait_exited()
    assert local.calls == ["ADD a", "ADD b", "DEL b", "DEL a"]
    assert leftovers() == []


def test_what_could_not_be_undone_is_left_to_gc(make_pod: MakePod, local: LocalConfig) -> None:
    """A network that the pod could not leave after a failure is told at once, and gc tries once more."""
    local.plugin("a", DEL={"print": {"code": 1, "msg": "not now"}, "exit": 1})
    local.plugin("b")
    local.plugin("c", ADD={"print": "junk"})
    pod = make_pod({"a": shell("true")})
    result = pod.run(local.flag, net="a,b,c")
    assert result.returncode == 254
    assert result.stderr.splitlines() == [
        'networking: error deleting "a": not now',
        'stage1: failed to setup network: plugin "recorder" printed no result: junk',
    ]
    assert local.calls[-1] == "DEL a"
    assert collect(pod, local) == 'networking: error deleting "a": not now\n'
    assert local.calls[-3:] == ["DEL b", "DEL a", "DEL a"]
    assert collect(pod, local) == ""


def test_records_that_cannot_be_removed_are_named(make_pod: MakePod, local: LocalConfig) -> None:
    """A network that was undone but could not be forgotten is told beside the reason, and gc has nothing to say."""
    local.plugin("a", ADD={"hang": True})
    pod = make_pod({"a": shell("true")})
    process = pod.start(local.flag, net="a")
    wait_for((local.record / "hanging").exists, "the plugin")
    records = str(pod.path / "net-info.json")
    # A mount point can be read, and not be removed.
    syscalls.mount(records, records, None, syscalls.MS_BIND)
    process.terminate()
    result = pod.finish(process)
    syscalls.umount2(records, 0)
    assert result.stderr.splitlines() == [
        "networking: error forgetting the networks: net-info.json: device or resource busy",
        "stage1: failed to setup network: interrupted by signal 15",
    ]
    assert collect(pod, local) == ""


def test_a_helper_that_is_killed(make_pod: MakePod, local: LocalConfig) -> None:
    """The pod does not start; gc cleans up what it did."""
    local.plugin("b", "zz.conf", ADD={"hang": True})
    pod = make_pod({"a": shell("true")})
    process = pod.start(local.flag, net="default,b")
    wait_for((local.record / "hanging").exists, "the plugin")
    [helper] = children_of(process.pid)
    os.kill(helper, signal.SIGKILL)
    result = pod.finish(process)
    assert (result.returncode, result.stderr) == (
        254,
        "stage1: failed to setup network: the process that did it died\n",
    )
    assert leftovers() != []
    collect(pod, local)
    assert local.calls == ["ADD b", "DEL b"]


# gc with things missing.


def ended_pod(make_pod: MakePod, local: LocalConfig) -> PodDirectory:
    """Return a pod that ran on the default network and one of a plugin, and has not been collected."""
    local.plugin("lan", ADD={"print": {"ip4": {"ip": "10.1.2.3/24"}}})
    pod = make_pod({"a": shell("true")})
    assert pod.run(local.flag, net="default,lan").returncode == 0
    return pod


@pytest.mark.parametrize("content", [None, "", "junk", "{}", '[{"netName": 1}]'])
def test_gc_with_a_broken_net_info(make_pod: MakePod, local: LocalConfig, content: str | None) -> None:
    """Networks are found by the copies of their configurations; what is broken is said."""
    pod = ended_pod(make_pod, local)
    path = pod.path / "net-info.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    said = collect(pod, local)
    assert said.startswith("networking: error loading net-info.json: ") if content is not None else said == ""
    assert local.calls == ["ADD lan", "DEL lan"]


def test_gc_tells_what_it_does(make_pod: MakePod, local: LocalConfig) -> None:
    """With --debug it names the plugins in rkt's words, the last network first, and nothing after them."""
    pod = ended_pod(make_pod, local)
    result = pod.call("gc", "--debug", "--local-config", str(local.path), pod.uuid)
    assert (result.returncode, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "networking: teardown - executing net-plugin recorder",
        "networking: teardown - executing net-plugin ptp",
    ]


def test_gc_after_a_reboot(make_pod: MakePod, local: LocalConfig) -> None:
    """Without the namespace plugins are asked all the same, with an empty CNI_NETNS."""
    pod = ended_pod(make_pod, local)
    subprocess.run(["ip", "netns", "delete", f"cni-{pod.uuid}"], check=True)
    assert collect(pod, local) == ""
    assert calls(local.record)[-1]["environment"]["CNI_NETNS"] == ""


def test_gc_without_the_plugin(make_pod: MakePod, local: LocalConfig) -> None:
    """It is said, and the other networks are undone."""
    pod = ended_pod(make_pod, local)
    (local.networks / "recorder").unlink()
    said = collect(pod, local)
    assert said.startswith('networking: error deleting "lan": ')


def test_gc_with_a_failing_plugin(make_pod: MakePod, local: LocalConfig) -> None:
    """It is said, the other networks are undone, and a second gc does not try again."""
    local.plugin("lan", DEL={"print": {"code": 1, "msg": "not now"}, "exit": 1})
    pod = make_pod({"a": shell("true")})
    assert pod.run(local.flag, net="default,lan").returncode == 0
    assert collect(pod, local) == 'networking: error deleting "lan": not now\n'
    assert collect(pod, local) == ""


def test_gc_without_the_configuration(make_pod: MakePod, local: LocalConfig) -> None:
    """A network whose copy is gone has been left already."""
    pod = ended_pod(make_pod, local)
    (pod.path / "net/lan.conf").unlink()
    assert collect(pod, local) == ""
    assert local.calls == ["ADD lan"]


def test_gc_with_a_broken_configuration(make_pod: MakePod, local: LocalConfig) -> None:
    """It is said and passed over."""
    pod = ended_pod(make_pod, local)
    (pod.path / "net/lan.conf").write_text("junk")
    assert collect(pod, local).startswith('networking: error loading "net/lan.conf"; ignoring: ')
