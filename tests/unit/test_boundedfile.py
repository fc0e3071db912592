"""minit.podfiles.boundedfile: all of a file, or one line that says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minit.base.errors import LaunchError
from minit.podfiles.boundedfile import read_at_most, read_bounded
from tests.support.processes import descriptors_of

LIMIT = 200_000  # more than is read at once


@pytest.fixture
def opened(tmp_path: Path) -> int:
    """A descriptor of a file that holds as much as may be."""
    path = tmp_path / "file"
    path.write_bytes(b"x" * LIMIT)
    return os.open(path, os.O_RDONLY)


def test_a_file_of_the_allowed_size(opened: int) -> None:
    """All of it is returned, and the descriptor is closed."""
    assert read_bounded(opened, "file", LIMIT) == b"x" * LIMIT
    assert opened not in descriptors_of(os.getpid())


def test_a_larger_file(opened: int) -> None:
    """It is refused by its name, and the descriptor is closed."""
    with pytest.raises(LaunchError, match=rf"^file: larger than {LIMIT - 1} bytes$"):
        read_bounded(opened, "file", LIMIT - 1)
    assert opened not in descriptors_of(os.getpid())


def test_a_failed_read_names_the_file(tmp_path: Path) -> None:
    """A failed read is told with the name, which read(2) does not know."""
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError) as caught:
        read_bounded(fd, "directory", LIMIT)
    assert caught.value.filename == "directory"
    assert fd not in descriptors_of(os.getpid())


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
    """Bytes added since its size was asked for are read, up to the limit."""
    path = tmp_path / "file"
    path.write_bytes(b"a" * 10)
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        path.write_bytes(b"b" * 50)
        monkeypatch.setattr(os, "fstat", lambda fd: status)
        assert read_at_most(file, 40) == b"b" * 40
