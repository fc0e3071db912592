"""minit.supervisor.podevents and its readers: numbers, bounds, gaps, and what a full disk does."""

from __future__ import annotations

import gc
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.commands.outputcommands import text_line
from minit.podfiles import paths
from minit.stage0.reports.logreader import EventReader, Wanted
from minit.supervisor.podevents import FILE_BYTES, KEPT_EVENTS, Events


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the events."""
    monkeypatch.setattr(paths, "STAGE1_EVENTS", str(tmp_path / "events.log"))
    return tmp_path / "events.log"


def numbers(data: bytes) -> list[int]:
    """Return the numbers of the events in lines."""
    return [json.loads(line)["seq"] for line in data.splitlines()]


def test_events_are_numbered_and_the_oldest_are_forgotten() -> None:
    """The last KEPT_EVENTS are there."""
    events = Events()
    for number in range(5 * KEPT_EVENTS):
        events.add("x", {"n": number})
    lines, last = events.since(0, 1 << 30)
    assert last == events.last == 5 * KEPT_EVENTS
    assert len(lines) == KEPT_EVENTS
    assert numbers(b"\n".join(lines)) == [*range(last - len(lines) + 1, last + 1)]
    assert json.loads(lines[-1])["n"] == 5 * KEPT_EVENTS - 1


def test_what_is_kept_is_small_and_does_not_grow(file: Path) -> None:
    """An event takes little more than its line, and however many there were, so many more take nothing."""
    events = Events()

    def add(count: int) -> int:
        for number in range(count):
            events.add("app.state", {"app": f"an-app-of-a-new-name-{number}", "state": "running", "cause": "executed"})
            events.flush()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    add(1)
    tracemalloc.start()
    try:
        before, full, later = add(0), add(KEPT_EVENTS), add(3 * KEPT_EVENTS)
    finally:
        tracemalloc.stop()
    lines, _ = events.since(0, 1 << 30)
    assert full - before < sum(map(len, lines)) + 64 * KEPT_EVENTS
    # Longer numbers, that is.
    assert later - full < 16 * KEPT_EVENTS


@given(st.integers(0, 30), st.integers(0, 40), st.integers(0, 500))
def test_what_fits_comes_in_order_without_loss(count: int, since: int, limit: int) -> None:
    """Asked again after the last number, in replies of any size, one gets every event once, and at least one a time."""
    events = Events()
    for number in range(count):
        events.add("x", {"n": number})
    got: list[int] = []
    at = since
    while at < count:
        lines, at = events.since(at, limit)
        assert lines
        got += numbers(b"\n".join(lines))
    assert got == [*range(since + 1, count + 1)]
    assert events.since(at, limit) == ([], min(at, count))


def test_files_are_bounded_and_hold_whole_lines(file: Path) -> None:
    """There are two files of at most FILE_BYTES, the newer one going on where the older one ends."""
    events = Events()
    for _ in range(400):
        for _ in range(20):
            events.add("x", {"text": "y" * 300})
        events.flush()
    old = file.with_name("events.log.1").read_bytes()
    new = file.read_bytes()
    assert sorted(os.listdir(file.parent)) == ["events.log", "events.log.1"]
    assert max(len(old), len(new)) <= FILE_BYTES
    shown = numbers(old + new)
    assert shown == [*range(shown[0], 8001)]


def test_a_file_that_somebody_removed_is_made_anew(file: Path) -> None:
    """The events go on in a new file from the next one on."""
    events = Events()
    for _ in range(3):
        events.add("x", {})
        events.flush()
        file.unlink()
    events.add("x", {})
    events.flush()
    assert numbers(file.read_bytes()) == [4]


def test_a_file_that_somebody_emptied_is_not_full(file: Path) -> None:
    """Its size decides when it is moved, not the number of bytes written to it."""
    events = Events()
    for _ in range(2 * FILE_BYTES // 300):
        events.add("x", {"text": "y" * 300})
        events.flush()
        os.truncate(file, 0)
    assert os.listdir(file.parent) == ["events.log"]


def test_a_full_disk_is_tried_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Events that could not be written, or in part only, come with the next ones, in whole lines."""
    events = Events()
    written = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written(fd, data[:10]))
    events.add("x", {})
    events.flush()
    assert file.read_bytes() == b""
    monkeypatch.setattr(os, "write", written)
    events.add("x", {})
    events.flush()
    assert numbers(file.read_bytes()) == [1, 2]


def read(lines: list[bytes], **wanted: Any) -> list[dict[str, object]]:
    """Return what a reader makes of lines."""
    reader = EventReader(Wanted(**wanted))
    return [event for line in lines for event in reader.read(line)]


def test_missing_events_are_told() -> None:
    """A gap in the numbers becomes an event; what comes twice or is no event is left out."""
    lines = [b'{"seq":%d,"event":"x","app":"%s"}' % pair for pair in ((3, b"a"), (4, b"b"), (4, b"b"), (9, b"a"))]
    lines[2:2] = [b"", b"garbage", b"[]", b'{"seq":"7"}', b'{"event":"x"}']
    assert [event["seq"] for event in read(lines)] == [3, 4, 8, 9]
    assert read(lines)[2] == {"seq": 8, "event": "gap", "lost": 4}
    assert [event["seq"] for event in read(lines, since=1)] == [2, 3, 4, 8, 9]
    assert [event["seq"] for event in read(lines, since=3, apps=frozenset({"b"}))] == [4, 8]


def test_text_is_harmless() -> None:
    """Any text of an app is one line of printable ASCII."""
    event = {
        "seq": 7,
        "time": "2026-11-21T18:00:00.000000000Z",
        "event": "app.status",
        "app": "web",
        "text": "\x1b[2J\nä",
    }
    assert text_line(event) == ('7 2026-11-21T18:00:00.000000000Z app.status web text="\\u001b[2J\\n\\u00e4"')
    assert text_line({"seq": 8, "event": "gap", "lost": 4}) == "8 - gap - lost=4"
