"""Pods that pass between minit and a real rkt: one makes them, the other runs them, and either does the rest."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minit.base.progress import silent
from minit.image.appimage import ImageFields, build_app_image
from minit.stage0.images.treestore import tree_hash
from tests.rkt.conftest import NEEDS_RKT
from tests.support.campaign import LONG
from tests.support.pods import BUSYBOX

pytestmark = NEEDS_RKT

_SCRIPT = (
    'echo changed > /new; rm /remove; ln /new /linked; chmod 4755 /new; trap "exit 9" TERM; echo up; sleep 1000 & wait'
)


# Who prepares, who runs, and how.
_CASES = [
    ("minit", "rkt", []),
    ("rkt", "minit", ["--no-overlay"]),
    ("minit", "rkt", ["--no-overlay"]),
    ("rkt", "minit", []),
]


@pytest.fixture(scope="module")
def app_image(work_directory: Path) -> Path:
    """An app image with a busybox and a file to remove."""
    rootfs = work_directory / "interop-rootfs"
    (rootfs / "etc").mkdir(parents=True)
    (rootfs / "remove").write_text("")
    output = work_directory / "interop.aci"
    fields = ImageFields(name="app", exec=(str(BUSYBOX), "sh", "-c", _SCRIPT))
    build_app_image(output, fields, silent, rootfs=rootfs, from_host=[BUSYBOX])
    return output


class Command:
    """minit or rkt on a data directory that both use."""

    def __init__(self, name: str, data: Path) -> None:
        self.name = name
        self.words = ["rkt", "--insecure-options=image"] if name == "rkt" else [sys.executable, "-m", "minit"]
        self.words.append(f"--dir={data}")

    def __call__(self, *arguments: object) -> str:
        """Run it, expect success, and return what it printed."""
        words = [*self.words, *map(str, arguments)]
        result = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
        assert result.returncode == 0, (words, result.stdout, result.stderr)
        return result.stdout.strip()


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    """A data directory, below which nothing is mounted in the end."""
    yield tmp_path / "data"
    left = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(tmp_path) in line]
    for point in reversed(left):
        subprocess.run(["umount", "-l", point], check=False)
    assert left == []


def state(command: Command, uuid: str) -> list[str]:
    """Return what `status` of either command prints, but for the times."""
    lines = command("status", uuid).splitlines()
    return [line for line in lines if not line.startswith(("created", "started", "version"))]


@pytest.mark.parametrize(("maker_name", "runner_name", "flags"), _CASES if LONG else _CASES[:2])
def test_a_pods_life_between_two(
    tmp_path: Path, data: Path, stage1_image: Path, app_image: Path, maker_name: str, runner_name: str, flags: list[str]
) -> None:
    """One prepares a pod, the other runs it; both see the same, keep its trees, enter, stop, export and remove it."""
    maker, runner = Command(maker_name, data), Command(runner_name, data)
    uuid = maker("prepare", *flags, f"--stage1-path={stage1_image}", app_image)
    trees = sorted(os.listdir(data / "cas/tree"))
    assert state(maker, uuid) == state(runner, uuid) == ["state=prepared"]
    assert json.loads(maker("cat-manifest", uuid)) == json.loads(runner("cat-manifest", uuid))
    for command in (maker, runner):
        command("image", "gc", "--grace-period=0s")
        assert sorted(os.listdir(data / "cas/tree")) == trees if not flags else True
    with subprocess.Popen([*runner.words, "run-prepared", "--net=none", uuid], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and b"up" in process.stdout.readline()
        assert [state(command, uuid)[0] for command in (maker, runner)] == ["state=running"] * 2
        maker("status", "--wait-ready=30s", uuid)
        for command in (maker, runner):
            assert command("enter", uuid, BUSYBOX, "cat", "/new") == "changed"
            command("image", "gc", "--grace-period=0s")
        assert uuid[:8] in maker("list") and uuid[:8] in runner("list")
        maker("stop", uuid)
        process.communicate(timeout=90)
    assert state(maker, uuid) == state(runner, uuid)
    assert state(maker, uuid)[-1] == "app-app=9"
    hashes = set()
    for command in (maker, runner):
        exported, out = tmp_path / f"{command.name}.aci", tmp_path / f"{command.name}.out"
        command("export", uuid, exported)
        image_id = {other("fetch", "--full", exported).splitlines()[-1] for other in (maker, runner)}
        assert len(image_id) == 1
        # Not by rkt: it copies, and makes two files of one with two names.
        Command("minit", data)("image", "render", image_id.pop(), out)
        # rkt leaves the empty files below the mounts of stage1 in the image.
        for name in ("hostname", "hosts") if command.name == "rkt" else ():
            (out / "rootfs/etc" / name).unlink()
        hashes.add(tree_hash(out))
        assert not (out / "rootfs/remove").exists()
        status = (out / "rootfs/new").stat()
        assert (status.st_mode & 0o7777, status.st_nlink) == (0o4755, 2)
    assert len(hashes) == 1
    maker("gc", "--mark-only")
    assert state(runner, uuid)[0] == "state=exited garbage"
    runner("rm", uuid)
    assert maker("list", "--no-legend") == runner("list", "--no-legend") == ""
    for command in (maker, runner):
        command("image", "gc", "--grace-period=0s")
    assert os.listdir(data / "cas/tree") == []
