"""The table of `minit top`: its rows, their order, and what of it fits on a screen. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minit.base.value import Value
from minit.cli.text.statstext import count_text, percent_text, sample_rows, size_text, time_text
from minit.stage0.reports.stats import PodSample
from minit.stage0.reports.usage import Usage

_SECOND_NS = 1_000_000_000
_MILLICORES_PER_PERCENT = 10
_SHORT_UUID = 8
_GAP = 2
_MIN_NAME_WIDTH = 4

SORT_KEYS = {"c": "cpu", "m": "memory", "p": "processes", "n": "name"}
"""The keys, and the fields that they sort by."""


class TopRow(Value):
    """One app; rates are bytes per second, None without an earlier sample, and of the network the pod's."""

    uuid: str
    name: str
    usage: Usage
    cpu_percent: float | None = None
    restarts: int = 0
    read_rate: float | None = None
    write_rate: float | None = None
    rx_rate: float | None = None
    tx_rate: float | None = None


# Heading, cell, and how soon a narrow screen does without it; what has no number stays.
_COLUMNS: tuple[tuple[str, Callable[[TopRow], str], int | None], ...] = (
    ("UUID", lambda row: row.uuid[:_SHORT_UUID], 10),
    ("APP", lambda row: row.name, None),
    ("CPU", lambda row: percent_text(row.cpu_percent), None),
    ("CPU LIMIT", lambda row: percent_text(_cpu_limit_percent(row.usage)), 7),
    ("TIME", lambda row: time_text(row.usage.cpu_ns), 2),
    ("MEMORY", lambda row: size_text(row.usage.memory_working_set_bytes), None),
    ("LIMIT", lambda row: size_text(row.usage.memory_limit_bytes), 8),
    ("PIDS", lambda row: count_text(row.usage.processes), 11),
    ("READ/s", lambda row: size_text(row.read_rate), 3),
    ("WRITE/s", lambda row: size_text(row.write_rate), 4),
    ("RECV/s", lambda row: size_text(row.rx_rate), 5),
    ("SENT/s", lambda row: size_text(row.tx_rate), 6),
    ("OOM", lambda row: count_text(row.usage.oom_kills), 1),
    ("RESTARTS", lambda row: count_text(row.restarts), 9),
)
_LEFT_ALIGNED = ("UUID", "APP")


def top_rows(samples: Sequence[PodSample], before: Mapping[str, PodSample]) -> list[TopRow]:
    """Return the apps of all pods; what went through a pod's network stands in the row of its first app."""
    return [row for sample in samples for row in _pod_rows(sample, before.get(sample.uuid))]


def sort_rows(rows: Sequence[TopRow], by: str) -> list[TopRow]:
    """Return rows with the largest first, by one of the values of SORT_KEYS; those that are equal by name."""
    keys: Mapping[str, Callable[[TopRow], float]] = {
        "cpu": lambda row: row.cpu_percent or 0,
        "memory": lambda row: row.usage.memory_working_set_bytes or 0,
        "processes": lambda row: row.usage.processes or 0,
        "name": lambda row: 0,
    }
    return sorted(rows, key=lambda row: (-keys[by](row), row.name, row.uuid))


def _summary_text(rows: Sequence[TopRow]) -> str:
    """Return the pods, apps, processors and memory of all rows in one line."""
    pods = len({row.uuid for row in rows})
    cpu = sum(row.cpu_percent or 0 for row in rows)
    memory = sum(row.usage.memory_working_set_bytes or 0 for row in rows)
    return f"{_counted(pods, 'pod')}, {_counted(len(rows), 'app')}, {percent_text(cpu)} CPU, {size_text(memory)}"


def table_lines(rows: Sequence[TopRow], width: int | None) -> list[str]:
    """
    Return headings and rows as lines of at most `width` columns, or as wide as they are.

    A narrow screen lacks some columns; at last names are cut.
    """
    table = [[heading, *(cell(row) for row in rows)] for heading, cell, _ in _COLUMNS]
    chosen = list(range(len(table)))
    widths = [max(map(len, column)) for column in table]
    optional = sorted((rank, number) for number, (_, _, rank) in enumerate(_COLUMNS) if rank is not None)
    while width is not None and optional and _total(widths, chosen) > width:
        chosen.remove(optional.pop(0)[1])
    name = next(number for number, column in enumerate(_COLUMNS) if column[0] == "APP")
    if width is not None:
        widths[name] = max(_MIN_NAME_WIDTH, widths[name] - max(0, _total(widths, chosen) - width))
    lines = [
        (" " * _GAP).join(_aligned(table[number][line], widths[number], _COLUMNS[number][0]) for number in chosen)
        for line in range(len(rows) + 1)
    ]
    return [(line if width is None else line[:width]).rstrip() for line in lines]


def screen_lines(rows: Sequence[TopRow], by: str, width: int, height: int) -> list[str]:
    """Return what a screen shows: the summary, then headings, then as many rows as there is space for."""
    lines = [f"{_summary_text(rows)} - by {by} - q quits"[:width], *table_lines(rows, width)]
    if len(lines) > height:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], f"{hidden} more below"[:width]]
    return lines[:height]


def _pod_rows(sample: PodSample, before: PodSample | None) -> list[TopRow]:
    seconds = (sample.clock_ns - before.clock_ns) / _SECOND_NS if before is not None else 0.0
    earlier = {row.name: row for row in sample_rows(before, None, whole=True)} if before is not None else {}
    *apps, pod = sample_rows(sample, before, whole=True)
    rows = []
    for number, app in enumerate(apps):
        old = earlier.get(app.name)
        usage = app.usage
        old_usage = old.usage if old is not None else Usage()
        network = pod if number == 0 else app
        old_network = earlier.get(network.name, network)
        rows.append(
            TopRow(
                uuid=app.uuid,
                name=app.name,
                usage=usage,
                cpu_percent=app.cpu_percent,
                restarts=app.restarts,
                read_rate=_rate(usage.read_bytes, old_usage.read_bytes, seconds),
                write_rate=_rate(usage.written_bytes, old_usage.written_bytes, seconds),
                rx_rate=_rate(network.rx_bytes, old_network.rx_bytes, seconds),
                tx_rate=_rate(network.tx_bytes, old_network.tx_bytes, seconds),
            )
        )
    return rows


def _cpu_limit_percent(usage: Usage) -> float | None:
    return None if usage.cpu_limit_millicores is None else usage.cpu_limit_millicores / _MILLICORES_PER_PERCENT


def _rate(now: int | None, before: int | None, seconds: float) -> float | None:
    if now is None or before is None or seconds <= 0:
        return None
    return max(0, now - before) / seconds


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _total(widths: Sequence[int], chosen: Sequence[int]) -> int:
    return sum(widths[number] for number in chosen) + _GAP * (len(chosen) - 1)


def _aligned(cell: str, width: int, heading: str) -> str:
    if heading in _LEFT_ALIGNED:
        return cell.ljust(width) if len(cell) <= width else f"{cell[: width - 1]}…"
    return cell.rjust(width)
