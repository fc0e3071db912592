"""Fixtures of the tests that run the command, and what it executes, as a whole."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Stage0
from tests.support.crinode import Daemon, own_daemon
from tests.support.usersession import use_data_directory


@pytest.fixture
def minit(tmp_path: Path, stage1_image: Path) -> Iterator[Stage0]:
    """The command, on a data directory of its own."""
    use_data_directory(tmp_path / "data")
    command = Stage0([sys.executable, "-m", "minit"], tmp_path, stage1_image)
    yield command
    command.clean_up()


@pytest.fixture
def daemon(minit: Stage0, tmp_path: Path) -> Iterator[Daemon]:
    """A daemon with an image in its store, on a data directory of its own."""
    with own_daemon(minit, tmp_path / "cri.sock") as daemon:
        daemon.start()
        yield daemon
