"""minit.network.pluginlist with the reference plugins of the CNI, and with those alongside minit's own."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import NetworkError
from minit.base.value import replace
from minit.manifest.networkconfig import parse_network_config
from minit.network.addresses import parse_address, parse_interface
from minit.network.pluginlist import attach, check, detach, plugin_path
from minit.network.pluginrequests import search_for_pod
from minit.network.protocol import Address, Request, Result
from minit.plan.networks.networkplan import PlannedNetwork
from minit.podfiles import paths
from tests.support.cniplugin import calls, install_plugin
from tests.support.networks import make_network, own_network, remove_network, within
from tests.support.waiting import TIMEOUT_SECONDS

REFERENCE = Path("/usr/lib/cni")
ID = "8f1b6a3e-3c3e-4b1c-9a57-000000000002"

pytestmark = pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed")


class Host:
    """A machine's network with a pod's beside it, and a pod directory, which is the working directory."""

    def __init__(self, directory: Path, namespace: str) -> None:
        self.namespace = namespace
        self.leases = directory / "leases"
        self.plugins = directory / "local/net.d"
        self.plugins.mkdir(parents=True)
        self.search = search_for_pod(str(directory / "local"), (str(REFERENCE),))

    def prefer(self, *names: str) -> None:
        """Have reference plugins found before minit's own."""
        for name in names:
            (self.plugins / name).symlink_to(REFERENCE / name)

    def ipam(self) -> dict[str, Any]:
        """Return how addresses are had."""
        routes = [{"dst": "0.0.0.0/0"}]
        return {"type": "host-local", "subnet": "10.77.0.0/24", "routes": routes, "dataDir": str(self.leases)}

    def network(self, **document: Any) -> PlannedNetwork:
        """Return a planned network; it is a list if it has plugins."""
        text = json.dumps({"name": "lan", **document}).encode()
        file_name = "10-lan.conflist" if "plugins" in document else "10-lan.conf"
        config = parse_network_config(text, file_name, "/etc/rkt/net.d")
        return PlannedNetwork(config=config, args="", interface="eth0")

    def chain(self, version: str, **tuning: Any) -> PlannedNetwork:
        """Return a list of the usual plugins, those that know the version."""
        bridge = {"type": "bridge", "bridge": "br-lan", "isGateway": True, "ipMasq": True, "ipam": self.ipam()}
        settings = {"type": "tuning", "sysctl": {"net.ipv4.conf.eth0.arp_filter": "1"}, **tuning}
        portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
        firewall = [{"type": "firewall"}] if version >= "0.4.0" else []
        return self.network(cniVersion=version, plugins=[bridge, portmap, *firewall, settings])

    def request(self, namespace: str | None = None, args: str = "") -> Request:
        """Return the parameters of a request."""
        path = self.namespace if namespace is None else namespace
        return Request(container_id=ID, namespace=path, interface="eth0", args=args)

    def attach(self, network: PlannedNetwork) -> Result:
        """Attach the pod."""
        return attach(network, self.request(), self.search)

    def in_pod(self, *command: str) -> str:
        """Run a command in the pod's network and return its output."""
        return run("nsenter", f"--net={self.namespace}", *command)

    def answers_pod(self) -> bool:
        """Return whether a connection from the pod arrives at the host's end of the network, from its address."""
        with socket.create_server(("10.77.0.1", 0)) as server:
            address = server.getsockname()
            with within(self.namespace, lambda: socket.create_connection(address, TIMEOUT_SECONDS)):
                connection, (peer, _) = server.accept()
                connection.close()
                return bool(peer == "10.77.0.2")

    def leased(self) -> list[str]:
        """Return the addresses that are taken."""
        return sorted(path.name for path in self.leases.glob("lan/*.*.*.*"))

    def is_clean(self) -> bool:
        """Return whether nothing of the pod is left on the host."""
        traces = run("ip", "-o", "link") + run("iptables-save") + run("nft", "list", "ruleset")
        return not self.leased() and "veth" not in traces and "10.77.0.2" not in traces and ID not in traces


def address_of(result: Result) -> str:
    """Return the pod's address."""
    assert result.ipv4 is not None
    return str(result.ipv4.address.ip)


def run(*command: str) -> str:
    """Run a command and return its output."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A machine and a pod, in network namespaces of this test alone."""
    (tmp_path / "pod").mkdir()
    monkeypatch.chdir(tmp_path / "pod")
    namespace = make_network(tmp_path / "netns")
    with own_network():
        yield Host(tmp_path, namespace)
    remove_network(namespace)


def test_ptp_as_in_rkt(host: Host) -> None:
    """A plain configuration of the oldest version leads to a pod that reaches the host, and to nothing after DEL."""
    host.prefer("ptp", "host-local")
    network = host.network(cniVersion="0.1.0", type="ptp", ipMasq=True, ipam=host.ipam())
    assert plugin_path(network, host.search) == f"{host.plugins}/ptp"
    result = host.attach(network)
    assert result.ipv4 == Address(address=parse_interface("10.77.0.2/24"), gateway=parse_address("10.77.0.1"))
    assert [str(route.destination) for route in result.routes] == ["0.0.0.0/0"]
    assert host.answers_pod()
    detach(network, host.request(), host.search)
    assert host.is_clean()
    detach(network, host.request(), host.search)


@pytest.mark.parametrize("version", ["0.3.1", "0.4.0", "1.0.0"])
def test_a_list_of_plugins(host: Host, version: str) -> None:
    """bridge, portmap, firewall and tuning take each other's results, in ADD, CHECK and DEL."""
    host.prefer("bridge", "host-local", "portmap", "firewall", "tuning")
    network = host.chain(version)
    result = host.attach(network)
    assert address_of(result) == "10.77.0.2"
    assert [interface.name for interface in result.interfaces][::2] == ["br-lan", "eth0"]
    assert host.in_pod("sysctl", "-n", "net.ipv4.conf.eth0.arp_filter").strip() == "1"
    assert host.answers_pod()
    assert check(network, host.request(), host.search) == (version != "0.3.1")
    detach(network, host.request(), host.search)
    assert host.is_clean()


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_an_address_of_the_users_choice(host: Host, kind: str) -> None:
    """`IP` reaches the address manager, past plugins that refuse each key that is not for them; `FOO` is refused."""
    host.prefer("ptp", "bridge", "host-local", "tuning")
    plugins = [{"type": kind, "ipam": host.ipam()}, {"type": "tuning"}]
    network = replace(host.network(cniVersion="1.0.0", plugins=plugins), args="IP=10.77.0.9")
    result = attach(network, host.request(args=network.args), host.search)
    assert [str(one.address) for one in result.addresses] == ["10.77.0.9/24"]
    detach(network, host.request(args=network.args), host.search)
    with pytest.raises(NetworkError, match='unknown args .*"FOO=1'):
        attach(network, host.request(args="IP=10.77.0.9;FOO=1"), host.search)
    assert host.is_clean()


def test_a_check_finds_what_changed(host: Host) -> None:
    """When the pod lost its address the plugin says so."""
    host.prefer("bridge", "host-local", "portmap", "firewall", "tuning")
    network = host.chain("0.4.0")
    host.attach(network)
    host.in_pod("ip", "address", "flush", "dev", "eth0")
    with pytest.raises(NetworkError, match="Failed to match addr|not found"):
        check(network, host.request(), host.search)
    detach(network, host.request(), host.search)


def test_a_failure_in_the_middle_leaves_nothing(host: Host) -> None:
    """When the last plugin fails, what those before it did is undone, by their own DEL."""
    host.prefer("bridge", "host-local", "portmap", "firewall", "tuning")
    with pytest.raises(NetworkError, match="no_such_setting"):
        host.attach(host.chain("1.0.0", sysctl={"net.ipv4.no_such_setting": "1"}))
    assert host.is_clean()


def test_detaching_a_pod_of_before_a_reboot(host: Host) -> None:
    """With neither namespace, nor links, nor result, the lease is given back."""
    host.prefer("ptp", "host-local")
    network = host.network(cniVersion="0.4.0", type="ptp", ipMasq=True, ipam=host.ipam())
    host.attach(network)
    Path("net/10-lan.conf.result").unlink()
    assert host.leased() == ["10.77.0.2"]
    with own_network():
        detach(network, host.request(namespace=""), host.search)
    assert host.leased() == []


def test_plugins_of_minit_and_others_in_one_list(host: Host) -> None:
    """Plugins of somebody else between built-in ones understand their results, and the other way round."""
    host.prefer("portmap", "firewall")
    network = host.chain("1.0.0")
    assert plugin_path(network, host.search) == f"{paths.POD_PLUGINS}/bridge"
    assert address_of(host.attach(network)) == "10.77.0.2"
    assert host.in_pod("sysctl", "-n", "net.ipv4.conf.eth0.arp_filter").strip() == "1"
    assert host.answers_pod()
    assert check(network, host.request(), host.search)
    assert json.loads(Path("net/10-lan.conflist.plugins").read_text()) == [
        f"{paths.POD_PLUGINS}/bridge",
        *(f"{host.plugins}/{name}" for name in ("portmap", "firewall")),
        f"{paths.POD_PLUGINS}/tuning",
    ]
    detach(network, host.request(), host.search)
    assert host.is_clean()


def test_what_minit_added_it_deletes(host: Host) -> None:
    """A reference plugin that is installed while the pod runs does not clean up after the built-in one."""
    network = host.network(cniVersion="0.1.0", type="ptp", ipMasq=True, ipam=host.ipam())
    host.attach(network)
    assert not host.is_clean()
    host.prefer("ptp", "host-local")
    detach(network, host.request(), host.search)
    assert host.is_clean()


def test_a_file_in_the_place_of_a_plugin_of_the_image(host: Host, tmp_path: Path) -> None:
    """A program that got into a pod's image by the name of a built-in plugin is never executed on the host."""
    network = host.network(type="ptp", ipMasq=True, ipam=host.ipam(), record=str(tmp_path / "record"))
    host.attach(network)
    install_plugin(Path(paths.POD_PLUGINS), "ptp")
    install_plugin(Path(paths.POD_PLUGINS), "host-local")
    detach(network, host.request(), host.search)
    host.attach(network)
    detach(network, host.request(), host.search)
    assert calls(tmp_path / "record") == []
    assert host.is_clean()


def test_a_configuration_that_is_not_built_in(host: Host) -> None:
    """With a type that minit knows nothing of, the plugin of the distribution is used."""
    network = host.network(cniVersion="1.0.0", type="vrf", vrfname="v")
    assert plugin_path(network, host.search) == f"{REFERENCE}/vrf"
    with pytest.raises(NetworkError, match="missing prevResult"):
        host.attach(network)
    assert host.is_clean()
