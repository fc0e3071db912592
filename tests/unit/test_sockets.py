"""minit.plan.life.sockets and minit.launcher.start.listenfds: the sockets of an app, wanted and passed."""

from __future__ import annotations

import os
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.errors import LaunchError, PlanError
from minit.base.value import replace
from minit.launcher.start.listenfds import InheritedSocket, find_sockets, match_sockets
from minit.manifest.app import App, Port
from minit.manifest.image import ImageManifest
from minit.manifest.pod import ExposedPort, PodManifest, RuntimeApp
from minit.plan.appplan import AppPlan
from minit.plan.inputs.hostfacts import HostFacts
from minit.plan.inputs.runflags import RunFlags
from minit.plan.life.sockets import ListenSocket, plan_sockets
from minit.plan.loadedpod import Pod
from minit.plan.podplan import plan_pod
from minit.plan.process import ProcessPlan

RUNTIME = RuntimeApp(name="web")
APP = App(exec=("/bin/app",), user="0", group="0")
MANIFEST = PodManifest(ac_version="0.8.11", apps=(RUNTIME,))
HTTP = Port(name="http", protocol="tcp", port=80, socket_activated=True)
PID = 1234


def planned(*ports: Port, exposed: tuple[ExposedPort, ...] = ()) -> tuple[tuple[ListenSocket, ...], list[str]]:
    """Return the plan of an app with these ports."""
    return plan_sockets(replace(MANIFEST, ports=exposed), RUNTIME, replace(APP, ports=ports))


def test_the_port_of_the_host() -> None:
    """It counts, and that of the manifest does not; of two entries of one name it is the first."""
    exposed = [ExposedPort(name=name, host_port=port) for name, port in (("x", 1), ("http", 8080), ("http", 8081))]
    assert planned(HTTP, exposed=tuple(exposed)) == ((ListenSocket(name="http", protocol="tcp", port=8080),), [])


def test_the_address_of_the_host() -> None:
    """It is known in one spelling, and shown where the socket is at that address alone."""
    exposed = (ExposedPort(name="http", host_port=8080, host_ip="2001:DB8:0::1"),)
    [socket], _ = planned(HTTP, exposed=exposed)
    assert (socket.address, socket.describe()) == ("2001:db8::1", "tcp port 8080")
    manifest = replace(MANIFEST, ports=exposed)
    [socket], _ = plan_sockets(manifest, RUNTIME, replace(APP, ports=(HTTP,)), in_host_network=True)
    assert socket.describe() == "tcp port 8080 of 2001:db8::1"


def test_no_port_of_the_host() -> None:
    """The manifest's is assumed, with rkt's warning."""
    sockets, warnings = planned(HTTP)
    assert sockets == (ListenSocket(name="http", protocol="tcp", port=80),)
    assert warnings == [
        'warning: no --port option for socket-activated port "http", assuming port 80 as specified in the manifest'
    ]


def test_which_ports_are_sockets() -> None:
    """Those that are socket-activated, in their order; a range is its first port."""
    plain = Port(name="plain", protocol="sctp", port=1)
    dns = Port(name="dns", protocol="udp", port=53, count=4, socket_activated=True)
    sockets, _ = planned(dns, plain, HTTP)
    assert [(each.name, each.protocol, each.port) for each in sockets] == [("dns", "udp", 53), ("http", "tcp", 80)]


@pytest.mark.parametrize("protocol", ["sctp", "TCP", "unix"])
def test_other_protocols(protocol: str) -> None:
    """They are refused, where rkt would ignore the case of none."""
    with pytest.raises(PlanError, match=f'^app "web": port http: unrecognized protocol: {protocol}$'):
        planned(replace(HTTP, protocol=protocol))


def test_sockets_in_the_plan_of_a_pod() -> None:
    """Each app has its own, --debug shows them, and the warnings are the pod's."""
    apps = tuple(RuntimeApp(name=name, app=replace(APP, ports=ports)) for name, ports in (("a", (HTTP,)), ("b", ())))
    image = ImageManifest(ac_version="0.8.11", name="test/image")
    pod = Pod(manifest=replace(MANIFEST, apps=apps), images=(("a", image), ("b", image)))
    facts = HostFacts(effective_uid=0, kernel_release="6.1", has_cgroups=True)
    plan = plan_pod(pod, RunFlags(uuid="6c1ab9d3-1c0b-4c0f-9c4e-0f7c2a0c7b11"), facts)
    assert [app.process.sockets for app in plan.apps] == [(ListenSocket(name="http", protocol="tcp", port=80),), ()]
    assert "app a: socket http on tcp port 80" in plan.describe()
    assert len(plan.warnings) == 1


def passed(**variables: str) -> dict[str, str]:
    """Return an environment that passes descriptors to PID."""
    return {"LISTEN_PID": str(PID), **variables}


def test_nothing_is_passed() -> None:
    """Without variables, with none for this process, and with a number of 0 there is nothing to look at."""
    for environment in ({}, {"LISTEN_FDS": "3", "LISTEN_PID": str(PID + 1)}, {"LISTEN_FDS": "x"}, passed()):
        assert find_sockets(environment, PID) == ([], [])
    assert find_sockets(passed(LISTEN_FDS="0", LISTEN_FDNAMES=""), PID) == ([], [])


@given(st.text(max_size=8))
def test_any_number_of_descriptors(text: str) -> None:
    """It is a decimal number up to 1024, or refused; what it announces and is not there is a warning for each."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= 4 and int(text) <= 1024
    if not is_number:
        with pytest.raises(LaunchError, match="expected a number up to 1024"):
            find_sockets(passed(LISTEN_FDS=text), PID)
        return
    sockets, warnings = find_sockets(passed(LISTEN_FDS=text), PID)
    assert len(sockets) + len(warnings) == int(text)


@given(st.text(max_size=40))
def test_any_names(names: str) -> None:
    """They are shown if there is one for each descriptor and all of them can be shown."""
    _, [warning] = find_sockets(passed(LISTEN_FDS="1", LISTEN_FDNAMES=names), PID)
    shown = f' ("{names}")' if names and ":" not in names and names.isascii() and names.isprintable() else ""
    assert warning.startswith(f"warning: ignoring descriptor 3{shown} of LISTEN_FDS: ")


ADDRESSES = st.sampled_from(["127.0.0.1", "::1", "::"])
APPS = st.lists(
    st.lists(
        st.builds(
            ListenSocket,
            name=st.just("x"),
            protocol=st.sampled_from(["tcp", "udp"]),
            port=st.integers(1, 4),
            address=st.none() | ADDRESSES,
        )
    ),
    max_size=3,
)


@given(APPS, st.lists(st.tuples(st.sampled_from(["tcp", "udp"]), st.integers(1, 4), ADDRESSES), max_size=8))
def test_matching(apps: list[list[ListenSocket]], passed_ports: list[tuple[str, int, str]]) -> None:
    """A match has protocol and port, nobody gets what another has, and nothing that fits is left over or stays open."""
    with socket.socket() as original:
        inherited = [
            InheritedSocket(fd=os.dup(original.fileno()), name="", protocol=protocol, port=port, address=address)
            for protocol, port, address in passed_ports
        ]
        specs = [AppPlan(name="x", process=ProcessPlan(candidates=("/x",), sockets=tuple(sockets))) for sockets in apps]
        matched, warnings = match_sockets(specs, inherited)
        of_fd = {each.fd: (each.protocol, each.port) for each in inherited}
        pairs = [
            pair
            for spec, fds in zip(specs, matched, strict=True)
            for pair in zip(spec.process.sockets, fds, strict=True)
        ]
        used = [fd for _, fd in pairs if fd is not None]
        assert len(set(used)) == len(used) == len(inherited) - len(warnings)
        unused = [of_fd[fd] for fd in of_fd if fd not in used]
        for wanted, fd in pairs:
            if fd is None:
                assert (wanted.protocol, wanted.port) not in unused
            else:
                assert of_fd[fd] == (wanted.protocol, wanted.port)
        address_of = {each.fd: each.address for each in inherited}
        # Who could have had the socket of its address has one of that.
        for wanted, fd in pairs:
            others = [one for other, one in pairs if one is not None and other.address != address_of[one]]
            rivals = [of_fd[one] for one in others if address_of[one] == wanted.address]
            if fd is None or address_of[fd] != wanted.address:
                assert (wanted.protocol, wanted.port) not in rivals
        for fd in used:
            os.close(fd)
        for fd in set(of_fd) - set(used):
            with pytest.raises(OSError):
                os.close(fd)
