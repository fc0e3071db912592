"""minit.supervisor.journal: events are kept until there is a place to write them."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pytest

from minit.podfiles import paths
from minit.supervisor.control.serve import open_journal
from minit.supervisor.journal import Journal

Events = list[tuple[str, dict[str, object]]]


def attached(journal: Journal) -> Events:
    """Attach a list to the journal and return it."""
    written: Events = []
    journal.attach(lambda event, fields: written.append((event, fields)))
    return written


def test_events_before_and_after_attaching_come_in_order() -> None:
    """Events before the import of structlog are written first, each event once."""
    journal = Journal(debug=False)
    journal.info("pod.one", n=1)
    journal.info("pod.two")
    written = attached(journal)
    journal.info("pod.three", n=3)
    assert written == [("pod.one", {"n": 1}), ("pod.two", {}), ("pod.three", {"n": 3})]


def test_details_are_for_debug() -> None:
    """debug() writes with --debug only."""
    for debug, expected in ((False, []), (True, [("app.state", {"app": "web"})])):
        journal = Journal(debug=debug)
        journal.debug("app.state", app="web")
        assert attached(journal) == expected


def test_memory_is_bounded() -> None:
    """The first thousand events are kept and the rest dropped while there is no place for them."""
    journal = Journal(debug=True)
    for number in range(1500):
        journal.info("event", n=number)
    assert [fields["n"] for _, fields in attached(journal)] == [*range(1000)]


def test_what_is_written_leaves_nothing_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each event is a line, and nothing of it waits for the collector of cyclic garbage."""
    monkeypatch.setattr(paths, "STAGE1_SUPERVISOR_LOG", str(tmp_path / "supervisor.log"))
    write = open_journal()
    write("event", {"n": 0})
    gc.collect()
    gc.disable()
    try:
        for number in range(1, 100):
            write("event", {"n": number})
        assert gc.collect() < 10
    finally:
        gc.enable()
    lines = (tmp_path / "supervisor.log").read_text().splitlines()
    assert [json.loads(line)["n"] for line in lines] == [*range(100)]
