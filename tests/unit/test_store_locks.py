"""The advisory locks, the scratch directories that use them, and files with exact modes."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from minit.base.errors import StoreError
from minit.stage0.files import locks
from minit.stage0.files.durable import create_file, make_directory, move_into_place, remove_file
from minit.stage0.files.locks import directory_lock, key_lock, lock_directory
from minit.stage0.files.temporary import scratch_directory


def in_child(work: Callable[[int], None]) -> tuple[int, int]:
    """Fork a child that does `work` with a pipe; return its pid and the pipe's reading end."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            work(writing)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writing)
    return pid, reading


def test_a_held_lock_refuses_others(tmp_path: Path) -> None:
    """An exclusive lock keeps everybody out, shared ones only exclusive lockers."""
    with directory_lock(tmp_path, exclusive=True), pytest.raises(BlockingIOError):
        lock_directory(tmp_path, exclusive=False, blocking=False)
    with directory_lock(tmp_path, exclusive=False):
        os.close(lock_directory(tmp_path, exclusive=False, blocking=False))
        with pytest.raises(BlockingIOError):
            lock_directory(tmp_path, exclusive=True, blocking=False)
    os.close(lock_directory(tmp_path, exclusive=True, blocking=False))


def test_key_locks_make_what_they_need(tmp_path: Path) -> None:
    """The lock file and its directory appear when first locked, with rkt's modes under any umask."""
    before = os.umask(0o077)
    try:
        with key_lock(tmp_path / "locks", "key", exclusive=True):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o660
    assert (tmp_path / "locks" / "key").stat().st_size == 0


def test_a_key_lock_waits_and_then_looks_again(tmp_path: Path) -> None:
    """A lock on a file that its last holder deleted is worthless, so the name's new file is locked."""
    start, go = os.pipe()

    def wait_for_lock(pipe: int) -> None:
        os.read(start, 1)
        with key_lock(tmp_path, "key", exclusive=True) as fd:
            assert os.path.samestat(os.fstat(fd), os.stat(tmp_path / "key"))
            os.write(pipe, b"l")

    # The child is forked first: a descriptor it inherited would hold our lock too.
    pid, pipe = in_child(wait_for_lock)
    with key_lock(tmp_path, "key", exclusive=True):
        os.write(go, b"g")
        wait_until_blocked_in_flock(pid)
        os.unlink(tmp_path / "key")
    assert os.read(pipe, 1) == b"l"
    assert os.waitpid(pid, 0)[1] == 0
    for fd in (start, go, pipe):
        os.close(fd)


def wait_until_blocked_in_flock(pid: int) -> None:
    """Return once the kernel lists `pid` among those that wait for a lock."""
    while not any(
        line.split()[1] == "->" and line.split()[5] == str(pid) for line in Path("/proc/locks").read_text().splitlines()
    ):
        os.sched_yield()


def test_a_key_lock_gives_up_when_the_file_keeps_vanishing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After as many tries as rkt makes, one line says so."""
    monkeypatch.setattr(locks, "flock", lambda fd, **how: os.unlink(tmp_path / "key"))
    with pytest.raises(StoreError, match="replaced 4 times"), key_lock(tmp_path, "key", exclusive=True):
        pass


def test_a_scratch_directory_is_private_and_short_lived(tmp_path: Path) -> None:
    """It has mode 0700, and is gone after the with block, failed or not."""
    with pytest.raises(RuntimeError), scratch_directory(tmp_path / "tmp") as scratch:
        assert stat.S_IMODE(scratch.stat().st_mode) == 0o700
        (scratch / "x").mkdir()
        raise RuntimeError
    assert list((tmp_path / "tmp").iterdir()) == []


def test_leftovers_of_killed_processes_are_collected(tmp_path: Path) -> None:
    """Remains of a killed process are removed by the next user; files in use, and those of others, stay."""
    foreign = tmp_path / "rkt-1234"
    foreign.mkdir()

    def be_killed(pipe: int) -> None:
        with scratch_directory(tmp_path) as scratch:
            (scratch / "half").write_bytes(b"x")
            os.write(pipe, os.fsencode(scratch))
            signal.pause()

    pid, pipe = in_child(be_killed)
    left = Path(os.fsdecode(os.read(pipe, 4096)))
    os.close(pipe)
    with scratch_directory(tmp_path):
        assert (left / "half").exists()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with scratch_directory(tmp_path) as mine:
        assert set(tmp_path.iterdir()) == {foreign, mine}


@pytest.mark.parametrize("umask", [0, 0o077])
def test_modes_do_not_depend_on_the_umask(tmp_path: Path, umask: int) -> None:
    """Directories, their parents, and files get the mode that was asked for."""
    before = os.umask(umask)
    try:
        make_directory(tmp_path / "a" / "b", 0o750)
        create_file(tmp_path / "a" / "file", b"x", 0o664)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("a", "a/b", "a/file")]
    assert modes == [0o750, 0o750, 0o664]


def test_existing_directories_stay_as_they_are(tmp_path: Path) -> None:
    """A packaged host's own modes are kept, and its set-group-ID bit is inherited."""
    os.chmod(tmp_path, 0o2750)
    make_directory(tmp_path, 0o700)
    make_directory(tmp_path / "new", 0o770)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o2750
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o2770


def test_a_file_in_the_way_of_a_directory_is_an_error(tmp_path: Path) -> None:
    """A file where a directory should be is not taken for one."""
    (tmp_path / "x").touch()
    with pytest.raises(FileExistsError):
        make_directory(tmp_path / "x", 0o700)


def test_a_directory_where_none_can_be_made() -> None:
    """A file system that makes none, though what is above is there, is an error."""
    with pytest.raises(FileNotFoundError, match="/proc/a"):
        make_directory(Path("/proc/a/b"), 0o700)


def test_moving_replaces_and_removing_forgives(tmp_path: Path) -> None:
    """A file moved into place replaces the old one; removing one that is gone is no error."""
    for content in (b"old", b"new"):
        create_file(tmp_path / "source", content, 0o600)
        move_into_place(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"new"
    remove_file(tmp_path / "target")
    remove_file(tmp_path / "target")
    assert list(tmp_path.iterdir()) == []
