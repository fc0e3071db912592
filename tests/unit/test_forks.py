"""Processes that minit forks are what their rows say, and docs/processes.md says the same."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from minit.base.errors import EXIT_FAILURE, MinitError
from minit.linux import ctypescalls, forks, syscalls
from minit.linux.forks import CLOSED, NULL, SAME, Forked, clone, fork, settle

ROOT = Path(__file__).parents[2]
STREAMS = [f"/proc/self/fd/{number}" for number in range(3)]
_PR_GET_DUMPABLE = 3
ROWS = [row for row in vars(forks).values() if isinstance(row, Forked)]


def cells(row: Forked) -> list[str]:
    """Return the cells of a row in the table; a dash stands for the parent's own."""
    name = row.name + "…" if row.name and row.name.endswith("-") else row.name
    streams = row.streams[:1] if len({*row.streams}) == 1 else row.streams
    return [
        row.who,
        f"`{name}`" if name else "—",
        "all" if row.keeps is None else ", ".join(row.keeps) or "none",
        ", ".join(streams).replace(NULL, f"`{NULL}`").replace(SAME, "—"),
        "new" if row.has_session else "—",
        "unblocked" if row.unblocks else "—",
        "—" if row.is_dumpable else "no",
        signal.Signals(row.death_signal).name if row.death_signal else "none",
    ]


def test_the_table_of_the_documents_has_the_rows() -> None:
    """The table and the list below have each kind of process, in the order of the module, and no other."""
    _, table, text = re.split(r"<!-- /?forks -->\n", (ROOT / "docs/processes.md").read_text())
    written = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert written == [cells(row) for row in ROWS]
    assert re.findall(r"^- \*\*(.+)\*\*:", text, re.MULTILINE) == [row.who for row in ROWS]


def test_words_in_place_of_the_command_line() -> None:
    """A fork with a name shows these alone, cut to the room that there is, and its parent keeps its own."""
    script = """if True:
        import os, sys
        from minit.linux.forks import Forked, fork
        show = lambda: print(open("/proc/self/cmdline").read(), flush=True)
        def nested(count):
            show()
            if count:
                row = Forked(who="x", name="other-", keeps=None)
                os.waitpid(fork(row, lambda: nested(count - 1), of="x" * count), 0)
        for row in Forked(who="x", name="a-b-", keeps=None), Forked(who="x", name="a", words="w" * 9999, keeps=None):
            os.waitpid(fork(row, lambda: nested(2), of="c-d"), 0)
        show()
    """
    words = [sys.executable, "-c", script, "secret"]
    result = subprocess.run(words, capture_output=True, text=True, check=True, cwd=ROOT)
    own = "\0".join(words) + "\0"
    others = ["other: xx\0", "other: x\0"]
    wanted = ["a: b-c-d\0", *others, "w" * (len(own.encode()) - 2) + "\0", *others, own]
    assert result.stdout.split("\n") == [*"\n".join(wanted).split("\n"), ""]


def test_nobody_else_forks() -> None:
    """Processes are forked by the module, but for two; the init of a container is without ctypes."""
    files = {path.relative_to(ROOT / "minit").as_posix(): path.read_text() for path in (ROOT / "minit").rglob("*.py")}
    call = re.compile(r"(?<!for )os\.fork\(|syscalls\.clone3\(|os\.posix_spawn")
    assert {name for name, text in files.items() if call.search(text)} == {
        "linux/forks.py",
        "containerinit.py",
        "image/dump/features.py",  # which tries what an interpreter can do
    }


def ended(pid: int) -> int:
    """Wait for a process and return its code."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def told(row: Forked, say: Callable[[], str], of: str = "", **kept: forks.Kept) -> str:
    """Return what a process of that kind says of itself."""
    reader, writer = os.pipe()

    def run() -> None:
        os.write(writer, say().encode())

    assert ended(fork(row, run, {**kept, "report": writer}, of=of)) == 0
    os.close(writer)
    with open(reader) as said:
        return said.read()


def test_a_clone_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure of ctypes in the middle of a fork leaves no lock to the next fork, which would wait for the lock."""
    lock = threading.Lock()
    os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=lock.release)

    def fail(*_: object) -> NoReturn:
        raise MemoryError

    monkeypatch.setattr(ctypescalls, "call", fail)
    with pytest.raises(MemoryError):
        syscalls.clone3()
    assert not lock.locked()


def test_a_process_keeps_what_its_row_names() -> None:
    """It has nothing else of its parent's, whatever was open there, and what it lacks of them does no harm."""
    row = Forked(who="test", keeps=("report", "pair", "other"))
    pair = os.pipe()
    leak = os.open("/", os.O_RDONLY)
    try:
        # The last one is that of the directory.
        assert told(row, lambda: str(len(os.listdir("/proc/self/fd")) - 1), pair=pair, other=None) == "6"
        with pytest.raises(AssertionError, match="test: nothing"):
            settle(row, {"nothing": leak})
    finally:
        for fd in (*pair, leak):
            os.close(fd)


def test_what_stands_on_the_standard_streams() -> None:
    """They are those of the parent, /dev/null, a descriptor, or closed; what there is none of is /dev/null."""
    row = Forked(who="test", keeps=("report",), streams=("input", "output", CLOSED))
    reader, writer = os.pipe()

    def links() -> str:
        return " ".join(os.readlink(link) if os.path.lexists(link) else CLOSED for link in STREAMS)

    output, first = (os.readlink(f"/proc/self/fd/{fd}") for fd in (writer, 0))
    try:
        assert told(row, links, input=None, output=writer) == f"{NULL} {output} {CLOSED}"
        row = Forked(who="test", keeps=("report",), streams=(SAME, NULL, "output"))
        assert told(row, links, output=writer) == f"{first} {NULL} {output}"
    finally:
        os.close(reader)
        os.close(writer)


def test_what_a_process_is_besides() -> None:
    """It has the name, the session, the signals and the secrecy of its row, or those of its parent."""

    def look() -> str:
        own = os.getsid(0) == os.getpid()
        blocked = len(signal.pthread_sigmask(signal.SIG_BLOCK, ()))
        return (
            f"{Path('/proc/self/comm').read_text().strip()} {own} {blocked} {ctypes.CDLL(None).prctl(_PR_GET_DUMPABLE)}"
        )

    name = Path("/proc/self/comm").read_text().strip()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR1,))
    try:
        assert told(Forked(who="test", keeps=("report",)), look) == f"{name} False {len(before) + 1} 1"
        row = Forked(who="test", name="own-", keeps=("report",), has_session=True, is_dumpable=False, unblocks=True)
        assert told(row, look, of="name") == "own-name True 0 0"
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_process_whose_parent_has_ended() -> None:
    """One that is to be killed with its parent does nothing without that."""
    row = Forked(who="test", keeps=None, death_signal=signal.SIGKILL)
    with pytest.raises(SystemExit):
        settle(row, {}, os.getpid())
    syscalls.set_parent_death_signal(0)


def _raise(error: BaseException) -> Callable[[], int]:
    def run() -> int:
        # Not that of pytest.
        sys.stderr = open(2, "w", buffering=1, closefd=False)
        raise error

    return run


@pytest.mark.parametrize(
    ("run", "code", "line"),
    [
        (lambda: None, 0, ""),
        (lambda: 3, 3, ""),
        (_raise(SystemExit()), 0, ""),
        (_raise(SystemExit(4)), 4, ""),
        (_raise(SystemExit("text")), EXIT_FAILURE, ""),
        (_raise(KeyboardInterrupt()), EXIT_FAILURE, ""),
        (_raise(MinitError("no room")), EXIT_FAILURE, "minit: test: no room\n"),
        (_raise(ZeroDivisionError("zero")), EXIT_FAILURE, "ZeroDivisionError: zero\n"),
    ],
)
def test_how_a_process_ends(run: Callable[[], int | None], code: int, line: str) -> None:
    """It ends with the code of its work, and says what nobody handled."""
    row = Forked(who="test", streams=(SAME, SAME, "errors"))
    reader, writer = os.pipe()
    pid, pidfd = clone(row, run, {"errors": writer})
    os.close(writer)
    os.close(pidfd)
    with open(reader) as errors:
        said = errors.read()
    assert ended(pid) == code
    assert said.splitlines(keepends=True)[-1:] == [line][: bool(line)]


def test_who_is_told_of_an_error() -> None:
    """The code is that of whoever is told, or 254 if it has none, or fails itself."""
    row = Forked(who="test", keeps=None)
    assert ended(fork(row, _raise(OSError()), tell=lambda error: 5 if isinstance(error, OSError) else 6)) == 5
    assert ended(fork(row, _raise(OSError()), tell=lambda _: None)) == EXIT_FAILURE
    assert ended(fork(row, _raise(OSError()), tell=lambda _: 1 // 0)) == EXIT_FAILURE
