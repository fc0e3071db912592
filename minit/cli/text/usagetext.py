"""The resource use of apps, as columns, JSON, Prometheus' exposition format, and a screen of top. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from minit.base.value import Value
from minit.cli.text.formats import align, readable_size
from minit.stage0.reports.stats import PodSample
from minit.stage0.reports.usage import Usage

_SECOND_NS = 1_000_000_000
_MILLICORES = 1000
_MINUTE_SECONDS = 60
_HOUR_SECONDS = 3600
_UNKNOWN = "-"
_SHORT_UUID = 8

LEGEND = ("APP", "CPU", "TIME", "MEMORY", "LIMIT", "PIDS", "READ", "WRITTEN", "RECEIVED", "SENT", "OOM")
POD_ROW = "(pod)"

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

SORT_KEYS = {"c": "cpu", "m": "memory", "p": "processes", "n": "name"}
"""The keys, and the fields that they sort by."""


class Row(Value):
    """One app of a sample, or a pod as a whole, with the processor use since the sample before."""

    uuid: str
    name: str
    usage: Usage
    cpu_percent: float | None = None
    """Of one processor; None without a sample before."""
    restarts: int = 0
    rx_bytes: int | None = None
    tx_bytes: int | None = None


def sample_rows(sample: PodSample, before: PodSample | None, *, whole: bool) -> list[Row]:
    """Return the apps of a sample, and the pod after them if `whole`; bytes of the network are the pod's."""
    earlier = {app.name: app.usage for app in before.apps} if before is not None else {}
    elapsed_ns = sample.clock_ns - before.clock_ns if before is not None else 0
    rows = [
        Row(
            uuid=sample.uuid,
            name=app.name,
            usage=app.usage,
            cpu_percent=cpu_percent(app.usage, earlier.get(app.name), elapsed_ns),
            restarts=app.restarts,
        )
        for app in sample.apps
    ]
    if whole:
        interfaces = sample.interfaces
        rows.append(
            Row(
                uuid=sample.uuid,
                name=POD_ROW,
                usage=sample.usage,
                cpu_percent=cpu_percent(sample.usage, before.usage if before is not None else None, elapsed_ns),
                rx_bytes=None if interfaces is None else sum(interface.rx_bytes for interface in interfaces),
                tx_bytes=None if interfaces is None else sum(interface.tx_bytes for interface in interfaces),
            )
        )
    return rows


def cpu_percent(now: Usage, before: Usage | None, elapsed_ns: int) -> float | None:
    """Return the use of processors between two samples in percent of one processor; None if unknown."""
    if before is None or now.cpu_ns is None or before.cpu_ns is None or elapsed_ns <= 0:
        return None
    # An app that was started again has a new group, which counts from zero.
    return max(0, now.cpu_ns - before.cpu_ns) * 100 / elapsed_ns


def _row_cells(row: Row) -> tuple[str, ...]:
    """Return a row as the cells below LEGEND."""
    usage = row.usage
    return (
        row.name,
        percent_text(row.cpu_percent),
        time_text(usage.cpu_ns),
        size_text(usage.memory_working_set_bytes),
        size_text(usage.memory_limit_bytes),
        count_text(usage.processes),
        size_text(usage.read_bytes),
        size_text(usage.written_bytes),
        size_text(row.rx_bytes),
        size_text(row.tx_bytes),
        count_text(usage.oom_kills),
    )


def samples_text(samples: Sequence[PodSample], before: Mapping[str, PodSample], *, whole: bool) -> str:
    """
    Return samples as lines of columns with headings, and the UUIDs before them if they are of several pods.

    `before` are earlier samples by UUID, and `whole` adds a row for each pod as a whole.
    """
    rows: list[tuple[str, ...]] = [("UUID", *LEGEND)]
    for sample in samples:
        head = sample.uuid[:_SHORT_UUID]
        for row in sample_rows(sample, before.get(sample.uuid), whole=whole):
            rows.append((head, *_row_cells(row)))
            head = ""
    return align(rows if len(samples) > 1 else [row[1:] for row in rows])


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
    """Return a share of a processor, as in `12.5%`."""
    return _UNKNOWN if percent is None else f"{percent:.1f}%"


def time_text(nanoseconds: int | None) -> str:
    """Return a span of time, as in `0.53s`, `2m05s`, `3h07m`."""
    if nanoseconds is None:
        return _UNKNOWN
    seconds = nanoseconds / _SECOND_NS
    if seconds < _MINUTE_SECONDS:
        return f"{seconds:.2f}s"
    if seconds < _HOUR_SECONDS:
        return f"{seconds // 60:.0f}m{seconds % 60:02.0f}s"
    return f"{seconds // _HOUR_SECONDS:.0f}h{seconds % _HOUR_SECONDS // 60:02.0f}m"


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
    """Return the apps of all pods; traffic of a pod's network stands in the row of the first app."""
    return [row for sample in samples for row in _pod_rows(sample, before.get(sample.uuid))]


def sort_rows(rows: Sequence[TopRow], by: str) -> list[TopRow]:
    """Return rows with the largest first, by one of the values of SORT_KEYS; equal rows by name."""
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
    """Return the content of a screen: the summary, then headings, then as many rows as fit."""
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
