"""Stage1 images built by other versions of Python than the one that runs the tests, or not dumped, and pods on them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import minit
from tests.support.pods import STAGE1_TREE_ID, PodDirectory, shell
from tests.support.unpack import unpack

OWN = f"3.{sys.version_info.minor}"
VERSIONS = [version for version in ("3.11", "3.12", "3.13", "3.14") if version != OWN]
# Where there are some beside those on PATH, below a home: pyenv's and uv's.
PLACES = (".pyenv/versions/*/bin", ".local/share/uv/python/*/bin")
PROJECT = Path(minit.__file__).parent.parent

BUILD = """\
import sys
from pathlib import Path
from minit.image.dump.program import obstacle
from minit.image.stage1 import build_stage1
from minit.base.progress import silent
build_stage1(Path(sys.argv[1]), silent, plain=sys.argv[2] == "plain")
print(obstacle())
"""


def find_interpreter(version: str) -> str:
    """Return the program of a version of Python on this machine; skips without one."""
    if version == OWN:
        return sys.executable
    places = [str(path) for pattern in PLACES for path in sorted(Path.home().glob(pattern))]
    found = shutil.which(f"python{version}", path=":".join([*places, os.environ["PATH"]]))
    if found is None:
        pytest.skip("no other Python of that version on this machine")
    return found


@pytest.mark.parametrize(("version", "kind"), [*((version, "dumped") for version in VERSIONS), (OWN, "plain")])
def test_an_image_with_another_interpreter(app_rootfs: Path, tmp_path: Path, version: str, kind: str) -> None:
    """That Python builds it with the packages of this one, and a pod on it runs, is asked, entered and stopped."""
    command = [find_interpreter(version), "-B", "-c", BUILD, str(tmp_path / "stage1.aci"), kind]
    path = f"{PROJECT}:{sysconfig.get_path('purelib')}"
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": path, "PATH": tools}
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    tree = tmp_path / "data/cas/tree" / STAGE1_TREE_ID
    unpack(tmp_path / "stage1.aci", tree)
    is_dumped = kind == "dumped" and built.stdout == "None\n"
    assert (tree / "rootfs/usr/lib/minit/bin/minit").exists() == is_dumped
    assert bool(list(tree.glob(f"rootfs/usr/lib/minit/lib/python{version}*"))) != is_dumped
    pod = PodDirectory(
        tmp_path / "data", tree, app_rootfs, {"a": shell("trap 'exit 7' TERM; echo hello; sleep 99 & wait")}
    )
    try:
        process = pod.start()
        pod.wait_ready()
        assert pod.ask({"op": "ping"})["ok"]
        assert pod.enter("a", "echo", "inside").stdout == "inside\n"
        assert pod.stop().returncode == 0
        result = pod.finish(process)
        assert (result.returncode, result.stderr, pod.status("a")) == (0, "", 7)
        assert "hello" in result.stdout
        assert pod.gc().returncode == 0
    finally:
        pod.remove()
