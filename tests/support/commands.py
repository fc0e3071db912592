"""The two commands that can run pods on minit's stage1, minit itself and rkt, each on a data directory of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from tests.support.forkedcommand import forked_minit, quick_words, without_python
from tests.support.stage0_world import REPOSITORY, write_app
from tests.support.waiting import wait_for

_INTERPRETER_WORDS = len((sys.executable, "-m", "minit"))


class Stage0:
    """One of the two commands, on a data directory of its own; `pod_flags` are given to every `run`."""

    def __init__(self, words: list[str], root: Path, stage1: Path) -> None:
        self.data = root / "data"
        self.local_config = root / "local"
        self.pod_flags = ["--net=none"]
        self.stage1_flag = f"--stage1-path={stage1}"
        self.is_rkt = words == ["rkt"]
        flags = ["--insecure-options=image", f"--dir={self.data}", f"--local-config={self.local_config}"]
        self._words = [*words, *flags]
        self._root = root
        self._uuid = root / "uuid"

    @property
    def uuid(self) -> str:
        """The UUID of the pod that was run last."""
        return self._uuid.read_text().strip()

    def call(self, *words: object, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; minit, if no option of the process is given, without an interpreter's start."""
        if not (options or self.is_rkt):
            return forked_minit(self._command(words)[_INTERPRETER_WORDS:], self._environment(), Path.cwd())
        defaults = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, "timeout": 100, "check": False}
        return subprocess.run(self._command(words), env=self._environment(), **{**defaults, **options})

    def start(self, *words: object, under: Sequence[str] = (), **options: Any) -> subprocess.Popen[bytes]:
        """Start the command; minit as an installed one starts, from a program, unless it is under another command."""
        if under or self.is_rkt:
            return subprocess.Popen([*under, *self._command(words)], env=self._environment(), **options)
        command = [*quick_words(), *self._command(words)[_INTERPRETER_WORDS:]]
        return subprocess.Popen(command, env=without_python(self._environment()), **options)

    @contextmanager
    def running(self, *words: object, uuid: str | None = None) -> Iterator[str]:
        """Run a pod, the prepared one of this UUID or a new one, which is ready in the block and ended after it."""
        self._uuid.unlink(missing_ok=True)
        process = self.start(*words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            pod = uuid or wait_for(lambda: self._uuid.exists() and self.uuid, "the pod's UUID")
            try:
                assert self.call("status", "--wait-ready=30s", pod).returncode == 0
                yield pod
            finally:
                self.call("stop", pod)
                _, errors = process.communicate(timeout=100)
            assert process.returncode == 0, errors
        finally:
            process.kill()
            process.wait()

    def run_words(self, *words: object) -> list[object]:
        """Return the words of a `run` with minit's stage1."""
        return ["run", *self.pod_flags, self.stage1_flag, f"--uuid-file-save={self._uuid}", *words]

    def sandbox(self, *flags: object) -> AbstractContextManager[str]:
        """Run a pod without apps, with its UUID in the block."""
        words = ("app", "sandbox", *self.pod_flags, self.stage1_flag, f"--uuid-file-save={self._uuid}", *flags)
        return self.running(*words)

    def app(self, verb: str, *words: object) -> str:
        """Run a command for an app of a pod, expect success, and return what it printed."""
        result = self.call("app", verb, *words)
        assert result.returncode == 0, (verb, words, result.stderr)
        return result.stdout

    def app_status(self, uuid: str, app: str) -> dict[str, Any]:
        """Return what is known of an app."""
        status = json.loads(self.app("status", "--format=json", f"--app={app}", uuid))
        assert isinstance(status, dict)
        return status

    def shell(self, script: str, *flags: object, app: tuple[object, ...] = (), **image: object) -> str:
        """Run a script as an app that succeeds, and return its output without the prefixes."""
        result = self.try_shell(script, *flags, app=app, **image)
        assert result.returncode == 0, result.stderr
        return "".join(line.partition("]: ")[2] for line in result.stdout.splitlines(keepends=True))

    def try_shell(
        self, script: str, *flags: object, app: tuple[object, ...] = (), **image: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a script as an app; `flags` are the pod's, `app` the app's, `image` is for its image's app section."""
        return self.call(*self.run_words(*flags, self.image(**image), *app, "--exec=/bin/sh", "--", "-c", script))

    def image(self, **section: object) -> Path:
        """Return an image file of a busybox."""
        path = self._root / "busybox.aci"
        write_app(path, app={"exec": ["/bin/sh"], "user": "0", "group": "0", **section})
        return path

    def clean_up(self) -> None:
        """Remove every pod, and what may still be mounted."""
        self.call("gc", "--grace-period=0s")
        with open("/proc/self/mountinfo") as lines:
            points = [line.split()[4] for line in lines]
        for point in reversed(points):
            if point.startswith(f"{self._root}/"):
                subprocess.run(["umount", "-l", point], check=True)

    def _command(self, words: tuple[object, ...]) -> list[str]:
        return [*self._words, *map(str, words)]

    def _environment(self) -> dict[str, str]:
        # The latter for rkt, which hides the command without it.
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), "RKT_EXPERIMENT_APP": "true"}
