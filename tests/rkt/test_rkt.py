"""minit's stage1 image under a real rkt, where one is on PATH."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from minit.base.progress import silent
from minit.image.appimage import ImageFields, build_app_image
from tests.support.pods import BUSYBOX

pytestmark = pytest.mark.skipif(shutil.which("rkt") is None, reason="no rkt binary on PATH")


@pytest.fixture(scope="module")
def app_image(work_directory: Path) -> Path:
    """An app image with a busybox."""
    output = work_directory / "rkt-busybox.aci"
    fields = ImageFields(name="busybox", exec=(str(BUSYBOX), "true"))
    build_app_image(output, fields, silent, from_host=[BUSYBOX])
    return output


def rkt(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run rkt on a data directory of the test's own."""
    command = ["rkt", "--insecure-options=image", f"--dir={data}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("overlay", [True, False])
def test_rkt_runs_a_pod_and_reads_its_status(
    tmp_path: Path, stage1_image: Path, app_image: Path, overlay: bool
) -> None:
    """`rkt run` exits with the app's code, `rkt status` shows it, and `rkt rm` removes the pod."""
    saved = tmp_path / "uuid"
    flags = ["--net=none", f"--stage1-path={stage1_image}", f"--uuid-file-save={saved}"]
    flags += [] if overlay else ["--no-overlay"]
    script = "echo from rkt; exit 42"
    result = rkt(tmp_path, "run", *flags, str(app_image), f"--exec={BUSYBOX}", "--", "sh", "-c", script)
    assert result.returncode == 42, result.stderr
    assert "from rkt" in result.stdout
    uuid = saved.read_text().strip()
    assert "app-busybox=42" in rkt(tmp_path, "status", uuid).stdout
    assert rkt(tmp_path, "rm", uuid).returncode == 0


def test_rkt_enters_and_stops_a_pod(tmp_path: Path, stage1_image: Path, app_image: Path) -> None:
    """`rkt enter` runs a command in the app and `rkt stop` ends the pod with 0."""
    saved = tmp_path / "uuid"
    command = ["rkt", "--insecure-options=image", f"--dir={tmp_path}", "run", "--net=none"]
    command += [f"--stage1-path={stage1_image}", f"--uuid-file-save={saved}", str(app_image)]
    process = subprocess.Popen([*command, f"--exec={BUSYBOX}", "--", "sleep", "1000"])
    try:
        while not saved.exists() or not saved.read_text().strip():
            assert process.poll() is None
        uuid = saved.read_text().strip()
        assert rkt(tmp_path, "status", "--wait-ready=30s", uuid).returncode == 0
        entered = rkt(tmp_path, "enter", uuid, str(BUSYBOX), "hostname")
        assert entered.stdout.strip() == f"rkt-{uuid}"
        assert rkt(tmp_path, "stop", uuid).returncode == 0
        assert process.wait(timeout=90) == 0
        assert rkt(tmp_path, "rm", uuid).returncode == 0
    finally:
        process.kill()
