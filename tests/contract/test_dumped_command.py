"""The command that starts from a program with everything imported: it is the same one, and never an old one."""

from __future__ import annotations

import _hashlib
import mmap
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minit.image.dump.command import build_command
from minit.image.dump.program import can_trace, obstacle
from minit.image.libraries import LibrarySearch
from minit.podfiles.usersdirectory import program_directory
from minit.stage0.images.layerstore import SMALL_BYTES
from tests import tars
from tests.ns.test_app_commands import (
    ENTRYPOINTS,
    flat_pod,
    pod,
    test_a_failed_add_leaves_nothing,
    test_an_interrupted_add,
    test_bad_calls,
    test_states,
    test_stopping,
    test_the_life_of_an_app,
)
from tests.ns.test_stage0_lifecycle import (
    exited,
    test_cat_manifest,
    test_images,
    test_list,
    test_rm,
    test_run_prepared,
    test_several_gcs_at_once,
    test_status_of_statuses,
    test_waiting,
)
from tests.support.campaign import campaign, thinned
from tests.support.forkedcommand import quick_words
from tests.support.layers import Layout, layer
from tests.support.processes import status_of
from tests.support.stage0_world import REPOSITORY, World, image_id, worlds, write_stage1
from tests.support.waiting import wait_for

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="runs pods, which needs root"),
    pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped"),
]

# Those that Python runs the command for in their own modules, here once more.
__all__ = [
    "flat_pod",
    "pod",
    "test_a_failed_add_leaves_nothing",
    "test_an_interrupted_add",
    "test_bad_calls",
    "test_states",
    "test_stopping",
    "test_the_life_of_an_app",
    "exited",
    "test_cat_manifest",
    "test_images",
    "test_list",
    "test_rm",
    "test_run_prepared",
    "test_several_gcs_at_once",
    "test_status_of_statuses",
    "test_waiting",
]

PLAINLY = "Python runs the command\n"
_PLAIN = f"""\
#!{sys.executable}
import sys
sys.path.insert(0, "SOURCES")
sys.stderr.write({PLAINLY!r})
sys.stderr.flush()
from minit.__main__ import main
main()
"""
_RENEW = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from minit.pods.images import renew_program
fingerprint = sys.argv.pop(1)
sys.argv[0] = sys.argv.pop(1)
renew_program(fingerprint, lambda step, done, total: print(step))
"""
_PRINT_FINGERPRINT = """\
import sys
sys.path.insert(0, sys.argv[1])
from minit.image.stage1 import stage1_fingerprint
print(stage1_fingerprint())
"""


class Installed:
    """minit in a directory of its own, as pip installs it, and where the program of its command belongs."""

    def __init__(self, root: Path) -> None:
        self.sources = root / "lib"
        for name in ("minit", "entrypoints"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(REPOSITORY / name, self.sources / name, ignore=ignored)
        self.command = root / "bin/minit"
        self.plain = root / "bin/minit-plain"
        self.command.parent.mkdir()
        shutil.copy(REPOSITORY / "bin/minit", self.command)
        self.plain.write_text(_PLAIN.replace("SOURCES", str(self.sources)))
        self.plain.chmod(0o755)
        self.program = Path(f"{program_directory()}{self.command}")
        self.interpreter = root / "bin/python"
        self.interpreter.symlink_to(Path(sys.executable).resolve())

    def renew(self, fingerprint: str, under: Sequence[str] = (), **variables: str) -> str:
        """Call what makes the program, and return what it says meanwhile."""
        command = [*under, str(self.interpreter), "-c", _RENEW, str(self.sources), fingerprint, str(self.plain)]
        environment = self.environment(PYTHONPATH=sysconfig.get_path("purelib"), **variables)
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout

    def environment(self, **variables: str) -> dict[str, str]:
        """Return that of the tests, without what is for interpreters."""
        return {**{name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}, **variables}

    def call(self, *words: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        defaults = {"env": self.environment(), "capture_output": True, "text": True, "check": False}
        return subprocess.run([self.command, *words], **{**defaults, **options})

    def is_plain(self, *words: str, **variables: str) -> bool:
        """Run the command, which must be a success, and return whether Python did."""
        result = self.call(*(words or ("version",)), env=self.environment(**variables))
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("minit Version: ") or words
        return result.stderr.startswith(PLAINLY)


@pytest.fixture(scope="session")
def installed(work_directory: Path) -> Installed:
    """minit whose command has its program."""
    minit = Installed(work_directory / "installed")
    assert minit.is_plain()
    assert minit.renew("first") == "making the command quicker (first use)\n"
    return minit


class QuickWorld(World):
    """A world whose command starts from its program."""

    def __init__(self, root: Path, minit: Installed) -> None:
        super().__init__(root)
        self._minit = minit

    def command(self, *arguments: object) -> list[str]:
        """Return the words that run it on the data directory."""
        return [str(self._minit.command), f"--dir={self.data}", *map(str, arguments)]

    quick_command = command

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment that it is called with."""
        return self._minit.environment(**{"STAGE1_DUMP": str(self.dump), **self._of_user, **variables})

    def quick_call(self, words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
        """Run a command line to its end."""
        result = self._minit.call(*words, env=environment, cwd=self.root, stdin=subprocess.DEVNULL)
        assert PLAINLY not in result.stderr
        return result


@pytest.fixture
def world(tmp_path: Path, installed: Installed) -> Iterator[World]:
    """A data directory of its own, and a stage1 for mutable pods."""
    for world in worlds(tmp_path, lambda root: QuickWorld(root, installed)):
        write_stage1(world.stage1, entrypoints=ENTRYPOINTS)
        yield world


def test_where_it_is(installed: Installed, tmp_path: Path) -> None:
    """The command starts from the program of its path, by whatever name it is called, as its user alone could write."""
    assert not installed.is_plain()
    assert stat.S_IMODE(installed.program.stat().st_mode) == 0o755
    directory = installed.command.parent
    for words, cwd in ((["./minit"], directory), (["bin/minit"], directory.parent), (["sh", "./minit"], directory)):
        result = subprocess.run([*words, "version"], cwd=cwd, env=installed.environment(), capture_output=True)
        assert (result.returncode, result.stderr) == (0, b"")
    (tmp_path / "link").symlink_to(installed.command)
    result = subprocess.run([tmp_path / "link", "version"], env=installed.environment(), capture_output=True)
    assert (result.returncode, result.stderr) == (0, b"")


def page_faults(program: Path) -> int:
    """Return how often a short command had to get a page."""
    child = os.fork()
    if child == 0:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.execve(program, [str(program), "/bin/false", "version"], {})
        finally:
            os._exit(1)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return usage.ru_minflt


@pytest.mark.skipif(not can_trace(), reason="writes are traced on x86-64 only")
def test_it_copies_few_pages(work_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command's written memory lies together, and its process gets fewer pages than that of an untrained one."""
    # Both from the same modules: pages of a program depend on the paths in it, too.
    together, scattered = Path(f"{program_directory()}{quick_words()[0]}"), work_directory / "scattered"
    monkeypatch.setattr("minit.image.dump.program.can_trace", lambda: False)
    build_command(scattered)
    # From 3.12 on common objects are not counted, so fewer pages are written anyway.
    most = 0.9 if sys.version_info < (3, 12) else 0.97
    assert page_faults(together) < most * page_faults(scattered)


@pytest.fixture
def kept(installed: Installed) -> Iterator[Installed]:
    """An installation with its program, which a test may change and remove."""
    copy = installed.program.with_name("copy")
    shutil.copy2(installed.program, copy)
    yield installed
    copy.rename(installed.program)


def test_without_a_program(kept: Installed) -> None:
    """Python runs the command where there is no program, or one that is another user's, empty or not to be executed."""
    os.chown(kept.program, 1, 1)
    assert kept.is_plain()
    os.chown(kept.program, 0, 0)
    assert not kept.is_plain()
    kept.program.chmod(0o644)
    assert kept.is_plain()
    kept.program.chmod(0o755)
    os.truncate(kept.program, 0)
    assert kept.is_plain()
    kept.program.unlink()
    assert kept.is_plain()


@pytest.fixture
def no_compiler(tmp_path: Path) -> dict[str, str]:
    """An environment in which no program can be made."""
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    return {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def test_a_damaged_program(kept: Installed, no_compiler: dict[str, str]) -> None:
    """Python runs the command where a part of the program is all there is, or zeros follow it, and makes it anew."""
    content = kept.program.read_bytes()
    pages = -(-len(content) // 4096)
    for rest, variables in (("nothing", no_compiler), ("zeros", {})):
        for count in (*thinned([1 << power for power in range(pages.bit_length())]), pages - 2, pages - 1):
            kept.program.write_bytes(content[: 4096 * count])
            if rest == "zeros":
                os.truncate(kept.program, len(content))
            assert kept.is_plain(), f"{count} of {pages} pages and {rest}"
        assert kept.renew("first", **variables) != ""
        assert kept.is_plain() == bool(variables)


def test_a_program_that_has_changed(kept: Installed) -> None:
    """It ends by no signal without a word: its file is removed, and Python runs the command if nothing is done yet."""
    content = kept.program.read_bytes()
    dice = random.Random(1)
    # In a page of zeros is a fault, if it is executed.
    changes = [(at, bytes(4096)) for at in dice.sample(range(1 << 14, 3 << 20, 4096), campaign(16))]
    changes += [(at, bytes([content[at] ^ 1])) for at in dice.sample(range(len(content)), campaign(8))]
    told = 0
    for at, other in changes:
        kept.program.write_bytes(content[:at] + other + content[at + len(other) :])
        kept.program.chmod(0o755)
        result = kept.call("version")
        # The C library has a line of its own for a damaged stack, CPython one for an unknown opcode.
        words = rf"^minit: ended by signal \d+\nminit: {kept.program} was damaged, and is removed\n"
        has_faulted = re.search(words, result.stderr, re.MULTILINE) is not None
        told += has_faulted
        assert has_faulted or result.returncode >= 0, (at, result)
        assert not (has_faulted and kept.program.exists()), at
    assert told


@pytest.mark.skipif(Path("/bin/sh").resolve().name != "dash", reason="other shells end when they cannot execute a file")
def test_a_program_without_a_beginning(kept: Installed) -> None:
    """Python runs the command where the program's file cannot be executed at all."""
    for content in (b"\x7fELF", bytes(kept.program.stat().st_size)):
        kept.program.write_bytes(content)
        result = kept.call("version")
        assert (result.returncode, result.stdout.startswith("minit Version: ")) == (0, True)
        assert result.stderr.endswith(f": Exec format error\n{PLAINLY}")


@pytest.mark.parametrize(
    "name", ["minit/base/value.py", "minit/cli/manual.py", "minit/stage0/images/registry.py", "minit/image/dump/main.c"]
)
def test_changed_sources(installed: Installed, name: str) -> None:
    """Python runs the command when a file is changed that the program is made of, be it by its time alone."""
    path = installed.sources / name
    is_part = name != "minit/cli/manual.py"
    before = path.stat()
    try:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert installed.is_plain() == is_part
        with path.open("a") as file:
            file.write("\n")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert installed.is_plain() == is_part
        os.truncate(path, before.st_size)
    finally:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert not installed.is_plain()


def test_another_interpreter(installed: Installed) -> None:
    """Python runs the command when it is another Python than the one that was dumped."""
    before = installed.interpreter.readlink()
    installed.interpreter.unlink()
    installed.interpreter.symlink_to("/bin/true")
    assert installed.is_plain()
    installed.interpreter.unlink()
    assert installed.is_plain()
    installed.interpreter.symlink_to(before)
    assert not installed.is_plain()


def test_what_python_is_told(installed: Installed) -> None:
    """Python runs the command that it is told to run in its own way, or in another encoding than UTF-8."""
    assert installed.is_plain(PYTHONPATH="/nowhere")
    assert installed.is_plain(PYTHONWARNINGS="error")
    assert installed.is_plain(LC_ALL="de_DE.ISO-8859-1")
    assert installed.is_plain(LC_ALL="de_DE")
    for variables in ({"LC_ALL": "C"}, {"LC_ALL": "de_DE.UTF-8"}, {"LC_ALL": "", "LANG": "en_US.utf8"}):
        assert not installed.is_plain(**variables)
    assert not installed.is_plain(PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")


def test_what_the_program_has(installed: Installed) -> None:
    """No command is run by Python."""
    for words in (["top"], ["app", "stats"], ["run"], ["image", "build"]):
        assert not installed.is_plain(*words, "--help")


def test_it_hashes_by_openssl(installed: Installed, tmp_path: Path) -> None:
    """The program has OpenSSL's code, a page of which is in the middle of its file, and gives an image Python's ID."""
    libraries = LibrarySearch().closure([Path(_hashlib.__file__)])
    (crypto,) = (library.path.read_bytes() for library in libraries if library.name.startswith("libcrypto."))
    middle = len(crypto) // 2 & -mmap.PAGESIZE
    assert crypto[middle : middle + mmap.PAGESIZE] in installed.program.read_bytes()
    layout = Layout()
    layout.add(layer(tars.file("usr/large", random.Random(1).randbytes(2 * SMALL_BYTES))))
    image = f"oci:{layout.write_directory(tmp_path / 'layout')}"
    quick, plain = (
        subprocess.run(
            [command, f"--dir={tmp_path / command.name}", "fetch", "--quiet", image],
            env=installed.environment(),
            stdout=subprocess.PIPE,
            check=True,
        ).stdout
        for command in (installed.command, installed.plain)
    )
    assert quick == plain


def test_nobody_to_run_an_old_command(installed: Installed, tmp_path: Path) -> None:
    """A program that is not current does nothing itself."""
    result = subprocess.run(
        [installed.program, tmp_path / "none", "version"],
        env={"PYTHONPATH": "/"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 254
    assert result.stderr == f"minit: cannot run {tmp_path}/none: No such file or directory\n"


def test_both_are_the_same(installed: Installed, tmp_path: Path) -> None:
    """The program and Python say, write and exit with the same."""
    (tmp_path / "data").mkdir()
    data = f"--dir={tmp_path}/data"
    for words in (
        ["--help"],
        ["run", "--help"],
        ["app", "add", "--help"],
        [data, "list"],
        [data, "list", "--format=json"],
        [data, "status", "2d381b2a"],
        ["--debug", data, "cat-manifest", "\udcff"],
        ["no-such-command"],
        ["completion", "bash"],
        [],
        ["--", "sh", "-c", "echo $0 $#; kill -TERM $$"],
        ["--", "no-such-program"],
    ):
        quick, plain = (
            subprocess.run([command, *words], env=installed.environment(), capture_output=True, check=False)
            for command in (installed.command, installed.plain)
        )
        assert (quick.returncode, quick.stdout) == (plain.returncode, plain.stdout), words
        assert PLAINLY.encode() + quick.stderr == plain.stderr, words


def test_the_stage1_image_is_the_same(world: World, installed: Installed) -> None:
    """The stage1 image that Python has built is the one that the program takes."""
    command = [sys.executable, "-c", _PRINT_FINGERPRINT, str(installed.sources)]
    fingerprint = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    world.minit("fetch", world.stage1)
    (world.data / "minit/default-stage1").write_text(f"{fingerprint} {image_id(world.stage1)}\n")
    assert "building" not in world.minit("prepare", world.app).stderr


def test_standard_streams(installed: Installed) -> None:
    """Output that cannot be written is an error, and what the caller has closed is none."""
    with open("/dev/full", "w") as full:
        result = installed.call("version", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 254
    assert result.stderr == "version: standard output: no space left on device\n"
    for closed in (">&-", "<&-", "2>&-", "<&- >&- 2>&-"):
        script = f'"$0" version {closed}'
        subprocess.run(["sh", "-c", script, installed.command], env=installed.environment(), check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals(world: World, number: int) -> None:
    """A signal ends a command that waits, with the exit code of shells; one that the caller ignores does not."""
    uuid = world.prepare()

    def waiting(disposition: signal.Handlers) -> subprocess.Popen[bytes]:
        command = world.command("status", "--wait", uuid)
        # What runs the tests may ignore SIGINT, as the background of a shell does.
        prepare = partial(signal.signal, number, disposition)
        process = subprocess.Popen(command, env=world.environment(), stdout=subprocess.DEVNULL, preexec_fn=prepare)
        # The last that it handles; the shell before it may handle SIGINT as well.
        wait_for(lambda: int(status_of(process.pid)["SigCgt"], 16) & 1 << signal.SIGTERM - 1, "its handlers")
        return process

    with waiting(signal.SIG_DFL) as process:
        process.send_signal(number)
        assert process.wait() == 128 + number
    if number != signal.SIGTERM:
        with waiting(signal.SIG_IGN) as process:
            assert int(status_of(process.pid)["SigIgn"], 16) & 1 << number - 1
            process.send_signal(signal.SIGTERM)
            assert process.wait() == 128 + signal.SIGTERM


def test_what_the_init_passes_on(installed: Installed) -> None:
    """The command of `minit --` has the signals that the caller ignores and blocks, and its umask and limits."""
    script = "umask; grep -E '^Sig(Blk|Ign)' /proc/self/status; echo $0"

    def prepare() -> None:
        os.umask(0o137)
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGUSR2))

    with_init, without = (
        subprocess.run([*words, "sh", "-c", script], preexec_fn=prepare, capture_output=True, check=True).stdout
        for words in ([str(installed.command), "--"], [])
    )
    assert with_init == without


def test_when_it_is_made(kept: Installed, no_compiler: dict[str, str]) -> None:
    """A program that is current is left alone, and one that is not is to be made anew."""
    before = kept.program.stat().st_ino
    assert kept.renew("first") == ""
    assert kept.program.stat().st_ino == before
    path = kept.sources / "minit/base/value.py"
    status = path.stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    try:
        assert kept.is_plain()
        assert kept.renew("first", **no_compiler) != ""
        assert kept.program.stat().st_ino != before
    finally:
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_a_program_that_cannot_be_made(kept: Installed, no_compiler: dict[str, str], tmp_path: Path) -> None:
    """
    It is no failure, and is not tried again before something has changed; a program is written before it is named, so
    that a crash of the machine leaves all parts of it.
    """
    kept.program.unlink()
    assert kept.renew("first", **no_compiler) != ""
    assert kept.is_plain()
    assert kept.renew("first") == ""
    assert kept.is_plain()
    trace = ["strace", "-qq", "-y", "-e", "trace=fsync,rename", "-o", str(tmp_path / "trace")]
    assert kept.renew("second", under=trace) != ""
    assert not kept.is_plain()
    assert [path.name for path in kept.program.parent.iterdir() if path.name != "copy"] == ["minit"]
    calls = re.findall(
        r'^fsync\(\d+<[^>]*?([^/>]+)>|^rename\(.*?([^/"]+)", "[^"]*/minit"\)',
        (tmp_path / "trace").read_text(),
        re.MULTILINE,
    )
    names = {"program", kept.program.parent.name}
    assert [call for call in calls if names & {*call}] == [("program", ""), ("", "program"), ("bin", "")]


def test_only_where_nobody_else_writes(kept: Installed) -> None:
    """No program is made where another user could put one in its place."""
    kept.program.unlink()
    directory = kept.program.parent.parent
    directory.chmod(0o775)
    assert kept.renew("first") == ""
    directory.chmod(0o755)
    os.chown(directory, 1, 1)
    assert kept.renew("first") == ""
    os.chown(directory, 0, 0)
    assert not kept.program.exists()
