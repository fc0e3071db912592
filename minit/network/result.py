"""What attaching a pod to a network came to: addresses, routes, DNS (CNI specification, "Result Types")."""

from __future__ import annotations

from minit.value import Value


class Interface(Value):
    """A link that a plugin made; `sandbox` is the path of its network namespace, empty for the host's."""

    name: str
    mac: str = ""
    sandbox: str = ""


class Address(Value):
    """An address of the pod in CIDR notation; `interface` is an index into the result's interfaces."""

    address: str
    gateway: str | None = None
    interface: int | None = None


class Route(Value):
    """A route of the pod; without a gateway it goes by the address's own."""

    destination: str
    gateway: str | None = None


class Dns(Value):
    """What the network says about name resolution, resolv.conf(5)."""

    nameservers: tuple[str, ...] = ()
    domain: str = ""
    search: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class Result(Value):
    """The outcome of ADD, whatever version of the specification it was written in."""

    interfaces: tuple[Interface, ...] = ()
    addresses: tuple[Address, ...] = ()
    routes: tuple[Route, ...] = ()
    dns: Dns = Dns()
