"""minit.linux.terminal: the settings of terminals, on real ptys."""

from __future__ import annotations

import os
import struct
import termios
from collections.abc import Iterator

import pytest

from minit.linux.terminal import CallerTerminal, edits_lines, end_of_file_key

IFLAG, OFLAG, LFLAG, CC = 0, 1, 3, 6
IUTF8 = 0o40000


@pytest.fixture
def pty() -> Iterator[tuple[int, int]]:
    """Master and slave of a new pty."""
    ends = os.openpty()
    yield ends
    for fd in ends:
        os.close(fd)


def change(fd: int, index: int, *, set_: int = 0, clear: int = 0) -> None:
    """Change flags of a terminal."""
    settings = termios.tcgetattr(fd)
    settings[index] = settings[index] & ~clear | set_
    termios.tcsetattr(fd, termios.TCSANOW, settings)


def set_key(fd: int, key: int, value: bytes) -> None:
    """Change a key of a terminal."""
    settings = termios.tcgetattr(fd)
    settings[CC][key] = value
    termios.tcsetattr(fd, termios.TCSANOW, settings)


def test_the_end_of_file_key(pty: tuple[int, int]) -> None:
    """It is the terminal's own, seen from the master too; none without lines, or when it is switched off."""
    master, slave = pty
    assert end_of_file_key(master) == b"\4"
    set_key(slave, termios.VEOF, b"e")
    assert end_of_file_key(master) == b"e"
    change(slave, LFLAG, clear=termios.ICANON)
    assert end_of_file_key(master) == b""
    change(slave, LFLAG, set_=termios.ICANON)
    set_key(slave, termios.VEOF, b"\0")
    assert end_of_file_key(master) == b""


def test_who_edits_lines(pty: tuple[int, int]) -> None:
    """Whoever reads keys without echo, but leaves Ctrl-C to the terminal; a program that wants raw bytes does not."""
    master, slave = pty
    assert not edits_lines(master)
    change(slave, LFLAG, clear=termios.ICANON)
    assert not edits_lines(master)
    change(slave, LFLAG, clear=termios.ECHO)
    assert edits_lines(master)
    change(slave, LFLAG, clear=termios.ISIG)
    assert not edits_lines(master)


def test_a_console_has_the_callers_keys_and_size(pty: tuple[int, int]) -> None:
    """Not its modes: a caller in raw mode does not mean an app in raw mode."""
    caller, app = pty
    set_key(caller, termios.VERASE, b"\b")
    change(caller, IFLAG, set_=IUTF8)
    change(caller, LFLAG, clear=termios.ICANON | termios.ECHO | termios.ISIG)
    other, slave = os.openpty()
    try:
        size = struct.pack("HHHH", 11, 22, 0, 0)
        fresh = termios.tcgetattr(slave)
        CallerTerminal(is_read=True, settings=termios.tcgetattr(caller), size=size).prepare(slave)
        settings = termios.tcgetattr(slave)
        assert settings[CC][termios.VERASE] == b"\b"
        assert settings[IFLAG] == fresh[IFLAG] | IUTF8
        assert settings[LFLAG] == fresh[LFLAG]
        assert os.get_terminal_size(slave) == (22, 11)
    finally:
        os.close(other)
        os.close(slave)


def test_a_console_that_nobody_types_into_does_not_echo(pty: tuple[int, int]) -> None:
    """The rest is as the kernel makes it."""
    _, slave = pty
    before = termios.tcgetattr(slave)
    CallerTerminal(is_read=True, settings=None, size=None).prepare(slave)
    before[LFLAG] &= ~termios.ECHO
    assert termios.tcgetattr(slave) == before


def test_raw_mode_and_back(pty: tuple[int, int]) -> None:
    """Every byte passes in both directions, then the settings are the first ones, byte for byte."""
    master, slave = pty
    before = termios.tcgetattr(slave)
    terminal = CallerTerminal(is_read=True, settings=before, size=None)
    pid = os.fork()
    if pid == 0:
        os.dup2(slave, 0)
        terminal.make_raw()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    data = bytes(range(256))
    os.write(master, data)
    assert os.read(slave, 512) == data
    os.write(slave, data)
    assert os.read(master, 512) == data
    pid = os.fork()
    if pid == 0:
        os.dup2(slave, 0)
        terminal.restore()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert termios.tcgetattr(slave) == before
