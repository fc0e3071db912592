"""Fixtures of the tests that run the same command lines by `minit` and by a real `rkt`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commands import Stage0

NEEDS_RKT = pytest.mark.skipif(shutil.which("rkt") is None, reason="no rkt binary on PATH")


@pytest.fixture(params=["minit", pytest.param("rkt", marks=NEEDS_RKT)])
def stage0(request: pytest.FixtureRequest, tmp_path: Path, stage1_image: Path) -> Iterator[Stage0]:
    """Each of the two commands in turn."""
    words = ["rkt"] if request.param == "rkt" else [sys.executable, "-m", "minit"]
    command = Stage0(words, tmp_path, stage1_image)
    yield command
    command.clean_up()
