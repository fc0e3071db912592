"""The `minit` command as somebody has it who installed it, on a data directory of its own, with an image of an app."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.world import World
from tests.support.stage0_world import REPOSITORY, add_file, image_manifest
from tests.support.waiting import wait_for

MINIT = str(Path(sys.executable).with_name("minit"))
"""As pip installs it; from its first pod on it starts from its program."""

_APP = {"exec": ["/bin/true"], "user": "0", "group": "0"}


def compile_ahead() -> None:
    """Have Python keep what it compiles, whatever it is told, and not among the sources: as if minit were installed."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = "/var/tmp/minit-bench-compiled"
    subprocess.run([f"{MINIT}-plain", "--help"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([f"{MINIT}-plain", "--", "true"], check=True)


class Command:
    """The command; whatever it made is to be removed by `collect`."""

    def __init__(self, bench: World) -> None:
        compile_ahead()
        self.data = bench.path / "command"
        self.image = bench.path / "app.aci"
        with tarfile.open(self.image, "w") as tar:
            add_file(tar, "manifest", json.dumps(image_manifest("example.com/bench", _APP)).encode())
            tar.add(bench.rootfs, "rootfs")
        # The stage1 image is built on first use, and both are unpacked.
        self.output("run", "--net=none", self.image)
        self.collect()

    def words(self, *arguments: object) -> list[str]:
        """Return the words of a command line."""
        return [MINIT, f"--dir={self.data}", *map(str, arguments)]

    def output(self, *arguments: object) -> str:
        """Return what a command says that is expected to work."""
        process = subprocess.run(self.words(*arguments), cwd=REPOSITORY, capture_output=True, text=True, check=False)
        assert process.returncode == 0, process.stderr
        return process.stdout

    def collect(self) -> None:
        """Remove all pods that have ended."""
        self.output("gc", "--grace-period=0s")

    @contextmanager
    def running(self) -> Iterator[str]:
        """A pod whose only app sleeps; gives its UUID."""
        file = self.data / "uuid"
        file.unlink(missing_ok=True)
        app = (self.image, "--exec=/bin/sleep", "--", "1000")
        words = self.words("run", "--net=none", f"--uuid-file-save={file}", *app)
        process = subprocess.Popen(words, cwd=REPOSITORY, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            uuid = wait_for(lambda: file.exists() and file.read_text(), "the pod")
            self.output("status", "--wait-ready", uuid)
            yield uuid
        finally:
            process.terminate()
            process.wait()
            self.collect()
