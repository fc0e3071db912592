"""The demo, as the README's first command runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_a_pod_and_leaves_nothing():
    """The demo's pod of three apps ends with 0 everywhere, and no directory or mount of it stays."""
    before = set(Path("/var/tmp").glob("minit-demo.*"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    result = subprocess.run(
        ["sh", ROOT / "demo/run.sh"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    for line in ("app-web=0", "app-client=0", "app-script=0", "minit run exited with 0"):
        assert line in result.stdout
    assert "hello from a pod without systemd" in result.stdout
    assert set(Path("/var/tmp").glob("minit-demo.*")) == before
    assert "minit-demo" not in Path("/proc/self/mountinfo").read_text()
