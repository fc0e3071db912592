"""The annotation of limits that isolators have no words for."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from minit.errors import ManifestError
from minit.manifest.limits import CPU, CPUSET, HUGETLB, MEMORY, PIDS, UNLIMITED, CpuQuota, Limits
from minit.manifest.reader import Node, read_json
from minit.value import replace

T = TypeVar("T")

_FIELDS = ("cpuPeriod", "cpuQuota", "cpus", "hugepages", "mems", "swap", "unified")
_LIST = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?){0,500}")
_PAGES = re.compile(r"\d{1,4}(KB|MB|GB)")
_FILE = re.compile(rf"({CPU}|{CPUSET}|{MEMORY}|{PIDS}|{HUGETLB}|io|misc|rdma)(\.\w{{1,40}}){{1,4}}", re.ASCII)
_TEXT = re.compile(r"[ -~]{0,4000}")
_MOST_BYTES = (1 << 63) - 1
MIN_MICROSECONDS, _MAX_MICROSECONDS = 1000, 1_000_000  # of a period in the kernel, and of a quota


def with_annotation(limits: Limits, text: str | None, where: str) -> Limits:
    """Return limits with those of an annotation, which is a JSON object; ManifestError, with `where`, for a bad one."""
    if text is None:
        return limits
    root = read_json(text.encode(errors="surrogateescape"), where)
    given = root.raw()
    if not isinstance(given, dict) or not set(given) <= set(_FIELDS):
        raise root.error(f"an object with some of {', '.join(_FIELDS)}")
    period = root["cpuPeriod"].optional(lambda node: node.integer(MIN_MICROSECONDS, _MAX_MICROSECONDS))
    quota = root["cpuQuota"].optional(_read_quota)
    if period is not None and quota is None:
        raise root["cpuQuota"].error("a quota for the period")
    swap = root["swap"].optional(lambda node: node.integer(UNLIMITED, _MOST_BYTES))
    if swap is not None and limits.memory_bytes is None:
        raise ManifestError(f"{root['swap'].where}: expected a limit of memory beside it")
    if quota is not None:
        limits = replace(limits, cpu_quota=CpuQuota(quota=quota, **({} if period is None else {"period": period})))
    return replace(
        limits,
        swap_bytes=swap,
        cpus=root["cpus"].optional(_read_list),
        mems=root["mems"].optional(_read_list),
        hugepages=_read_object(root["hugepages"], _PAGES, lambda node: node.integer(0, _MOST_BYTES)),
        unified=_read_object(root["unified"], _FILE, lambda node: node.matching(_TEXT.fullmatch, "a line of text")),
    )


def _read_quota(node: Node) -> int:
    return (
        node.integer(UNLIMITED, UNLIMITED) if node.raw() == UNLIMITED else node.integer(MIN_MICROSECONDS, _MOST_BYTES)
    )


def _read_list(node: Node) -> str:
    return node.matching(_LIST.fullmatch, 'a list like "0-2,7"')


def _read_object(node: Node, name: re.Pattern[str], read: Callable[[Node], T]) -> tuple[tuple[str, T], ...]:
    """Return the entries of an object whose names all match, none of an absent one."""
    if not node.given:
        return ()
    value = node.raw()
    if not isinstance(value, dict) or not all(map(name.fullmatch, value)):
        raise node.error(f"an object of names like {name.pattern}")
    return tuple((key, read(node[key])) for key in sorted(value))
