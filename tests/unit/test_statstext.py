"""The output of `app stats` and `top` from samples."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minit.base.value import replace
from minit.cli.text.usagetext import (
    TopRow,
    prometheus_text,
    samples_text,
    screen_lines,
    sort_rows,
    stats_json,
    table_lines,
    time_text,
    top_rows,
)
from minit.stage0.reports.stats import AppSample, InterfaceUsage, PodSample
from minit.stage0.reports.usage import Usage

SECOND_NS = 1_000_000_000
UUID = "2d381b2a-0000-4000-8000-000000000000"


def interface(received: int, sent: int) -> InterfaceUsage:
    """Return the counters of an interface that had no trouble."""
    none = dict.fromkeys(("rx_packets", "rx_errors", "rx_dropped", "tx_packets", "tx_errors", "tx_dropped"), 0)
    return InterfaceUsage(name="eth0", rx_bytes=received, tx_bytes=sent, **none)


def sample(seconds: int, **apps: Usage) -> PodSample:
    """Return a sample of a pod that had used `seconds` of everything."""
    return PodSample(
        uuid=UUID,
        time_ns=0,
        clock_ns=seconds * SECOND_NS,
        usage=Usage(cpu_ns=seconds * SECOND_NS, processes=4),
        apps=tuple(AppSample(name=name, usage=usage) for name, usage in apps.items()),
        interfaces=(interface(1024 * seconds, 2048 * seconds),),
    )


EARLY = sample(10, web=Usage(cpu_ns=0, read_bytes=0), db=Usage())
LATE = sample(
    12,
    web=Usage(
        cpu_ns=SECOND_NS, memory_working_set_bytes=3 << 20, memory_limit_bytes=1 << 30, processes=3, read_bytes=4096
    ),
    db=Usage(oom_kills=2),
)


def test_columns() -> None:
    """A row for each app and one for the pod; what is not known is a dash, and CPU takes an earlier sample."""
    assert samples_text([LATE], {}, whole=True).expandtabs().splitlines() == [
        "APP     CPU     TIME    MEMORY  LIMIT   PIDS    READ    WRITTEN RECEIVED        SENT    OOM",
        "web     -       1.00s   3.0MiB  1.0GiB  3       4.0KiB  -       -               -       -",
        "db      -       -       -       -       -       -       -       -               -       2",
        "(pod)   -       12.00s  -       -       4       -       -       12KiB           24KiB   -",
    ]
    later = samples_text([LATE], {UUID: EARLY}, whole=False).expandtabs().splitlines()
    assert [line.split()[:2] for line in later] == [["APP", "CPU"], ["web", "50.0%"], ["db", "-"]]


def test_several_pods() -> None:
    """The UUID stands before the first app of each."""
    lines = samples_text([LATE, LATE], {}, whole=False).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["UUID", "2d381b2a", "", "2d381b2a", ""]


def test_json() -> None:
    """Unknown values are left out, and so are the networks of a pod that has the host's."""
    shown: Any = stats_json(LATE)
    web, db = shown["apps"]
    assert db == {"name": "db", "restarts": 0, "oom_kills": 2}
    assert web["cpu_ns"] == SECOND_NS
    assert shown["networks"][0]["rx_bytes"] == 12 * 1024


def test_prometheus() -> None:
    """Each metric has its type once, counters end in _total, times are in seconds, and no value has no line."""
    text = prometheus_text([LATE])
    lines = text.splitlines()
    assert f'minit_app_cpu_seconds_total{{uuid="{UUID}",app="web"}} 1.0' in lines
    assert f'minit_app_oom_kills_total{{uuid="{UUID}",app="db"}} 2' in lines
    assert f'minit_pod_network_receive_bytes_total{{uuid="{UUID}",interface="eth0"}} {12 * 1024}' in lines
    assert "# TYPE minit_app_memory_limit_bytes gauge" in lines
    assert "io_written" not in text
    types = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(types) == len(set(types))
    assert text.endswith("\n") and prometheus_text([]) == ""


def test_spans_of_time() -> None:
    """They get coarser as they get longer."""
    spans = (0.5, 59.99, 125, 3600 * 3 + 420)
    assert [time_text(int(seconds * SECOND_NS)) for seconds in spans] == ["0.50s", "59.99s", "2m05s", "3h07m"]


def test_rates() -> None:
    """They are of a second; those of the network stand in the row of the pod's first app."""
    web, db = top_rows([LATE], {UUID: EARLY})
    assert (web.cpu_percent, web.read_rate, web.rx_rate, web.tx_rate) == (50.0, 2048, 1024, 2048)
    assert (db.cpu_percent, db.read_rate, db.rx_rate, db.tx_rate) == (None, None, None, None)
    assert all(row.rx_rate is None for row in top_rows([LATE], {}))


def test_limits_and_restarts_in_top() -> None:
    """They stay on a screen of 80 columns, where rates do not; what is not known is a dash."""
    app = AppSample(name="web", usage=Usage(cpu_limit_millicores=1500, memory_limit_bytes=1 << 20), restarts=4)
    late = replace(LATE, apps=(app, *LATE.apps[1:]))
    headings, web, db = table_lines(top_rows([late], {}), 80)
    for heading, cells in (("CPU LIMIT", ("150.0%", "-")), (" LIMIT", ("1.0MiB", "-")), ("RESTARTS", ("4", "0"))):
        end = headings.rindex(heading) + len(heading)
        assert tuple(line[:end].split()[-1] for line in (web, db)) == cells
    assert stats_json(late)["apps"] == [
        {"name": "web", "restarts": 4, "cpu_limit_millicores": 1500, "memory_limit_bytes": 1 << 20},
        {"name": "db", "restarts": 0, "oom_kills": 2},
    ]
    assert 'minit_app_cpu_limit_cores{uuid="' in prometheus_text([late])


def test_sorting() -> None:
    """The largest is first, what is not known last, and names decide what is left."""
    rows = top_rows([LATE], {UUID: EARLY})
    assert [row.name for row in sort_rows(rows, "cpu")] == ["web", "db"]
    assert [row.name for row in sort_rows(rows, "name")] == ["db", "web"]


def test_a_narrow_table_lacks_columns() -> None:
    """The name, processor and memory stay longest."""
    rows = top_rows([LATE], {UUID: EARLY})
    assert table_lines(rows, None)[0].split()[:2] == ["UUID", "APP"]
    assert table_lines(rows, 40)[0].split() == ["UUID", "APP", "CPU", "MEMORY", "PIDS"]
    assert table_lines(rows, 20)[0].split() == ["APP", "CPU", "MEMORY"]


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)


@given(st.lists(NAMES, max_size=30), st.integers(1, 200), st.integers(1, 60))
def test_whatever_the_screen_it_fits(names: list[str], width: int, height: int) -> None:
    """No line is wider than the screen and there are not more than it has; cut rows are counted."""
    rows = [TopRow(uuid=UUID, name=name, usage=Usage()) for name in names]
    lines = screen_lines(rows, "cpu", width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    if len(rows) + 2 > height > 2 and width >= 20:
        assert lines[-1] == f"{len(rows) + 3 - height} more below"
