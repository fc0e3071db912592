"""The ports of the host that a pod may ask for."""

from __future__ import annotations

import pytest

from minit.base.errors import PodError
from minit.manifest.app import App, Port
from minit.manifest.pod import ExposedPort, PodManifest, RuntimeApp
from minit.stage0.pods.exposedports import check_ports


def app(name: str, *ports: Port) -> RuntimeApp:
    """Return an app with some ports."""
    return RuntimeApp(name=name, app=App(exec=("/x",), user="0", group="0", ports=ports))


HTTP = Port(name="http", protocol="tcp", port=80)
UDP = Port(name="stream", protocol="udp", port=8080)
RANGE = Port(name="range", protocol="tcp", port=1000, count=10)
APPS = (
    app("web", HTTP, Port(name="https", protocol="tcp", port=443)),
    app("dns", Port(name="domain", protocol="udp", port=53)),
    RuntimeApp(name="bare"),
)


def check(*ports: ExposedPort, apps: tuple[RuntimeApp, ...] = APPS) -> None:
    """Check the ports of a pod."""
    check_ports(PodManifest(ac_version="1.0.0", apps=apps, ports=ports), "--port")


def want(name: str, port: int, address: str | None = None) -> ExposedPort:
    """Return a port of the host."""
    return ExposedPort(name=name, host_port=port, host_ip=address)


@pytest.mark.parametrize(
    "ports",
    [
        (),
        (want("http", 80), want("https", 443)),
        (want("http", 53), want("domain", 53)),
        (want("http", 80, "10.0.0.1"), want("https", 80, "10.0.0.2")),
        (want("http", 80), want("http", 81)),
        (ExposedPort(name="unknown", host_port=80, pod_port=HTTP),),
        (want("http", 80), ExposedPort(name="unknown", host_port=80, pod_port=UDP)),
        (want("http", 80, "0.0.0.0"), want("https", 80, "::")),
        (want("http", 80, "127.0.0.1"), want("https", 80, "::1")),
        (want("http", 99), ExposedPort(name="unknown", host_port=100, pod_port=RANGE), want("https", 110)),
        (ExposedPort(name="unknown", host_port=65526, pod_port=RANGE),),
    ],
)
def test_ports_that_can_be_had(ports: tuple[ExposedPort, ...]) -> None:
    """Ports differ by number, protocol or address; one that says where it leads needs no app."""
    check(*ports)


@pytest.mark.parametrize(
    ("ports", "message"),
    [
        ((want("ftp", 21),), '--port: no app has a port named "ftp" (ports of the apps: http, https, domain)'),
        ((want("http", 80), want("https", 80)), '--port: "http" and "https" both want tcp port 80 of the host'),
        (
            (want("http", 80, "10.0.0.1"), want("https", 80)),
            '--port: "http" and "https" both want tcp port 80 of the host',
        ),
        (
            (want("http", 80), ExposedPort(name="unknown", host_port=80, pod_port=HTTP)),
            '--port: "http" and "unknown" both want tcp port 80 of the host',
        ),
        (
            (want("http", 80, "::1"), want("https", 80, "::")),
            '--port: "http" and "https" both want tcp port 80 of the host',
        ),
        (
            (want("http", 105), ExposedPort(name="range", host_port=100, pod_port=RANGE)),
            '--port: "http" and "range" both want tcp port 105 of the host',
        ),
        (
            (ExposedPort(name="range", host_port=65527, pod_port=RANGE),),
            '--port: "range" is 10 ports: the host has not so many from 65527 on',
        ),
        (
            (want("http", 80, "10.0.0.1"), want("http", 80, "10.0.0.1")),
            '--port: "http" and "http" both want tcp port 80 of the host',
        ),
    ],
)
def test_ports_that_cannot(ports: tuple[ExposedPort, ...], message: str) -> None:
    """A port that leads nowhere and two that are the same are refused."""
    with pytest.raises(PodError) as caught:
        check(*ports)
    assert str(caught.value) == message


def test_a_port_of_two_apps() -> None:
    """The name must say which app is meant."""
    with pytest.raises(PodError, match=r'--port: several ports are named "http" \(apps: a, b\)'):
        check(want("http", 80), apps=(app("a", HTTP), app("b", HTTP)))


def test_a_pod_without_ports() -> None:
    """The message tells if no app has a port."""
    with pytest.raises(PodError, match=r"\(ports of the apps: none\)"):
        check(want("http", 80), apps=(app("a"),))
