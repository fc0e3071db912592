"""The demo, as the README's first command runs it."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.hostnet import leftovers

ROOT = Path(__file__).parents[2]


def test_the_demo_runs_a_pod_and_leaves_nothing() -> None:
    """The demo's pod ends with 0 and is reached from the host; no directory, mount or network of it stays."""
    before = set(Path("/var/tmp").glob("minit-demo.*"))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # With the usual port taken it takes another one.
    with socket.create_server(("127.0.0.1", 8080)):
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
    assert re.search(r"\$ busybox wget \S+ http://127\.0\.0\.1:\d+/\nhello from a pod without systemd\n", result.stdout)
    assert re.search(r"^networks=default:ip4=172\.16\.28\.\d+$", result.stdout, re.MULTILINE)
    assert leftovers() == []
    assert set(Path("/var/tmp").glob("minit-demo.*")) == before
    assert "minit-demo" not in Path("/proc/self/mountinfo").read_text()
