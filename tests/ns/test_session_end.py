"""A session of tests leaves nothing on the machine, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.owngroup import find_groups
from tests.support.processes import is_alive
from tests.support.waiting import wait_for

PROJECT = Path(__file__).parents[2]

# A test that has a group with a process that ignores signals, a child that has all of its descriptors, and a mount.
HANGING = """\
import os, signal, subprocess
from pathlib import Path
from minit.linux import syscalls
from minit.launcher.cgroups import read_hierarchies
from tests.support.owngroup import group_below_own

def test_that_hangs(tmp_path):
    syscalls.mount("tmpfs", str(tmp_path), "tmpfs", 0)
    groups = [group_below_own(hierarchy, "machine-rkt-test.scope") for hierarchy in read_hierarchies()]
    for group in groups:
        group.mkdir()
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.setsid()
        (groups[0] / "cgroup.procs").write_text("0")
        signal.pause()
    Path(os.environ["READY"]).write_text(f"{groups[0].parent.name} {tmp_path.parents[2]} {os.getpid()} {child}")
    while os.environ["HANG"]:
        signal.pause()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    for group in groups:
        group.rmdir()
    syscalls.umount2(str(tmp_path), 0)
"""


class Session:
    """A session of one test, and what it has."""

    def __init__(self, directory: Path, *words: str, under: tuple[str, ...] = (), hang: bool = True) -> None:
        directory.mkdir()
        (directory / "test_hanging.py").write_text(HANGING)
        ready = directory / "ready"
        command = [*under, sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "-p", "no:cacheprovider"]
        self.process = subprocess.Popen(
            [*command, "-c", PROJECT / "pyproject.toml", *words, directory / "test_hanging.py"],
            cwd=PROJECT,
            env={**os.environ, "READY": str(ready), "HANG": "yes" if hang else ""},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.group, disk, runner, child = wait_for(lambda: ready.exists() and ready.read_text().split(), "the test")
        self.disk, self.runner, self.child = Path(disk), int(runner), int(child)

    def is_there(self) -> bool:
        """Tell whether a group or the directory of its disk is."""
        return bool(find_groups(self.group)) or self.disk.exists()

    def wait_gone(self) -> None:
        """Wait until nothing of it is there, and no process."""
        wait_for(lambda: not self.is_there(), f"the end of {self.group}")
        self.process.communicate()
        assert not is_alive(self.child)


@pytest.mark.parametrize("words", [(), ("-n1",)], ids=["alone", "worker"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_session_that_is_ended(tmp_path: Path, words: tuple[str, ...], number: int) -> None:
    """Ctrl-C, SIGTERM and SIGKILL of pytest leave no group, process, mount or directory, not even with workers."""
    session = Session(tmp_path / "session", *words)
    os.kill(session.process.pid, number)
    session.wait_gone()


def test_a_worker_that_is_killed(tmp_path: Path) -> None:
    """Its things go at once, and not with the session."""
    session = Session(tmp_path / "session", "-n1", "--max-worker-restart=0")
    os.kill(session.runner, signal.SIGKILL)
    session.wait_gone()


def test_a_session_that_passes(tmp_path: Path) -> None:
    """It ends with 0 and has removed what is its own by then."""
    session = Session(tmp_path / "session", hang=False)
    output, _ = session.process.communicate()
    assert session.process.returncode == 0, output
    assert not session.is_there()


def test_the_next_session_cleans_up(tmp_path: Path) -> None:
    """A session that was killed with all its helpers is removed by the next one, which leaves running ones alone."""
    # Its processes have numbers that mean nothing to others, as those of a container have.
    other = Session(tmp_path / "other", under=("unshare", "--pid", "--fork", "--mount-proc", "--kill-child"))
    killed = Session(tmp_path / "killed")
    [afterwards] = [
        int(path.parent.name)
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if str(killed.disk).encode() in path.read_bytes().split(b"\0")
    ]
    for pid in (afterwards, killed.process.pid):
        os.kill(pid, signal.SIGKILL)
    assert killed.is_there()
    Session(tmp_path / "next", hang=False).process.communicate()
    killed.wait_gone()
    assert other.is_there()
    assert is_alive(other.process.pid)
    other.process.kill()  # its namespace goes with it, and what would come afterwards
    Session(tmp_path / "last", hang=False).process.communicate()
    assert not other.is_there()
