"""minit.reaper.record: status files are old or new, never in between."""

from __future__ import annotations

import errno
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from minit.reaper.record import write_durably

PROJECT = Path(__file__).parents[2]


def test_a_new_file_has_content_and_mode(tmp_path: Path) -> None:
    """The file appears with exactly its mode, whatever the umask, and nothing else beside it."""
    before = os.umask(0o077)
    try:
        write_durably(str(tmp_path / "app"), b"42\n")
    finally:
        os.umask(before)
    assert (tmp_path / "app").read_bytes() == b"42\n"
    assert (tmp_path / "app").stat().st_mode & 0o7777 == 0o644
    assert os.listdir(tmp_path) == ["app"]


def test_an_old_file_is_replaced_not_rewritten(tmp_path: Path) -> None:
    """A reader that has the old file open still reads the old content."""
    path = tmp_path / "app"
    path.write_bytes(b"old\n")
    with path.open("rb") as old:
        write_durably(str(path), b"new\n")
        assert old.read() == b"old\n"
    assert path.read_bytes() == b"new\n"


def test_a_symlink_is_replaced_not_followed(tmp_path: Path) -> None:
    """Neither the file's name nor that of its temporary file leads anywhere else."""
    elsewhere = tmp_path / "elsewhere"
    (tmp_path / "app").symlink_to(elsewhere)
    write_durably(str(tmp_path / "app"), b"1\n")
    assert not elsewhere.exists()
    (tmp_path / ".b.new").symlink_to(elsewhere)
    with pytest.raises(OSError):
        write_durably(str(tmp_path / "b"), b"1\n")
    assert not elsewhere.exists()


def test_a_relative_name_is_written_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name without a directory is in the working directory."""
    monkeypatch.chdir(tmp_path)
    write_durably("app", b"1\n")
    assert (tmp_path / "app").read_bytes() == b"1\n"


def test_a_left_over_temporary_file_is_no_obstacle(tmp_path: Path) -> None:
    """A file that a crash between write and rename left is overwritten, even if it was longer."""
    (tmp_path / ".app.new").write_bytes(b"much more than that\n")
    write_durably(str(tmp_path / "app"), b"1\n")
    assert (tmp_path / "app").read_bytes() == b"1\n"
    assert os.listdir(tmp_path) == ["app"]


def test_a_reader_never_sees_a_part(tmp_path: Path) -> None:
    """While one process replaces the file over and over, another finds it whole each time."""
    path = tmp_path / "app"
    contents = [bytes([65 + index]) * (1 + 40_000 * index) + b"\n" for index in range(3)]
    path.write_bytes(contents[0])
    writer = os.fork()
    if writer == 0:
        try:
            for content in itertools.cycle(contents):
                write_durably(str(path), content)
        finally:
            os._exit(0)
    seen: set[bytes] = set()
    looks = 0
    try:
        while looks < 1000 or len(seen) < len(contents):
            seen.add(path.read_bytes())
            looks += 1
            assert seen <= set(contents)
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


def test_a_failed_rename_keeps_the_old_and_leaves_nothing(tmp_path: Path) -> None:
    """The error is reported, and no temporary file stays beside the statuses."""
    (tmp_path / "app").mkdir()
    with pytest.raises(IsADirectoryError):
        write_durably(str(tmp_path / "app"), b"1\n")
    assert os.listdir(tmp_path) == ["app"]


def test_a_full_disk_keeps_the_old_and_leaves_nothing(tmp_path: Path) -> None:
    """A write that does not fit is an error, not a shorter status."""
    path = tmp_path / "app"
    path.write_bytes(b"old\n")
    child = os.fork()
    if child == 0:
        # A file may not grow beyond this: the first write is cut short, the next one fails.
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        try:
            write_durably(str(path), b"x" * 10_000)
        except OSError as error:
            os._exit(error.errno or 0)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == errno.EFBIG
    assert path.read_bytes() == b"old\n"
    assert os.listdir(tmp_path) == ["app"]


def test_a_missing_directory_is_reported(tmp_path: Path) -> None:
    """There is no status without its directory."""
    with pytest.raises(FileNotFoundError):
        write_durably(str(tmp_path / "status/app"), b"1\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_an_end_is_recorded_for_rkt_and_in_our_own_words(tmp_path: Path) -> None:
    """The number is in rkt/status, the whole story in our own file, nothing else, and descriptors are not leaked."""
    (tmp_path / "rkt/status").mkdir(parents=True)
    (tmp_path / "rkt/minit/state").mkdir(parents=True)
    program = """
import os, sys
from minit.reaper.record import note_state, record_exit, record_state
os.chroot(sys.argv[1])
note_state("web", {"app": "web", "starts": 1})
record_state("web", {"app": "web", "status": 203})
record_exit("web", 203)
note_state("db", {"app": "db"})
free = os.open("/", os.O_RDONLY)
assert free == 3, free
"""
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True, cwd=PROJECT)
    status = {file.name: file.read_bytes() for file in (tmp_path / "rkt/status").iterdir()}
    state = {file.name: json.loads(file.read_bytes()) for file in (tmp_path / "rkt/minit/state").iterdir()}
    assert status == {"web": b"203\n"}
    assert state == {"web.json": {"app": "web", "status": 203}, "db.json": {"app": "db"}}
