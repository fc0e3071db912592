"""The output of `app stats` and `top` from samples."""

from __future__ import annotations

import re
from typing import Any

import pyte
from hypothesis import given, settings
from hypothesis import strategies as st

from minit.base.value import replace
from minit.cli.text.usagetext import (
    Row,
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
    """A row for each app and one for the pod; what is not known is two dashes, and CPU takes an earlier sample."""
    assert [line.split() for line in samples_text([LATE], {}, whole=True).splitlines()] == [
        ["APP", "CPU", "TIME", "MEMORY", "LIMIT", "MEM%", "PIDS", "READ", "WRITE", "RECV", "SENT", "OOM"],
        ["web", "--", "1.00s", "3.0MiB", "1.0GiB", "0.3%", "3", "4.0KiB", "--", "--", "--", "--"],
        ["db", "--", "--", "--", "--", "--", "--", "--", "--", "--", "--", "2"],
        ["(pod)", "--", "12.00s", "--", "--", "--", "4", "--", "--", "12KiB", "24KiB", "--"],
    ]
    later = samples_text([LATE], {UUID: EARLY}, whole=False).expandtabs().splitlines()
    assert [line.split()[:2] for line in later] == [["APP", "CPU"], ["web", "50.0%"], ["db", "--"]]


def test_several_pods() -> None:
    """The UUID stands before the first app of each; whole ones stand in every line."""
    lines = samples_text([LATE, LATE], {}, whole=False).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["UUID", "2d381b2a", "", "2d381b2a", ""]
    lines = samples_text([LATE], {}, whole=False, width=20, full=True).splitlines()
    assert [line.split("\t")[0] for line in lines] == ["UUID", UUID, UUID]


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
    spans = (0.5, 59.999, 119.9, 125, 3600 * 3 + 420, 86400 * 400)
    shown = ["0.50s", "59.99s", "1m59s", "2m05s", "3h07m", "400d00h"]
    assert [time_text(int(seconds * SECOND_NS)) for seconds in spans] == shown


def test_rates() -> None:
    """They are of a second; those of the network stand in the row of the pod's first app."""
    web, db = top_rows([LATE], {UUID: EARLY})
    assert (web.cpu_percent, web.read_rate, web.rx_rate, web.tx_rate) == (50.0, 2048, 1024, 2048)
    assert (db.cpu_percent, db.read_rate, db.rx_rate, db.tx_rate) == (None, None, None, None)
    assert all(row.rx_rate is None for row in top_rows([LATE], {}))


def test_limits_and_restarts_in_top() -> None:
    """They stay on a screen of 80 columns, where rates do not; what is not known is two dashes."""
    app = AppSample(name="web", usage=Usage(cpu_limit_millicores=1500, memory_limit_bytes=1 << 20), restarts=4)
    late = replace(LATE, apps=(app, *LATE.apps[1:]))
    headings, web, db = table_lines(top_rows([late], {}), 80)
    for heading, cells in (("CPU LIMIT", ("150.0%", "--")), (" LIMIT", ("1.0MiB", "--")), ("RESTARTS", ("4", "0"))):
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


def test_a_long_name_costs_no_column() -> None:
    """It loses its middle; what says nothing but the name's length is no reason to leave out a number."""
    short, long = (Row(uuid=UUID, name=name, usage=Usage()) for name in ("database-of-shop", "d" * 30 + "e" * 33))
    wide, narrow = (table_lines([row], 80) for row in (short, long))
    assert narrow[0].split() == wide[0].split()
    assert narrow[1].split()[1] in {f"{'d' * (room - room // 2)}…{'e' * (room // 2)}" for room in range(7, 30)}


def test_a_limit_of_nothing() -> None:
    """It is shown, and nothing is a share of it."""
    usage = Usage(memory_working_set_bytes=5, memory_limit_bytes=0, cpu_limit_millicores=0)
    headings, row = table_lines([Row(uuid=UUID, name="web", usage=usage)], None)
    cells = dict(zip(headings.replace("CPU LIMIT", "CPU-LIMIT").split(), row.split(), strict=True))
    assert (cells["MEMORY"], cells["LIMIT"], cells["MEM%"], cells["CPU-LIMIT"]) == ("5B", "0B", "--", "0.0%")


NAMES = st.from_regex(r"[a-z]([a-z0-9-]{0,60}[a-z0-9])?", fullmatch=True)
HEADINGS = {
    *("UUID", "APP", "CPU", "CPU-LIMIT", "TIME", "MEMORY", "LIMIT", "MEM%", "PIDS", "READ", "WRITE", "RECV", "SENT"),
    *("READ/s", "WRITE/s", "RECV/s", "SENT/s", "OOM", "RESTARTS"),
}
NUMBERS = st.none() | st.integers(0, 1 << 64) | st.sampled_from((0, 1023, 1024, (1 << 20) - 1, 10 << 20, 1 << 63))
USAGES = st.builds(
    Usage,
    **dict.fromkeys(("cpu_ns", "cpu_limit_millicores", "memory_working_set_bytes", "memory_limit_bytes"), NUMBERS),
    **dict.fromkeys(("processes", "read_bytes", "written_bytes", "oom_kills"), NUMBERS),
)
SHORT_OR_LONG = st.tuples(st.sampled_from("abw"), st.integers(1, 62)).map(lambda drawn: drawn[0] * drawn[1])
APPS = st.builds(AppSample, name=SHORT_OR_LONG, usage=USAGES, restarts=st.integers(0, 1 << 32))


def pod_samples(clock_ns: int, counters: int) -> st.SearchStrategy[list[PodSample]]:
    """Return samples of some pods, at one time and with as many bytes of the network."""
    pod = st.builds(
        PodSample,
        uuid=st.uuids().map(str),
        time_ns=st.just(0),
        clock_ns=st.just(clock_ns),
        usage=USAGES,
        apps=st.lists(APPS, min_size=1, max_size=2, unique_by=lambda app: app.name).map(tuple),
        interfaces=st.none() | st.just((interface(counters, counters),)),
    )
    return st.lists(pod, min_size=1, max_size=3, unique_by=lambda sample: sample.uuid)


@settings(max_examples=50)
@given(pod_samples(SECOND_NS, 0), st.integers(0, 1 << 64), st.sampled_from((80, 120)))
def test_on_a_terminal_nothing_wraps_and_columns_are_aligned(early: list[PodSample], used: int, width: int) -> None:
    """On a real terminal a line of stats and top is a row of the screen, and the cells of a column end together."""
    late = [replace(each, clock_ns=2 * SECOND_NS, usage=Usage(cpu_ns=used)) for each in early]
    before = {each.uuid: each for each in early}
    stats = samples_text(late, before, whole=True, width=width)
    top = "".join(f"{line}\n" for line in table_lines(sort_rows(top_rows(late, before), "cpu"), width))
    for text in (stats, top):
        lines = text.splitlines()
        screen = pyte.Screen(width, len(lines) + 1)
        pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
        assert [line.rstrip() for line in screen.display] == [*lines, ""]
        ends = [end for end in range(1, width + 1) if all(line[end : end + 2].strip() == "" for line in lines)]
        headings = {match.end(): match[0] for match in re.finditer(r"\S+", lines[0].replace("CPU LIMIT", "CPU-LIMIT"))}
        assert all(end in ends for end, heading in headings.items() if heading not in ("UUID", "APP"))
        assert {"APP", "CPU", "MEMORY"} <= set(headings.values()) <= HEADINGS, "no column is cut"


@given(st.lists(NAMES, max_size=30), st.integers(1, 200), st.integers(1, 60))
def test_whatever_the_screen_it_fits(names: list[str], width: int, height: int) -> None:
    """No line is wider than the screen and it is full; the last line has the keys, and counts rows that are cut."""
    rows = [Row(uuid=UUID, name=name, usage=Usage()) for name in names]
    lines = screen_lines(rows, "cpu", width, height)
    assert len(lines) == height
    assert all(len(line) <= width for line in lines)
    hidden = len(rows) + 3 - height
    keys = "keys: c CPU, m memory, p processes, n name, q quit"
    assert lines[-1] == (f"{hidden} more below - {keys}" if hidden > 0 else keys)[:width]
