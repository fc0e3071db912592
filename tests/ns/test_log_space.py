"""minit.iottymux.logfile on a disk that is full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.iottymux.logfile import Log, PlainLog
from minit.linux import syscalls
from minit.stage0.reports.logfiles import LineAssembler

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounts, which needs root")

CHUNK = b"".join(b"%04d %s\n" % (number, b"x" * 90) for number in range(100))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory on a filesystem of 256 KiB."""
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0, "size=256k")
    yield tmp_path
    syscalls.umount2(str(tmp_path), syscalls.MNT_DETACH)


def read(path: Path) -> list[bytes]:
    """Return the lines of a log that has to consist of records."""
    assembler = LineAssembler()
    lines = [line.text for line in assembler.add(path.read_bytes())]
    assert assembler.skipped == 0
    return lines


def test_a_full_disk(small_disk: Path) -> None:
    """Whole records are dropped, and counted by the next one that finds space; those before it are whole."""
    directory = os.open(small_disk, os.O_RDONLY)
    log = Log("web", directory, 1 << 20, 5)
    (small_disk / "other").write_bytes(bytes(100_000))
    for _ in range(20):
        log.write("stdout", CHUNK)
    before = read(small_disk / "web.log")
    lines = CHUNK.splitlines()
    assert 0 < len(before) < 2000
    assert before == (lines * 20)[: len(before)]
    (small_disk / "other").unlink()
    log.write("stdout", b"again\n")
    after = read(small_disk / "web.log")[len(before) :]
    record_bytes = len(lines[0]) + 41
    assert after == [b"minit: %d bytes of log were lost" % ((2000 - len(before)) * record_bytes), b"again"]
    os.close(directory)


def test_a_full_disk_when_rotating(small_disk: Path) -> None:
    """Rotation frees space by itself, so that the newest lines are there."""
    directory = os.open(small_disk, os.O_RDONLY)
    log = Log("web", directory, 64 << 10, 3)
    (small_disk / "other").write_bytes(bytes(150_000))
    for _ in range(40):
        log.write("stdout", CHUNK)
    (small_disk / "other").unlink()
    log.write("stdout", b"last\n")
    assert read(small_disk / "web.log")[-1] == b"last"
    for path in small_disk.glob("web.log.*"):
        read(path)
    os.close(directory)


def test_a_full_disk_of_kubernetes(small_disk: Path) -> None:
    """The file of k8s-plain is treated alike."""
    directory = os.open(small_disk, os.O_RDONLY)
    log = PlainLog("0.log", directory)
    for _ in range(40):
        log.write("stdout", CHUNK)
    before = (small_disk / "0.log").read_bytes()
    assert before.endswith(b"\n")
    os.truncate(small_disk / "0.log", 0)
    log.write("stdout", b"again\n")
    lines = [line.split(b" ", 2)[2] for line in (small_disk / "0.log").read_bytes().splitlines()]
    assert lines[0].startswith(b"minit: ")
    assert lines[0].endswith(b" bytes of log were lost")
    assert lines[1] == b"again"
    os.close(directory)
