"""
Many processes that do everything at once with the same pods and images: `python -m tests.support.storm`.

The interpreter is started once; each worker is a fork of it, and so is each command, which is the same code as in a
process of its own. What happened is written to standard output, a JSON object for each command.
"""

from __future__ import annotations

import json
import os
import random
import select
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

from minit.cli.main import run
from tests.support import stage0_world
from tests.support.forkedcommand import import_commands

_HANG_SECONDS = 120
_KILL_SECONDS = 0.15  # of that age at most are commands that get killed
_PLACES = ("prepare", "prepared", "run", "exited-garbage")

# Looks a few times whether all that the pod is made of is there still; builtins only, but for sleep.
_RUN = r"""#!/bin/sh
read -r stage1 < stage1TreeStoreID
while :; do
    app=none
    [ ! -e overlay-prepared ] || read -r app < appsinfo/app/treeStoreID || :
    for turn in 1 2 3; do
        for file in stage1/rootfs/marker stage1/rootfs/opt/stage2/app/rootfs/marker "$DATA/cas/tree/$stage1/rendered" \
                "$DATA/cas/tree/$stage1/rootfs/marker"; do
            [ -e "$file" ] || echo "LOST $file"
        done
        [ $app = none ] || [ -e "$DATA/cas/tree/$app/rootfs/marker" ] || echo "LOST $app"
        sleep 0.01
    done
    exit 0
done
"""


def write_images(directory: Path) -> None:
    """Write a stage1 image and two app images that are as small as can be."""
    for name in ("stage1", "app", "other"):
        is_stage1 = name == "stage1"
        annotations = {f"{stage0_world.PREFIX}{word}": f"/{word}" for word in ("run", "gc")} if is_stage1 else {}
        app = {"exec": ["/x"], "user": "0", "group": "0"}
        manifest = stage0_world.image_manifest(f"example.com/{name}", None if is_stage1 else app, None, annotations)
        with tarfile.open(directory / f"{name}.aci", "w") as tar:
            stage0_world.add_file(tar, "manifest", json.dumps(manifest).encode())
            for folder in ("", "/opt", "/opt/stage2", "/rkt", "/rkt/status") if is_stage1 else ("", "/etc"):
                stage0_world.add_directory(tar, f"rootfs{folder}")
            stage0_world.add_file(tar, "rootfs/marker", name.encode())
            if is_stage1:
                stage0_world.add_file(tar, "rootfs/run", _RUN.encode(), 0o755)
                stage0_world.add_file(tar, "rootfs/gc", b"#!/bin/sh\n", 0o755)


class Worker:
    """One of those who do things: picks a command by chance, and an object of it among what is there."""

    def __init__(self, root: Path, seed: int, killed_percent: int) -> None:
        self._root = root
        self._killed_percent = killed_percent
        self._data = root / "data"
        self._random = random.Random(seed)
        self._commands: tuple[tuple[int, Callable[[], list[str]]], ...] = (
            (6, self._prepare),
            (5, lambda: ["run-prepared", "--net=none", self._pod("prepared")]),
            (3, lambda: ["rm", self._pod(*_PLACES)]),
            (2, lambda: ["gc", "--grace-period=0s"]),
            (2, lambda: ["image", "gc", f"--grace-period={self._random.choice(['0s', '1h'])}"]),
            (1, lambda: ["image", "rm", self._image()]),
            (
                1,
                lambda: [
                    "fetch",
                    "--quiet",
                    str(self._root / f"{self._random.choice(['app', 'other', 'stage1'])}.aci"),
                ],
            ),
            (1, lambda: ["image", "verify", "--quiet", self._image()]),
            (1, lambda: ["image", "list"]),
            (1, lambda: ["list"]),
            (1, lambda: ["export", "--quiet", "--overwrite", self._pod("run"), str(self._root / f"{os.getpid()}.aci")]),
        )

    def work(self, count: int) -> None:
        """Run that many commands."""
        for _ in range(count):
            [(_, choose)] = self._random.choices(self._commands, [weight for weight, _ in self._commands])
            words = choose()
            killed = self._random.random() * 100 < self._killed_percent
            moment = self._random.random() * _KILL_SECONDS if killed else None
            code, output = _call([f"--dir={self._data}", *words], moment)
            line = json.dumps({"words": words, "code": code, "output": output}) + "\n"
            os.write(1, line.encode())  # one call, and so never mixed with another's

    def _prepare(self) -> list[str]:
        image = self._random.choice(["app", "other"])
        words = [
            "prepare",
            "--quiet",
            f"--stage1-path={self._root}/stage1.aci",
            f"{self._root}/{image}.aci",
            "--name=app",
        ]
        return words if self._random.random() < 0.8 else [*words[:2], "--no-overlay", *words[2:]]

    def _pod(self, *places: str) -> str:
        """Return one of the pods that are there, or were just now."""
        found = [name for place in places for name in _names(self._data / "pods" / place)]
        return self._random.choice(found) if found else "00000000"

    def _image(self) -> str:
        return self._random.choice(["example.com/app", "example.com/other", "example.com/stage1"])


class AppWorker(Worker):
    """One of those who do things with the apps of the same running pods."""

    def __init__(self, root: Path, seed: int, killed_percent: int) -> None:
        super().__init__(root, seed, killed_percent)
        self._commands = (
            (6, self._add),
            (4, lambda: ["app", "start", *self._app()]),
            (3, lambda: ["app", "stop", *self._app()]),
            (2, lambda: ["app", "rm", *self._app()]),
            (1, lambda: ["app", "list", self._pod("run")]),
            (1, lambda: ["app", "status", *self._app()]),
            (1, lambda: ["app", "exec", *self._app(), "/bin/busybox", "true"]),
        )

    def _add(self) -> list[str]:
        ends = [] if self._random.random() < 0.5 else ["--exec=/bin/sh", "--", "-c", "exit 3"]
        return ["app", "add", self._pod("run"), f"{self._root}/busybox.aci", f"--name={self._name()}", *ends]

    def _app(self) -> list[str]:
        return [f"--app={self._name()}", self._pod("run")]

    def _name(self) -> str:
        return self._random.choice(("one", "two", "three"))


def _names(directory: Path) -> list[str]:
    try:
        return os.listdir(directory)
    except FileNotFoundError:
        return []


def _call(arguments: list[str], killed_after: float | None) -> tuple[int, str]:
    """Run a command line in a fork, killed if it is that old; return its exit code, or signal, and its output."""
    output = os.memfd_create("output")
    pid = os.fork()
    if pid == 0:
        try:
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = run(arguments)
            sys.stdout.flush()
            os._exit(code)
        finally:
            os._exit(255)
    pidfd = os.pidfd_open(pid)
    if not select.select([pidfd], [], [], _HANG_SECONDS if killed_after is None else killed_after)[0]:
        if killed_after is None:
            os.write(output, b"storm: a command hangs\n")
        os.kill(pid, signal.SIGKILL)
    os.close(pidfd)
    _, status = os.waitpid(pid, 0)
    text = os.pread(output, 1 << 20, 0).decode("utf-8", "replace")
    os.close(output)
    return os.waitstatus_to_exitcode(status), text


def main() -> None:
    """
    Take what is done (`pods`, `apps`), the directory, how many workers, how many commands of each, how many percent are
    killed, and a seed.
    """
    kind, root = AppWorker if sys.argv[1] == "apps" else Worker, Path(sys.argv[2])
    workers, count, killed_percent, seed = map(int, sys.argv[3:])
    os.environ["DATA"] = str(root / "data")
    import_commands()
    children = []
    for number in range(workers):
        pid = os.fork()
        if pid == 0:
            try:
                kind(root, seed * 1000 + number, killed_percent).work(count)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    sys.exit(max([os.waitpid(pid, 0)[1] for pid in children]) != 0)


if __name__ == "__main__":
    main()
