"""What hostile images and apps have done to other runtimes (docs/security.md has the whole list)."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.guest import build_program
from tests.support.pods import MakePod, PodDirectory, app_section, shell

ATTACKER = "/bin/attacker"
FIFO = "/shared/fifo"
FOREVER = "while :; do sleep 1; done"


@pytest.fixture(scope="module")
def hostile_rootfs(work_directory: Path, app_rootfs: Path) -> Iterator[Path]:
    """The root of an image with the attacker's programs."""
    directory = Path(tempfile.mkdtemp(prefix="hostile-", dir=work_directory))
    rootfs = directory / "rootfs"
    shutil.copytree(app_rootfs, rootfs, symlinks=True)
    build_program("attacker", rootfs / ATTACKER.lstrip("/"))
    # The kernel resolves a "#!" line in the process that executes the file.
    (rootfs / "bin/trap").write_text(f"#!/proc/self/exe {FIFO}\n")
    (rootfs / "bin/trap").chmod(0o755)
    yield rootfs
    shutil.rmtree(directory)


def attacker(*arguments: str, **fields: Any) -> dict[str, Any]:
    """Return the `app` object that runs one of the attacker's programs."""
    return app_section(ATTACKER, *arguments, **fields)


def lines_of(output: str, app: str = "a") -> list[str]:
    """Return the lines of an app's output without their prefix."""
    return [line.partition("]: ")[2] for line in output.splitlines() if line.startswith(f"{app}[")]


# Programs of the image that are the interpreter of the process that executes them.
SELF = {"program": ["/proc/self/exe", FIFO], "interpreter": ["/bin/trap"]}


def pod_with_a_fifo(make_pod: MakePod, rootfs: Path, source: Path, apps: dict[str, dict[str, Any]]) -> PodDirectory:
    """Return a pod whose apps share a FIFO, at which a loader waits that has it for a program."""
    source.mkdir()
    os.mkfifo(source / "fifo")
    for app in apps.values():
        app["mounts"] = [{"volume": "v", "path": "/shared"}]
    return make_pod(apps, rootfs, volumes=[{"name": "v", "kind": "host", "source": str(source)}])


@pytest.mark.parametrize("command", SELF.values(), ids=SELF)
def test_the_interpreter_that_an_app_was_made_with_cannot_be_written(
    make_pod: MakePod, hostile_rootfs: Path, tmp_path: Path, command: list[str]
) -> None:
    """An app that executes /proc/self/exe runs the stage1's loader (CVE-2019-5736); that is on a read-only mount."""
    apps = {"a": app_section(*command), "b": attacker("exe", FIFO)}
    pod = pod_with_a_fifo(make_pod, hostile_rootfs, tmp_path / "shared", apps)
    # As long as the launcher and PID 1 run it is busy as well.
    assert lines_of(pod.run().stdout, "b")[0] == "found on a mount that is read-only"


@pytest.mark.parametrize("command", SELF.values(), ids=SELF)
def test_the_interpreter_of_enter_cannot_be_written(
    make_pod: MakePod, hostile_rootfs: Path, tmp_path: Path, command: list[str]
) -> None:
    """The same for the tree store's loader, by which a command is entered, once nobody runs it."""
    apps = {"a": shell(FOREVER), "b": attacker("exe", FIFO)}
    pod = pod_with_a_fifo(make_pod, hostile_rootfs, tmp_path / "shared", apps)
    process = pod.start()
    pod.wait_ready()
    # The attacker ends it once it has its file.
    pod.enter("a", *command)
    assert pod.wait_status("b") == 0
    pod.stop()
    lines = lines_of(pod.finish(process).stdout, "b")
    assert lines == ["found on a mount that is read-only", "write: Read-only file system"]
