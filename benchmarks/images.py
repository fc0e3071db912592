"""The costs of many images, and their savings: the list of a full store, and a second pod from a known image."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from benchmarks.command import MINIT
from benchmarks.table import Measure, compare, missing
from tests import tars
from tests.support.stage0_world import BUSYBOX, write_app, write_stage1

IMAGES = 500
RUNS = 10
_FETCHED_AT_ONCE = 100


def main() -> None:
    """Print the tables."""
    root = Path(tempfile.mkdtemp(prefix="minit-bench-", dir="/var/tmp"))
    commands = {"minit": [MINIT, f"--dir={root}/minit"]}
    absent = missing("rkt")
    if absent is None:
        commands["rkt"] = ["rkt", "--insecure-options=image", f"--dir={root}/rkt"]
    try:
        _measure(root, commands, absent)
    finally:
        shutil.rmtree(root)


def _measure(root: Path, commands: dict[str, list[str]], absent: str | None) -> None:
    write_stage1(root / "stage1.aci")
    write_app(root / "app.aci")
    ids = {}
    for name, words in commands.items():
        ids[name] = [_output([*words, "fetch", "--full", str(root / file)]) for file in ("stage1.aci", "app.aci")]
    pods: dict[str, Measure | str] = {
        f"{name} prepare, images by id": partial(
            _milliseconds, [*words, "prepare", f"--stage1-hash={ids[name][0]}", ids[name][1]]
        )
        for name, words in commands.items()
    }
    directory = root / "copied"
    pods[f"cp -a of the files, {BUSYBOX.stat().st_size >> 10} KiB"] = lambda: _copied(root, ids["minit"][1], directory)
    if absent:
        pods["rkt prepare, images by id"] = f"no {absent}"
    compare("second pod from the same images", "ms", pods, RUNS)

    files = []
    for number in range(IMAGES):
        manifest = tars.manifest(f"example.com/app-{number}", app={"exec": ["/x"], "user": "0", "group": "0"})
        files.append(str(tars.write_image(root / f"{number}.aci", tars.file("rootfs/x"), manifest_bytes=manifest)))
    for words in commands.values():
        for start in range(0, IMAGES, _FETCHED_AT_ONCE):
            _output([*words, "fetch", *files[start : start + _FETCHED_AT_ONCE]])
    lists: dict[str, Measure | str] = {
        f"{name} image list": partial(_milliseconds, [*words, "image", "list"]) for name, words in commands.items()
    }
    if absent:
        lists["rkt image list"] = f"no {absent}"
    lists["minit image list, no images"] = lambda: _milliseconds([MINIT, f"--dir={root}/empty", "image", "list"])
    compare(f"list of {IMAGES + 2} images", "ms", lists, RUNS)


def _output(words: list[str]) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _milliseconds(words: list[str]) -> float:
    start = time.monotonic_ns()
    subprocess.run(words, capture_output=True, check=True)
    return (time.monotonic_ns() - start) / 1e6


def _copied(root: Path, image_id: str, directory: Path) -> float:
    [tree] = [path.parent for path in root.glob("minit/cas/tree/*/image") if path.read_text() == image_id]
    took = _milliseconds(["cp", "-a", str(tree / "rootfs"), str(directory)])
    shutil.rmtree(directory)
    return took
