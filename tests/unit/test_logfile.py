"""minit.iottymux.logfile and plainlog: what is written, rotated, and shared by the sidecars of an app."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.base.utctime import utc_text_ns
from minit.iottymux.logfile import LINE_BYTES, Log, PlainLog, finished_log, format_lines, format_records
from tests.support.forked import in_child, succeed_in_child
from tests.support.waiting import wait_for

NOW_NS = 1_700_000_000_000_000_007
HEAD = b"2023-11-14T22:13:20.000000007Z stdout "
RECORD = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) ([^\n]*)\n")


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """An open directory for logs."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def texts(path: Path) -> list[bytes]:
    """Return the texts of a file that has to consist of records."""
    data = path.read_bytes()
    assert RECORD.sub(b"", data) == b""
    return [text for _, _, text in RECORD.findall(data)]


def files(directory: Path) -> list[Path]:
    """Return the files of the log, the oldest first."""
    numbers = sorted((int(path.suffix[1:]) for path in directory.glob("web.log.*")), reverse=True)
    current = directory / "web.log"
    return [directory / f"web.log.{number}" for number in numbers] + ([current] if current.exists() else [])


def wait_well(pid: int) -> None:
    """Wait for the good end of a child."""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_records() -> None:
    """Each line is a record with a time in UTC; one without a line feed is a part."""
    assert format_records("stdout", b"one\n\ntwo", NOW_NS) == HEAD + b"F one\n" + HEAD + b"F \n" + HEAD + b"P two\n"


def test_long_lines_come_in_parts() -> None:
    """All parts but the last are tagged P, and have the same time."""
    line = b"x" * (2 * LINE_BYTES + 1)
    parts = [HEAD + b"P " + b"x" * LINE_BYTES + b"\n"] * 2
    assert format_records("stdout", b"a\n" + line + b"\n", NOW_NS) == b"".join(
        [HEAD + b"F a\n", *parts, HEAD + b"F x\n"]
    )
    assert format_records("stdout", line, NOW_NS) == b"".join([*parts, HEAD + b"P x\n"])


@given(st.binary(max_size=200), st.sampled_from(["stdout", "stderr"]), st.integers(0, 2**33 * 10**9))
def test_records_hold_the_output(data: bytes, stream: str, now_ns: int) -> None:
    """The texts of the records, with a line feed after each full one, are what was written."""
    records = format_records(stream, data, now_ns)
    found = RECORD.findall(records)
    assert RECORD.sub(b"", records) == b""
    assert {name for name, _, _ in found} <= {stream.encode()}
    assert b"".join(text + (b"\n" if tag == b"F" else b"") for _, tag, text in found) == data


@pytest.mark.parametrize(
    ("nanoseconds", "fraction"), [(7, b".000000007"), (10, b".00000001"), (500_000_000, b".5"), (0, b"")]
)
def test_plain_lines(nanoseconds: int, fraction: bytes) -> None:
    """Lines of k8s-plain have Go's RFC3339Nano in UTC and stay as they are, also without a line feed."""
    lines = format_lines("stdout", b"one\ntwo", 1_700_000_000 * 10**9 + nanoseconds)
    expected = b"2023-11-14T22:13:20" + fraction + b"Z stdout "
    assert lines == expected + b"one\n" + expected + b"two"


def test_a_plain_log_begins_anew(tmp_path: Path, directory: int) -> None:
    """The file of k8s-plain is truncated, but not by a sidecar that takes over from a killed one."""
    (tmp_path / "0.log").write_text("old\n")
    PlainLog("0.log", directory).write("stdout", b"new\n")
    PlainLog("0.log", directory, renewed=True).write("stderr", b"newer\n")
    lines = (tmp_path / "0.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["stdout new", "stderr newer"]


def test_an_unfinished_line_of_a_plain_log(tmp_path: Path, directory: int) -> None:
    """A stream that ends without a newline leaves the next line of the other stream whole."""
    log = PlainLog("0.log", directory)
    log.write("stdout", b"no end")
    log.write("stderr", b"error\n")
    lines = (tmp_path / "0.log").read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["stdout no end", "stderr error"]


def test_reopening_a_plain_log(tmp_path: Path, directory: int) -> None:
    """A renamed file is let go of, and the new one is there at once."""
    log = PlainLog("0.log", directory)
    log.write("stdout", b"one\n")
    (tmp_path / "0.log").rename(tmp_path / "0.log.1")
    log.reopen()
    assert (tmp_path / "0.log").read_bytes() == b""
    log.write("stdout", b"two\n")
    assert (tmp_path / "0.log").read_bytes().endswith(b" stdout two\n")
    assert (tmp_path / "0.log.1").read_bytes().endswith(b" stdout one\n")


@pytest.mark.parametrize("count", [1, 2, 5])
def test_rotation(tmp_path: Path, directory: int, count: int) -> None:
    """Files have at most the size and are at most as many, the last lines are there, and no record is cut."""
    log = Log("web", directory, 1000, count)
    for start in range(0, 300, 30):
        log.write("stdout", b"".join(b"line %d\n" % number for number in range(start, start + 30)))
    found = files(tmp_path)
    assert len(found) == count
    assert all(path.stat().st_size <= 1000 for path in found)
    lines = [text for path in found for text in texts(path)]
    assert lines == [b"line %d" % number for number in range(300 - len(lines), 300)]


def test_a_record_larger_than_a_file(tmp_path: Path, directory: int) -> None:
    """It is alone in one."""
    log = Log("web", directory, 100, 9)
    for line in (b"a\n", b"x" * 200 + b"\nb\n"):
        log.write("stdout", line)
    assert [texts(path) for path in files(tmp_path)] == [[b"a"], [b"x" * 200], [b"b"]]


def test_without_limits(tmp_path: Path, directory: int) -> None:
    """A size of 0 is none."""
    log = Log("web", directory, 0, 1)
    log.write("stdout", b"x\n" * 100_000)
    assert len(texts(tmp_path / "web.log")) == 100_000


def test_rotation_goes_on_where_it_was_killed(tmp_path: Path, directory: int) -> None:
    """Whichever of the files were renamed, nothing is lost but the oldest."""
    log = Log("web", directory, 100, 3)
    for number in range(4):
        log.write("stdout", b"line %d\n" % number + b"x" * 60 + b"\n")
    before = [texts(path) for path in files(tmp_path)]
    (tmp_path / "web.log.1").rename(tmp_path / "web.log.2")
    (tmp_path / "web.log").rename(tmp_path / "web.log.1")
    Log("web", directory, 100, 3).write("stdout", b"after\n")
    assert [texts(path) for path in files(tmp_path)] == [*before[1:], [b"after"]]


def test_a_renamed_file_is_not_written_to(tmp_path: Path, directory: int) -> None:
    """A program of the host rotates by a rename alone; a deleted log is made again."""
    log = Log("web", directory)
    log.write("stdout", b"one\n")
    (tmp_path / "web.log").rename(tmp_path / "elsewhere")
    log.write("stdout", b"two\n")
    (tmp_path / "web.log").unlink()
    log.write("stdout", b"three\n")
    (tmp_path / "web.log").rename(tmp_path / "elsewhere too")
    # Another sidecar of the app was the first to make it again.
    Log("web", directory).write("stdout", b"four\n")
    log.write("stdout", b"five\n")
    assert texts(tmp_path / "elsewhere") == [b"one"]
    assert texts(tmp_path / "elsewhere too") == [b"three"]
    assert texts(tmp_path / "web.log") == [b"four", b"five"]


def test_reopening(tmp_path: Path, directory: int) -> None:
    """The new file is there before a line is, and nothing holds the old one."""
    log = Log("web", directory)
    log.write("stdout", b"one\n")
    (tmp_path / "web.log").unlink()
    log.reopen()
    assert (tmp_path / "web.log").read_bytes() == b""
    held = [
        os.readlink(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if int(fd) != directory and os.path.lexists(f"/proc/self/fd/{fd}")
    ]
    assert not any(path.startswith(str(tmp_path)) and path.endswith("(deleted)") for path in held)


def test_a_truncated_file_is_continued(tmp_path: Path, directory: int) -> None:
    """So does logrotate with copytruncate; nothing is written behind a hole."""
    log = Log("web", directory)
    log.write("stdout", b"one\n")
    os.truncate(tmp_path / "web.log", 0)
    log.write("stdout", b"two\n")
    assert texts(tmp_path / "web.log") == [b"two"]


def test_a_torn_line_is_cut_off(tmp_path: Path, directory: int) -> None:
    """A record that a killed sidecar had begun is written again by its successor, also where that rotates first."""
    Log("web", directory, 100, 2).write("stdout", b"one\n")
    with (tmp_path / "web.log").open("ab") as file:
        file.write(HEAD + b"F to")
    Log("web", directory, 100, 2).write("stdout", b"torn " + b"x" * 60 + b"\n")
    assert [texts(path) for path in files(tmp_path)] == [[b"one"], [b"torn " + b"x" * 60]]


@given(
    st.lists(st.one_of(st.binary(max_size=30), st.just(b"x" * (LINE_BYTES + 100))), max_size=40).map(b"\n".join),
    st.floats(0, 1),
    st.sampled_from([0, 2000]),
)
def test_the_end_of_a_torn_write_is_found(
    tmp_path_factory: pytest.TempPathFactory, output: bytes, part: float, size_bytes: int
) -> None:
    """Whatever a sidecar was killed in, its successor knows what is there by the time, and writes the rest alone."""
    path = tmp_path_factory.mktemp("log")

    def check() -> None:
        directory = os.open(path, os.O_RDONLY)
        log = Log("web", directory, size_bytes, 100)
        log.write("stdout", b"before\n")
        log.note_lost(3)
        times: list[int] = []
        log.write("stdout", output, times.append)
        newest = path / "web.log"
        os.truncate(newest, int(newest.stat().st_size * part))
        successor = Log("web", directory, size_bytes, 100)
        written = successor.written_bytes("stdout", times[0])
        assert successor.written_bytes("stderr", times[0]) == 0
        successor.write("stdout", output[written:])
        records = [match.groups() for each in files(path) for match in RECORD.finditer(each.read_bytes())]
        text = b"".join(text + (b"\n" if tag == b"F" else b"") for _, tag, text in records)
        assert text.removeprefix(b"before\n").removeprefix(b"minit: 3 bytes of log were lost\n") == output

    succeed_in_child(check)


def test_a_torn_write_to_a_renamed_file_is_found(tmp_path: Path, directory: int) -> None:
    """A log of the host that is renamed when its sidecar is killed has no line twice, and no unfinished one."""
    (tmp_path / "own").mkdir()
    own = os.open(tmp_path / "own", os.O_RDONLY)
    log = Log("web", own, place=(directory, "0.log"))
    times: list[int] = []
    log.write("stdout", b"one\ntwo\nthree\n", times.append)
    (tmp_path / "0.log.20231114-221319.gz").write_bytes(HEAD + b"F compressed\n")
    renamed = (tmp_path / "0.log").rename(tmp_path / "0.log.20231114-221320")
    os.truncate(renamed, renamed.stat().st_size - 3)
    successor = Log("web", own, place=(directory, "0.log"))
    assert successor.written_bytes("stdout", times[0]) == len(b"one\ntwo\n")
    successor.write("stdout", b"three\n")
    assert (texts(renamed), texts(tmp_path / "0.log")) == ([b"one", b"two"], [b"three"])
    with (tmp_path / "0.log").open("ab") as file:
        file.write(HEAD + b"F to")
    finish(tmp_path / "own", (str(tmp_path), "0.log"))
    assert texts(tmp_path / "0.log") == [b"three"]
    os.close(own)


def finish(directory: Path, place: tuple[str, str] | None = None) -> None:
    """Finish the log in a directory."""
    with finished_log("web", str(directory), 0, 1, place):
        pass


@pytest.mark.parametrize("name", ["link", "link/0.log", "pipe", "../0.log"])
def test_only_a_file_below_the_directory_is_a_log(tmp_path: Path, directory: int, name: str) -> None:
    """Behind a link, out of the directory or in a named pipe nothing is written, and nobody is blocked."""
    logs = tmp_path / "logs"
    for each in (logs, tmp_path / "elsewhere"):
        each.mkdir()
    (logs / "link").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(logs / "pipe")
    top = os.open(logs, os.O_RDONLY)
    Log("web", directory, place=(top, name)).write("stdout", b"one\n")
    os.close(top)
    assert {path.name for path in tmp_path.rglob("*")} == {"logs", "elsewhere", "link", "pipe", "web.lock"}


def test_a_finished_log_has_whole_lines(tmp_path: Path, directory: int) -> None:
    """A record that the last sidecar had begun is cut off; another writer has done so and is not waited for."""
    with pytest.raises(FileNotFoundError):
        finish(tmp_path)
    Log("web", directory).write("stdout", b"one\n")
    finish(tmp_path)
    assert texts(tmp_path / "web.log") == [b"one"]
    with (tmp_path / "web.log").open("ab") as file:
        file.write(HEAD + b"F to")
    with (tmp_path / "web.lock").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            finish(tmp_path)
    finish(tmp_path)
    assert texts(tmp_path / "web.log") == [b"one"]


def test_sidecars_share_a_rotated_log(tmp_path: Path, directory: int) -> None:
    """Processes that write and rotate at the same time lose and mix nothing."""

    def write(name: bytes) -> Callable[[], None]:
        def lines() -> None:
            log = Log("web", directory, 20_000, 1000)
            for start in range(0, 4000, 20):
                log.write("stdout", b"".join(b"%s %d\n" % (name, number) for number in range(start, start + 20)))

        return lines

    for pid in [in_child(write(name)) for name in (b"a", b"b", b"c")]:
        wait_well(pid)
    found = files(tmp_path)
    assert len(found) > 10
    lines = [text for path in found for text in texts(path)]
    for name in (b"a", b"b", b"c"):
        assert [line for line in lines if line.startswith(name)] == [
            b"%s %d" % (name, number) for number in range(4000)
        ]


def test_one_sidecar_writes_at_a_time(tmp_path: Path, directory: int) -> None:
    """
    While one writes, which may include rotation and cutting off what a dead one left, the others wait.

    The time of their records is a later one.
    """
    Log("web", directory).write("stdout", b"one\n")
    lock = tmp_path / "web.lock"
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        # Its copy of the descriptor would keep the lock.
        pid = in_child(lambda: [held.close(), Log("web", directory).write("stdout", b"two\n")])
        waiting = f"-> FLOCK  ADVISORY  WRITE {pid} "
        wait_for(lambda: waiting in Path("/proc/locks").read_text(), "the other sidecar")
        assert texts(tmp_path / "web.log") == [b"one"]
        before = utc_text_ns(time.time_ns()).encode()
    wait_well(pid)
    assert (tmp_path / "web.log").read_bytes().splitlines()[1] > before
    assert texts(tmp_path / "web.log") == [b"one", b"two"]


def test_killed_writers_leave_whole_records(tmp_path: Path, directory: int) -> None:
    """Wherever sidecars are killed, what the others wrote is there in order, and no record is torn but the last."""

    def write_for_ever() -> None:
        log = Log("web", directory, 5000, 10_000)
        while True:
            log.write("stderr", b"killed\n" * 50)

    steady = Log("web", directory, 5000, 10_000)
    number = 0
    for _ in range(20):
        pid = in_child(write_for_ever)
        for _ in range(10):
            steady.write("stdout", b"steady %d\n" % number)
            number += 1
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    steady.write("stdout", b"end\n")
    lines = [text for path in files(tmp_path) for text in texts(path)]
    expected = [*(b"steady %d" % each for each in range(number)), b"end"]
    assert [line for line in lines if line != b"killed"] == expected


def test_what_cannot_be_rotated_is_lost(tmp_path: Path, directory: int) -> None:
    """The size holds even then; the loss is told when it is over."""
    log = Log("web", directory, 1000, 2)
    (tmp_path / "web.log.1").mkdir()
    (tmp_path / "web.log.1/file").touch()
    for _ in range(10):
        log.write("stdout", b"line\n" * 10)
    assert (tmp_path / "web.log").stat().st_size <= 1000
    (tmp_path / "web.log.1/file").unlink()
    (tmp_path / "web.log.1").rmdir()
    log.write("stdout", b"again\n")
    lines = [text for path in files(tmp_path) for text in texts(path)]
    kept = lines.count(b"line")
    record_bytes = len(HEAD) + len(b"F line\n")
    assert lines[kept:] == [b"minit: %d bytes of log were lost" % ((100 - kept) * record_bytes), b"again"]


def test_what_is_in_the_place_of_a_plain_log(tmp_path: Path, directory: int) -> None:
    """A named pipe and links, of the file or of a directory above, are neither waited for nor followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/0.log").write_text("old")
    (tmp_path / "link").symlink_to("elsewhere")
    (tmp_path / "0.log").symlink_to("elsewhere/0.log")
    os.mkfifo(tmp_path / "fifo")
    for name in ("fifo", "link/0.log", "0.log"):
        PlainLog(name, directory).write("stdout", b"line\n")
    assert (tmp_path / "elsewhere/0.log").read_text() == "old"
    log = PlainLog("fifo", directory)
    log.write("stdout", b"line\n")
    (tmp_path / "fifo").unlink()
    log.write("stdout", b"next\n")
    lines = (tmp_path / "fifo").read_text().splitlines()
    assert [line.split(" ", 2)[2].partition(": ")[0] for line in lines] == ["minit", "next"]
