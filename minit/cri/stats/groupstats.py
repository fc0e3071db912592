"""The use of control groups in the interface's messages. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minit.base.value import Value
from minit.cri.api import cri_pb2 as api
from minit.stage0.reports.stats import InterfaceUsage
from minit.stage0.reports.usage import Pressure, Stall, Usage


class GroupSample(Value):
    """The use of a group and its pressures by resource, at a time in nanoseconds since 1970."""

    time_ns: int
    usage: Usage
    pressures: Mapping[str, Pressure | None]


def cpu_usage(sample: GroupSample) -> api.CpuUsage:
    """Return the processor time; the kubelet makes a rate of two of them."""
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
    """Return what has come and gone by interfaces, the first of which is the default one."""
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
