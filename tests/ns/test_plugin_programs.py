"""The built-in plugins as programs of the stage1 image, called as another runtime calls them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.manifest.networkconfig import CNI_VERSIONS
from minit.podfiles import paths
from tests.support.cniplugin import calls, install_plugin
from tests.support.cniruntime import ID, NEWEST, Answer, Runtime, output
from tests.support.dhcpserver import BRIDGE, DhcpServer
from tests.support.networks import make_network, own_network, remove_network
from tests.support.unpack import unpack

REFERENCE = Path("/usr/lib/cni")
VALID = "cni.dev/valid-attachments"


@pytest.fixture
def runtime(stage1_tree: Path, tmp_path: Path) -> Iterator[Runtime]:
    """A machine and a container, in network namespaces of this test alone."""
    namespace = make_network(tmp_path / "netns")
    with own_network():
        yield Runtime(stage1_tree / "rootfs" / paths.PLUGINS, tmp_path, namespace)
    remove_network(namespace)


def test_every_plugin_is_a_link_in_the_image(stage1_tree: Path) -> None:
    """The directory of rkt's plugins has all that are built in, by links that hold wherever the image is."""
    root = stage1_tree / "rootfs"
    plugins = root / paths.PLUGINS
    assert sorted(path.name for path in plugins.iterdir()) == sorted(paths.BUILT_IN_PLUGINS)
    for path in plugins.iterdir():
        assert not os.readlink(path).startswith("/")
        assert path.resolve() == (root / "entrypoints" / paths.PLUGIN_ENTRYPOINT).resolve()


@pytest.mark.parametrize("name", paths.BUILT_IN_PLUGINS)
def test_every_plugin_tells_its_versions(runtime: Runtime, name: str) -> None:
    """VERSION needs neither variables nor standard input."""
    done = subprocess.run(
        [runtime.plugins / name], env={"CNI_COMMAND": "VERSION"}, stdin=subprocess.DEVNULL, capture_output=True
    )
    assert json.loads(done.stdout) == {"cniVersion": NEWEST, "supportedVersions": list(CNI_VERSIONS)}
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_the_life_of_an_attachment(runtime: Runtime, kind: str) -> None:
    """ADD, CHECK, DEL and DEL once more do what they say, and leave nothing but what pods share."""
    before = runtime.traces()
    config = runtime.config(kind, ipMasq=True, **({"bridge": "br-lan", "isGateway": True} if kind == "bridge" else {}))
    result = runtime.ask("ADD", config)
    assert result["cniVersion"] == NEWEST
    assert [address["address"] for address in result["ips"]] == ["10.78.0.2/24"]
    assert result["interfaces"][-1]["sandbox"] == runtime.namespace
    assert "10.78.0.2/24" in runtime.in_pod("ip", "-o", "address", "show", "eth0")
    assert runtime.leased() == ["10.78.0.2"]
    assert runtime.ask("CHECK", {**config, "prevResult": result}) == {}
    runtime.in_pod("ip", "address", "flush", "dev", "eth0")
    assert runtime.refused("CHECK", {**config, "prevResult": result})["code"] == 999
    assert runtime.ask("DEL", {**config, "prevResult": result}) == {}
    assert runtime.ask("DEL", config) == {}
    assert runtime.leased() == []
    if kind == "bridge":
        output("ip", "link", "delete", "br-lan")
    assert runtime.traces() == before


@pytest.mark.parametrize("version", CNI_VERSIONS)
def test_a_result_is_of_the_version_of_the_configuration(runtime: Runtime, version: str) -> None:
    """Before 0.3.0 it has an address of each family, until 1.0.0 families, and then lists alone."""
    config = runtime.config("ptp", cniVersion=version)
    result = runtime.ask("ADD", config)
    assert result["cniVersion"] == version
    if version < "0.3.0":
        assert result["ip4"]["ip"] == "10.78.0.2/24"
    else:
        assert result["ips"][0].get("version") == ("4" if version < "1.0.0" else None)
    runtime.ask("DEL", config)


def test_as_rkt_calls_a_plugin(runtime: Runtime) -> None:
    """A configuration without a version, and rkt's variable of its own, give a result of the oldest version."""
    config = {key: value for key, value in runtime.config("ptp").items() if key != "cniVersion"}
    result = runtime.ask("ADD", config, CNI_VERSION="0.1.0", CNI_PATH="stage1/rootfs/usr/lib/rkt/plugins/net")
    assert (result["cniVersion"], result["ip4"]["ip"]) == ("0.1.0", "10.78.0.2/24")
    runtime.ask("DEL", config, CNI_VERSION="0.1.0")


def test_a_container_that_is_gone(runtime: Runtime, tmp_path: Path) -> None:
    """DEL gives the lease back when the namespace is not there, is no namespace, or is not told."""
    (tmp_path / "file").touch()
    config = runtime.config("ptp", ipMasq=True)
    for namespace in (f"{tmp_path}/none", f"{tmp_path}/file", ""):
        runtime.ask("ADD", config)
        assert runtime.leased() != []
        assert runtime.ask("DEL", config, CNI_NETNS=namespace) == {}
        assert runtime.leased() == []


def test_a_result_that_is_broken(runtime: Runtime) -> None:
    """DEL does without it; CHECK names what is wrong with it."""
    config = runtime.config("ptp", ipMasq=True)
    before = runtime.traces()
    runtime.ask("ADD", config)
    config["prevResult"] = {"cniVersion": NEWEST, "ips": [{"address": "x"}]}
    answer = runtime.refused("CHECK", config)
    assert answer["code"] == 7
    assert answer["msg"].startswith("network configuration: prevResult: ips[0].address: expected")
    assert runtime.ask("DEL", config) == {}
    assert runtime.leased() == []
    assert runtime.traces() == before


def test_a_failed_add_leaves_nothing(runtime: Runtime) -> None:
    """ADD of an interface that exists is refused and undone."""
    runtime.in_pod("ip", "link", "add", "eth0", "type", "bridge")
    before = runtime.traces()
    answer = runtime.refused("ADD", runtime.config("ptp", ipMasq=True))
    assert (answer["cniVersion"], answer["code"]) == (NEWEST, 999)
    assert answer["msg"] == "interface eth0 exists already in the pod's network namespace"
    assert runtime.leased() == []
    assert runtime.traces() == before


def test_a_wrong_configuration_is_named(runtime: Runtime) -> None:
    """The error of a key has its place and the code of an invalid configuration."""
    answer = runtime.refused("ADD", runtime.config("ptp", mtu=-1))
    assert answer["code"] == 7
    assert "mtu: expected an integer from 0" in answer["msg"]


def test_the_network_of_the_host_itself(runtime: Runtime) -> None:
    """It is changed only if the variable says so that reference plugins have for it."""
    config = {"cniVersion": "1.0.0", "name": "lo", "type": "loopback"}
    own = f"/proc/{os.getpid()}/ns/net"
    output("ip", "link", "set", "lo", "down")
    assert runtime.refused("ADD", config, CNI_NETNS=own, CNI_IFNAME="lo")["code"] == 8
    assert "UP" not in output("ip", "-br", "link", "show", "lo").split("<")[1]
    runtime.ask("ADD", config, CNI_NETNS=own, CNI_IFNAME="lo", CNI_NETNS_OVERRIDE="1")
    assert "UP" in output("ip", "-br", "link", "show", "lo").split("<")[1]


def test_a_list_of_plugins(runtime: Runtime) -> None:
    """Each gets the result of the one before; DEL in reverse leaves nothing, nor does GC afterwards find anything."""
    before = runtime.traces()
    limits = {"egressRate": 8_000_000, "egressBurst": 800_000}
    chain = [
        runtime.config("ptp"),
        runtime.config("tuning", mac="02:00:5e:10:00:0f", mtu=1400, dataDir=str(runtime.directory / "tuning")),
        runtime.config("bandwidth", runtimeConfig={"bandwidth": limits}),
    ]
    result: Answer = {}
    for config in chain:
        result = runtime.ask("ADD", {**config, "prevResult": result} if result else config)
    assert [interface["name"][:3] for interface in result["interfaces"]] == ["vet", "eth", "bwp"]
    assert (result["interfaces"][1]["mac"], result["interfaces"][1]["mtu"]) == ("02:00:5e:10:00:0f", 1400)
    assert "02:00:5e:10:00:0f" in runtime.in_pod("ip", "link", "show", "eth0")
    for config in chain:
        assert runtime.ask("CHECK", {**config, "prevResult": result}) == {}
    for config in reversed(chain):
        assert runtime.ask("DEL", {**config, "prevResult": result}) == {}
    for config in chain:
        assert runtime.ask("GC", {**config, "cni.dev/valid-attachments": []}) == {}
    assert runtime.traces() == before
    assert runtime.leased() == []
    assert list((runtime.directory / "tuning").iterdir()) == []


def test_a_plugin_that_delegates_to_another(runtime: Runtime) -> None:
    """flannel finds the others of its image, and has them remove what they made."""
    before = runtime.traces()
    (runtime.directory / "subnet.env").write_text(
        "FLANNEL_NETWORK=10.78.0.0/16\nFLANNEL_SUBNET=10.78.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
    )
    config = runtime.config("flannel", subnetFile=str(runtime.directory / "subnet.env"), delegate={"type": "ptp"})
    config |= {"dataDir": str(runtime.directory / "flannel"), "ipam": {"dataDir": str(runtime.leases)}}
    assert runtime.ask("STATUS", config) == {}
    result = runtime.ask("ADD", config)
    assert [address["address"] for address in result["ips"]] == ["10.78.9.2/24"]
    assert runtime.ask("CHECK", {**config, "prevResult": result}) == {}
    assert runtime.ask("DEL", config) == {}
    assert runtime.traces() == before
    assert (runtime.leased(), list((runtime.directory / "flannel").iterdir())) == ([], [])
    (runtime.directory / "subnet.env").unlink()
    assert runtime.refused("STATUS", config)["code"] == 50


def test_a_lease_of_a_server(runtime: Runtime) -> None:
    """The process that keeps it outlives ADD, which nobody waits for longer because of that, and ends with DEL."""
    server = DhcpServer(runtime.directory)
    server.start()
    before = runtime.traces()
    config = {**runtime.config("bridge", bridge=BRIDGE), "ipam": {"type": "dhcp"}}
    result = runtime.ask("ADD", config)
    assert [address["address"] for address in result["ips"]] == ["192.0.2.20/24"]
    record = Path("/run/minit/dhcp/lan", f"{ID}:eth0")
    assert record.exists()
    assert runtime.ask("CHECK", {**config, "prevResult": result}) == {}
    assert runtime.ask("DEL", {**config, "prevResult": result}) == {}
    assert not record.exists()
    assert runtime.traces() == before
    result = runtime.ask("ADD", config)
    assert runtime.ask("GC", {**config, "cni.dev/valid-attachments": []}) == {}
    assert not record.exists()
    assert runtime.ask("DEL", config) == {}
    server.remove()


def test_by_a_link_from_elsewhere(runtime: Runtime, tmp_path: Path) -> None:
    """A link, or a chain of them, in the directory of a distribution is the plugin of its own name."""
    (tmp_path / "ptp").symlink_to(runtime.plugins / "ptp")
    (tmp_path / "loopback").symlink_to("ptp")
    assert runtime.ask("ADD", runtime.config("ptp"), tmp_path / "ptp")["ips"]
    assert runtime.ask("DEL", runtime.config("ptp"), tmp_path / "ptp") == {}
    # By its own path, whatever the caller puts in the place of its name.
    done = subprocess.run(["bridge"], executable=tmp_path / "loopback", capture_output=True, env={})
    assert json.loads(done.stdout)["msg"] == "required env variables [CNI_COMMAND] missing"
    result = runtime.ask("ADD", {"name": "lo", "cniVersion": "1.0.0"}, tmp_path / "loopback", CNI_IFNAME="lo")
    assert result["interfaces"][0]["name"] == "lo"


@pytest.mark.parametrize("name", ["calico", "cni", "..;x", "Bridge", " ptp"])
def test_a_name_that_is_no_plugin(runtime: Runtime, tmp_path: Path, name: str) -> None:
    """The error names it, and the plugins there are."""
    (tmp_path / name).symlink_to(runtime.plugins / "ptp")
    answer = runtime.refused("ADD", runtime.config("ptp"), tmp_path / name)
    assert (answer["code"], answer["msg"]) == (999, f'there is no built-in plugin "{name}"')


def test_the_entrypoint_itself_is_no_plugin(runtime: Runtime) -> None:
    """It is called by the name of one only."""
    answer = runtime.refused("ADD", {}, runtime.plugins.resolve() / "../../../../../entrypoints/cni")
    assert answer["msg"] == 'there is no built-in plugin "cni"'


def test_standard_streams_that_are_closed(runtime: Runtime) -> None:
    """Without input the request is refused; without output it fails, since nobody gets the result."""
    command = f"exec {runtime.plugins / 'loopback'}"
    variables = {"CNI_CONTAINERID": ID, "CNI_NETNS": runtime.namespace, "CNI_IFNAME": "lo", "CNI_COMMAND": "ADD"}
    done = subprocess.run(["sh", "-c", f"{command} <&-"], env=variables, capture_output=True, text=True)
    assert json.loads(done.stdout)["code"] == 6
    text = json.dumps({"name": "lo"})
    done = subprocess.run(
        ["sh", "-c", f"{command} >/dev/full"], input=text, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr == "loopback: cannot answer: no space left on device\n"


@pytest.mark.parametrize("kind", ["ptp", "bridge"])
def test_attachments_that_are_no_more_are_collected(runtime: Runtime, kind: str, tmp_path: Path) -> None:
    """GC removes leases and rules of one network, but for those of the attachments that the runtime names."""
    config, other = (runtime.config(kind, ipMasq=True, name=name) for name in ("lan", "other"))
    other["ipam"]["subnet"] = "10.79.0.0/24"
    for container, network in (("gone", config), ("kept", config), ("others", other)):
        namespace = make_network(tmp_path / container)
        runtime.ask("ADD", network, CNI_CONTAINERID=container, CNI_NETNS=namespace)
        if container == "gone":
            remove_network(namespace)
    # The oldest plugins wrote no interface.
    (runtime.leases / "lan/10.78.0.77").write_text("ancient")
    (runtime.leases / "lan/10.78.0.78").write_text("kept")
    valid = [{"containerID": "kept", "ifname": "eth0"}, {"containerID": "gone", "ifname": "eth1"}]
    assert runtime.ask("GC", {**config, VALID: valid}, CNI_CONTAINERID="", CNI_NETNS="", CNI_IFNAME="") == {}
    assert runtime.leased() == ["10.78.0.3", "10.78.0.78"]
    assert (runtime.leases / "lan/last_reserved_ip.0").exists()
    rules = output("nft", "list", "ruleset")
    assert [name in rules for name in ("minit-gone-eth0", "minit-kept-eth0", "minit-others-eth0")] == [
        False,
        True,
        True,
    ]
    assert runtime.ask("GC", {**config, VALID: valid}) == {}
    # What is still there is deleted as ever.
    for container, network in (("kept", config), ("others", other), ("gone", config)):
        namespace = str(tmp_path / container)
        runtime.ask("DEL", network, CNI_CONTAINERID=container, CNI_NETNS=namespace)
        if container != "gone":
            remove_network(namespace)
    assert "minit-" not in output("nft", "list", "ruleset")


def test_collecting_without_a_list(runtime: Runtime) -> None:
    """GC without the attachments that there are is refused, and nothing is removed."""
    config = runtime.config("ptp")
    runtime.ask("ADD", config)
    answer = runtime.refused("GC", config)
    assert answer["code"] == 7
    assert answer["msg"] == 'network configuration: ["cni.dev/valid-attachments"]: expected a list, got nothing'
    assert runtime.leased() == ["10.78.0.2"]
    runtime.ask("DEL", config)


def test_a_collection_goes_on_after_a_failure(runtime: Runtime, tmp_path: Path) -> None:
    """Rules go although the address manager fails, whose error is the answer."""
    install_plugin(tmp_path / "others", "stub")
    config = runtime.config("ptp", ipMasq=True, record=str(tmp_path / "record"))
    runtime.ask("ADD", config)
    error = {"code": 11, "msg": "the server is busy"}
    failing = {**config, "ipam": {"type": "stub"}, "GC": {"print": error, "exit": 1}, VALID: []}
    answer = runtime.refused("GC", failing, CNI_PATH=f"{tmp_path}/others")
    assert answer == {"cniVersion": NEWEST, **error}
    assert "minit-" not in output("nft", "list", "ruleset")
    [call] = calls(tmp_path / "record")
    assert (call["environment"]["CNI_COMMAND"], json.loads(call["stdin"])) == ("GC", failing)
    runtime.ask("DEL", config)


def test_the_status_of_a_network_without_addresses(runtime: Runtime) -> None:
    """STATUS is answered with code 50 when no address is left, also by the plugin in front, else by nothing."""
    config = runtime.config("ptp")
    config["ipam"]["subnet"] = "10.78.0.0/30"
    assert runtime.ask("STATUS", config, CNI_CONTAINERID="", CNI_NETNS="", CNI_IFNAME="") == {}
    runtime.ask("ADD", config)
    for program in ("ptp", "host-local"):
        answer = runtime.refused("STATUS", config, runtime.plugins / program)
        assert (answer["code"], answer["msg"].partition(":")[0]) == (50, 'no IP addresses available in network "lan"')
    runtime.ask("DEL", config)
    assert runtime.ask("STATUS", config) == {}
    assert runtime.ask("STATUS", {**config, "type": "loopback"}) == {}
    config["ipam"]["subnet"] = "10.78.0.0"
    assert runtime.refused("STATUS", config)["code"] == 7


@pytest.mark.skipif(not (REFERENCE / "ptp").exists(), reason="containernetworking-plugins is not installed")
@pytest.mark.parametrize(
    ("command", "config", "variables"),
    [
        ("ADD", {}, {"CNI_NETNS": "", "CNI_IFNAME": ""}),
        ("CHECK", {}, {"CNI_CONTAINERID": "", "CNI_NETNS": ""}),
        ("DEL", {}, {"CNI_CONTAINERID": "", "CNI_NETNS": "", "CNI_IFNAME": ""}),
        ("PING", {}, {}),
        ("ADD", {}, {"CNI_CONTAINERID": "a/b"}),
        ("DEL", {}, {"CNI_IFNAME": "sixteen-letters-"}),
        ("ADD", {}, {"CNI_IFNAME": ".."}),
        ("ADD", {}, {"CNI_IFNAME": "a:b"}),
        ("ADD", {"cniVersion": "0.9.0"}, {}),
        ("ADD", {"cniVersion": "1.0.0", "name": ""}, {}),
        ("ADD", {"cniVersion": "1.0.0", "name": "a b"}, {}),
        ("CHECK", {"cniVersion": "0.3.1"}, {}),
        ("ADD", {"cniVersion": "1.0.0", "ipam": {"type": "none"}}, {}),
        ("ADD", [], {}),
    ],
)
def test_errors_are_those_of_the_reference_plugins(
    runtime: Runtime, command: str, config: Answer, variables: dict[str, str]
) -> None:
    """A request against the protocol gets the same code as from the reference ptp, and mostly the same words."""
    request = {"name": "lan", "type": "ptp", "ipam": {}, **config} if isinstance(config, dict) else config
    ours = runtime.refused(command, request, runtime.plugins / "ptp", **variables)
    theirs = json.loads(runtime.run(command, request, REFERENCE / "ptp", **variables).stdout)
    assert ours["code"] == theirs["code"]
    if theirs["code"] not in (6, 999):
        assert ours["msg"] == theirs["msg"]


@pytest.mark.skipif(not (REFERENCE / "bridge").exists(), reason="containernetworking-plugins is not installed")
@pytest.mark.parametrize("version", CNI_VERSIONS[:-1])
def test_a_plugin_of_somebody_else_delegates_to_ours(runtime: Runtime, version: str) -> None:
    """The reference bridge takes its address of the built-in host-local in each version, and gives it back."""
    config = runtime.config("bridge", cniVersion=version, bridge="br-lan", isGateway=True)
    result = runtime.ask("ADD", config, REFERENCE / "bridge", CNI_ARGS="IP=10.78.0.9;IgnoreUnknown=1")
    assert runtime.leased() == ["10.78.0.9"]
    assert "10.78.0.9/24" in json.dumps(result)
    if version >= "0.4.0":
        assert runtime.ask("CHECK", {**config, "prevResult": result}, REFERENCE / "bridge") == {}
    assert runtime.ask("DEL", config, REFERENCE / "bridge") == {}
    assert runtime.leased() == []


def test_ours_delegate_to_a_plugin_of_somebody_else(runtime: Runtime, tmp_path: Path) -> None:
    """An address manager out of CNI_PATH gets the configuration and the variables of the one that calls it."""
    install_plugin(tmp_path / "others", "stub")
    written = {"cniVersion": "1.0.0", "ips": [{"address": "10.78.1.7/24", "gateway": "10.78.1.1"}]}
    config = {"cniVersion": "1.0.0", "name": "lan", "type": "ptp", "ipam": {"type": "stub"}}
    config |= {"record": str(tmp_path / "record"), "ADD": {"print": written}}
    path = f"{tmp_path}/others:{runtime.plugins}"
    result = runtime.ask("ADD", config, CNI_PATH=path, CNI_ARGS="IP=10.78.1.7")
    assert [address["address"] for address in result["ips"]] == ["10.78.1.7/24"]
    assert runtime.ask("CHECK", {**config, "prevResult": result}, CNI_PATH=path) == {}
    assert runtime.ask("DEL", {**config, "prevResult": result}, CNI_PATH=path) == {}
    made = calls(tmp_path / "record")
    assert [call["environment"]["CNI_COMMAND"] for call in made] == ["ADD", "CHECK", "DEL"]
    for call in made:
        assert call["descriptors"] == ["0", "1", "2", "3"]  # the last is the listing's own
        given = json.loads(call["stdin"])
        assert given.pop("prevResult", None) == (None if call is made[0] else result)
        assert given == config
        variables = {name: value for name, value in call["environment"].items() if name != "CNI_COMMAND"}
        assert variables == {
            "CNI_CONTAINERID": ID,
            "CNI_NETNS": runtime.namespace,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": path,
            "CNI_ARGS": "IP=10.78.1.7;IgnoreUnknown=1" if call is made[0] else "",
            "LC_ALL": "C",
        }


def test_a_plugin_of_that_name_that_is_found_first(runtime: Runtime, tmp_path: Path) -> None:
    """Of two plugins of one name the first in CNI_PATH is asked, ours or not; ours, too, if there is none."""
    install_plugin(tmp_path / "others", "host-local")
    written = {"ips": [{"address": "10.78.1.7/24", "gateway": "10.78.1.1"}]}
    config = runtime.config("ptp", record=str(tmp_path / "record"), ADD={"print": written})
    for path, address in (
        (f"{tmp_path}/others:{runtime.plugins}", "10.78.1.7/24"),
        (f"{runtime.plugins}:{tmp_path}/others", "10.78.0.2/24"),
        (f"{tmp_path}/none", "10.78.0.3/24"),
        ("", "10.78.0.4/24"),
    ):
        assert runtime.ask("ADD", config, CNI_PATH=path)["ips"][0]["address"] == address
        runtime.ask("DEL", config, CNI_PATH=path)
    assert len(calls(tmp_path / "record")) == 2


def test_the_error_of_a_plugin_that_was_delegated_to(runtime: Runtime, tmp_path: Path) -> None:
    """It keeps its code, message and details, and nothing is left of the attachment."""
    install_plugin(tmp_path / "others", "stub")
    error = {"cniVersion": "1.0.0", "code": 11, "msg": "the server is busy", "details": "try in a minute"}
    config = runtime.config("bridge", record=str(tmp_path / "record"), ADD={"print": error, "exit": 1})
    before = runtime.traces()
    config["ipam"] = {"type": "stub"}
    answer = runtime.refused("ADD", config, CNI_PATH=f"{tmp_path}/others")
    assert answer == {**error, "cniVersion": NEWEST}
    assert runtime.traces() == before
    config["ipam"] = {"type": "none"}
    assert runtime.refused("ADD", config)["msg"] == 'Could not find plugin "none"'


def test_an_image_that_is_not_dumped(plain_stage1_image: Path, tmp_path: Path, runtime: Runtime) -> None:
    """Its plugins know their names, too, and do the same."""
    unpack(plain_stage1_image, tmp_path / "a place")
    plain = tmp_path / "a place/rootfs" / paths.PLUGINS
    (tmp_path / "ptp").symlink_to(plain / "ptp")
    config = runtime.config("ptp")
    assert runtime.ask("ADD", config, tmp_path / "ptp")["ips"]
    assert runtime.ask("DEL", config, plain / "ptp") == {}
    (tmp_path / "host-less").symlink_to(plain / "ptp")
    assert runtime.refused("ADD", config, tmp_path / "host-less")["msg"] == 'there is no built-in plugin "host-less"'
    shutil.rmtree(tmp_path / "a place")
