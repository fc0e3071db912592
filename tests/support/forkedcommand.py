"""The `minit` command in a process of its own, but without the start of an interpreter: a fork or a program."""

from __future__ import annotations

import fcntl
import functools
import importlib
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import minit
from minit.__main__ import main
from minit.image.dump.command import build_command, is_current
from minit.image.dump.program import obstacle
from minit.linux.loop import wait_readable
from minit.podfiles.usersdirectory import is_of_user, program_directory
from tests.support.forked import make_forks_cheap

_PROJECT = Path(__file__).parents[2]


@functools.cache
def quick_words() -> list[str]:
    """
    Return the words of a command with a program of its own, to start; of an interpreter where none can be made.

    The first worker or run that asks makes the program, of the checkout, for all.
    """
    if is_of_user() or obstacle() is not None:
        return [sys.executable, "-m", "minit"]
    directory = _PROJECT / "build/tests/command"
    directory.mkdir(parents=True, exist_ok=True)
    program = Path(f"{program_directory()}{directory}/minit")
    program.parent.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = directory / "program"
        if not is_current(made):
            shutil.copy(_PROJECT / "bin/minit", directory)
            shutil.copy(Path(sys.executable).with_name("minit-plain"), directory)
            made.unlink(missing_ok=True)
            build_command(made)
        # By a rename: other workers may be executing the program.
        shutil.copy(made, program.with_suffix(".new"))
        program.with_suffix(".new").rename(program)
    return [f"{directory}/minit"]


def without_python(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without variables for interpreters, with which no command starts from its program."""
    return {name: value for name, value in environment.items() if not name.startswith("PYTHON")}


def forked_minit(
    words: Sequence[str], environment: Mapping[str, str], directory: Path, become: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end, and to that of its output; its input is empty. `become` changes its user first."""
    import_commands()
    pipes = [os.pipe(), os.pipe()]
    pid = os.fork()
    if pid == 0:
        _be_minit(words, environment, directory, [writer for _, writer in pipes], become)
    status = None
    try:
        for _, writer in pipes:
            os.close(writer)
        texts = _read_all([reader for reader, _ in pipes])
        _, status = os.waitpid(pid, 0)
    finally:
        if status is None:
            # The test takes too long.
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return subprocess.CompletedProcess(["minit", *words], os.waitstatus_to_exitcode(status), *texts)


@functools.cache
def import_commands() -> None:
    """Import what the command may import later, commands themselves above all, so that not every fork has to."""
    for package in ("cli", "stage0", "archives"):
        for module in pkgutil.walk_packages([f"{minit.__path__[0]}/{package}"], f"minit.{package}."):
            importlib.import_module(module.name)
    make_forks_cheap()


def _be_minit(
    words: Sequence[str],
    environment: Mapping[str, str],
    directory: Path,
    outputs: Sequence[int],
    become: Callable[[], None] | None,
) -> NoReturn:
    code: object = 1
    try:
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, stream in enumerate((null, *outputs)):
            os.dup2(stream, fd)
        # As an exec would.
        os.closerange(3, 1 << 16)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        sys.stdin, sys.stdout = open(0), open(1, "w", closefd=False)
        sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)
        os.environ.clear()
        os.environ.update(environment)
        if become is not None:
            become()
        os.chdir(directory)
        sys.argv = [minit.__main__.__file__, *words]
        main()
    except SystemExit as end:
        code = end.code
    finally:
        for output in (sys.stdout, sys.stderr):
            if output is not None:
                output.flush()
        os._exit(code if isinstance(code, int) else 0)


def _read_all(readers: Sequence[int]) -> list[str]:
    data = dict.fromkeys(readers, b"")
    left = list(readers)
    while left:
        for reader in wait_readable(left, None):
            piece = os.read(reader, 1 << 16)
            data[reader] += piece
            if not piece:
                os.close(reader)
                left.remove(reader)
    return [data[reader].decode() for reader in readers]
