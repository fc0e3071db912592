"""
The devices that an app may use: rules for the app's control group, as values.

The default is rkt's stage1 (stage1 contract 9.3): the nodes that every program expects in /dev, and the pod's
terminals.
"""

from __future__ import annotations

from collections.abc import Iterable

from minit.base.errors import PlanError
from minit.base.goflags import BOOLEANS
from minit.base.value import Value, replace
from minit.manifest.annotations import Annotation
from minit.manifest.pod import PodManifest, RuntimeApp

CHARACTER = "c"
BLOCK = "b"
DEVICE_ACCESS = "rwm"


class DeviceRule(Value):
    """
    Devices of one `kind` and number that may be used: `access` has r for reading, w for writing, m for mknod(2).

    `minor` None stands for every minor number. The form is that of the kernel's v1 devices controller.
    """

    kind: str
    major: int
    minor: int | None
    access: str

    @property
    def number(self) -> tuple[str, int, int | None]:
        """The devices of the rule: kind, major number, and minor number or None for all."""
        return self.kind, self.major, self.minor

    def describe(self) -> str:
        """Return the rule as the kernel reads and shows it: `c 136:* rw`."""
        return f"{self.kind} {self.major}:{'*' if self.minor is None else self.minor} {self.access}"


class Device(Value):
    """A device node of the host. `subsystem` is the kernel's for the device, None if it knows no such device now."""

    path: str
    kind: str
    major: int
    minor: int
    mode: int
    subsystem: str | None = None

    def rule(self, access: str) -> DeviceRule:
        """Return the rule for an app with the node as a volume."""
        return DeviceRule(kind=self.kind, major=self.major, minor=self.minor, access=access)

    def describe(self) -> str:
        """Return the device as a line for --debug."""
        origin = "unknown to the kernel" if self.subsystem is None else f"subsystem {self.subsystem}"
        return f"device {self.path}: {self.kind} {self.major}:{self.minor} mode {self.mode:o} {origin}"


DEFAULT_RULES = (
    DeviceRule(kind=CHARACTER, major=1, minor=3, access="rwm"),  # null
    DeviceRule(kind=CHARACTER, major=1, minor=5, access="rwm"),  # zero
    DeviceRule(kind=CHARACTER, major=1, minor=7, access="rwm"),  # full
    DeviceRule(kind=CHARACTER, major=1, minor=8, access="rwm"),  # random
    DeviceRule(kind=CHARACTER, major=1, minor=9, access="rwm"),  # urandom
    DeviceRule(kind=CHARACTER, major=5, minor=0, access="rwm"),  # tty
    DeviceRule(kind=CHARACTER, major=5, minor=2, access="rw"),  # ptmx
    # net/tun is not in rkt's list, but in every app's /dev. It does nothing without CAP_NET_ADMIN.
    DeviceRule(kind=CHARACTER, major=10, minor=200, access="rwm"),
    # The pod's terminals (Documentation/admin-guide/devices.txt).
    *(DeviceRule(kind=CHARACTER, major=major, minor=None, access="rw") for major in range(136, 144)),
)


def merge_rules(rules: Iterable[DeviceRule]) -> tuple[DeviceRule, ...]:
    """Return one rule for each number, with all accesses that any of `rules` allows, in the order of `rules`."""
    merged: dict[tuple[str, int, int | None], DeviceRule] = {}
    for rule in rules:
        known = merged.get(rule.number)
        merged[rule.number] = rule if known is None else replace(rule, access=_unite(known.access, rule.access))
    return tuple(merged.values())


def rule_changes(
    old: Iterable[DeviceRule], new: Iterable[DeviceRule]
) -> tuple[tuple[DeviceRule, ...], tuple[DeviceRule, ...]]:
    """Return what has to be denied and what has to be allowed to get from the merged rules `old` to `new`."""
    before = {rule.number: rule for rule in old}
    after = {rule.number: rule for rule in new}
    return _surplus(before, after), _surplus(after, before)


def common_rules(old: Iterable[DeviceRule], new: Iterable[DeviceRule]) -> tuple[DeviceRule, ...]:
    """Return what both allow: `old` without what `new` denies."""
    before = {rule.number: rule for rule in old}
    return _surplus(before, {rule.number: rule for rule in _surplus(before, {rule.number: rule for rule in new})})


def plan_hotplug(runtime: RuntimeApp, manifest: PodManifest) -> bool:
    """Return whether an app's devices follow the host's: the app's annotation decides, then the pod's."""
    for where, text in (
        (f'app "{runtime.name}": ', runtime.annotation(Annotation.HOTPLUG)),
        ("", manifest.annotation(Annotation.HOTPLUG)),
    ):
        if text is not None:
            if text not in BOOLEANS:
                raise PlanError(f'{where}annotation {Annotation.HOTPLUG}: expected "true" or "false", got "{text}"')
            return BOOLEANS[text]
    return False


def _unite(one: str, other: str) -> str:
    return "".join(letter for letter in DEVICE_ACCESS if letter in one or letter in other)


def _surplus(
    rules: dict[tuple[str, int, int | None], DeviceRule], others: dict[tuple[str, int, int | None], DeviceRule]
) -> tuple[DeviceRule, ...]:
    found = []
    for number, rule in rules.items():
        allowed = others[number].access if number in others else ""
        access = "".join(letter for letter in rule.access if letter not in allowed)
        if access:
            found.append(replace(rule, access=access))
    return tuple(found)
