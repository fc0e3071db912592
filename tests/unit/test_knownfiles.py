"""Files of images, and sources of results, are read once, and again after every change."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minit.image.pythonmodules import source_files
from minit.image.stage1 import stage1_facts, stage1_fingerprint, stage1_sources
from minit.stage0.images.fetching import resolve_image
from minit.stage0.images.knownfiles import KnownFiles, result_of_sources
from minit.stage0.images.store import Store
from minit.stage0.images.storedimage import PullPolicy
from tests import tars

HOUR_NS = 3600 * 10**9
TICK_NS = 2 * 10**9
IMAGE = f"sha512-{'a' * 64}"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """An empty store."""
    with Store(tmp_path / "data") as store:
        yield store


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour has passed since files were made: their ctime cannot be set."""
    now = time.time_ns
    monkeypatch.setattr("minit.stage0.images.store.time.time_ns", lambda: now() + HOUR_NS)


def reads(store: Store, path: Path, policy: PullPolicy = PullPolicy.NEW) -> bool:
    """Return whether a file is read when its image is wanted, which is that of its content in any case."""
    steps: list[str] = []
    image = resolve_image(store, str(path), lambda step, done, total: steps.append(step), policy)
    assert store.find(image.name).id == image.id
    assert store.blob_path(image.id).read_bytes() == path.read_bytes()
    return bool(steps)


def test_a_file_is_read_once(store: Store, tmp_path: Path, later: None) -> None:
    """It is not read again by any name, and its image becomes the last import; fetch reads it all the same."""
    path = tars.write_image(tmp_path / "x.aci", manifest_bytes=tars.manifest(name="a"))
    other = tars.write_image(
        tmp_path / "y.aci", tars.file("rootfs/x", b"other"), manifest_bytes=tars.manifest(name="a")
    )
    (tmp_path / "link.aci").symlink_to(path)
    assert [reads(store, file) for file in (path, other, path, tmp_path / "link.aci", other)] == [1, 1, 0, 0, 0]
    assert reads(store, path, PullPolicy.UPDATE)
    assert not reads(store, path, PullPolicy.NEVER)


def write_anew(path: Path, data: bytes) -> None:
    """Write a file in place, and give it its old time."""
    before = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace(path: Path, data: bytes) -> None:
    """Put a file with the same time in the place of another one."""
    new = path.with_name("new")
    new.write_bytes(data)
    shutil.copystat(path, new)
    new.rename(path)


@pytest.mark.parametrize("change", [write_anew, replace, Path.write_bytes], ids=["times", "inode", "in place"])
def test_a_changed_file_is_read(
    store: Store, tmp_path: Path, later: None, change: Callable[[Path, bytes], object]
) -> None:
    """Also one of the same size and with the same time of its last change."""
    path = tars.write_image(tmp_path / "x.aci", tars.file("rootfs/x", b"first"))
    assert reads(store, path)
    change(path, tars.image(tars.file("rootfs/x", b"other")))
    assert reads(store, path)
    assert not reads(store, path)


def test_a_young_file_is_read_again(store: Store, tmp_path: Path) -> None:
    """It could change and look the same."""
    path = tars.write_image(tmp_path / "x.aci")
    assert reads(store, path) and reads(store, path)


def test_an_image_that_was_removed_is_imported(store: Store, tmp_path: Path, later: None) -> None:
    """The record of its file does not count then."""
    path = tars.write_image(tmp_path / "x.aci")
    assert reads(store, path)
    store.remove(resolve_image(store, str(path), lambda *report: None).id)
    assert reads(store, path)
    assert not reads(store, path)


def test_files_of_images_that_are_gone_are_forgotten(store: Store, tmp_path: Path, later: None) -> None:
    """When leftovers are collected, and with the last image nothing is left."""
    gone, kept = (tars.write_image(tmp_path / name, tars.file(f"rootfs/{name}")) for name in ("x.aci", "y.aci"))
    ids = [resolve_image(store, str(path), lambda *report: None).id for path in (gone, kept)]
    store.remove(ids[0])
    store.collect_leftovers()
    known = store.data / "minit/cas/files"
    assert [line.split()[1] for line in known.read_text().splitlines()] == ids[1:]
    store.remove(ids[1])
    store.collect_leftovers()
    assert not known.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b"\xff\n\n x y z\n" + path.read_bytes()[:-1] + b"\n"),
        lambda path: path.write_text(path.read_text().replace("sha512-", "../../")),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: path.chmod(0),
        Path.unlink,
    ],
    ids=["lines", "ids", "directory", "mode", "none"],
)
def test_what_is_damaged_does_no_harm(
    store: Store, tmp_path: Path, later: None, damage: Callable[[Path], object]
) -> None:
    """Without what is known files are read."""
    path = tars.write_image(tmp_path / "x.aci")
    assert reads(store, path)
    damage(store.data / "minit/cas/files")
    reads(store, path)
    reads(store, path)


def test_what_is_known_is_bounded(tmp_path: Path) -> None:
    """The files read last are known, and lines that were read count anew."""
    known = KnownFiles(tmp_path / "files", tmp_path / "scratch")
    statuses = []
    for number in range(150):
        path = tmp_path / str(number)
        path.touch()
        statuses.append(path.stat())
    for status in (*statuses[:100], statuses[0], *statuses[100:]):
        known.remember(status, status.st_ctime_ns + TICK_NS, IMAGE)
    found = [number for number, status in enumerate(statuses) if known.recall(status) == IMAGE]
    assert found == [0, *range(51, 150)]


def test_the_moment_of_reading_counts(tmp_path: Path) -> None:
    """A file has to be older by the slowest clock tick of a file system."""
    known = KnownFiles(tmp_path / "files", tmp_path / "scratch")
    (tmp_path / "x").touch()
    status = (tmp_path / "x").stat()
    known.remember(status, status.st_ctime_ns + TICK_NS - 1, IMAGE)
    assert known.recall(status) is None
    known.remember(status, status.st_ctime_ns + TICK_NS, IMAGE)
    assert known.recall(status) == IMAGE


def test_many_at_once(tmp_path: Path) -> None:
    """Of processes that note files at the same time none fails, and nobody reads half a line."""
    known = KnownFiles(tmp_path / "files", tmp_path / "scratch")
    (tmp_path / "x").touch()
    status = (tmp_path / "x").stat()
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                for _ in range(30):
                    known.remember(status, status.st_ctime_ns + TICK_NS, IMAGE)
                    assert known.recall(status) == IMAGE
                os._exit(0)
            finally:
                os._exit(1)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    assert os.listdir(tmp_path / "scratch") == []


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


def write_source_anew(sources: Sources) -> None:
    """Write a file in place, with the same size, and give it its old time."""
    before = sources.file.stat()
    sources.file.write_text("other")
    os.utime(sources.file, ns=(before.st_atime_ns, before.st_mtime_ns))


def replace_source(sources: Sources) -> None:
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
    [write_source_anew, replace_source, add, add_another, link, lambda sources: sources.file.unlink()],
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
