"""minit.plan.networks.ports: which ports of the host lead to which ports of the pod."""

from __future__ import annotations

from ipaddress import ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import PlanError
from minit.manifest.app import App, Port
from minit.manifest.hostports import overlap
from minit.manifest.pod import ExposedPort, PodManifest, RuntimeApp
from minit.network.packetfilter.portuse import parse_port_comment, port_comment
from minit.plan.life.sockets import plan_sockets
from minit.plan.networks.networkplan import ForwardedPort, NetworkPlan
from minit.plan.networks.ports import plan_ports

HTTP = Port(name="http", protocol="tcp", port=80)
HTTPS = Port(name="https", protocol="tcp", port=443)
DNS = Port(name="dns", protocol="udp", port=53)
SCTP = Port(name="sctp", protocol="sctp", port=36412)


def section(*ports: Port) -> App:
    """Return an app with some ports."""
    return App(exec=("/x",), user="0", group="0", ports=ports)


SECTIONS = {"web": section(HTTP, HTTPS, SCTP), "names": section(DNS), "bare": section()}


def plan(*ports: ExposedPort, sections: dict[str, App] = SECTIONS) -> tuple[ForwardedPort, ...]:
    """Return the forwarded ports of a pod."""
    apps = tuple(RuntimeApp(name=name, app=app) for name, app in sections.items())
    return plan_ports(PodManifest(ac_version="1.30.0", apps=apps, ports=ports), sections)


def want(name: str, port: int, address: str | None = None, pod_port: Port | None = None) -> ExposedPort:
    """Return a port of the host."""
    return ExposedPort(name=name, host_port=port, host_ip=address, pod_port=pod_port)


def forwarded(
    protocol: str, host_port: int, pod_port: int, host_ip: str | None = None, count: int = 1
) -> ForwardedPort:
    """Return a planned port."""
    address = None if host_ip is None else ip_address(host_ip)
    return ForwardedPort(protocol=protocol, host_port=host_port, pod_port=pod_port, host_ip=address, count=count)


def test_no_ports() -> None:
    """A pod that asks for none gets none."""
    assert plan() == ()


def test_ports_by_name() -> None:
    """A port leads to the port of that name of whichever app has it, in the manifest's order."""
    assert plan(want("dns", 5353), want("http", 8080), want("https", 8443)) == (
        forwarded("udp", 5353, 53),
        forwarded("tcp", 8080, 80),
        forwarded("tcp", 8443, 443),
    )


def test_ports_that_apps_have_on_the_host() -> None:
    """They are taken out of the plan, by protocol and number."""
    ports = (forwarded("tcp", 53, 53), forwarded("udp", 53, 53))
    assert NetworkPlan(ports=ports).without_ports([("udp", 53), ("tcp", 80)]).ports == ports[:1]


def test_a_port_that_says_where_it_leads() -> None:
    """No app needs to know of a port with a pod port, and one that does has no say."""
    target = Port(name="other", protocol="udp", port=9)
    assert plan(want("unknown", 1, None, target), want("http", 2, None, target)) == (
        forwarded("udp", 1, 9),
        forwarded("udp", 2, 9),
    )


RANGE = Port(name="range", protocol="tcp", port=7, count=9)


def test_a_range() -> None:
    """All ports of an app's range are forwarded."""
    assert plan(want("range", 100), sections={"a": section(RANGE)}) == (forwarded("tcp", 100, 7, count=9),)
    assert plan(want("range", 65527), sections={"a": section(RANGE)}) == (forwarded("tcp", 65527, 7, count=9),)


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ([want("range", 65528)], 'pod: ports[0]: port "range" is 9 ports: the host has not so many from 65528 on'),
        ([want("range", 100), want("http", 108)], "port tcp-0.0.0.0:108 already mapped to pod port 7"),
        ([want("http", 100), want("range", 92)], "port tcp-0.0.0.0:92-100 already mapped to pod port 80"),
        ([want("range", 1, "::1"), want("range", 9)], "port tcp-0.0.0.0:9-17 already mapped to pod port 7"),
        ([want("range", 1), want("range", 9, "::1")], "port tcp-[::1]:9-17 already mapped to pod port 7"),
    ],
)
def test_ranges_that_cannot_be(ports: list[ExposedPort], message: str) -> None:
    """A range that overlaps another port, or has more ports than there are, is refused."""
    with pytest.raises(PlanError) as caught:
        plan(*ports, sections={"a": section(RANGE, HTTP)})
    assert str(caught.value) == message


def test_ports_that_only_root_may_have() -> None:
    """A port below the caller's lowest is refused with that number, unless a service manager has opened the port."""
    opened = Port(name="http", protocol="tcp", port=80, socket_activated=True)
    manifest = PodManifest(ac_version="1.30.0", apps=(), ports=(want("range", 1016), want("dns", 1024)))
    sections = {"a": section(RANGE, DNS)}
    with pytest.raises(PlanError) as caught:
        plan_ports(manifest, sections, 1024)
    assert str(caught.value) == (
        "pod: ports[0]: tcp port 1016 of the machine: users may have ports from 1024 on"
        " (net.ipv4.ip_unprivileged_port_start)"
    )
    assert len(plan_ports(manifest, sections, 1016)) == 2
    manifest = PodManifest(ac_version="1.30.0", apps=(), ports=(want("http", 80),))
    assert plan_ports(manifest, {"a": section(opened)}, 1024) == (forwarded("tcp", 80, 80),)


def test_ranges_side_by_side() -> None:
    """They do not overlap."""
    ports = (want("range", 100), want("http", 99), want("range", 109))
    assert len(plan(*ports, sections={"a": section(RANGE, HTTP)})) == 3


def test_a_socket_activated_port() -> None:
    """It leads to the one socket that the app is started with, whose number is that of the host's first port for it."""
    port = Port(name="http", protocol="tcp", port=80, socket_activated=True, count=3)
    sections = {"web": section(port)}
    manifest = PodManifest(
        ac_version="1.30.0",
        apps=(RuntimeApp(name="web", app=sections["web"]),),
        ports=(want("http", 8080), want("http", 8081), want("http", 8082, None, port)),
    )
    planned = plan_ports(manifest, sections)
    assert planned == (forwarded("tcp", 8080, 8080), forwarded("tcp", 8081, 8080), forwarded("tcp", 8082, 80, count=3))
    [socket], _ = plan_sockets(manifest, manifest.apps[0], sections["web"])
    assert socket.port == planned[0].pod_port


def test_addresses() -> None:
    """The address of a port arrives, and one of IPv4 is that also if it is written as one of IPv6."""
    assert plan(want("http", 1, "10.0.0.1"), want("http", 2, "0.0.0.0"), want("http", 3, "::ffff:10.0.0.1")) == (
        forwarded("tcp", 1, 80, "10.0.0.1"),
        forwarded("tcp", 2, 80, "0.0.0.0"),
        forwarded("tcp", 3, 80, "10.0.0.1"),
    )
    assert plan(want("http", 1, "2001:db8::1"), want("http", 2, "::")) == (
        forwarded("tcp", 1, 80, "2001:db8::1"),
        forwarded("tcp", 2, 80, "::"),
    )


def test_ports_that_do_not_conflict() -> None:
    """Ports differ by number, by protocol or by address."""
    ports = (
        want("http", 1, "10.0.0.1"),
        want("http", 1, "10.0.0.2"),
        want("dns", 1, "10.0.0.1"),
        want("http", 2),
        want("dns", 2),
        want("http", 1, "fd00::1"),
        want("http", 1, "::1"),
        want("http", 3, "::"),
        want("https", 3, "0.0.0.0"),
    )
    assert len(plan(*ports)) == 9


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ([want("ftp", 21)], 'port name "ftp" could not be found in any apps'),
        ([want("sctp", 1)], 'pod: ports[0]: port "sctp": cannot forward protocol "sctp", only tcp and udp'),
        ([want("http", 1), want("https", 1, "fd00::1")], "port tcp-[fd00::1]:1 already mapped to pod port 80"),
        ([want("http", 1, "::"), want("https", 1, "fd00::1")], "port tcp-[fd00::1]:1 already mapped to pod port 80"),
        ([want("http", 1, "::1"), want("https", 1, "::")], "port tcp-[::]:1 already mapped to pod port 80"),
        ([want("http", 1), want("https", 1)], "port tcp-0.0.0.0:1 already mapped to pod port 80"),
        ([want("http", 1, "10.0.0.1"), want("https", 1)], "port tcp-0.0.0.0:1 already mapped to pod port 80"),
        ([want("https", 1), want("http", 1, "10.0.0.1")], "port tcp-10.0.0.1:1 already mapped to pod port 443"),
        (
            [want("http", 1, "10.0.0.1"), want("http", 1, "10.0.0.1")],
            "port tcp-10.0.0.1:1 already mapped to pod port 80",
        ),
        ([want("http", 1, "0.0.0.0"), want("x", 1, None, HTTPS)], "port tcp-0.0.0.0:1 already mapped to pod port 80"),
    ],
)
def test_ports_that_cannot_be(ports: list[ExposedPort], message: str) -> None:
    """A port that leads nowhere, or that another has already, is refused in rkt's words."""
    with pytest.raises(PlanError) as caught:
        plan(*ports)
    assert str(caught.value) == message


@pytest.mark.parametrize("sections", [{"a": section(HTTP), "b": section(HTTP)}, {"a": section(HTTP, HTTP)}])
def test_an_ambiguous_name(sections: dict[str, App]) -> None:
    """A name that two ports have leads to neither."""
    with pytest.raises(PlanError) as caught:
        plan(want("http", 80), sections=sections)
    assert str(caught.value) == 'port name "http" defined multiple apps'


addresses = st.sampled_from([None, "0.0.0.0", "127.0.0.1", "10.0.0.1", "::", "::1", "fd00::1"])
exposed_ports = st.builds(want, st.sampled_from(["http", "https", "dns"]), st.integers(1, 4), addresses)


def reached(port: ForwardedPort) -> set[tuple[str, str, int]]:
    """Return what a port takes of all that the examples can name."""
    every = {"0.0.0.0": ["127.0.0.1", "10.0.0.1", "192.0.2.1"], "::": ["::1", "fd00::1", "2001:db8::1"]}
    host_ip = str(port.host_ip)
    taken = every.get(host_ip, [host_ip]) if port.host_ip else [*every["::"], *every["0.0.0.0"]]
    return {(port.protocol, address, port.host_port) for address in taken}


@given(st.lists(exposed_ports, max_size=6))
def test_no_packet_has_two_ways(ports: list[ExposedPort]) -> None:
    """Either all ports are forwarded and no two take the same packet, or two of them would."""
    alone = [plan(port)[0] for port in ports]
    taken = [reached(port) for port in alone]
    clash = any(one & other for index, one in enumerate(taken) for other in taken[:index])
    try:
        assert plan(*ports) == tuple(alone)
        assert not clash
    except PlanError:
        assert clash


forwarded_ports = st.builds(
    forwarded,
    st.sampled_from(["tcp", "udp"]),
    st.integers(1, 65535),
    st.integers(1, 65535),
    st.ip_addresses().map(str),
    st.integers(1, 9),
)


@given(forwarded_ports)
def test_a_port_is_read_back_from_its_rule(port: ForwardedPort) -> None:
    """The comment of a rule says all about the port that it forwards."""
    assert parse_port_comment(port_comment(port)) == port


@given(st.text() | st.from_regex(r"(tcp|udp) [\[\]0-9.:-]* to pod port [0-9]*"))
def test_comments_of_others(text: str) -> None:
    """Any comment is either that of a port, which it repeats, or none."""
    port = parse_port_comment(text)
    assert port is None or port.protocol in ("tcp", "udp")


@given(forwarded_ports, forwarded_ports)
def test_overlap_has_no_order(one: ForwardedPort, other: ForwardedPort) -> None:
    """Two ports overlap whichever is asked about, and each overlaps itself."""
    assert overlap(one.host_ports, other.host_ports) == overlap(other.host_ports, one.host_ports)
    assert overlap(one.host_ports, one.host_ports)
