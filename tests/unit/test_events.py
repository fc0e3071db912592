"""minit.supervisor.podevents and its readers: numbers, bounds, gaps, and what a full disk does."""

from __future__ import annotations

import gc
import itertools
import json
import os
import resource
import shutil
import tempfile
import tracemalloc
import uuid as uuids
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.cli.commands.outputcommands import text_line
from minit.podfiles import paths
from minit.stage0.reports.eventreader import EventReader, Wanted, events_of_all
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


@pytest.mark.parametrize(("count", "text_bytes"), [(10, 1), (1500, 1), (1700, 300), (4000, 300)])
def test_another_program_keeps_the_same_events(file: Path, count: int, text_bytes: int) -> None:
    """It finds the last KEPT_EVENTS in the files, however these lie there, without reading much more than them."""
    events = Events()
    for _ in range(count):
        events.add("x", {"text": "y" * text_bytes})
        events.flush()
    events.leave()
    other = Events()
    other.take_over(events)
    tracemalloc.start()
    try:
        other.resume()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    lines, last = other.since(0, 1 << 30)
    assert (lines, last) == events.since(0, 1 << 30)
    assert most_bytes < 3 * sum(map(len, lines)) + 64 * KEPT_EVENTS + FILE_BYTES / 2


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


def test_a_pod_that_was_started_again_has_new_numbers() -> None:
    """Numbers begin anew with an event 1 of another time, and the same event 1 read once more begins nothing."""
    first = [b'{"seq":%d,"time":"a%d","event":"x"}' % (number, number) for number in (1, 2, 3)]
    second = [b'{"seq":%d,"time":"b%d","event":"x"}' % (number, number) for number in (1, 2)]
    shown = [event["time"] for event in read([*first, *first, *second, *second])]
    assert shown == ["a1", "a2", "a3", "b1", "b2"]
    assert [event["time"] for event in read([*first, *second], since=2)] == ["a3"]


class PodsOnDisk:
    """Pod directories with events, and what following all of them shows."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.notes: list[str] = []
        self.written: dict[str, list[int]] = {}
        self.shown: dict[str, list[int]] = {}
        self._output = os.open("/dev/null", os.O_WRONLY)
        self.batches = events_of_all(data, frozenset(), self._output, self.notes.append, follow=True, with_status=False)
        self._numbers = itertools.count(1)

    def close(self) -> None:
        """Follow no longer."""
        self.batches.close()  # type: ignore[attr-defined]  # a generator
        os.close(self._output)

    def path(self, uuid: str) -> Path:
        """Return the directory of a pod."""
        return self.data / "pods/run" / uuid

    def add(self) -> str:
        """Have a new pod that has been started, and return its UUID."""
        uuid = str(uuids.uuid4())
        new = self.data / "pods/prepared" / uuid
        (new / "stage1/rootfs/rkt/minit").mkdir(parents=True)
        self.path(uuid).parent.mkdir(exist_ok=True)
        new.rename(self.path(uuid))
        (self.path(uuid) / "pid").write_text("1\n")
        self.written[uuid] = []
        return uuid

    def write(self, uuid: str) -> None:
        """Have an event of a pod."""
        number = next(self._numbers)
        self.written[uuid].append(number)
        seq = len(self.written[uuid])
        line = f'{{"seq":{seq},"time":"2026-11-21T18:00:00.{number:09d}Z","event":"x","number":{number}}}\n'
        with open(self.path(uuid) / "stage1/rootfs/rkt/minit/events.log", "a") as file:
            file.write(line)

    def rotate(self, uuid: str) -> None:
        """Have an event of a pod for which the log had to be moved away."""
        log = self.path(uuid) / "stage1/rootfs/rkt/minit/events.log"
        log.rename(log.with_name("events.log.1"))
        self.write(uuid)

    def remove(self, uuid: str) -> None:
        """Remove a pod as rm does."""
        gone = self.data / "pods/exited-garbage" / uuid
        gone.parent.mkdir(exist_ok=True)
        self.path(uuid).rename(gone)
        shutil.rmtree(gone)

    def read_until(self, number: int) -> None:
        """Read events up to one of them."""
        while number not in (shown for each in self.shown.values() for shown in each):
            batch = next(self.batches)
            assert [each.time for each in batch] == sorted(each.time for each in batch)
            for each in batch:
                found = each.event["number"]
                assert isinstance(found, int)
                self.shown.setdefault(each.uuid, []).append(found)


@pytest.fixture
def pods(tmp_path: Path) -> Iterator[PodsOnDisk]:
    """A data directory without pods that is followed."""
    found = PodsOnDisk(tmp_path / "data")
    next(found.batches)
    yield found
    found.close()


STEPS = st.lists(st.tuples(st.sampled_from(("add", "write", "rotate", "remove", "read")), st.integers(0, 5)))


@given(STEPS)
def test_no_event_of_a_followed_pod_is_lost(steps: list[tuple[str, int]]) -> None:
    """Every event is shown once, in order, however pods come and go, and logs are moved, between two looks."""
    with tempfile.TemporaryDirectory() as directory:
        pods = PodsOnDisk(Path(directory))
        try:
            clock = pods.add()
            pods.write(clock)
            pods.read_until(pods.written[clock][-1])
            known, moved = [clock], set[str]()
            for step, choice in steps:
                uuid = known[choice % len(known)]
                if step == "add":
                    known.append(pods.add())
                    # A file that nobody has opened before the removal of the pod cannot be read.
                    pods.write(known[-1])
                    step = "read"
                if step == "write":
                    pods.write(uuid)
                elif step == "rotate" and uuid not in moved:
                    moved.add(uuid)
                    pods.rotate(uuid)
                elif step == "remove" and uuid not in (clock, *moved):
                    known.remove(uuid)
                    pods.remove(uuid)
                elif step == "read":
                    moved.clear()
                    pods.write(clock)
                    pods.read_until(pods.written[clock][-1])
            pods.write(clock)
            pods.read_until(pods.written[clock][-1])
            assert pods.shown == {uuid: numbers for uuid, numbers in pods.written.items() if numbers}
            assert pods.notes == []
        finally:
            pods.close()


def test_a_data_directory_that_is_made_later(pods: PodsOnDisk) -> None:
    """Pods are followed from the making of the data directory on, and again after its removal."""
    for _ in range(2):
        uuid = pods.add()
        pods.write(uuid)
        pods.read_until(pods.written[uuid][-1])
        shutil.rmtree(pods.data)


def test_few_descriptors_for_many_pods(pods: PodsOnDisk) -> None:
    """More pods than files can be open are followed, all with every event, while they are there."""
    before, limits = len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64 + 2 * 4, limits[1]))
    try:
        few = PodsOnDisk(pods.data)
        next(few.batches)
        for _ in range(3):
            for uuid in [*few.written] or [few.add() for _ in range(20)]:
                few.write(uuid)
            few.read_until(few.written[uuid][-1])
        assert len(os.listdir("/proc/self/fd")) <= before + 2 * 4 + 2
        few.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert few.shown == few.written
    assert len(os.listdir("/proc/self/fd")) == before
