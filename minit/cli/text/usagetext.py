"""The resource use of apps, as columns, JSON, Prometheus' exposition format, and a screen of top. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from minit.base.value import Value, replace
from minit.cli.text.formats import align, readable_size, shorten
from minit.stage0.reports.stats import PodSample
from minit.stage0.reports.usage import Usage

_SECOND_NS = 1_000_000_000
_MILLICORES = 1000
_UNKNOWN = "--"
_SHORT_UUID = 8
_POD_ROW = "(pod)"

# (name, help, is a counter, field of Usage, what one of Prometheus' base units is in the field's)
_METRICS = (
    ("cpu_seconds", "Processor time used.", True, "cpu_ns", _SECOND_NS),
    ("cpu_user_seconds", "Processor time used outside of the kernel.", True, "cpu_user_ns", _SECOND_NS),
    ("cpu_system_seconds", "Processor time used in the kernel.", True, "cpu_system_ns", _SECOND_NS),
    ("cpu_throttled_seconds", "Time in which a limit kept it from running.", True, "cpu_throttled_ns", _SECOND_NS),
    ("cpu_limit_cores", "Limit of processors.", False, "cpu_limit_millicores", _MILLICORES),
    ("memory_bytes", "Memory in use, file cache included.", False, "memory_bytes", 1),
    ("memory_working_set_bytes", "Memory less inactive file cache.", False, "memory_working_set_bytes", 1),
    ("memory_peak_bytes", "The most memory that was in use.", False, "memory_peak_bytes", 1),
    ("memory_limit_bytes", "Limit of memory.", False, "memory_limit_bytes", 1),
    ("processes", "Processes and threads.", False, "processes", 1),
    ("processes_limit", "Limit of processes and threads.", False, "processes_limit", 1),
    ("io_read_bytes", "Bytes read from block devices.", True, "read_bytes", 1),
    ("io_written_bytes", "Bytes written to block devices.", True, "written_bytes", 1),
    ("io_reads", "Reads from block devices.", True, "reads", 1),
    ("io_writes", "Writes to block devices.", True, "writes", 1),
    ("oom_kills", "Processes that were killed because memory ran out.", True, "oom_kills", 1),
)
_INTERFACE_METRICS = (
    ("receive_bytes", "Bytes received.", "rx_bytes"),
    ("receive_packets", "Packets received.", "rx_packets"),
    ("receive_errors", "Packets received with errors.", "rx_errors"),
    ("receive_dropped", "Packets dropped on receipt.", "rx_dropped"),
    ("transmit_bytes", "Bytes sent.", "tx_bytes"),
    ("transmit_packets", "Packets sent.", "tx_packets"),
    ("transmit_errors", "Packets that could not be sent.", "tx_errors"),
    ("transmit_dropped", "Packets dropped before they were sent.", "tx_dropped"),
)

_MILLICORES_PER_PERCENT = 10
_GAP = 2
_MIN_NAME_WIDTH = 4
_KEPT_NAME_WIDTH = 16  # columns go before a name gets shorter

SORT_KEYS = {"c": "cpu", "m": "memory", "p": "processes", "n": "name"}
"""The keys, and the fields that they sort by."""

_KEYS_TEXT = "keys: c CPU, m memory, p processes, n name, q quit"


class Row(Value):
    """
    One app of a sample, or a pod as a whole.

    The use of processors is in percent of one, and rates are bytes per second: both None without an earlier sample.
    """

    uuid: str
    name: str
    usage: Usage
    cpu_percent: float | None = None
    restarts: int | None = None
    rx_bytes: int | None = None
    tx_bytes: int | None = None
    read_rate: float | None = None
    write_rate: float | None = None
    rx_rate: float | None = None
    tx_rate: float | None = None


class _Column(NamedTuple):
    """A heading, the text of a row below, and how soon a narrow terminal does without; None is never."""

    heading: str
    cell: Callable[[Row], str]
    rank: int | None


_COLUMNS = (
    _Column("UUID", lambda row: row.uuid, 13),
    _Column("APP", lambda row: row.name, None),
    _Column("CPU", lambda row: percent_text(row.cpu_percent), None),
    _Column("CPU LIMIT", lambda row: percent_text(_cpu_limit_percent(row.usage)), 10),
    _Column("TIME", lambda row: time_text(row.usage.cpu_ns), 3),
    _Column("MEMORY", lambda row: size_text(row.usage.memory_working_set_bytes), None),
    _Column("LIMIT", lambda row: size_text(row.usage.memory_limit_bytes), 11),
    _Column("MEM%", lambda row: percent_text(_memory_percent(row.usage)), 2),
    _Column("PIDS", lambda row: count_text(row.usage.processes), 14),
    _Column("READ", lambda row: size_text(row.usage.read_bytes), 4),
    _Column("WRITE", lambda row: size_text(row.usage.written_bytes), 5),
    _Column("RECV", lambda row: size_text(row.rx_bytes), 6),
    _Column("SENT", lambda row: size_text(row.tx_bytes), 7),
    _Column("READ/s", lambda row: size_text(row.read_rate), 4),
    _Column("WRITE/s", lambda row: size_text(row.write_rate), 5),
    _Column("RECV/s", lambda row: size_text(row.rx_rate), 6),
    _Column("SENT/s", lambda row: size_text(row.tx_rate), 7),
    _Column("OOM", lambda row: count_text(row.usage.oom_kills), 1),
    _Column("RESTARTS", lambda row: count_text(row.restarts), 12),
)
_LEFT_ALIGNED = ("UUID", "APP")
_OF_STATS = frozenset(("READ", "WRITE", "RECV", "SENT"))
_OF_TOP = frozenset(("CPU LIMIT", "READ/s", "WRITE/s", "RECV/s", "SENT/s", "RESTARTS"))
_STATS = tuple(column for column in _COLUMNS if column.heading not in _OF_TOP)
_TOP = tuple(column for column in _COLUMNS if column.heading not in _OF_STATS)


def sample_rows(sample: PodSample, before: PodSample | None) -> list[Row]:
    """Return a row of each app, and the pod's at last, which has the traffic of the pod's networks."""
    earlier = {app.name: app.usage for app in before.apps} if before is not None else {}
    elapsed_ns = sample.clock_ns - before.clock_ns if before is not None else 0
    rows = [
        replace(_usage_row(sample.uuid, app.name, app.usage, earlier.get(app.name), elapsed_ns), restarts=app.restarts)
        for app in sample.apps
    ]
    pod = _usage_row(sample.uuid, _POD_ROW, sample.usage, None if before is None else before.usage, elapsed_ns)
    received, sent = _traffic(sample)
    old_received, old_sent = (None, None) if before is None else _traffic(before)
    rows.append(
        replace(
            pod,
            rx_bytes=received,
            tx_bytes=sent,
            rx_rate=_rate(received, old_received, elapsed_ns),
            tx_rate=_rate(sent, old_sent, elapsed_ns),
        )
    )
    return rows


def top_rows(samples: Sequence[PodSample], before: Mapping[str, PodSample]) -> list[Row]:
    """Return the apps of all pods; traffic of a pod's networks stands in the row of the first app."""
    found: list[Row] = []
    for sample in samples:
        *apps, pod = sample_rows(sample, before.get(sample.uuid))
        found += [replace(app, rx_rate=pod.rx_rate, tx_rate=pod.tx_rate) for app in apps[:1]] + apps[1:]
    return found


def _usage_row(uuid: str, name: str, usage: Usage, before: Usage | None, elapsed_ns: int) -> Row:
    old = before if before is not None else Usage()
    cpu = _rate(usage.cpu_ns, old.cpu_ns, elapsed_ns)
    return Row(
        uuid=uuid,
        name=name,
        usage=usage,
        cpu_percent=None if cpu is None else cpu * 100 / _SECOND_NS,
        read_rate=_rate(usage.read_bytes, old.read_bytes, elapsed_ns),
        write_rate=_rate(usage.written_bytes, old.written_bytes, elapsed_ns),
    )


def _traffic(sample: PodSample) -> tuple[int | None, int | None]:
    """Return the bytes that a pod has received and sent by all interfaces, None each if the pod has none of its own."""
    if sample.interfaces is None:
        return None, None
    return sum(each.rx_bytes for each in sample.interfaces), sum(each.tx_bytes for each in sample.interfaces)


def _rate(now: int | None, before: int | None, elapsed_ns: int) -> float | None:
    """Return the growth in a second, None without two numbers and a time between."""
    if now is None or before is None or elapsed_ns <= 0:
        return None
    # An app that was started again has a new group, which counts from zero.
    return max(0, now - before) * _SECOND_NS / elapsed_ns


def samples_text(
    samples: Sequence[PodSample],
    before: Mapping[str, PodSample],
    *,
    whole: bool,
    width: int | None = None,
    full: bool = False,
) -> str:
    """
    Return samples as lines of columns with headings, and the UUIDs before them if they are of several pods.

    `before` are earlier samples by UUID, and `whole` adds a row for each pod as a whole. Lines are at most `width`
    columns long, but not of `full`, with whole UUIDs.
    """
    columns = _STATS if len(samples) > 1 or full else tuple(column for column in _STATS if column.heading != "UUID")
    table = [[column.heading for column in columns]]
    for sample in samples:
        *apps, pod = sample_rows(sample, before.get(sample.uuid))
        for number, row in enumerate([*apps, pod] if whole else apps):
            uuid = row.uuid if full else row.uuid[:_SHORT_UUID] if number == 0 else ""
            table.append([column.cell(replace(row, uuid=uuid)) for column in columns])
    if width is None or full:
        return align(table)
    return "".join(f"{line}\n" for line in _fitted(columns, table, width))


def stats_json(sample: PodSample) -> dict[str, object]:
    """Return a sample with all known values; times in nanoseconds, sizes in bytes."""
    fields: dict[str, object] = {
        "uuid": sample.uuid,
        "time_ns": sample.time_ns,
        "pod": _usage_json(sample.usage),
        "apps": [{"name": app.name, "restarts": app.restarts, **_usage_json(app.usage)} for app in sample.apps],
    }
    if sample.interfaces is not None:
        fields["networks"] = [
            {name: getattr(interface, name) for name in interface._fields} for interface in sample.interfaces
        ]
    return fields


def prometheus_text(samples: Sequence[PodSample]) -> str:
    """Return samples in the text format of Prometheus and the node exporter; without time stamps."""
    blocks: list[str] = []
    apps = [({"uuid": sample.uuid, "app": app.name}, app.usage) for sample in samples for app in sample.apps]
    pods = [({"uuid": sample.uuid}, sample.usage) for sample in samples]
    for subject, usages in (("app", apps), ("pod", pods)):
        for name, text, is_counter, field, unit in _METRICS:
            values = [(labels, getattr(usage, field), unit) for labels, usage in usages]
            blocks += _metric(f"minit_{subject}_{name}", text, is_counter, values)
    for name, text, field in _INTERFACE_METRICS:
        values = [
            ({"uuid": sample.uuid, "interface": interface.name}, getattr(interface, field), 1)
            for sample in samples
            for interface in sample.interfaces or ()
        ]
        blocks += _metric(f"minit_pod_network_{name}", text, True, values)
    return "".join(f"{line}\n" for line in blocks)


def percent_text(percent: float | None) -> str:
    """Return a share of a processor or of memory, as in `12.5%`."""
    return _UNKNOWN if percent is None else f"{percent:.1f}%"


def time_text(nanoseconds: int | None) -> str:
    """Return a span of time, as in `0.53s`, `2m05s`, `3h07m`, `12d03h`."""
    if nanoseconds is None:
        return _UNKNOWN
    minutes, rest_ns = divmod(nanoseconds, 60 * _SECOND_NS)
    hundredths = rest_ns // (_SECOND_NS // 100)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02d}h"
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{hundredths // 100:02d}s" if minutes else f"{hundredths / 100:.2f}s"


def size_text(size_bytes: float | None) -> str:
    """Return a number of bytes for people."""
    return _UNKNOWN if size_bytes is None else readable_size(size_bytes)


def count_text(count: int | None) -> str:
    """Return a number."""
    return _UNKNOWN if count is None else str(count)


def _usage_json(usage: Usage) -> dict[str, object]:
    return {name: getattr(usage, name) for name in usage._fields if getattr(usage, name) is not None}


def _metric(
    name: str, text: str, is_counter: bool, values: Iterable[tuple[dict[str, str], int | None, int]]
) -> list[str]:
    """Return the lines of a metric, none without a value."""
    lines = []
    # Counters have their suffix in the name of the family too: this is the classic format, not OpenMetrics.
    name = f"{name}_total" if is_counter else name
    for labels, value, unit in values:
        if value is not None:
            pairs = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
            lines.append(f"{name}{{{pairs}}} {value if unit == 1 else repr(value / unit)}")
    kind = "counter" if is_counter else "gauge"
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines] if lines else []


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def sort_rows(rows: Sequence[Row], by: str) -> list[Row]:
    """Return rows with the largest first, by one of the values of SORT_KEYS; equal rows by name."""
    keys: Mapping[str, Callable[[Row], float]] = {
        "cpu": lambda row: row.cpu_percent or 0,
        "memory": lambda row: row.usage.memory_working_set_bytes or 0,
        "processes": lambda row: row.usage.processes or 0,
        "name": lambda row: 0,
    }
    return sorted(rows, key=lambda row: (-keys[by](row), row.name, row.uuid))


def _summary_text(rows: Sequence[Row]) -> str:
    """Return the pods, apps, processors and memory of all rows in one line."""
    pods = len({row.uuid for row in rows})
    cpu = sum(row.cpu_percent or 0 for row in rows)
    memory = sum(row.usage.memory_working_set_bytes or 0 for row in rows)
    return f"{_counted(pods, 'pod')}, {_counted(len(rows), 'app')}, {percent_text(cpu)} CPU, {size_text(memory)}"


def table_lines(rows: Sequence[Row], width: int | None) -> list[str]:
    """Return headings and rows of top as lines of at most `width` columns, or as wide as they are."""
    short = [replace(row, uuid=row.uuid[:_SHORT_UUID]) for row in rows]
    table = [[column.heading for column in _TOP], *([column.cell(row) for column in _TOP] for row in short)]
    return _fitted(_TOP, table, width)


def screen_lines(rows: Sequence[Row], by: str, width: int, height: int) -> list[str]:
    """Return the content of a screen: the summary, headings, as many rows as fit, and the keys at the bottom."""
    lines = [f"{_summary_text(rows)} - by {by}"[:width], *table_lines(rows, width)]
    room = max(0, height - 1)
    hidden = len(lines) - room
    last = f"{hidden} more below - {_KEYS_TEXT}" if hidden > 0 else _KEYS_TEXT
    return [*lines[:room], *[""] * -hidden, last[:width]]


def _fitted(columns: Sequence[_Column], table: Sequence[Sequence[str]], width: int | None) -> list[str]:
    """Return lines of a table of cells; a narrow terminal lacks some columns, and long names lose their middles."""
    chosen = list(range(len(columns)))
    widths = [max(len(cells[number]) for cells in table) for number in chosen]
    if width is not None:
        name = [column.heading for column in columns].index("APP")
        longest = widths[name]
        widths[name] = min(longest, _KEPT_NAME_WIDTH)
        optional = sorted((column.rank, number) for number, column in enumerate(columns) if column.rank is not None)
        while optional and _total(widths, chosen) > width:
            chosen.remove(optional.pop(0)[1])
        room = widths[name] + width - _total(widths, chosen)
        widths[name] = max(_MIN_NAME_WIDTH, min(longest, room))
    lines = (
        (" " * _GAP).join(_aligned(cells[number], widths[number], columns[number].heading) for number in chosen)
        for cells in table
    )
    return [line[:width].rstrip() for line in lines]


def _cpu_limit_percent(usage: Usage) -> float | None:
    return None if usage.cpu_limit_millicores is None else usage.cpu_limit_millicores / _MILLICORES_PER_PERCENT


def _memory_percent(usage: Usage) -> float | None:
    """Return the memory in percent of the limit; None without a limit, or with one of nothing."""
    if usage.memory_working_set_bytes is None or not usage.memory_limit_bytes:
        return None
    return usage.memory_working_set_bytes * 100 / usage.memory_limit_bytes


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _total(widths: Sequence[int], chosen: Sequence[int]) -> int:
    return sum(widths[number] for number in chosen) + _GAP * (len(chosen) - 1)


def _aligned(cell: str, width: int, heading: str) -> str:
    return shorten(cell, width).ljust(width) if heading in _LEFT_ALIGNED else cell.rjust(width)
