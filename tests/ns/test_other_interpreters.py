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
from tests.support.campaign import LONG
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
build_stage1(Path(sys.argv[1]), silent)
print(obstacle())
"""


def find_interpreter(version: str) -> str | None:
    """Return the program of a version of Python on this machine, None without one."""
    places = [str(path) for pattern in PLACES for path in sorted(Path.home().glob(pattern))]
    return shutil.which(f"python{version}", path=":".join([*places, os.environ["PATH"]]))


# An ordinary run has the newest one that is there.
TRIED = VERSIONS if LONG else (list(filter(find_interpreter, VERSIONS)) or VERSIONS)[-1:]


@pytest.mark.parametrize("version", TRIED)
def test_an_image_with_another_interpreter(app_rootfs: Path, tmp_path: Path, version: str) -> None:
    """That Python builds it with the packages of this one, and a pod on it runs, is asked, entered and stopped."""
    interpreter = find_interpreter(version)
    if interpreter is None:
        pytest.skip("no other Python of that version on this machine")
    image = tmp_path / "stage1.aci"
    path = f"{PROJECT}:{sysconfig.get_path('purelib')}"
    tools = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": path, "PATH": tools}
    command = [interpreter, "-B", "-c", BUILD, str(image)]
    built = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    check_image(image, app_rootfs, tmp_path, version, is_dumped=built.stdout == "None\n")


def test_an_image_that_is_not_dumped(plain_stage1_image: Path, app_rootfs: Path, tmp_path: Path) -> None:
    """A pod on it runs, is asked, entered and stopped."""
    check_image(plain_stage1_image, app_rootfs, tmp_path, OWN, is_dumped=False)


def check_image(image: Path, app_rootfs: Path, tmp_path: Path, version: str, *, is_dumped: bool) -> None:
    """Run a pod on an image, ask, enter and stop it."""
    tree = tmp_path / "data/cas/tree" / STAGE1_TREE_ID
    unpack(image, tree)
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
