"""Readers of untrusted data, fuzzed by atheris where it can be had."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.campaign import LONG
from tests.support.stage0_world import REPOSITORY


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="no atheris for this Python")
def test_archives(tmp_path: Path) -> None:
    """No input makes the readers of archives do anything but read it or refuse it in one line."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    bounds = ["-max_total_time=300"] if LONG else ["-runs=20000", "-seed=1"]
    words = [sys.executable, "-m", "tests.support.fuzz_archives", str(corpus), *bounds, "-max_len=8192"]
    words += ["-rss_limit_mb=1024", "-timeout=20", f"-artifact_prefix={tmp_path}/", "-print_final_stats=1"]
    # A shell between them: the peak that libFuzzer looks at begins with that of whoever forked its process.
    shell = ["sh", "-c", '"$@"; exit "$?"', "sh", *words]
    result = subprocess.run(shell, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    assert "stat::number_of_executed_units" in result.stderr
