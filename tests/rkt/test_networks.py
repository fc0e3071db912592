"""Networks from the command line on: what the pod gets, what is shown of it, and that nothing stays."""

from __future__ import annotations

import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.support.cniplugin import calls, install_plugin
from tests.support.commands import Stage0
from tests.support.hostnet import ip, leftovers
from tests.support.waiting import wait_for

ADDRESS = "172.16.28.77"
ASLEEP = ("--exec=/bin/sh", "--", "-c", "while :; do sleep 1; done")
SHOW_ADDRESSES = "ip -o -4 addr show scope global"
HTTP = {"name": "http", "protocol": "tcp", "port": 80}
SERVER = ("--exec=/bin/sh", "--", "-c", "mkdir /www; echo $AC_APP_NAME > /www/index.html; exec httpd -f -h /www")


@pytest.fixture(autouse=True)
def nothing_is_left(stage0: Stage0) -> Iterator[None]:
    """`run` gets no network but from the test, and when its pods are collected they have left nothing."""
    stage0.pod_flags = []
    assert leftovers() == []
    yield
    stage0.clean_up()
    assert leftovers() == []


def shown(stage0: Stage0, uuid: str) -> str:
    """Return the networks of a pod as `status` shows them; `list` shows the same."""
    lines = stage0.call("status", uuid).stdout.splitlines()
    [networks] = [line.removeprefix("networks=") for line in lines if line.startswith("networks=")]
    [row] = [row for row in stage0.call("list", "--full", "--no-legend").stdout.splitlines() if row.startswith(uuid)]
    assert networks in row.split("\t")
    return networks


def recorded(stage0: Stage0, uuid: str) -> list[dict[str, str]] | None:
    """Return the networks of a pod in the JSON of `status`; that of `list` has the same."""
    networks: list[dict[str, str]] | None = json.loads(stage0.call("status", "--format=json", uuid).stdout).get(
        "networks"
    )
    [pod] = [pod for pod in json.loads(stage0.call("list", "--format=json").stdout) if pod["name"] == uuid]
    assert pod.get("networks") == networks
    return networks


def page(address: str, port: int) -> str | None:
    """Return the page that the host gets at one of its ports, None if nobody is there."""
    try:
        with urllib.request.urlopen(f"http://{address}:{port}/", timeout=10) as answer:
            text: str = answer.read().decode()
            return text
    except urllib.error.URLError as error:
        assert isinstance(error.reason, ConnectionRefusedError)
        return None


def free_port() -> int:
    """Return a port of the host that nobody has."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_the_default_network(stage0: Stage0) -> None:
    """Without --net the pod has an address and a way out by the host; `rm` takes it all away."""
    output = stage0.shell(f"{SHOW_ADDRESSES}; ip route")
    [address] = re.findall(r"eth0 +inet (172\.16\.28\.\d+)/24 ", output)
    assert "default via 172.16.28.1 dev eth0" in output
    assert shown(stage0, stage0.uuid) == f"default:ip4={address}"
    assert recorded(stage0, stage0.uuid) == [
        {
            "netName": "default",
            "netConf": "net/99-default.conf",
            "pluginPath": "stage1/rootfs/usr/lib/rkt/plugins/net/ptp",
            "ifName": "eth0",
            "ip": address,
            "args": "",
            "mask": "255.255.255.0",
        }
    ]
    assert leftovers() != []
    assert stage0.call("rm", stage0.uuid).returncode == 0
    assert leftovers() == []


def test_a_running_pod_has_the_address_that_was_asked_for(stage0: Stage0) -> None:
    """It is shown, it is the one inside, and no other pod gets it."""
    with stage0.running(*stage0.run_words(f"--net=default:IP={ADDRESS}", stage0.image(), *ASLEEP)) as uuid:
        assert shown(stage0, uuid) == f"default:ip4={ADDRESS}"
        assert f"inet {ADDRESS}/24" in stage0.call("enter", uuid, "/bin/busybox", "ip", "addr").stdout
        second = stage0.try_shell("true", f"--net=default:IP={ADDRESS}")
        assert second.returncode == 254
        assert f'requested IP address "{ADDRESS}" is not available in network: default' in second.stderr
    assert shown(stage0, uuid) == f"default:ip4={ADDRESS}"


@pytest.mark.parametrize("net, inside", [("none", "lo"), ("host", None), ("default,host", None)])
def test_no_networks(stage0: Stage0, net: str, inside: str | None) -> None:
    """With `none` there is `lo` alone, with `host` the network of the host; none is shown."""
    output = stage0.shell("readlink /proc/self/ns/net; ls /sys/class/net", f"--net={net}")
    namespace, *interfaces = output.splitlines()
    assert (namespace == os.readlink("/proc/self/ns/net")) == (inside is None)
    assert inside is None or interfaces == [inside]
    assert shown(stage0, stage0.uuid) == ""
    assert recorded(stage0, stage0.uuid) is None
    assert leftovers() == []


@pytest.mark.parametrize("net", ["none", "host"])
def test_ports_without_a_network(stage0: Stage0, net: str) -> None:
    """They are refused before there is a pod."""
    result = stage0.try_shell("true", f"--net={net}", "--port=http:8080", ports=[HTTP])
    assert result.returncode == 254
    assert "--port" in result.stderr
    assert stage0.call("list", "--no-legend").stdout.strip() == ""


def test_ports(stage0: Stage0) -> None:
    """A port leads to the app from every address of the host or from one of them, and to one pod alone."""
    everywhere, here = free_port(), free_port()
    ports = (f"--port=http:{everywhere}", f"--port=admin:127.0.0.2:{here}")
    image = stage0.image(ports=[HTTP, {**HTTP, "name": "admin"}])
    with stage0.running(*stage0.run_words(*ports, image, "--name=web", *SERVER)):
        wait_for(lambda: page("127.0.0.1", everywhere), "the server")
        assert [page(f"127.0.0.{number}", everywhere) for number in (1, 2)] == ["web\n"] * 2
        assert [page(f"127.0.0.{number}", here) for number in (1, 2)] == [None, "web\n"]
        second = stage0.try_shell("true", ports[0], ports=[HTTP])
        assert second.returncode == 254
        assert f"stage1: failed to setup network: tcp port {everywhere} of every address is in use" in second.stderr
    assert stage0.call("gc", "--grace-period=0s").returncode == 0
    assert page("127.0.0.1", everywhere) is None


def test_several_networks(stage0: Stage0) -> None:
    """They are joined and shown in the order of their files, those of the local configuration among rkt's own."""
    networks = stage0.local_config / "net.d"
    networks.mkdir(parents=True)
    lan = {"cniVersion": "0.1.0", "name": "lan", "type": "bridge", "bridge": "testlan0", "isGateway": True}
    lan["ipam"] = {"type": "host-local", "subnet": "10.66.0.0/24"}
    networks.joinpath("10-lan.conf").write_text(json.dumps(lan))
    install_plugin(networks, "recorder")
    record = stage0.data.parent / "record"
    recorder = {"cniVersion": "0.1.0", "name": "rec", "type": "recorder", "record": str(record), "ADD": {"print": {}}}
    networks.joinpath("50-rec.conf").write_text(json.dumps(recorder))
    try:
        output = stage0.shell(SHOW_ADDRESSES, "--net=default,lan:IP=10.66.0.5,rec:K=V", "--net=default-restricted")
        found = dict(re.findall(r"(eth\d) +inet ([\d.]+)/", output))
        assert list(found) == ["eth0", "eth2", "eth3"]
        assert shown(stage0, stage0.uuid) == (
            f"lan:ip4=10.66.0.5, rec:ip4=<nil>, default-restricted:ip4={found['eth2']}, default:ip4={found['eth3']}"
        )
        assert [network["args"] for network in recorded(stage0, stage0.uuid) or []] == ["IP=10.66.0.5", "K=V", "", ""]
        assert stage0.call("gc", "--grace-period=0s").returncode == 0
        assert leftovers() == []
    finally:
        if any(link["ifname"] == "testlan0" for link in ip("link")):
            ip("link", "delete", "testlan0")
    add, delete = (call["environment"] for call in calls(record))
    assert [(call["CNI_COMMAND"], call["CNI_ARGS"]) for call in (add, delete)] == [("ADD", "K=V"), ("DEL", "K=V")]
    assert add["CNI_PATH"].split(":")[0] == delete["CNI_PATH"].split(":")[0] == str(networks)


def test_a_prepared_pod(stage0: Stage0) -> None:
    """Its ports are those of `prepare`, its networks those of `run-prepared`; while it waits it has none."""
    port = free_port()
    words = (stage0.stage1_flag, f"--port=http:{port}", stage0.image(ports=[HTTP]), *SERVER)
    uuid = stage0.call("prepare", *words).stdout.split()[-1]
    assert leftovers() == []
    with stage0.running("run-prepared", f"--net=default:IP={ADDRESS}", uuid, uuid=uuid):
        assert shown(stage0, uuid) == f"default:ip4={ADDRESS}"
        assert wait_for(lambda: page("127.0.0.1", port), "the server") == "busybox\n"


def test_an_unknown_network(stage0: Stage0) -> None:
    """All that are unknown are named, and the pod ends without networks."""
    result = stage0.try_shell("true", "--net=nope,default,neither")
    assert result.returncode == 254
    assert "stage1: failed to setup network: networks not found: neither, nope\n" in result.stderr
    assert leftovers() == []
    assert recorded(stage0, stage0.uuid) is None
    assert stage0.call("rm", stage0.uuid).returncode == 0
