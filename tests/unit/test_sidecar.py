"""minit.iottymux.sidecar: what an app writes is in its log and on the console, whatever happens to the sidecar."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import resource
import signal
import socket
import sys
import termios
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minit.iottymux.buffers import LineBuffer, buffered_bytes, make_buffer
from minit.iottymux.logfile import Log, finished_log
from minit.iottymux.sidecar import Stream, run_sidecar
from minit.linux import syscalls
from minit.supervisor.output.streams import Streams
from tests.support.served import die_in_next_log_write, fork_sidecar
from tests.support.sidecarfilter import sidecar_filter
from tests.support.waiting import wait_for

RECORD = re.compile(rb"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (stdout|stderr) ([FP]) (.*)", re.DOTALL)
FILES = settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


class Output:
    """
    The pipes between an app, its sidecars and a console, with the sidecars as forked processes.

    `app` are the app's ends by stream; read ends, buffers and console stay here, as they stay with PID 1.
    """

    def __init__(self, directory: Path, names: Iterable[str] = ("stdout",)) -> None:
        self.directory = directory
        self.limits = (0, 1)
        self.readers, self.app = {}, {}
        for name in names:
            self.readers[name], self.app[name] = os.pipe2(os.O_CLOEXEC)
        self.buffers = {name: make_buffer() for name in self.readers}
        self.console = os.memfd_create("console")
        self.sidecars: list[int] = []
        self.feeders: list[int] = []

    def start(
        self, console: int | None = None, prepare: Callable[[], object] = lambda: None, renewed: bool = False
    ) -> int:
        """Fork a sidecar and return its pid."""
        filter = sidecar_filter()
        pid = fork_sidecar()
        if pid == 0:
            try:
                for fd in self.app.values():
                    os.close(fd)
                prepare()
                syscalls.set_no_new_privileges()
                target = self.console if console is None else console
                streams = [
                    Stream(name=name, fd=fd, buffer=self.buffers[name], console=target)
                    for name, fd in self.readers.items()
                ]
                log = Log("web", os.open(self.directory, os.O_RDONLY), *self.limits)
                run_sidecar("web", 7, streams, log, renewed, filter=filter)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
            os._exit(1)
        self.sidecars.append(pid)
        return pid

    def write(self, data: bytes, name: str = "stdout") -> None:
        """Write all of the data as the app."""
        while data:
            data = data[os.write(self.app[name], data) :]

    def feed(self, data: bytes) -> int:
        """Write all of the data as the app in a process of its own and return its pid."""
        pid = os.fork()
        if pid == 0:
            self.write(data)
            os._exit(0)
        self.feeders.append(pid)
        return pid

    def fed(self, pid: int) -> None:
        """Wait until a process has written all of its data."""
        os.waitpid(pid, 0)
        self.feeders.remove(pid)

    def kill(self, pid: int) -> None:
        """Kill a sidecar."""
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        self.sidecars.remove(pid)

    def end(self) -> None:
        """Close the app's ends and wait for the sidecars to end well."""
        for name in [*self.app]:
            os.close(self.app.pop(name))
        for pid in [*self.sidecars]:
            _, status = os.waitpid(pid, 0)
            self.sidecars.remove(pid)
            assert os.waitstatus_to_exitcode(status) == 0

    def close(self) -> None:
        """Let go of everything that is left."""
        for pid in [*self.sidecars]:
            self.kill(pid)
        for pid in [*self.feeders]:
            os.kill(pid, signal.SIGKILL)
            self.fed(pid)
        for fd in (self.console, *self.app.values(), *self.readers.values(), *self.buffers.values()):
            os.close(fd)

    def records(self) -> list[tuple[str, str, bytes]]:
        """Return (stream, tag, text) of each record in the log."""
        data = (self.directory / "web.log").read_bytes() if (self.directory / "web.log").exists() else b""
        assert data.endswith(b"\n") or not data
        matches = [RECORD.fullmatch(line) for line in data.split(b"\n")[:-1]]
        return [(match[2].decode(), match[3].decode(), match[4]) for match in matches if match]

    def logged(self, name: str = "stdout") -> list[bytes]:
        """Return the lines in the log, those in parts put together again."""
        lines, begun = [], b""
        for stream, tag, text in self.records():
            if stream != name:
                continue
            begun += text
            if tag == "F":
                lines.append(begun)
                begun = b""
        return lines + ([begun] if begun else [])

    def shown(self) -> bytes:
        """Return what is on the console."""
        return os.pread(self.console, os.fstat(self.console).st_size, 0)


@pytest.fixture
def output(tmp_path: Path) -> Iterator[Output]:
    """The stdout of an app."""
    made = Output(tmp_path)
    yield made
    made.close()


def unread_bytes(output: Output) -> int:
    """Return how much of the app's output is not passed on."""
    piped = int.from_bytes(fcntl.ioctl(output.readers["stdout"], termios.FIONREAD, bytes(4)), sys.byteorder)
    return piped + buffered_bytes(output.buffers["stdout"])


def wait_until_empty(output: Output) -> None:
    """Block until the sidecar has passed on everything, but not for ever."""
    until = time.monotonic() + 90
    while unread_bytes(output):
        assert time.monotonic() < until
        os.sched_yield()


def test_time_is_utc_with_nanoseconds(output: Output) -> None:
    """A record's time lies between before and after."""
    before = time.time_ns()
    output.start()
    output.write(b"x\n")
    output.end()
    stamp = (output.directory / "web.log").read_text().split(" ")[0]
    seconds, nanoseconds = stamp.rstrip("Z").split(".")
    moment = int(time.mktime((*time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")[:8], 0)) - time.timezone)
    assert before <= moment * 10**9 + int(nanoseconds) <= time.time_ns()


def test_a_stream_that_ends_early_does_not_end_the_other(tmp_path: Path) -> None:
    """An app may close one of its outputs."""
    output = Output(tmp_path, ("stdout", "stderr"))
    output.start()
    os.close(output.app.pop("stdout"))
    output.write(b"still here\n", "stderr")
    output.end()
    assert output.logged("stderr") == [b"still here"]
    output.close()


@pytest.mark.parametrize("size", [16_383, 16_384, 16_385, 65_536, 200_000])
def test_a_long_line_is_logged_in_parts(output: Output, size: int) -> None:
    """A line longer than 16 KiB comes in parts, the last of which is full, and nothing of it is lost."""
    line = bytes(97 + number % 26 for number in range(size))
    output.start()
    output.write(b"before\n" + line + b"\nafter\n")
    output.end()
    assert output.logged() == [b"before", line, b"after"]
    assert all(len(text) <= 65_536 for _, _, text in output.records())


def test_a_write_larger_than_the_pipe_behind_an_unfinished_line(output: Output) -> None:
    """A writer that goes to sleep on a full pipe is read on, though the pipe was never empty in between."""
    lines = [b"line number %06d" % number for number in range(10_000)]
    feeder = output.feed(b"".join(line + b"\n" for line in lines))
    while unread_bytes(output) < 65_536:
        os.sched_yield()
    os.kill(feeder, signal.SIGSTOP)
    os.waitpid(feeder, os.WUNTRACED)
    output.start()
    while unread_bytes(output) > len(lines[0]):
        os.sched_yield()
    assert unread_bytes(output)
    os.kill(feeder, signal.SIGCONT)
    output.fed(feeder)
    output.end()
    assert output.records() == [("stdout", "F", line) for line in lines]


def test_an_app_that_enlarged_its_pipe(output: Output) -> None:
    """More in the pipe than one look takes is written in whole lines, at the end of file, too."""
    fcntl.fcntl(output.app["stdout"], fcntl.F_SETPIPE_SZ, 1 << 20)
    lines = [b"line number %d" % number for number in range(40_000)]
    output.write(b"".join(line + b"\n" for line in lines))
    output.start()
    output.end()
    assert output.records() == [("stdout", "F", line) for line in lines]


def test_console_blocks_are_small_enough_not_to_mix(output: Output, tmp_path: Path) -> None:
    """Lines reach a console in writes of at most PIPE_BUF bytes, each a number of whole lines."""
    reader, writer = os.pipe2(os.O_DIRECT)  # packets: one read returns one write
    output.start(console=writer)
    os.close(writer)
    output.write(b"".join(b"line number %d\n" % number for number in range(3000)))
    os.close(output.app.pop("stdout"))
    packets = []
    while packet := os.read(reader, 1 << 16):
        packets.append(packet)
    output.end()
    os.close(reader)
    assert all(len(packet) <= 4096 and packet.endswith(b"\n") for packet in packets)
    assert len(packets) > 10


# Things that go wrong.


def test_a_console_with_an_unusual_error(output: Output) -> None:
    """The log goes on after any failure of a write to a console."""
    console, peer = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    peer.close()
    output.start(console=console.fileno())
    output.write(b"one\ntwo\n")
    output.end()
    console.close()
    assert output.logged() == [b"one", b"two"]


def test_a_slow_nonblocking_console_gets_everything(output: Output) -> None:
    """A console that its owner made non-blocking is waited for, not dropped."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(writer, False)
    lines = b"".join(b"line number %d\n" % number for number in range(10_000))
    pid = output.start(console=writer)
    os.close(writer)
    feeder = output.feed(lines)
    os.close(output.app.pop("stdout"))
    shown = b""
    while data := os.read(reader, 1000):
        shown += data
    output.fed(feeder)
    assert pid in output.sidecars
    output.end()
    os.close(reader)
    assert shown.replace(b"web[7]: ", b"") == lines


def test_a_log_that_cannot_grow(output: Output) -> None:
    """Lines that do not fit are lost in the log but not on the console, and the app does not wait for it."""

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))

    reader, writer = os.pipe2(os.O_CLOEXEC)
    output.start(console=writer, prepare=limit)
    os.close(writer)
    output.write(b"one\n")
    wait_until_empty(output)
    output.write(b"two\n" * 100)
    output.end()
    with open(reader, "rb") as console:
        assert console.read() == b"web[7]: one\n" + b"web[7]: two\n" * 100
    assert output.records() == [("stdout", "F", b"one")]


def test_lost_lines_are_told_when_there_is_space_again(output: Output) -> None:
    """The first record after a gap says how many bytes are missing."""
    (output.directory / "web.log").symlink_to("/nonexistent/place")
    output.start()
    output.write(b"lost\n")
    wait_until_empty(output)
    (output.directory / "web.log").unlink()
    output.write(b"kept\n")
    output.end()
    assert [text.partition(b": ")[2] or text for _, _, text in output.records()] == [
        b"45 bytes of log were lost",
        b"kept",
    ]


def test_an_old_log_is_continued(output: Output) -> None:
    """A second sidecar appends."""
    for text in (b"one\n", b"two\n"):
        pid = output.start()
        output.write(text)
        wait_until_empty(output)
        output.kill(pid)
    assert output.logged() == [b"one", b"two"]


def test_a_successor_begins_a_line_of_its_own(output: Output) -> None:
    """The line that a killed sidecar was writing to the console may have no end; otherwise no line is added."""
    LineBuffer(output.buffers["stdout"], 100).note_logging(1)
    output.write(b"one\n")
    pid = output.start(renewed=True)
    wait_for(lambda: output.shown() == b"\nweb[7]: one\n", "a line of its own")
    output.kill(pid)
    output.start(renewed=True)
    output.write(b"two\n")
    output.end()
    assert output.shown() == b"\nweb[7]: one\nweb[7]: two\n"


def test_an_unfinished_line_outlives_its_sidecar(output: Output) -> None:
    """A line that a sidecar saw the beginning of is written whole by its successor."""
    pid = output.start()
    output.write(b"whole\nbeg")
    until = time.monotonic() + 90
    while output.logged() != [b"whole"] and time.monotonic() < until:
        os.sched_yield()
    output.kill(pid)
    output.start()
    output.write(b"un\n")
    output.end()
    assert output.logged()[-1] == b"begun"
    assert {*output.logged()} == {b"whole", b"begun"}


@FILES
@given(
    st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40),
    st.booleans(),
    st.lists(st.integers(1, 200), min_size=1, max_size=20),
)
def test_any_chunking_gives_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], finished: bool, sizes: list[int]
) -> None:
    """However the app's writes are cut, log and console show its lines."""
    output = Output(tmp_path_factory.mktemp("log"))
    text = b"".join(line + b"\n" for line in lines) + (b"" if finished else b"tail")
    output.start()
    at = 0
    for size in sizes * (1 + len(text) // sum(sizes)):
        output.write(text[at : at + size])
        at += size
    output.end()
    expected = lines + ([] if finished else [b"tail"])
    assert output.logged() == expected
    assert output.shown() == b"".join(b"web[7]: " + line + b"\n" for line in expected)
    output.close()


@FILES
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 400)), min_size=1, max_size=6), st.integers(1, 120))
def test_kills_at_any_moment_lose_nothing(
    tmp_path_factory: pytest.TempPathFactory, kills: list[tuple[int, int]], width: int
) -> None:
    """Sidecars that are killed one after the other leave every line in the log, once and in order."""
    output = Output(tmp_path_factory.mktemp("log"))
    lines: list[bytes] = []
    for count, yields in kills:
        pid = output.start()
        fresh = [b"%06d%s" % (len(lines) + number, b"x" * width) for number in range(count)]
        lines += fresh
        feeder = output.feed(b"".join(line + b"\n" for line in fresh))
        for _ in range(yields):
            os.sched_yield()
        output.kill(pid)
        output.start()
        output.fed(feeder)
        output.kill(output.sidecars[-1])
    output.start()
    output.end()
    assert output.logged() == lines
    output.close()


def test_two_sidecars_of_an_app_share_its_log(tmp_path: Path) -> None:
    """Neither cuts into a line of the other, though one is killed and replaced over and over."""
    steady, killed = Output(tmp_path), Output(tmp_path)

    def let_go() -> None:
        for fd in steady.app.values():
            os.close(fd)

    try:
        steady.start()
        expected = b"".join(b"steady %06d %s\n" % (number, b"x" * 300) for number in range(20_000))
        feeder = steady.feed(expected)
        number, end = 0, time.monotonic() + 90
        while os.waitpid(feeder, os.WNOHANG) == (0, 0):
            assert time.monotonic() < end
            sidecar = killed.start(prepare=let_go)
            killed.write(b"".join(b"killed %06d %s\n" % (number + step, b"y" * 300) for step in range(100)))
            number += 100
            killed.kill(sidecar)
        steady.feeders.remove(feeder)
        killed.start(prepare=let_go)
        steady.end()
        killed.end()
        texts = [text for _, _, text in steady.records()]
        assert b"\n".join(text for text in texts if text.startswith(b"steady")) + b"\n" == expected
        others = [text for text in texts if not text.startswith(b"steady")]
        assert list(dict.fromkeys(others)) == [b"killed %06d %s" % (step, b"y" * 300) for step in range(number)]
    finally:
        steady.close()
        killed.close()


def test_a_sidecar_that_is_taken_over() -> None:
    """Under its filter nothing is executed, traced, connected or signalled, no process is made, and no code."""
    filter = sidecar_filter()
    attempts: list[Callable[[], object]] = [
        lambda: os.execv("/bin/true", ["true"]),
        lambda: syscalls.clone3(),
        os.fork,
        lambda: os.kill(os.getppid(), 0),
        lambda: socket.socket(socket.AF_UNIX),
        lambda: os.open(".", os.O_PATH) and os.fchdir(0),
        lambda: os.chroot("/"),
        lambda: fcntl.ioctl(0, termios.TIOCSTI, b"x"),
        lambda: mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC),
    ]
    pid = os.fork()
    if pid == 0:
        syscalls.set_no_new_privileges()
        syscalls.install_seccomp_filter(filter)
        refused = 0
        for attempt in attempts:
            try:
                attempt()
            except PermissionError:
                refused += 1
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == len(attempts)


@pytest.mark.parametrize("torn", [True, False])
def test_what_a_last_sidecar_has_logged_is_not_lost(output: Output, torn: bool) -> None:
    """Without a next sidecar PID 1 finds in the log how much is there, and counts the rest alone."""
    streams = Streams("web", (0, 1, None))
    streams.ends = [("stdout", os.dup(output.readers["stdout"]), os.dup(output.buffers["stdout"]))]
    output.write(b"one\ntwo\nthree\nno end")
    pid = output.start(prepare=lambda: die_in_next_log_write(torn))
    _, status = os.waitpid(pid, 0)
    output.sidecars.remove(pid)
    assert os.waitstatus_to_exitcode(status) == 9
    with finished_log("web", str(output.directory), 0, 1) as log:
        streams.find_logged(log)
    assert output.logged() == [b"one", b"two"] + ([] if torn else [b"three"])
    assert streams.unkept_bytes() == (len(b"\nthree\nno end") if torn else len(b"no end"))
    streams.close()
