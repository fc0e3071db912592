"""Standard output of the command where a write takes a part only, or nothing yet."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from minit.linux.stdio import write_all
from tests.support.waiting import wait_for

FILLING = b"\0"
# The help of `run` is longer than what these take at once.
LINES = {"list": ["list", "--format=json"], "help": ["help", "run"], "--help": ["run", "--help"]}
Ends = tuple[int, int]


def small_pipe() -> Ends:
    """Return a pipe of a page."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    return reader, writer


def small_socket() -> Ends:
    """Return connected sockets that hold little."""
    reader, writer = socket.socketpair()
    writer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    return reader.detach(), writer.detach()


@pytest.fixture(params=[small_pipe, small_socket])
def full(request: pytest.FixtureRequest) -> Iterator[Ends]:
    """The input and the output, the latter full and without blocking."""
    make: Callable[[], Ends] = request.param
    reader, writer = make()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, FILLING)
    except BlockingIOError:
        pass
    yield reader, writer
    os.close(reader)


def read_all(reader: int) -> bytes:
    """Return what comes until the end, but for what it was filled with."""
    data = b""
    while block := os.read(reader, 1 << 16):
        data += block
    return data.lstrip(FILLING)


def waits(pid: int) -> bool:
    """Return whether a process waits for a descriptor."""
    return "poll" in Path(f"/proc/{pid}/wchan").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="sees where a process waits, which needs root")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", LINES)
def test_an_output_that_does_not_block_loses_nothing(tmp_path: Path, full: Ends, line: str, unbuffered: str) -> None:
    """All of it is written when there is room, also by a Python without buffers."""
    command = [sys.executable, "-m", "minit", f"--dir={tmp_path}", *LINES[line]]
    expected = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    reader, writer = full
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    process = subprocess.Popen(command, stdout=writer, env=environment)
    os.close(writer)
    wait_for(lambda: waits(process.pid), "room to be waited for")
    assert read_all(reader) == expected
    assert process.wait() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="sees where a process waits, which needs root")
def test_a_complaint_waits_for_room(tmp_path: Path, full: Ends) -> None:
    """An error is told to who reads standard error late."""
    reader, writer = full
    process = subprocess.Popen([sys.executable, "-m", "minit", f"--dir={tmp_path}", "status", "ff"], stderr=writer)
    os.close(writer)
    wait_for(lambda: waits(process.pid), "room to be waited for")
    assert read_all(reader).startswith(b"status: ")
    assert process.wait() == 254


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("line", LINES)
def test_an_output_that_takes_nothing_is_named(tmp_path: Path, line: str, unbuffered: str) -> None:
    """A failed write is an error of one line, though it was buffered until the end."""
    command = [sys.executable, "-m", "minit", f"--dir={tmp_path}", *LINES[line]]
    with open("/dev/full", "w") as full:
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, check=False)
    assert result.returncode == 254
    assert result.stderr.partition(b": ")[2] == b"standard output: no space left on device\n"


def test_an_entrypoint_waits_for_room(full: Ends) -> None:
    """Output of stage1 is whole, as that of the command is."""
    reader, writer = full
    text = b"x" * 300_000
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            write_all(writer, text)
        finally:
            os._exit(0)
    os.close(writer)
    assert read_all(reader) == text
    os.waitpid(pid, 0)
