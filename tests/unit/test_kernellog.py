"""minit.machine.kernellog and minit.podfiles.boundedfile: the kernel's log, and files that do not grow for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minit.machine.kernellog import KernelLog, parse_record
from minit.podfiles import paths
from minit.podfiles.boundedfile import BoundedLog


@pytest.mark.parametrize(
    ("record", "moment", "text"),
    [
        (b"6,339,5140900,-;NET: Registered\n", 5.1409, b"NET: Registered"),
        (b"30,340,100000000000,c,caller=T1;minit: a; b\n SUBSYSTEM=x\n", 100000.0, b"minit: a; b"),
    ],
)
def test_records(record: bytes, moment: float, text: bytes) -> None:
    """A record is a time and a text; what else the kernel says of it is left out."""
    assert parse_record(record) == (moment, text)


@pytest.mark.parametrize(
    "junk", [b"", b"minit: messages were lost\n", b"\n   \n\xff\0 x\n", b"inf x\n1e300 y\nnan z\n"]
)
def test_a_copy_that_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, junk: bytes) -> None:
    """Another helper copies what the one before it has not, whatever somebody else has written there."""
    # A pipe that keeps what is written apart, as the device does.
    reader, kernel = os.pipe2(os.O_DIRECT | os.O_CLOEXEC)
    device = f"/proc/self/fd/{reader}"
    monkeypatch.setattr(paths, "MACHINE_LOG", str(tmp_path / "log/kernel.log"))
    (tmp_path / "log").mkdir()
    (tmp_path / "log/kernel.log").write_bytes(junk)
    old = [b"6,1,990000,-;one\n", b"6,2,1230000,-;two\n"]
    for record in old:
        os.write(kernel, record)
    KernelLog(device).copy()
    for record in (*old, b"6,3,1230001,-;three\n"):
        os.write(kernel, record)
    KernelLog(device).copy()
    expected = junk + b"    0.990000 one\n    1.230000 two\n    1.230001 three\n"
    assert (tmp_path / "log/kernel.log").read_bytes() == expected
    os.close(kernel)
    os.close(reader)


def test_a_bounded_log(tmp_path: Path) -> None:
    """The file becomes the older one of two before it outgrows its place, which goes on from what there was."""
    path = tmp_path / "log"
    path.write_bytes(b"old\n")
    log = BoundedLog(str(path), 12)
    for number in range(5):
        log.append(b"%03d\n" % number)
    assert path.read_bytes() == b"002\n003\n004\n"
    assert (tmp_path / "log.1").read_bytes() == b"old\n000\n001\n"
    path.unlink()
    log.append(b"005\n")
    assert path.read_bytes() == b"005\n"


def test_a_bounded_log_in_the_place_of_a_fifo(tmp_path: Path) -> None:
    """A file that somebody has put there keeps nobody waiting."""
    log = BoundedLog(str(tmp_path / "log"), 12)
    os.mkfifo(tmp_path / "log")
    with pytest.raises(OSError, match="No such device or address"):
        log.append(b"one\n")


def test_a_bounded_log_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines are there whole or not at all."""
    log = BoundedLog(str(tmp_path / "log"), 100)
    log.append(b"one\n")
    written = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: written(fd, data[:2]))
    with pytest.raises(OSError, match="No space left"):
        log.append(b"two\n")
    assert (tmp_path / "log").read_bytes() == b"one\n"
