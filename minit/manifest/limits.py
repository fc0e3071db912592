"""
The limits of a control group: LIMITS has a row for each limit, with everything that the rest of minit needs to know.

The files are those of cgroups(7) and cgroup-v2.rst; the name of a file begins with that of its controller.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minit.base.errors import ManifestError
from minit.base.value import Value, replace
from minit.manifest.app import CPU, CPU_SHARES, MEMORY, Isolator
from minit.manifest.reader import Node, read_json

UNLIMITED = -1
MIN_CPU_SHARES, MAX_CPU_SHARES = 2, 262144  # sched-design-CFS.txt; appc has the same bounds
MIN_MICROSECONDS, _MAX_MICROSECONDS = 1000, 1_000_000  # of a period in the kernel, and of a quota

# A setting that v1 refuses if a group above allows less. v2 accepts the setting, and the least of all counts.
CFS_QUOTA = "cpu.cfs_quota_us"
SWAP_FILES = ("memory.swap.max", "memory.memsw.limit_in_bytes")
"""Those of a kernel that counts swap."""

PERIOD_MICROSECONDS = 100_000  # the kernel's default, and systemd's
_MICROSECONDS_PER_PERCENT = PERIOD_MICROSECONDS // 100
_DEFAULT_SHARES, _DEFAULT_WEIGHT = 1024, 100
_MIN_WEIGHT, _MAX_WEIGHT = 1, 10_000
MIN_MEMORY_BYTES = 4096  # a page; below, somebody most likely wrote 16m, a fraction of a byte, for 16M
_MAX_BYTES = (1 << 63) - 1
_MAX_PROCESSORS = 100_000_000  # the kernel's quota ends not far above

_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?){0,500}")
_PAGES = re.compile(r"\d{1,4}(KB|MB|GB)")
_FILE = re.compile(r"(cpu|cpuset|memory|pids|hugetlb|io|misc|rdma)(\.\w{1,40}){1,4}", re.ASCII)
_TEXT = re.compile(r"[ -~]{0,4000}")

_DIGITS = "0123456789"
_MAX_LENGTH = 32  # characters; bounds the numbers that a text can make
_MAX_EXPONENT = 18  # the E of the largest suffix

# appc spec/ace.md, "Resource isolators"; `K` is refused by rkt's parser, whatever the specification says.
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}

BILLION = 10**9
"""The number of units of parse_quantity in one."""


def limit_isolator(name: str, limit: str, request: str | None = None) -> Isolator:
    """Return the isolator of a limit by its quantity; what is requested is guaranteed and the limit, as rkt has it."""
    return Isolator(name=name, value={"default": False, "request": request or limit, "limit": limit})


_MEMORY_AND_SWAP = "memoryAndSwap"
_POWERS_OF_1024 = {"b": "", "k": "Ki", "m": "Mi", "g": "Gi", "t": "Ti"}


def docker_quantity(text: str) -> str:
    """Return a number of bytes in the words of quantities: docker's small letters are powers of 1024."""
    number, letter = text[:-1], text[-1:]
    return number + _POWERS_OF_1024[letter] if letter in _POWERS_OF_1024 else text


class CpuQuota(Value):
    """Processor time in each period, both in microseconds; UNLIMITED for any time."""

    quota: int
    period: int = PERIOD_MICROSECONDS

    def __str__(self) -> str:
        if self.quota > 0 and self.period == PERIOD_MICROSECONDS and self.quota % _MICROSECONDS_PER_PERCENT == 0:
            return f"{self.quota // _MICROSECONDS_PER_PERCENT}% of a processor"
        return f"{self.quota} of {self.period} us of processors"


class Limits(Value):
    """
    The limits of one control group, None for each unset limit; memory, swap and quota may be UNLIMITED.

    `cpu_shares` is a weight against sibling groups, 1024 if unset. `processes` counts threads. `swap_bytes` needs a
    limit of memory beside it. `cpus` and `mems` are lists of processors and of nodes of memory, as in `0-2,7`.
    `hugepages` are bytes by the size of pages, as in `2MB`. `unified` are texts for files of v2.
    """

    memory_bytes: int | None = None
    swap_bytes: int | None = None
    cpu_quota: CpuQuota | None = None
    cpu_shares: int | None = None
    processes: int | None = None
    cpus: str | None = None
    mems: str | None = None
    hugepages: tuple[tuple[str, int], ...] = ()
    unified: tuple[tuple[str, str], ...] = ()

    @property
    def controllers(self) -> frozenset[str]:
        """The controllers with files of these limits."""
        return frozenset(map(_controller_of, dict(self._settings(is_v2=True))))

    @property
    def needed_controllers(self) -> frozenset[str]:
        """The controllers without which the group could have more than the limits allow."""
        settings = self._settings(is_v2=True)
        # Without the controller a group has no huge pages anyway.
        return frozenset(name for file, text in settings if (name := _controller_of(file), text) != ("hugetlb", "0"))

    def settings(self, controller: str, is_v2: bool) -> list[tuple[str, str]]:
        """Return the files of a controller with their texts, in the order of writing."""
        return [(file, text) for file, text in self._settings(is_v2) if _controller_of(file) == controller]

    def within(self, outer: Limits) -> Limits:
        """Return these limits, none wider than the limits of a group around; v1 demands so of a quota."""
        least: dict[str, Any] = {}
        for row in LIMITS:
            own, bound = getattr(self, row.field), getattr(outer, row.field)
            if row.narrow is not None and own is not None and bound is not None:
                least[row.field] = row.narrow(own, bound)
        return replace(self, **least)

    def updated(self, other: Limits) -> Limits:
        """Return these limits, with the limits set in `other` in their place."""
        return replace(self, **{row.field: getattr(other, row.field) for row, _, _ in other._each()})

    def describe(self) -> str:
        """Return the limits as part of a line for --debug."""
        words = [row.words.format(name=name, limit=limit) for row, name, limit in self._each()]
        return ", ".join(words) or "none"

    def _settings(self, is_v2: bool) -> list[tuple[str, str]]:
        return [
            (file.format(name=name), text(limit, self))
            for row, name, limit in self._each()
            for file, text in (row.v2 if is_v2 else row.v1).items()
        ]

    def _each(self) -> list[tuple[Limit, str, Any]]:
        """Return each set limit with its row, and with its name if a row may have several limits."""
        given = [(row, getattr(self, row.field)) for row in LIMITS]
        each = [
            (row, value if isinstance(value, tuple) else (("", value),)) for row, value in given if value is not None
        ]
        return [(row, name, limit) for row, values in each for name, limit in values]


class Limit(Value):
    """
    One limit: its `field` of Limits, and the files of v1 and v2 with their texts.

    `words` describe the limit. `narrow` computes the limit that counts from an own limit and the limit of a group
    around; None leaves this to the kernel. `isolator` is the name of an isolator, whose value `of_isolator` reads: None
    for a value without effect. `keys` are keys of the annotation minit/limits, whose nodes `of_keys` reads.
    """

    field: str
    v1: Mapping[str, Callable[[Any, Limits], str]]
    v2: Mapping[str, Callable[[Any, Limits], str]]
    words: str
    narrow: Callable[[Any, Any], object] | None = None
    isolator: str | None = None
    of_isolator: Callable[[Node], Any] | None = None
    keys: tuple[str, ...] = ()
    of_keys: Callable[..., object] | None = None


def read_isolator(name: str, value: Node) -> Limits | None:
    """Return the limits that an isolator sets, possibly none; None for an isolator of something else."""
    for row in LIMITS:
        if row.isolator == name and row.of_isolator is not None:
            limit = row.of_isolator(value)
            return Limits() if limit is None else Limits(**{row.field: limit})
    return None


def with_annotation(limits: Limits, text: str | None, where: str) -> Limits:
    """Return limits with the limits of an annotation, a JSON object; ManifestError, with `where`, for a bad value."""
    if text is None:
        return limits
    root = read_json(text.encode(errors="surrogateescape"), where)
    given = root.raw()
    if not isinstance(given, dict) or not set(given) <= _KEYS:
        raise root.error(f"an object with some of {', '.join(sorted(_KEYS))}")
    for row in LIMITS:
        nodes = [root[key] for key in row.keys]
        if row.of_keys is not None and any(node.given for node in nodes):
            changed: dict[str, Any] = {row.field: row.of_keys(*nodes)}
            limits = replace(limits, **changed)
    if (total := root[_MEMORY_AND_SWAP]).given:
        limits = replace(limits, swap_bytes=_swap_of(total, limits.memory_bytes))
    if limits.swap_bytes is not None and limits.memory_bytes is None:
        raise ManifestError(f"{root['swap'].where}: expected a limit of memory beside it")
    return limits


def _swap_of(total: Node, memory_bytes: int | None) -> int:
    """Return the swap space by the limit of memory and swap together, Docker's --memory-swap."""
    if memory_bytes is None:
        raise total.error("a limit of memory beside it", "none")
    both = total.integer(UNLIMITED, _MAX_BYTES)
    if both != UNLIMITED and both < memory_bytes:
        raise total.error(f"at least the limit of memory, {memory_bytes} bytes")
    return UNLIMITED if both == UNLIMITED else both - memory_bytes


def shares_to_weight(shares: int) -> int:
    """Return the weight in v2 of shares in v1, in proportion to the defaults of both, as systemd does."""
    return max(_MIN_WEIGHT, min(shares * _DEFAULT_WEIGHT // _DEFAULT_SHARES, _MAX_WEIGHT))


def _controller_of(file: str) -> str:
    return file.partition(".")[0]


# The texts of files: from a limit, and all limits beside it.


def _plain(limit: object, _: Limits) -> str:
    return str(limit)


def _or_max(limit: int, _: Limits) -> str:
    return "max" if limit == UNLIMITED else str(limit)


def _with_memory(swap: int, limits: Limits) -> str:
    memory = limits.memory_bytes
    return str(UNLIMITED if memory is None or UNLIMITED in (memory, swap) else memory + swap)


# Readers of isolators and of the annotation.


def _read_memory(value: Node) -> int | None:
    limit = _read_limit(value)
    if limit is None:
        return None
    count = -(-limit // BILLION)
    if not MIN_MEMORY_BYTES <= count <= _MAX_BYTES:
        raise value["limit"].error(f"a quantity from {MIN_MEMORY_BYTES} to {_MAX_BYTES} bytes")
    return count


def _read_cpu(value: Node) -> CpuQuota | None:
    limit = _read_limit(value)
    if limit is None:
        return None
    if not 0 < limit <= _MAX_PROCESSORS * BILLION:
        raise value["limit"].error(f"a quantity above 0 and up to {_MAX_PROCESSORS} processors")
    thousandths = -(-limit // (BILLION // 1000))
    # rkt cuts off fractions of a percent, so that nothing would be left of 9m.
    return CpuQuota(quota=max(1, thousandths // 10) * _MICROSECONDS_PER_PERCENT)


def _read_limit(value: Node) -> int | None:
    """Return the limit of a resource in billionths; the request is checked and has no effect, as in rkt."""
    if value["default"].optional(Node.boolean):
        raise value["default"].error("false or nothing")
    value["request"].optional(_read_quantity)
    return value["limit"].optional(_read_quantity)


def _read_quantity(node: Node) -> int:
    text = node.raw()
    # rkt's parser, too, accepts a bare number.
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        text = repr(text)
    try:
        return parse_quantity(text if isinstance(text, str) else "")
    except ValueError as error:
        raise node.error('a quantity such as "500m", "16M" or "1.5Gi"') from error


def _read_quota(quota: Node, period: Node) -> CpuQuota:
    length = period.optional(lambda node: node.integer(MIN_MICROSECONDS, _MAX_MICROSECONDS))
    if not quota.given:
        raise quota.error("a quota for the period")
    lowest, highest = (UNLIMITED,) * 2 if quota.raw() == UNLIMITED else (MIN_MICROSECONDS, _MAX_BYTES)
    return CpuQuota(quota=quota.integer(lowest, highest), period=PERIOD_MICROSECONDS if length is None else length)


def _read_list(node: Node) -> str:
    return node.matching(_LIST.fullmatch, 'a list like "0-2,7"')


def _read_pages(node: Node) -> tuple[tuple[str, int], ...]:
    return tuple((size, each.integer(0, _MAX_BYTES)) for size, each in _entries(node, _PAGES))


def _read_files(node: Node) -> tuple[tuple[str, str], ...]:
    return tuple((file, each.matching(_TEXT.fullmatch, "a line of text")) for file, each in _entries(node, _FILE))


def _entries(node: Node, name: re.Pattern[str]) -> Sequence[tuple[str, Node]]:
    """Return the entries of an object; every name has to match."""
    value = node.raw()
    if not isinstance(value, dict) or not all(map(name.fullmatch, value)):
        raise node.error(f"an object of names like {name.pattern}")
    return [(key, node[key]) for key in sorted(value)]


LIMITS = (
    Limit(
        field="memory_bytes",
        v1={"memory.limit_in_bytes": _plain},
        v2={"memory.max": _or_max},
        words="memory {limit} bytes",
        narrow=min,
        isolator=MEMORY,
        of_isolator=_read_memory,
    ),
    Limit(
        field="swap_bytes",
        v1={"memory.memsw.limit_in_bytes": _with_memory},
        v2={"memory.swap.max": _or_max},
        words="swap {limit} bytes",
        keys=("swap",),
        of_keys=lambda node: node.integer(UNLIMITED, _MAX_BYTES),
    ),
    Limit(
        field="cpu_quota",
        v1={"cpu.cfs_period_us": lambda cpu, _: str(cpu.period), CFS_QUOTA: lambda cpu, _: str(cpu.quota)},
        v2={"cpu.max": lambda cpu, limits: f"{_or_max(cpu.quota, limits)} {cpu.period}"},
        words="{limit}",
        narrow=lambda own, outer: own if own.quota * outer.period <= outer.quota * own.period else outer,
        isolator=CPU,
        of_isolator=_read_cpu,
        keys=("cpuQuota", "cpuPeriod"),
        of_keys=_read_quota,
    ),
    Limit(
        field="cpu_shares",
        v1={"cpu.shares": _plain},
        v2={"cpu.weight": lambda shares, _: str(shares_to_weight(shares))},
        words="cpu shares {limit}",
        isolator=CPU_SHARES,
        of_isolator=lambda value: value.integer(MIN_CPU_SHARES, MAX_CPU_SHARES),
    ),
    Limit(field="processes", v1={"pids.max": _plain}, v2={"pids.max": _plain}, words="{limit} processes", narrow=min),
    Limit(
        field="cpus",
        v1={"cpuset.cpus": _plain},
        v2={"cpuset.cpus": _plain},
        words="processors {limit}",
        keys=("cpus",),
        of_keys=_read_list,
    ),
    Limit(
        field="mems",
        v1={"cpuset.mems": _plain},
        v2={"cpuset.mems": _plain},
        words="nodes of memory {limit}",
        keys=("mems",),
        of_keys=_read_list,
    ),
    Limit(
        field="hugepages",
        v1={"hugetlb.{name}.limit_in_bytes": _plain},
        v2={"hugetlb.{name}.max": _plain},
        words="{limit} bytes in pages of {name}",
        isolator="resource/hugepages",
        of_isolator=_read_pages,
        keys=("hugepages",),
        of_keys=_read_pages,
    ),
    Limit(
        field="unified", v1={}, v2={"{name}": _plain}, words="{name}={limit}", keys=("unified",), of_keys=_read_files
    ),
)
"""A row for each field of Limits, in the order in which files are written."""

CONTROLLERS = frozenset(_controller_of(file) for row in LIMITS for file in row.v1)
"""The controllers that have a limit of their own here."""

_KEYS = {_MEMORY_AND_SWAP, *(key for row in LIMITS for key in row.keys)}


def parse_quantity(text: str) -> int:
    """Return a quantity (`500m`, `1.5Gi`, `2e6`) in billionths, fractions rounded up; ValueError for other texts."""
    quantity = _parse(text) if len(text) <= _MAX_LENGTH else None
    if quantity is None:
        raise ValueError(f'invalid quantity "{text}" (write for example 500m, 16M or 1.5Gi)')
    return quantity


def _parse(text: str) -> int | None:
    sign, rest = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    suffix = rest.lstrip(_DIGITS + ".")
    whole, _, fraction = rest.removesuffix(suffix).partition(".")
    exponent = 0 if suffix in _BINARY else _decimal_exponent(suffix)
    if exponent is None or not whole + fraction or "." in fraction:
        return None
    count = sign * int(whole + fraction) << _BINARY.get(suffix, 0)
    scale = 9 + exponent - len(fraction)
    power: int = 10 ** abs(scale)
    return count * power if scale >= 0 else -(-count // power)


def _decimal_exponent(suffix: str) -> int | None:
    if suffix in _DECIMAL:
        return _DECIMAL[suffix]
    digits = suffix[2:] if suffix[1:2] in ("+", "-") else suffix[1:]
    if suffix[0] not in "eE" or not digits or digits.strip(_DIGITS) or int(digits) > _MAX_EXPONENT:
        return None
    return -int(digits) if suffix[1] == "-" else int(digits)
