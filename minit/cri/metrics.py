"""
The usage of control groups, and the metrics at a kubelet's /metrics/cadvisor, under the names of cAdvisor.

Values are whole numbers, seconds too. The labels of a pod's namespace and names are the kubelet's to add.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.stage0.reports.stats import InterfaceUsage
from minit.stage0.reports.usage import Pressure, Stall, Usage

_SECOND_NS = 1_000_000_000
_LABELS = ("id", "name", "image")


class Subject(Value):
    """A container or a sandbox: control group, id, and name of the image."""

    group: str
    id: str
    image: str = ""

    @property
    def labels(self) -> tuple[str, ...]:
        """The values of the labels that every metric has."""
        return (f"/{self.group}", self.id, self.image)


class _Metric(Value):
    """A metric; `values` are numbers with values of the metric's labels, None where the machine has no number."""

    name: str
    help: str
    values: Callable[[GroupSample], Sequence[tuple[int | None, tuple[str, ...]]]]
    labels: tuple[str, ...] = ()
    is_gauge: bool = False


class _InterfaceMetric(Value):
    name: str
    help: str
    value: Callable[[InterfaceUsage], int]


def _counter(name: str, text: str, read: Callable[[GroupSample], int | None]) -> _Metric:
    return _Metric(name=name, help=text, values=lambda sample: [(read(sample), ())])


def _gauge(name: str, text: str, read: Callable[[GroupSample], int | None]) -> _Metric:
    return _Metric(name=name, help=text, values=lambda sample: [(read(sample), ())], is_gauge=True)


def _io(name: str, text: str, read: Callable[[GroupSample], int | None]) -> _Metric:
    # Of all devices together.
    return _Metric(name=name, help=text, values=lambda sample: [(read(sample), ("",))], labels=("device",))


def _stalled(resource: str, words: str, *, full: bool) -> _Metric:
    def read(sample: GroupSample) -> int | None:
        pressure = sample.pressures.get(resource)
        return None if pressure is None else _seconds((pressure.full if full else pressure.some).total_ns)

    kind, who = ("stalled", "no task") if full else ("waiting", "some task")
    return _counter(f"container_pressure_{resource}_{kind}_seconds_total", f"Time in which {who} got {words}.", read)


def _seconds(nanoseconds: int | None) -> int | None:
    return None if nanoseconds is None else nanoseconds // _SECOND_NS


_PRESSURES = tuple(
    _stalled(resource, words, full=full)
    for resource, words in (("cpu", "a processor"), ("memory", "memory"), ("io", "input and output"))
    for full in (True, False)
)
_OF_GROUPS = (
    _Metric(
        name="container_cpu_usage_seconds_total",
        help="Processor time used.",
        values=lambda sample: [(_seconds(sample.usage.cpu_ns), ("total",))],
        labels=("cpu",),
    ),
    _counter("container_cpu_user_seconds_total", "Time in programs.", lambda one: _seconds(one.usage.cpu_user_ns)),
    _counter(
        "container_cpu_system_seconds_total", "Time in the kernel.", lambda one: _seconds(one.usage.cpu_system_ns)
    ),
    _counter(
        "container_cpu_cfs_throttled_seconds_total",
        "Time without a processor because of the limit.",
        lambda one: _seconds(one.usage.cpu_throttled_ns),
    ),
    _gauge("container_memory_usage_bytes", "Memory in use.", lambda one: one.usage.memory_bytes),
    _gauge(
        "container_memory_working_set_bytes",
        "Memory without the file cache that can be given up first.",
        lambda one: one.usage.memory_working_set_bytes,
    ),
    _gauge("container_memory_rss", "Memory of no file.", lambda one: one.usage.memory_anonymous_bytes),
    _gauge("container_memory_max_usage_bytes", "The most memory so far.", lambda one: one.usage.memory_peak_bytes),
    _gauge("container_memory_swap", "Swap space in use.", lambda one: one.usage.swap_bytes),
    _gauge(
        "container_spec_memory_limit_bytes",
        "The limit of memory, 0 for none.",
        lambda one: one.usage.memory_limit_bytes or 0,
    ),
    _Metric(
        name="container_memory_failures_total",
        help="Page faults.",
        values=lambda sample: [
            (sample.usage.page_faults, ("pgfault", "container")),
            (sample.usage.major_page_faults, ("pgmajfault", "container")),
        ],
        labels=("failure_type", "scope"),
    ),
    _counter("container_oom_events_total", "Processes killed for want of memory.", lambda one: one.usage.oom_kills),
    _gauge("container_processes", "Processes.", lambda one: one.usage.processes),
    _io("container_fs_reads_bytes_total", "Bytes read from devices.", lambda one: one.usage.read_bytes),
    _io("container_fs_reads_total", "Reads from devices.", lambda one: one.usage.reads),
    _io("container_fs_writes_bytes_total", "Bytes written to devices.", lambda one: one.usage.written_bytes),
    _io("container_fs_writes_total", "Writes to devices.", lambda one: one.usage.writes),
    _gauge("container_last_seen", "The time of these numbers, since 1970.", lambda one: _seconds(one.time_ns)),
    *_PRESSURES,
)
_START = "container_start_time_seconds"
_OF_INTERFACES = tuple(
    _InterfaceMetric(name=f"container_network_{direction}_{what}_total", help=f"{text} {how}.", value=read)
    for direction, how, fields in (
        (
            "receive",
            "received",
            (
                ("bytes", "Bytes", lambda one: one.rx_bytes),
                ("packets", "Packets", lambda one: one.rx_packets),
                ("errors", "Packets that were not well", lambda one: one.rx_errors),
                ("packets_dropped", "Packets that were not", lambda one: one.rx_dropped),
            ),
        ),
        (
            "transmit",
            "sent",
            (
                ("bytes", "Bytes", lambda one: one.tx_bytes),
                ("packets", "Packets", lambda one: one.tx_packets),
                ("errors", "Packets that were not well", lambda one: one.tx_errors),
                ("packets_dropped", "Packets that were not", lambda one: one.tx_dropped),
            ),
        ),
    )
    for what, text, read in fields
)


def metric_descriptors() -> list[api.MetricDescriptor]:
    """Return the names of all metrics, with the labels."""
    described = [(one.name, one.help, one.labels) for one in _OF_GROUPS]
    described.append((_START, "The time of the start, since 1970.", ()))
    described += [(one.name, one.help, ("interface",)) for one in _OF_INTERFACES]
    return [api.MetricDescriptor(name=name, help=text, label_keys=[*_LABELS, *more]) for name, text, more in described]


def group_metrics(subject: Subject, sample: GroupSample, started_ns: int) -> Iterator[api.Metric]:
    """Yield the metrics of a control group; `started_ns` is since 1970."""
    for metric in _OF_GROUPS:
        for number, labels in metric.values(sample):
            if number is not None:
                kind = api.GAUGE if metric.is_gauge else api.COUNTER
                yield _metric(metric.name, kind, (*subject.labels, *labels), number)
    yield _metric(_START, api.GAUGE, subject.labels, started_ns // _SECOND_NS)


def interface_metrics(subject: Subject, interfaces: Sequence[InterfaceUsage]) -> Iterator[api.Metric]:
    """Yield the metrics of a sandbox's interfaces."""
    for metric in _OF_INTERFACES:
        for one in interfaces:
            yield _metric(metric.name, api.COUNTER, (*subject.labels, one.name), metric.value(one))


def _metric(name: str, kind: api.MetricType, labels: Sequence[str], number: int) -> api.Metric:
    return api.Metric(name=name, metric_type=kind, label_values=labels, value=api.UInt64Value(value=number))


class GroupSample(Value):
    """The use of a group and its pressures by resource, at a time in nanoseconds since 1970."""

    time_ns: int
    usage: Usage
    pressures: Mapping[str, Pressure | None]


def cpu_usage(sample: GroupSample) -> api.CpuUsage:
    """Return the processor time, of which the kubelet makes a rate."""
    return api.CpuUsage(
        timestamp=sample.time_ns,
        usage_core_nano_seconds=_number(sample.usage.cpu_ns),
        psi=_psi(sample.pressures.get("cpu")),
    )


def memory_usage(sample: GroupSample) -> api.MemoryUsage:
    """Return the memory, and how much more there may be, if there is a limit."""
    usage = sample.usage
    return api.MemoryUsage(
        timestamp=sample.time_ns,
        working_set_bytes=_number(usage.memory_working_set_bytes),
        available_bytes=_number(_rest(usage.memory_limit_bytes, usage.memory_working_set_bytes)),
        usage_bytes=_number(usage.memory_bytes),
        rss_bytes=_number(usage.memory_anonymous_bytes),
        page_faults=_number(usage.page_faults),
        major_page_faults=_number(usage.major_page_faults),
        psi=_psi(sample.pressures.get("memory")),
    )


def swap_usage(sample: GroupSample) -> api.SwapUsage | None:
    """Return the swap space, None if the kernel does not count it."""
    usage = sample.usage
    if usage.swap_bytes is None:
        return None
    return api.SwapUsage(
        timestamp=sample.time_ns,
        swap_available_bytes=_number(_rest(usage.swap_limit_bytes, usage.swap_bytes)),
        swap_usage_bytes=_number(usage.swap_bytes),
    )


def io_usage(sample: GroupSample) -> api.IoUsage:
    """Return the pressure of input and output."""
    return api.IoUsage(timestamp=sample.time_ns, psi=_psi(sample.pressures.get("io")))


def process_usage(sample: GroupSample) -> api.ProcessUsage:
    """Return the number of processes."""
    return api.ProcessUsage(timestamp=sample.time_ns, process_count=_number(sample.usage.processes))


def network_usage(interfaces: Sequence[InterfaceUsage], time_ns: int) -> api.NetworkUsage:
    """Return traffic by interface, the default interface first."""
    described = [
        api.NetworkInterfaceUsage(
            name=one.name,
            rx_bytes=_number(one.rx_bytes),
            rx_errors=_number(one.rx_errors),
            tx_bytes=_number(one.tx_bytes),
            tx_errors=_number(one.tx_errors),
        )
        for one in interfaces
    ]
    return api.NetworkUsage(
        timestamp=time_ns, default_interface=described[0] if described else None, interfaces=described[1:]
    )


def _number(value: int | None) -> api.UInt64Value | None:
    return None if value is None else api.UInt64Value(value=value)


def _rest(limit: int | None, used: int | None) -> int | None:
    return None if limit is None or used is None else max(0, limit - used)


def _psi(pressure: Pressure | None) -> api.PsiStats | None:
    return None if pressure is None else api.PsiStats(Full=_stall(pressure.full), Some=_stall(pressure.some))


def _stall(stall: Stall) -> api.PsiData:
    return api.PsiData(Total=stall.total_ns, Avg10=stall.avg10, Avg60=stall.avg60, Avg300=stall.avg300)
