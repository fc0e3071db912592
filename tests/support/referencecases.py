"""
The configurations by which the built-in plugins are compared with the reference plugins of the CNI.

DELIBERATE has all that is not the same, each with its reason.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from minit.base.value import Value
from tests.support.comparison import MASTER_MAC, Case, Facts

REFERENCE = Path("/usr/lib/cni")

DNS = {"nameservers": ["10.5.0.1", "fd00:5::1"], "domain": "d", "search": ["s"], "options": ["o"]}
DEFAULT = [{"dst": "0.0.0.0/0"}]
BOTH_DEFAULT = [*DEFAULT, {"dst": "::/0"}]
IPV4 = {"type": "host-local", "subnet": "10.9.0.0/24", "routes": DEFAULT}
IPV6 = {"type": "host-local", "ranges": [[{"subnet": "fd00:9::/64"}]], "routes": [{"dst": "::/0"}]}
BOTH = {
    "type": "host-local",
    "ranges": [[{"subnet": "10.9.0.0/24", "gateway": "10.9.0.254"}], [{"subnet": "fd00:9::/64"}]],
    "routes": [*BOTH_DEFAULT, {"dst": "10.8.0.0/16", "gw": "10.9.0.77"}, {"dst": "fd00:8::/48", "gw": "fd00:9::77"}],
}
STATIC = {
    "type": "static",
    "addresses": [
        {"address": "10.9.0.7/24", "gateway": "10.9.0.1"},
        {"address": "fd00:9::7/64", "gateway": "fd00:9::1"},
    ],
    "routes": [*BOTH_DEFAULT, {"dst": "10.8.0.0/16", "gw": "10.9.0.77"}],
    "dns": DNS,
}
BARE = {"type": "static", "addresses": [{"address": "10.9.0.7/24"}, {"address": "fd00:9::7/64"}]}
MANAGERS: dict[str, Facts] = {"IPv4": IPV4, "IPv6": IPV6, "both families": BOTH, "static": STATIC}
VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")


class Difference(Value):
    """Something that is not the same on purpose: a pattern for its name, both values in patterns, and the reason."""

    reason: str
    fact: str
    theirs: str = ".*"
    ours: str = ".*"
    stages: str = ".*"
    cases: str = ".*"

    def explains(self, case: Case, stage: str, fact: str, values: tuple[Any, Any]) -> bool:
        """Tell whether this is the reason of a difference."""
        theirs, ours = (json.dumps(value) for value in values)
        pairs = ((self.stages, stage), (self.fact, fact), (self.theirs, theirs), (self.ours, ours))
        return all(re.fullmatch(pattern, text) for pattern, text in (*pairs, (self.cases, case.name)))


NEWER = "the reference plugins do so too, in later versions"

DELIBERATE = (
    Difference(
        reason="no router advertisement is followed that the network does not ask for",
        fact="pod sysctl ipv6/conf/eth0/accept_ra",
        theirs='"1"',
        ours='"0"',
    ),
    Difference(
        reason="a host that follows them goes on to when it forwards",
        fact="host sysctl ipv6/conf/up0/accept_ra",
        theirs='"1"',
        ours='"2"',
    ),
    Difference(
        reason="the neighbours learn at once who has an address now",
        fact="pod sysctl ipv(4/conf/eth0/arp_notify|6/conf/eth0/ndisc_notify)",
        theirs='"0"',
        ours='"1"',
    ),
    Difference(
        reason="a queue for each processor would be given up again, with a wait for all processors",
        fact="(host link vethN|pod link eth0) num_(rx|tx)_queues",
        theirs="[0-9]+",
        ours="1",
    ),
    Difference(
        reason="an address that is leased to the pod can be used at once where all neighbours have leases",
        fact="(pod address eth0|host address (br9|cni0|vethN)) .*: nodad".replace(":", ""),
        theirs="null",
        ours="true",
    ),
    Difference(reason=NEWER, fact="pod sysctl ipv6/conf/eth0/keep_addr_on_down", theirs='"0"', ours='"1"'),
    Difference(reason=NEWER, fact="(pod link eth0|host link vethN) txqlen", theirs="null", ours="1000"),
    Difference(
        reason="a bridge has a hardware address of its own from the beginning, not that of a port that may go",
        fact="host link (br9|cni0) (address|linkinfo info_data bridge_id|linkinfo info_data root_id)",
        stages="deleted|again",
    ),
    Difference(
        reason="DEL once more is no error (CNI)", fact="answer DEL.0 code", theirs="1", ours="0", stages="again"
    ),
    Difference(
        reason="DEL of what ADD has refused is no error (CNI)",
        fact="answer DEL.0 code",
        theirs="1",
        ours="0",
        stages="deleted",
    ),
    Difference(reason=NEWER, fact="answer ADD.0 result dns.*", cases="bridge.* (with|of) static"),
    Difference(
        reason=NEWER, fact="answer CHECK.1 code", theirs="2", ours="0", cases="ptp and bandwidth without a limit"
    ),
    Difference(reason=NEWER, fact="host link up0 ifalias", theirs='"up0"', ours="null", stages="deleted|again"),
    Difference(
        reason="what has no address manager can be checked without one",
        fact="answer CHECK.0 code",
        theirs="1",
        ours="0",
        cases="bridge without addresses",
    ),
    Difference(
        reason="a link below that ADD has found by itself need not be told to CHECK",
        fact="answer CHECK.0 code",
        theirs="1",
        ours="0",
        cases="ipvlan with the addresses of the plugin before",
    ),
    Difference(
        reason="the specification wants the family of an address before 1.0.0",
        fact="answer ADD.0 result ips . version",
        theirs="null",
        cases="loopback of 0.4.0",
    ),
    Difference(
        reason="what loopback itself has returned is a result that it can be checked by",
        fact="answer CHECK.0 code",
        theirs="1",
        ours="0",
        cases="loopback.*",
    ),
)

_BEFORE = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "up0", "mac": MASTER_MAC}],
    "ips": [{"address": "10.9.0.8/24", "gateway": "10.9.0.1"}, {"address": "fd00:9::8/64", "gateway": "fd00:9::1"}],
    "routes": BOTH_DEFAULT,
}
"""The result of a plugin before, with one interface."""

REFUSED = {"bridge as default gateway that is a route as well": "the same route twice is one route"}
"""The cases that the reference plugins refuse, and the reasons to accept them."""


_TUNING: Facts = {"type": "tuning", "dataDir": "/run/tuning"}
_BANDWIDTH: Facts = {"type": "bandwidth"}
_INGRESS = {"ingressRate": 8_000_000, "ingressBurst": 800_000}
_EGRESS = {"egressRate": 8_000_000, "egressBurst": 800_000}
_RANGES = [
    [{"subnet": "10.9.0.0/24", "rangeStart": "10.9.0.30", "rangeEnd": "10.9.0.40"}, {"subnet": "10.10.0.0/30"}],
    [{"subnet": "fd00:9::/120", "gateway": "fd00:9::99"}],
]
_SYSCTL = {"net.core.somaxconn": "9", "net.ipv4.conf.eth0.arp_ignore": "1"}


def is_understood(case: Case) -> None:
    """Skip a test of what the installed reference plugins do not have."""
    environment = {"CNI_COMMAND": "VERSION"}
    done = subprocess.run(
        [REFERENCE / case.chain[0]["type"]], env=environment, input="{}", text=True, capture_output=True
    )
    if case.version not in json.loads(done.stdout)["supportedVersions"]:
        pytest.skip("the reference plugins that are installed are older")


def _ptp(**more: Any) -> Facts:
    return {"type": "ptp", "ipam": BOTH, **more}


def _bridge(**more: Any) -> Facts:
    return {"type": "bridge", "bridge": "br9", "ipam": BOTH, **more}


def _default(ipam: Facts) -> Facts:
    routes = [route for route in ipam["routes"] if route not in BOTH_DEFAULT]
    return _bridge(isDefaultGateway=True, ipam={**ipam, "routes": routes})


def _macvlan(**more: Any) -> Facts:
    return {"type": "macvlan", "master": "up0", "ipam": BOTH, **more}


def _host_device(**more: Any) -> Facts:
    return {"type": "host-device", "device": "up0", "ipam": BOTH, **more}


def _ipvlan(**more: Any) -> Facts:
    return {"type": "ipvlan", "master": "up0", "ipam": BOTH, **more}


def _vlan(**more: Any) -> Facts:
    return {"type": "vlan", "master": "up0", "vlanId": 7, "ipam": BOTH, **more}


def _one(name: str, plugin: Facts, **more: Any) -> Case:
    return Case(name=name, chain=(plugin,), **more)


def _managed(name: str, plugin: Facts) -> list[Case]:
    return [_one(f"{name} with {kind}", {**plugin, "ipam": ipam}) for kind, ipam in MANAGERS.items()]


CASES = (
    *_managed("ptp", _ptp()),
    *(_one(f"ptp of {version}", _ptp(), version=version) for version in VERSIONS),
    _one("ptp with dns", _ptp(dns=DNS)),
    _one("ptp with dns of both", _ptp(dns={"domain": "e"}, ipam=STATIC)),
    _one("ptp with mtu", _ptp(mtu=1400)),
    _one("ptp with ipMasq", _ptp(ipMasq=True)),
    *_managed("bridge", _bridge()),
    *_managed("bridge as gateway", _bridge(isGateway=True)),
    *(_one(f"bridge as default gateway of {kind}", _default(ipam)) for kind, ipam in MANAGERS.items()),
    _one("bridge as default gateway that is a route as well", _bridge(isDefaultGateway=True)),
    _one("bridge as gateway without gateways", _bridge(isGateway=True, ipam=BARE)),
    _one("bridge without gateways", _bridge(ipam=BARE)),
    *(_one(f"bridge of {version}", _bridge(isGateway=True), version=version) for version in VERSIONS),
    _one("bridge without addresses", _bridge(ipam={})),
    _one("bridge with ipMasq", _bridge(isGateway=True, ipMasq=True)),
    _one("bridge with mtu", _bridge(mtu=1400)),
    _one("bridge with hairpin", _bridge(hairpinMode=True)),
    _one("bridge that is promiscuous", _bridge(promiscMode=True)),
    _one("bridge with dns", _bridge(dns=DNS)),
    _one("bridge with detection of duplicates", _bridge(enabledad=True)),
    _one("bridge with a hardware address", _bridge(runtimeConfig={"mac": "02:00:00:00:09:09"})),
    _one("bridge by its default name", {"type": "bridge", "ipam": IPV4}),
    _one("bridge that is there", _bridge(isGateway=True), before=("ip link add br9 type bridge",)),
    _one(
        "bridge with another address",
        _bridge(isGateway=True, forceAddress=True),
        before=("ip link add br9 type bridge", "ip address add 10.7.0.1/24 dev br9"),
    ),
    _one(
        "bridge with another address that stays",
        _bridge(isGateway=True),
        before=("ip link add br9 type bridge", "ip address add 10.7.0.1/24 dev br9"),
    ),
    *_managed("macvlan", _macvlan()),
    *(_one(f"macvlan of {version}", _macvlan(), version=version) for version in VERSIONS),
    *(_one(f"macvlan in mode {mode}", _macvlan(mode=mode)) for mode in ("private", "vepa", "passthru", "bridge")),
    _one("macvlan without addresses", _macvlan(ipam={}, dns=DNS)),
    _one("macvlan without gateways", _macvlan(ipam=BARE)),
    _one("macvlan with mtu", _macvlan(mtu=1400)),
    _one("macvlan with too large an mtu", _macvlan(mtu=9000)),
    _one("macvlan with mac", _macvlan(mac="02:00:00:00:09:01")),
    _one("macvlan with mac of the capability", _macvlan(runtimeConfig={"mac": "02:00:00:00:09:02"})),
    _one("macvlan with mac of the arguments", _macvlan(), args="IgnoreUnknown=1;MAC=02:00:00:00:09:03"),
    _one("macvlan without master", _macvlan(master="")),
    _one("macvlan with dns", _macvlan(dns=DNS, ipam=STATIC)),
    *_managed("host-device", _host_device()),
    _one("host-device without addresses", _host_device(ipam={}, dns=DNS)),
    _one("host-device by hardware address", _host_device(device="", hwaddr=MASTER_MAC)),
    _one("host-device by its place", _host_device(device="", kernelpath="/sys/devices/virtual")),
    _one("host-device that is not there", _host_device(device="none")),
    *(_one(f"addresses of {kind} alone", {"type": ipam["type"], "ipam": ipam}) for kind, ipam in MANAGERS.items()),
    *(_one(f"host-local of {version}", {"type": "host-local", "ipam": BOTH}, version=version) for version in VERSIONS),
    _one("host-local with an address", {"type": "host-local", "ipam": IPV4}, args="IP=10.9.0.77"),
    _one("host-local with an address of others", {"type": "host-local", "ipam": IPV4}, args="IP=10.99.0.77"),
    _one("host-local with the hosts names", {"type": "host-local", "ipam": {**IPV4, "resolvConf": "/etc/resolv.conf"}}),
    _one("host-local with ranges", {"type": "host-local", "ipam": {"type": "host-local", "ranges": _RANGES}}),
    _one(
        "static with addresses", {"type": "static", "ipam": {"type": "static"}}, args="IP=10.9.0.5/24;GATEWAY=10.9.0.1"
    ),
    _one("loopback", {"type": "loopback"}, interface="lo"),
    _one("loopback of 0.4.0", {"type": "loopback"}, version="0.4.0", interface="lo"),
    Case(
        name="bridge and tuning",
        chain=(_bridge(), {"type": "tuning", "mtu": 1300, "sysctl": {"net.core.somaxconn": "9"}}),
    ),
    Case(
        name="bridge and tuning of the link",
        chain=(_bridge(), {**_TUNING, "mac": "02:00:00:00:09:04", "mtu": 1300, "promisc": True, "allmulti": True}),
    ),
    Case(
        name="ptp and tuning with mac of the arguments",
        chain=(_ptp(), {**_TUNING, "mac": "02:00:00:00:09:04"}),
        args="IgnoreUnknown=1;MAC=02:00:00:00:09:05",
    ),
    Case(name="bridge and bandwidth", chain=(_bridge(), {**_BANDWIDTH, **_INGRESS, **_EGRESS})),
    Case(
        name="ptp and bandwidth of the capability",
        chain=(_ptp(), {**_BANDWIDTH, "runtimeConfig": {"bandwidth": _EGRESS}}),
    ),
    Case(name="ptp and bandwidth without a limit", chain=(_ptp(), _BANDWIDTH)),
)

# Of kinds of links that many a kernel has as a module only, or not at all. A machine takes its time for each.
CASES_OF_MODULES = (
    _one("ipvlan with both families", _ipvlan(dns=DNS)),
    _one("ipvlan in mode l3", _ipvlan(mode="l3", master="", ipam=STATIC), version="0.3.1"),
    _one("ipvlan in mode l3s", _ipvlan(mode="l3s", mtu=1400, ipam=BARE), version="0.4.0"),
    _one("ipvlan with the addresses of the plugin before", _ipvlan(master="", ipam={}), previous=_BEFORE),
    _one("vlan with both families", _vlan(dns=DNS)),
    _one("vlan with mtu", _vlan(mtu=1400, vlanId=4094, ipam=STATIC), version="0.4.0"),
    _one("vlan without master", _vlan(master="")),
)

DUMMY = _one("dummy", {"type": "dummy", "ipam": BOTH, "dns": DNS})
"""Debian's reference plugins have none."""
