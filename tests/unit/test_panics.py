"""Records of pstore: put together, written down, removed."""

from __future__ import annotations

import os
from pathlib import Path

from minit.machine.kernellog import copy_panics


def make_record(directory: Path, name: str, text: str, seconds: int) -> None:
    """Make a file as pstore has one."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(text)
    os.utime(directory / name, (seconds, seconds))


def test_panics_are_put_together(tmp_path: Path) -> None:
    """The parts of each panic are in order in each copy, each panic has a line with its time and reason."""
    store, copies = tmp_path / "pstore", (str(tmp_path / "one/log"), str(tmp_path / "two/log"))
    make_record(store, "dmesg-1", "Panic#1 Part1\n<0>[ 2.0] Kernel panic - not syncing: no more\n<6>[ 2.1] end", 60)
    make_record(store, "dmesg-2", "Panic#1 Part2\n<6>[ 1.0] begin\n", 60)
    make_record(store, "dmesg-3", "Panic#1 Part1\n<4>[ 3.0] nothing known\n", 120)
    make_record(store, "console-ramoops-0", "said\n", 180)
    lines = copy_panics(str(store), copies, is_kept=True)
    assert lines == [
        "panic at 1970-01-01T00:01:00Z: Kernel panic - not syncing: no more",
        "panic at 1970-01-01T00:02:00Z: for no known reason",
        "console-ramoops-0 at 1970-01-01T00:03:00Z: for no known reason",
    ]
    for copy in copies:
        assert Path(copy).read_text().splitlines() == [
            *(lines[0], "[ 1.0] begin", "[ 2.0] Kernel panic - not syncing: no more", "[ 2.1] end"),
            *(lines[1], "[ 3.0] nothing known", lines[2], "said"),
        ]
    assert not os.listdir(store)
    assert copy_panics(str(store), copies, is_kept=True) == []


def test_what_nothing_else_keeps(tmp_path: Path) -> None:
    """Without another place records stay, but for the oldest of very many."""
    for number in range(20):
        make_record(tmp_path / "pstore", f"dmesg-{number}", "Panic#1 Part1\nx\n", number)
    copy = tmp_path / "log/log"
    assert len(copy_panics(str(tmp_path / "pstore"), (str(copy),), is_kept=False)) == 20
    assert sorted(os.listdir(tmp_path / "pstore")) == sorted(f"dmesg-{number}" for number in range(4, 20))


def test_a_store_that_cannot_be_copied(tmp_path: Path) -> None:
    """Nothing is removed that could not be written down, and all that is written is bounded."""
    for number in range(4):
        make_record(tmp_path / "pstore", f"dmesg-{number}", f"Panic#1 Part1\n{'x' * (1 << 17)}\n", number)
    (tmp_path / "file").touch()
    try:
        copy_panics(str(tmp_path / "pstore"), (f"{tmp_path}/file/log",), is_kept=True)
    except OSError:
        pass
    assert len(os.listdir(tmp_path / "pstore")) == 4
    copy_panics(str(tmp_path / "pstore"), (f"{tmp_path}/log",), is_kept=True)
    assert (tmp_path / "log").stat().st_size == 1 << 18
