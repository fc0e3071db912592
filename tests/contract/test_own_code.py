"""Processes that the command starts to run its own code, wherever that is installed and whatever lies around."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.stage0_world import REPOSITORY

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root serves a kubelet")

_EXPECTED = "cri: {directory}/file: file exists\n"


def _cri(program: Path, directory: Path) -> str:
    """Return what a daemon says that cannot have its socket."""
    (directory / "file").touch()
    command = [str(program), f"--dir={directory / 'data'}", "cri", f"--listen=unix://{directory}/file/cri.sock"]
    result = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=90, check=False)
    return result.stderr.replace(str(directory), "{directory}")


def test_the_daemon_of_a_directory_of_modules(tmp_path: Path) -> None:
    """A command that finds its modules by itself alone, as in the Debian package, has a daemon that finds them too."""
    program = tmp_path / "minit-plain"
    paths = [str(REPOSITORY), *(path for path in sys.path if path.endswith("-packages"))]
    start = f"import sys\nsys.path += {paths!r}\nfrom minit.__main__ import main\nmain()\n"
    program.write_text(f"#!{Path(sys.executable).resolve()} -IS\n{start}")
    program.chmod(0o755)
    assert _cri(program, tmp_path) == _EXPECTED


def test_modules_in_the_working_directory(tmp_path: Path) -> None:
    """Whoever writes to the directory in which root starts the daemon has no code run by it."""
    for name in ("minit", "trio", "json"):
        (tmp_path / f"{name}.py").write_text("open('run', 'w')\nraise SystemExit('hostile')\n")
    assert _cri(Path(sys.executable).with_name("minit-plain"), tmp_path) == _EXPECTED
    assert not (tmp_path / "run").exists()


def test_an_interrupted_import(tmp_path: Path) -> None:
    """Ctrl-C while the command is imported ends it without a word of Python's."""
    (tmp_path / "click.py").write_text("import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from minit.__main__ import main\nmain()\n"
    result = subprocess.run([sys.executable, "-c", program, "list"], env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stdout, result.stderr) == (130, b"", b"")
