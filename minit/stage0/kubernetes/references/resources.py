"""Requests and limits of a Kubernetes container, as isolators and as the numbers that fields refer to."""

from __future__ import annotations

from minit.base.value import Value
from minit.manifest.app import CPU, CPU_SHARES, MEMORY, Isolator
from minit.manifest.limits import BILLION, parse_quantity
from minit.manifest.reader import Node
from minit.stage0.kubernetes.reading.fields import Fields, read_quantity

_SHARES_OF_A_CPU = 1024
_MIN_SHARES, _MAX_SHARES = 2, 262144


class Machine(Value):
    """The machine as its pods see it: its name, what there is without a limit, and whether its kernel has SELinux."""

    name: str = "localhost"
    cpus: int = 1
    memory_bytes: int = 1 << 30
    has_selinux: bool = False


class Resources(Value):
    """Quantities as they are written, by `limits.cpu` and the like."""

    amounts: tuple[tuple[str, str], ...] = ()

    def isolators(self) -> tuple[Isolator, ...]:
        """Return what they are to stage1."""
        given = dict(self.amounts)
        isolators = []
        for resource, name in (("memory", MEMORY), ("cpu", CPU)):
            limit = given.get(f"limits.{resource}")
            if limit is not None:
                request = given.get(f"requests.{resource}") or limit
                isolators.append(Isolator(name=name, value={"default": False, "request": request, "limit": limit}))
        wanted = given.get("requests.cpu") or given.get("limits.cpu")
        if wanted is not None:
            shares = parse_quantity(wanted) * _SHARES_OF_A_CPU // BILLION
            isolators.append(Isolator(name=CPU_SHARES, value=min(max(shares, _MIN_SHARES), _MAX_SHARES)))
        return tuple(isolators)

    def amount(self, resource: str, machine: Machine) -> int | None:
        """Return a quantity in billionths, that of the machine where there is no limit; None for an unknown one."""
        whole = {"cpu": machine.cpus, "memory": machine.memory_bytes}
        kind, _, name = resource.partition(".")
        if kind not in ("limits", "requests") or name not in whole:
            return None
        given = dict(self.amounts)
        text = given.get(resource) or given.get(f"limits.{name}")
        if text is not None:
            return parse_quantity(text)
        return whole[name] * BILLION if kind == "limits" else 0


def read_resources(fields: Fields) -> Resources:
    """Read the resources of a container."""
    amounts = {}
    with fields:
        fields.only("claims", [])
        for kind in ("limits", "requests"):
            with fields.within(kind) as given:
                for name in ("memory", "cpu"):
                    if given[name].given:
                        amounts[f"{kind}.{name}"] = read_amount(given[name])
    return Resources(amounts=tuple(amounts.items()))


def read_amount(node: Node) -> str:
    """Read a quantity that is not negative, as it is written."""
    text = read_quantity(node)
    try:
        amount = parse_quantity(text)
    except ValueError as error:
        raise node.error("a quantity, like 500m or 64Mi") from error
    if amount < 0:
        raise node.error("a quantity that is not negative")
    return text
