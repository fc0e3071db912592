"""Files are read whole up to a limit, whatever they say about their size."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minit.stage0.boundedread import read_at_most


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 5000])
def test_no_more_than_the_limit(tmp_path: Path, size: int) -> None:
    """Of a regular file."""
    path = tmp_path / "file"
    path.write_bytes(bytes(range(256)) * 20)
    os.truncate(path, size)
    with open(path, "rb") as file:
        assert read_at_most(file, 100) == path.read_bytes()[:100]


def test_files_that_say_no_size() -> None:
    """A device has no end, and a file of proc has content."""
    with open("/dev/zero", "rb") as file:
        assert read_at_most(file, 5000) == bytes(5000)
    with open("/proc/self/status", "rb") as file:
        assert read_at_most(file, 5000).startswith(b"Name:")


def test_a_file_that_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was added since its size was asked for is read, up to the limit."""
    path = tmp_path / "file"
    path.write_bytes(b"a" * 10)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        path.write_bytes(b"b" * 50)
        monkeypatch.setattr(os, "fstat", lambda fd: status)
        assert read_at_most(file, 40) == b"b" * 40
