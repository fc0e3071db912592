"""minit.boundedfile: all of a file, or one line that says why not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minit.boundedfile import read_bounded
from minit.errors import LaunchError
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
    """What cannot be read is said with the name, which read(2) does not know."""
    fd = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError) as caught:
        read_bounded(fd, "directory", LIMIT)
    assert caught.value.filename == "directory"
    assert fd not in descriptors_of(os.getpid())
