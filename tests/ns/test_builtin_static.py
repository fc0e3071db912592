"""The built-in plugin static, alone and as the address manager of ptp and bridge."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from minit.base.errors import ManifestError, NetworkError
from minit.base.value import replace
from minit.network.addresses import parse_address
from minit.network.builtin.attachment import host_end
from minit.network.netlink.links import Links
from minit.network.protocol import Request, Result, write_result
from tests.support.builtins import call_builtin
from tests.support.networks import make_network, own_network, remove_network, within

REFERENCE = Path("/usr/lib/cni/static")
NOBODY = Request(container_id="pod", namespace="/nowhere", interface="eth0")
FIRST = {"address": "10.9.8.7/24", "gateway": "10.9.8.1"}
SECOND = {"address": "fd00:9::7/64", "gateway": "fd00:9::1"}
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "fd00:8::/48", "gw": "fd00:9::2"}]
DNS = {"nameservers": ["10.9.8.1", "fd00:9::1"], "domain": "d", "search": ["s"], "options": ["o"]}


def config(**more: Any) -> dict[str, Any]:
    """Return a configuration with both families; what is given replaces, or is added."""
    ipam = {"type": "static", "addresses": [FIRST, SECOND], "routes": ROUTES, "dns": DNS}
    return {"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "br-static", "ipam": ipam, **more}


def static(command: str, configuration: dict[str, Any], args: str = "", previous: Result | None = None) -> Result:
    """Make a request of the plugin, which needs no namespace."""
    return call_builtin(command, "static", configuration, replace(NOBODY, args=args), previous)


def addresses_of(result: Result) -> list[tuple[str, str | None]]:
    """Return the addresses with their gateways."""
    return [(str(one.address), None if one.gateway is None else str(one.gateway)) for one in result.addresses]


ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "configured": ("", {}),
    "arguments": ("IP=10.9.8.9/24,fd00:9::9/64;GATEWAY=10.9.8.254,fd00:9::fe", {}),
    "gateway": ("GATEWAY=10.9.8.254", {}),
    "elsewhere": ("GATEWAY=192.168.0.1", {}),
    "args": ("IP=10.9.8.9/24", {"args": {"cni": {"ips": ["10.9.8.20/24"]}}}),
    "no args": ("IP=10.9.8.9/24", {"args": {"cni": {"ips": []}}}),
    "runtime": ("", {"args": {"cni": {"ips": ["10.9.8.20/24"]}}, "runtimeConfig": {"ips": ["fd00:9::30/64"]}}),
    "nothing": ("", {"ipam": {"type": "static"}}),
    "an address as IPv6": ("", {"ipam": {"type": "static", "addresses": [{"address": "fd00::1/64", "gateway": ""}]}}),
}


def test_which_addresses_count() -> None:
    """Those of the runtime stand in for those of args, and these for all others; arguments add to the configuration."""
    found = {name: addresses_of(static("ADD", config(**more), args)) for name, (args, more) in ASKED.items()}
    configured = [("10.9.8.7/24", "10.9.8.1"), ("fd00:9::7/64", "fd00:9::1")]
    assert found == {
        "configured": configured,
        "arguments": [*configured, ("10.9.8.9/24", "10.9.8.254"), ("fd00:9::9/64", "fd00:9::fe")],
        "gateway": configured,
        "elsewhere": configured,
        "args": [("10.9.8.20/24", None)],
        "no args": [*configured, ("10.9.8.9/24", None)],
        "runtime": [("fd00:9::30/64", None)],
        "nothing": [],
        "an address as IPv6": [("fd00::1/64", None)],
    }


@pytest.mark.parametrize("args", [[{"cni": {"ips": ["10.9.8.20/24"]}}], {"cni": ["10.9.8.20/24"]}, "ips", 1, None])
def test_args_of_another_form(args: object) -> None:
    """Args that are no object ask for nothing, as for rkt's plugins, while the reference refuses them."""
    assert addresses_of(static("ADD", config(args=args))) == addresses_of(static("ADD", config()))


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs the reference plugins")
@pytest.mark.parametrize("name", list(ASKED))
def test_as_the_reference_plugin(name: str) -> None:
    """The result is that of the CNI's own plugin, field by field."""
    args, more = ASKED[name]
    environment = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "pod",
        "CNI_NETNS": "/nowhere",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(REFERENCE.parent),
        "CNI_ARGS": args,
    }
    text = json.dumps(config(**more))
    done = subprocess.run([REFERENCE], input=text, env=environment, capture_output=True, text=True)
    assert write_result(static("ADD", config(**more), args), "1.0.0") == json.loads(done.stdout)


@pytest.mark.parametrize(
    ("args", "more", "message"),
    [
        ("IP=10.9.8.9", {}, 'CNI_ARGS: IP: expected an IP address with the length of its prefix, got "10.9.8.9"'),
        ("X=y", {}, 'CNI_ARGS: "X=y": unknown; IgnoreUnknown=1 allows it'),
        ("", {"ipam": {"addresses": [{"address": "10.9.8.7"}]}}, "net.conf: ipam.addresses[0].address: expected an IP"),
        ("", {"ipam": {"addresses": [{}]}}, "net.conf: ipam.addresses[0].address: expected a string, got n"),
        ("", {"ipam": {"addresses": [{**FIRST, "gateway": "x"}]}}, "net.conf: ipam.addresses[0].gateway: expected an"),
        ("", {"args": {"cni": {"ips": ["x"]}}}, "net.conf: args.cni.ips[0]: expected an IP address with the length"),
        ("", {"runtimeConfig": {"ips": [1]}}, "net.conf: runtimeConfig.ips[0]: expected a string"),
        ("", {"ipam": None}, "net.conf: ipam: expected an object with addresses"),
        ("IP=10.9.8.9/24", {"cniVersion": "0.2.0"}, "net.conf: cniVersion: expected 0.3.0 or newer for two addresses"),
    ],
)
def test_what_is_wrong_is_named(args: str, more: dict[str, Any], message: str) -> None:
    """The line names the place and the expected value."""
    with pytest.raises((ManifestError, NetworkError)) as caught:
        static("ADD", config(**more), args)
    assert str(caught.value).startswith(message)


def test_check_compares_with_the_result() -> None:
    """An address that the result lacks is found, and one with another gateway."""
    result = static("ADD", config())
    static("CHECK", config(), previous=result)
    static("DEL", config())
    with pytest.raises(NetworkError, match="^CHECK needs the result of ADD$"):
        static("CHECK", config())
    without = replace(result, addresses=result.addresses[:1])
    with pytest.raises(NetworkError, match="^the result does not have the address fd00:9::7/64$"):
        static("CHECK", config(), previous=without)
    other = replace(result, addresses=(replace(result.addresses[0], gateway=parse_address("10.9.8.3")),))
    with pytest.raises(NetworkError, match="^the result has 10.9.8.7/24 with the gateway 10.9.8.3$"):
        static("CHECK", config(), previous=other)


@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_a_pod_with_fixed_addresses(tmp_path: Path, kind: str) -> None:
    """A pod gets both addresses, the host the gateways, and DEL removes the links; two pods may have the same."""
    namespace = make_network(tmp_path / "pod")
    try:
        with own_network():
            request = replace(NOBODY, namespace=namespace)
            wanted = config(type=kind, isGateway=True)
            result = call_builtin("ADD", kind, wanted, request)
            with Links() as host:
                gateways = host.addresses(host.get("br-static" if kind == "bridge" else host_end(request)))
            assert {"10.9.8.1", "fd00:9::1"} <= {str(one.ip) for one in gateways}
            present = within(namespace, lambda: Links().addresses(Links().get("eth0")))
            assert {one.address for one in result.addresses} <= set(present)
            call_builtin("CHECK", kind, wanted, request, result)
            call_builtin("DEL", kind, wanted, request)
            call_builtin("DEL", kind, wanted, request)
            with Links() as host:
                assert host.find(host_end(request)) is None
    finally:
        remove_network(namespace)
