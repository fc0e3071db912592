"""The output of list and status, byte for byte."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.goduration import format_duration, parse_duration
from minit.cli.commands.appviewcommands import app_list_text, app_status_text
from minit.cli.commands.storecommands import list_text as image_list_text
from minit.cli.invocation import Invocation
from minit.cli.text.formats import align, fit, format_age, format_time, json_text
from minit.cli.text.podtext import OwnFacts, list_text, pod_json, status_text
from minit.manifest.image import ImageManifest
from minit.stage0.images.storedimage import StoredImage
from minit.stage0.pods.exposedports import ForwardedPort
from minit.stage0.pods.poddirectory import PodState
from minit.stage0.pods.podstatus import NETWORK_FIELDS, AppMount, AppStatus, PodStatus

UUID = "f3690550-7b80-4be7-839b-2359a85fb0d2"
IMAGE = "sha512-4878" + "a" * 60
CREATED_NS = 1795188489167235010
STARTED_NS = 1795188506037937116
NOW_NS = CREATED_NS + 60_000_000_000
NETWORK = tuple((field, {"netName": "default", "ip": "172.16.28.2"}.get(field, "")) for field in NETWORK_FIELDS)


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the tests into a known time zone."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def pod(state: PodState = PodState.EXITED, **changes: object) -> PodStatus:
    """Return a pod that ran one app."""
    fields: dict[str, object] = {
        "uuid": UUID,
        "state": state,
        "created_ns": CREATED_NS,
        "started_ns": STARTED_NS,
        "pid": 321,
        "networks": (),
        "apps": (app(),),
        **changes,
    }
    return PodStatus(**fields)  # type: ignore[arg-type]


def app(**changes: object) -> AppStatus:
    """Return an app that exited with 7."""
    fields: dict[str, object] = {
        "name": "bb",
        "state": "exited",
        "image_id": IMAGE,
        "image_name": "example.com/bb:1.0",
        "created_ns": CREATED_NS,
        "started_ns": STARTED_NS,
        "exit_code": 7,
        **changes,
    }
    return AppStatus(**fields)  # type: ignore[arg-type]


def test_status_of_an_exited_pod() -> None:
    """An exited pod shows networks, pid and the exit codes of its apps."""
    assert status_text(pod(networks=(NETWORK,))) == (
        "state=exited\n"
        "created=2026-11-20 15:28:09.167 +0000 UTC\n"
        "started=2026-11-20 15:28:26.037 +0000 UTC\n"
        "networks=default:ip4=172.16.28.2\n"
        "pid=321\n"
        "exited=true\n"
        "app-bb=7\n"
    )


def test_networks_of_both_families() -> None:
    """An address of IPv6 stands beside that of IPv4, or alone; without any there is rkt's word for it."""
    both = (*NETWORK, ("ip6", "fd00::2/64"))
    alone = tuple((field, "" if field == "ip" else value) for field, value in both)
    neither = tuple((field, "" if field == "ip" else value) for field, value in NETWORK)
    shown = status_text(pod(networks=(both, alone, neither))).splitlines()[3]
    assert shown == ("networks=default:ip4=172.16.28.2, default:ip6=fd00::2, default:ip6=fd00::2, default:ip4=<nil>")


def test_status_of_a_running_pod() -> None:
    """A running pod shows no exit codes, even of apps that have one."""
    assert status_text(pod(PodState.RUNNING)).splitlines()[3:] == ["networks=", "pid=321", "exited=false"]


def test_status_has_facts_of_minits_behind_those_of_rkt() -> None:
    """Ports, volumes, restarts and what is about to be started again stand there, if there are any."""
    ports = (
        ForwardedPort(name="a", protocol="tcp", pod_port=80, host_ip=None, host_port=8080, count=1),
        ForwardedPort(name="b", protocol="udp", pod_port=5000, host_ip="::1", host_port=7000, count=3),
    )
    mounts = (AppMount(name="d", container_path="/d", host_path="/srv", read_only=True),)
    shown = pod(PodState.RUNNING, apps=(app(mounts=mounts),))
    name = shown.apps[0].name
    fields: dict[str, dict[str, object]] = {name: {"restarts": 2, "restart_in_seconds": 1.5, "end": "exited with 3"}}
    own = OwnFacts(fields=fields, ports=ports)
    assert status_text(shown, own).splitlines()[6:] == [
        "port-80/tcp=0.0.0.0:8080",
        "port-5000-5002/udp=[::1]:7000-7002",
        f"mount-{name}=/srv:/d:ro",
        f"restarts-{name}=2",
        f"crash-loop-{name}=exited with 3, again in 1.5 s",
    ]
    assert pod_json(shown, own)["ports"]


def test_status_counts_errors_of_pid_1() -> None:
    """A line and a field of JSON have the number, if there are errors."""
    shown = pod(PodState.RUNNING)
    assert "supervisor-errors=2" in status_text(shown, OwnFacts(errors=2)).splitlines()
    assert pod_json(shown, OwnFacts(errors=2))["supervisor_errors"] == 2
    assert "supervisor" not in status_text(shown)
    assert "supervisor_errors" not in pod_json(shown)


def test_status_of_a_prepared_pod() -> None:
    """A prepared pod has a state and a creation time only."""
    text = status_text(pod(PodState.PREPARED, started_ns=None, pid=None))
    assert text == "state=prepared\ncreated=2026-11-20 15:28:09.167 +0000 UTC\n"


def test_status_of_an_aborted_pod() -> None:
    """A pod that was never made has Go's zero time."""
    text = status_text(pod(PodState.ABORTED_PREPARE, created_ns=None, started_ns=None, pid=None, apps=()))
    assert text == "state=aborted prepare\ncreated=0001-01-01 00:00:00 +0000 UTC\n"


def test_status_without_an_exit_code() -> None:
    """An app without a readable status is left out, and a marked pod shows no networks."""
    lines = status_text(pod(PodState.EXITED_GARBAGE, apps=(app(exit_code=None),), pid=None)).splitlines()
    assert lines[0] == "state=exited garbage"
    assert lines[3:] == ["exited=true"]


def test_json_of_an_exited_pod() -> None:
    """The keys stand in rkt's order; a pod's times are in seconds, an app's in nanoseconds."""
    assert json_text(pod_json(pod()), "json") == (
        f'{{"name":"{UUID}","state":"exited","app_names":["bb"],"apps":[{{"name":"bb","state":"exited",'
        f'"created_at":1795188489167235010,"started_at":1795188506037937116,"exit_code":7,"image_id":"{IMAGE}"}}],'
        '"created_at":1795188489,"started_at":1795188506}'
    )


def test_json_leaves_out_what_is_not_known_but_not_zero() -> None:
    """Absent values have no key; an exit code of 0 has."""
    shown = pod_json(pod(started_ns=None, apps=(app(exit_code=0, started_ns=None),)))
    assert "started_at" not in shown
    assert shown["apps"] == [
        {"name": "bb", "state": "exited", "created_at": CREATED_NS, "exit_code": 0, "image_id": IMAGE}
    ]


def test_json_of_mounts_networks_and_labels() -> None:
    """Lists and maps are written when they hold something."""
    mount = AppMount(name="foo", container_path="/mnt", host_path="/tmp", read_only=False)
    shown: dict[str, Any] = pod_json(pod(apps=(app(mounts=(mount,)),), networks=(NETWORK,), user_labels=(("q", "r"),)))
    assert list(shown) == ["name", "state", "networks", "app_names", "apps", "created_at", "started_at", "user_labels"]
    assert shown["networks"] == [dict(NETWORK)]
    assert shown["user_labels"] == {"q": "r"}
    [shown_app] = shown["apps"]
    assert shown_app["mounts"] == [{"name": "foo", "container_path": "/mnt", "host_path": "/tmp", "read_only": False}]


def test_pretty_json_is_indented_with_tabs() -> None:
    """json-pretty looks as Go's MarshalIndent makes it."""
    assert (
        json_text({"a": [1, {"b": "ü"}]}, "json-pretty") == '{\n\t"a": [\n\t\t1,\n\t\t{\n\t\t\t"b": "ü"\n\t\t}\n\t]\n}'
    )


def test_list() -> None:
    """A pod's own columns stand in the row of its first app only."""
    second = app(name="cc", image_name=None)
    text = list_text([pod(apps=(app(), second))], NOW_NS, full=False, legend=True)
    assert text == (
        "UUID\t\tAPP\tIMAGE NAME\t\tSTATE\tCREATED\t\tSTARTED\t\tNETWORKS\n"
        "f3690550\tbb\texample.com/bb:1.0\texited\t1 minute ago\t43 seconds ago\t\n"
        "\t\tcc\t--\t\t\t\t\t\t\t\t\n"
    )


def test_names_of_pods() -> None:
    """A last column has the names of pods, if one has a name."""
    pods = [pod(apps=(app(), app(name="cc")), name="web"), pod(apps=())]
    lines = list_text(pods, NOW_NS, full=False, legend=True).splitlines()
    assert [line.rsplit("\t", 1)[1] for line in lines] == ["NAME", "web", "", ""]
    assert status_text(pods[0]).endswith("\npod-name=web\n")
    assert pod_json(pods[0])["pod_name"] == "web"
    assert "pod_name" not in pod_json(pods[1])


def test_list_has_columns_of_minits_behind_those_of_rkt() -> None:
    """Ports, restarts and, in full, volumes have one each, if a pod has any."""
    mounts = (AppMount(name="d", container_path="/d", host_path="/srv", read_only=True),)
    pods = [pod(PodState.RUNNING, apps=(app(mounts=mounts), app(name="cc"))), pod(apps=(), uuid="0" * 36)]
    port = ForwardedPort(name="a", protocol="tcp", pod_port=80, host_ip=None, host_port=8080, count=1)
    fields: dict[str, dict[str, object]] = {"bb": {"restarts": 2}, "cc": {"restarts": 4, "restart_in_seconds": 1.5}}
    own = {pods[0].uuid: OwnFacts(fields=fields, ports=(port,))}
    for full, behind in ((False, 2), (True, 3)):
        lines = list_text(pods, NOW_NS, full=full, legend=True, own=own, width=300).expandtabs().splitlines()
        starts = [lines[0].index(heading) for heading in ("PORTS", "RESTARTS", "VOLUMES")[:behind]]
        assert lines[0].split()[-behind - 1 :] == ["NETWORKS", "PORTS", "RESTARTS", "VOLUMES"][: behind + 1]
        cells = [[line[start:].partition("  ")[0] for start in starts] for line in lines[1:]]
        assert cells == [
            ["0.0.0.0:8080->80/tcp", "2", "/srv:/d:ro"][:behind],
            ["", "4 (crash loop)", ""][:behind],
            ["", "", ""][:behind],
        ]


def test_full_list() -> None:
    """--full shows the whole UUID, the image id and points in time."""
    text = list_text([pod(PodState.RUNNING, networks=(NETWORK,))], NOW_NS, full=True, legend=False)
    assert text.split("\t") == [
        *(UUID, "bb", "example.com/bb:1.0", "sha512-4878aaaaaaaa", "running"),
        *("2026-11-20 15:28:09.167 +0000 UTC", "2026-11-20 15:28:26.037 +0000 UTC", "default:ip4=172.16.28.2\n"),
    ]


CONTROL = "".join(map(chr, (*range(9), *range(10, 32), *range(0x7F, 0xA0))))


def test_an_image_controls_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Any text in the manifest of an image, or in an error about one, is part of one line that shows it."""
    mount = AppMount(name="m", container_path=CONTROL, host_path="/", read_only=True)
    hostile = app(image_name=f"evil:{CONTROL}", mounts=(mount,))
    listed = list_text([pod(apps=(hostile,))], NOW_NS, full=False, legend=False)
    stored = StoredImage(
        id=IMAGE,
        manifest=ImageManifest(ac_version="0.8.11", name="evil", labels=(("version", CONTROL),)),
        manifest_bytes=b"",
        size_bytes=0,
        import_time_ns=0,
        last_used_ns=0,
    )
    images = image_list_text([stored], ("name",), NOW_NS, full=True, legend=False)
    status = app_status_text(hostile).partition("mounts=\n")[2].partition("\n")[0]
    Invocation().note(CONTROL)
    pretty = json_text(CONTROL, "json-pretty")
    for line in (listed.rstrip("\n"), images.rstrip("\n"), status, capsys.readouterr().err.rstrip("\n")):
        assert r"\x1b" in line
        assert not set(line) & set(CONTROL)
    assert not set(pretty) & (set(CONTROL) - {"\x7f"})
    assert json.loads(pretty) == CONTROL


def test_list_of_a_pod_without_apps() -> None:
    """A pod without a manifest has dashes for the app and nothing for times that do not exist."""
    aborted = pod(PodState.ABORTED_PREPARE, apps=(), created_ns=None, started_ns=None)
    text = list_text([aborted], NOW_NS, full=False, legend=False)
    assert [cell for cell in text.split("\t") if cell] == [
        "f3690550", "-", "-", "aborted prepare", "a long while ago", "\n",
    ]  # fmt: skip


def test_tabs() -> None:
    """A cell is followed by one tab at least, and by as many as reach the next column."""
    assert align([["1234567", "x"], ["12345678", "y"], ["", "z"]]) == "1234567\t\tx\n12345678\ty\n\t\tz\n"


@given(st.lists(st.tuples(st.text(st.characters(min_codepoint=32, max_codepoint=126)), st.just("end"))))
def test_columns_line_up(rows: list[tuple[str, str]]) -> None:
    """After expanding tabs, all last cells start in the same column."""
    lines = align(rows).expandtabs(8).splitlines() if rows else []
    assert len({line.rindex("end") for line in lines}) <= 1


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.9, "now"),
        (1, "1 second ago"),
        (16, "16 seconds ago"),
        (60, "1 minute ago"),
        (3599, "59 minutes ago"),
        (3600, "1 hour ago"),
        (86399, "23 hours ago"),
        (86400, "1 day ago"),
        (6 * 86400, "6 days ago"),
        (7 * 86400, "1 week ago"),
        (29 * 86400, "4 weeks ago"),
        (30 * 86400, "1 month ago"),
        (359 * 86400, "11 months ago"),
        (360 * 86400, "1 year ago"),
        (3 * 360 * 86400, "3 years ago"),
        (40 * 360 * 86400, "a long while ago"),
        (-90, "1 minute from now"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    """Ages are rounded down to the largest unit."""
    assert format_age(NOW_NS - round(seconds * 1e9), NOW_NS) == text


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (1795188489_167_235_010, "2026-11-20 15:28:09.167 +0000 UTC"),
        (1795188489_100_000_000, "2026-11-20 15:28:09.1 +0000 UTC"),
        (1795188489_000_900_000, "2026-11-20 15:28:09 +0000 UTC"),
    ],
)
def test_times(time_ns: int, text: str) -> None:
    """Up to three digits of the fraction are shown, without trailing zeros."""
    assert format_time(time_ns) == text


def test_times_of_another_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The local zone is shown by offset and name."""
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    assert format_time(CREATED_NS) == "2026-11-20 16:28:09.167 +0100 CET"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("0s", 0), ("30m", 1800), ("1m30s", 90), ("500ms", 0.5), ("1.5h", 5400), ("-2s", -2), ("+1us", 1e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    """Durations are sums of decimals with units."""
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "1", "s", "1x", ".s", "1s2", "1 s", "--1s", "true"])
def test_bad_durations(text: str) -> None:
    """A number without unit is no duration."""
    with pytest.raises(ValueError, match="invalid duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (1800, "30m0s"), (86400, "24h0m0s"), (1.5, "1.5s"), (0.5, "500ms"), (2e-6, "2µs"), (-61, "-1m1s")],
)
def test_written_durations(seconds: float, text: str) -> None:
    """Durations are written as Go writes them."""
    assert format_duration(seconds) == text


@given(st.integers(min_value=-(10**15), max_value=10**15))
def test_a_written_duration_reads_back(microseconds: int) -> None:
    """The written text reads back as the same."""
    seconds = microseconds / 1e6
    assert parse_duration(format_duration(seconds)) == pytest.approx(seconds, rel=1e-12, abs=1e-9)


def test_app_status() -> None:
    """A line for each thing that is known, and of lists the name, the values and an empty line."""
    shown = app(
        finished_ns=1795188510500000000,
        mounts=(AppMount(name="v", container_path="/mnt", host_path="/tmp", read_only=True),),
        user_annotations=(("q", "r"), ("s", "t")),
        user_labels=(("x", "y"),),
    )
    assert app_status_text(shown) == (
        f"name=bb\nstate=exited\nimage_id={IMAGE}\n"
        "created_at=2026-11-20 15:28:09.16723501 +0000 UTC\n"
        "started_at=2026-11-20 15:28:26.037937116 +0000 UTC\n"
        "finished_at=2026-11-20 15:28:30.5 +0000 UTC\n"
        "exit_code=7\n"
        "mounts=\n/tmp:/mnt:(read_only:true)\n\n"
        "user_annotations=\nq:r,s:t\n\n"
        "user_labels=\nx:y\n\n"
    )
    fresh = app(state="created", started_ns=None, exit_code=None)
    assert [line.partition("=")[0] for line in app_status_text(fresh).splitlines()] == [
        *("name", "state", "image_id", "created_at")
    ]


def test_app_list() -> None:
    """Names and states in columns."""
    apps = [app(), app(name="a-longer-name", state="created")]
    assert app_list_text(apps, legend=True) == "NAME\t\tSTATE\nbb\t\texited\na-longer-name\tcreated\n"
    assert app_list_text([], legend=False) == ""


CELLS = st.text("abc-/.", max_size=40)
ROWS = st.integers(1, 5).flatmap(
    lambda columns: st.lists(st.lists(CELLS, min_size=columns, max_size=columns), min_size=1)
)


@given(rows=ROWS, width=st.integers(1, 200))
def test_a_table_for_a_terminal(rows: list[list[str]], width: int) -> None:
    """A table that can be shortened is never wider than the terminal, and one that fits is not shortened."""
    text = fit(rows, width, range(len(rows[0])))
    assert text.count("\n") == len(rows)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    if sum(widths) + 2 * (len(widths) - 1) <= width:
        assert "…" not in text
    least = sum(min(10, column) for column in widths) + 2 * (len(widths) - 1)
    assert max(len(line) for line in text.splitlines()) <= max(width, least)


def test_what_is_shortened_keeps_both_ends() -> None:
    """The longest cells of the widest column lose their middles."""
    rows = [["2d381b2a", "web", "registry.example.com/team/web:1.25.3", "running"], ["", "log", "log", ""]]
    assert fit(rows, 50, (1, 2)) == ("2d381b2a  web  registry.exam…m/web:1.25.3  running\n          log  log\n")
