"""A result from many files: not made again while these are the same, and never of files as they were."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minit.image.pythonmodules import source_files
from minit.image.stage1 import stage1_facts, stage1_fingerprint, stage1_sources
from minit.stage0.images.knownfiles import result_of_sources

HOUR_NS = 3600 * 10**9


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour has passed since files were made: their ctime cannot be set."""
    now = time.time_ns
    monkeypatch.setattr("minit.stage0.images.knownfiles.time.time_ns", lambda: now() + HOUR_NS)


class Sources:
    """Two files in a directory, one of them absent, and what is made of them."""

    def __init__(self, root: Path) -> None:
        self.record = root / "own/record"
        self.directory = root / "sources"
        self.file = self.directory / "file"
        self.record.parent.mkdir()
        self.directory.mkdir()
        self.file.write_text("first")

    def paths(self) -> list[Path]:
        """Return what the result depends on."""
        return [self.directory, self.file, self.directory / "absent", self.file / "below"]

    def reads(self, facts: str = "facts") -> bool:
        """Return whether the files are read for the result, which is that of their content in any case."""
        calls = []

        def compute() -> str:
            calls.append(True)
            names = sorted(os.listdir(self.directory))
            return f"{facts} {names} {[(self.directory / name).read_bytes() for name in names]}"

        assert result_of_sources(self.record, facts, self.paths, compute) == compute()
        return len(calls) == 2


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    """Files that nobody has read."""
    return Sources(tmp_path)


def test_files_are_read_once(sources: Sources, later: None) -> None:
    """While neither they nor what else decides the result have changed."""
    assert [sources.reads(facts) for facts in ("a", "a", "a", "b", "b")] == [True, False, False, True, False]


def write_anew(sources: Sources) -> None:
    """Write a file in place, with the same size, and give it its old time."""
    before = sources.file.stat()
    sources.file.write_text("other")
    os.utime(sources.file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(sources: Sources) -> None:
    """Put a file with the same size and time in the place of another one."""
    other = sources.directory.with_name("other")
    other.write_text("other")
    shutil.copystat(sources.file, other)
    other.rename(sources.file)


def add(sources: Sources) -> None:
    """Add a file that there was not."""
    (sources.directory / "absent").write_text("now")


def add_another(sources: Sources) -> None:
    """Add a file that nobody thought of."""
    (sources.directory / "another").write_text("now")


def link(sources: Sources) -> None:
    """Make of a file a link to another one."""
    other = sources.directory.with_name("other")
    other.write_text("other")
    sources.file.unlink()
    sources.file.symlink_to(other)


@pytest.mark.parametrize(
    "change",
    [write_anew, replace, add, add_another, link, lambda sources: sources.file.unlink()],
    ids=["times", "inode", "absent", "new", "link", "gone"],
)
def test_a_change_is_noticed(sources: Sources, later: None, change: Callable[[Sources], object]) -> None:
    """Of the content, of the file at a path, or of the names in a directory."""
    assert sources.reads()
    change(sources)
    assert sources.reads()
    assert not sources.reads()


def test_young_files_are_read_again(sources: Sources) -> None:
    """One could change and look the same."""
    assert sources.reads() and sources.reads()
    assert not sources.record.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda record: record.write_bytes(b""),
        lambda record: record.write_bytes(b"\xff\0facts"),
        lambda record: record.write_bytes(record.read_bytes().rpartition(b"\0")[0]),
        lambda record: record.write_bytes(b"\0".join(record.read_bytes().split(b"\0")[:4])),
        lambda record: record.write_bytes(record.read_bytes().partition(b"\0")[2]),
        lambda record: (record.unlink(), record.mkdir()),
        Path.unlink,
    ],
    ids=["empty", "only facts", "no end", "one source", "no result", "directory", "none"],
)
def test_a_damaged_record_does_no_harm(sources: Sources, later: None, damage: Callable[[Path], object]) -> None:
    """Without it files are read."""
    assert sources.reads()
    damage(sources.record)
    assert sources.reads()


def test_the_sources_of_stage1(tmp_path: Path) -> None:
    """They are all files that the fingerprint is made of, with the directories in which another could appear."""
    sources = set(stage1_sources())
    files = {path for _, path in source_files()}
    assert files <= sources
    assert {path.parent for path in files} <= sources
    assert result_of_sources(tmp_path / "record", stage1_facts(), stage1_sources, stage1_fingerprint) == (
        stage1_fingerprint()
    )
