"""minit.stage0.reports.logfiles and loglines: a log that is written, rotated and spoilt, and places in it."""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from minit.iottymux.logfile import Log, format_records
from minit.stage0.reports import logfiles
from minit.stage0.reports.logfiles import AppLog, LineAssembler, LogLine, torn_record

SECOND_NS = 10**9
START_NS = 1_700_000_000 * SECOND_NS
BOTH = frozenset({b"stdout", b"stderr"})
FILES = settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """An open directory for logs."""
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def lines_of(data: bytes) -> list[LogLine]:
    """Return the lines in records."""
    assembler = LineAssembler()
    return [*assembler.add(data), *assembler.rest()]


def read_all(log: AppLog, assembler: LineAssembler, *, final: bool) -> bytes:
    """Return what is to be read of a log now, as the app wrote it."""
    log.find_files()
    text = b"".join(assembler.plain_text(chunk) for chunk in log.chunks(final=final))
    return text + (b"".join(line.text for line in assembler.rest()) if final else b"")


def time_of(second: int) -> bytes:
    """Return the time in a log so many seconds after the start."""
    return format_records("stdout", b"\n", START_NS + second * SECOND_NS)[:30]


writes = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.binary(min_size=1, max_size=40)), min_size=1, max_size=20
)


@given(writes)
@example([("stdout", b"begun"), ("stderr", b"between\n"), ("stdout", b" ended\n")])
def test_lines_survive_the_format(chunks: list[tuple[str, bytes]]) -> None:
    """The output of each stream comes out of its records, however it was cut."""
    data = b"".join(format_records(stream, text, START_NS) for stream, text in chunks)
    lines = lines_of(data)
    for stream in ("stdout", "stderr"):
        written = b"".join(text for name, text in chunks if name == stream)
        read = b"".join(line.text + (b"\n" if line.ended else b"") for line in lines if line.stream == stream.encode())
        assert read == written
    assert sum(not line.ended for line in lines) <= 2


@given(writes, st.integers(0, 5))
def test_plain_text_is_the_same(chunks: list[tuple[str, bytes]], cut: int) -> None:
    """The fast way gives what the lines give."""
    records = [format_records(stream, text, START_NS + at) for at, (stream, text) in enumerate(chunks)]
    fast, slow = LineAssembler(), LineAssembler()
    for part in (b"".join(records[:cut]), b"".join(records[cut:])):
        expected = b"".join(line.text + (b"\n" if line.ended else b"") for line in slow.add(part))
        assert fast.plain_text(part) == expected


@given(st.binary(max_size=300))
def test_garbage_is_counted(data: bytes) -> None:
    """No bytes are an error."""
    assembler = LineAssembler()
    good = format_records("stdout", b"good\n", START_NS)
    lines = list(assembler.add(good + data + b"\n" + good))
    assert [line.text for line in lines] == [b"good"] * 2
    assert assembler.skipped == data.count(b"\n") + 1
    assert torn_record(data) == b""


def test_records_of_others_are_skipped() -> None:
    """Only the very form that minit writes counts."""
    [record] = format_records("stdout", b"x\n", START_NS).splitlines()
    for bad in (record[1:], b" " + record, record.replace(b" F ", b" f "), record.replace(b"stdout", b"stdin "), b""):
        assembler = LineAssembler()
        assert [*assembler.add(bad + b"\n")] == []
        assert assembler.skipped == 1


def test_an_endless_line_is_shown_in_pieces() -> None:
    """A line of many parts does not have to fit into the memory."""
    assembler = LineAssembler()
    longest = 0
    for _ in range(100):
        for line in assembler.add(format_records("stdout", b"x" * 65536, START_NS)):
            assert not line.ended
            longest = max(longest, len(line.text))
    assert 1 << 20 < longest < (1 << 20) + 65536


def test_a_torn_record_is_a_part() -> None:
    """An unfinished last line is shown as the beginning of one."""
    record = format_records("stdout", b"text\n", START_NS)
    assert [line[2:] for line in lines_of(torn_record(record[:-3]))] == [(b"te", False)]
    assert torn_record(record[:20]) == b""


@FILES
@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["stdout", "stderr"]), st.integers(0, 60)), max_size=60),
    st.integers(100, 600),
    st.integers(0, 70),
    st.integers(0, 20),
    st.sampled_from([BOTH, frozenset({b"stdout"}), frozenset({b"stderr"})]),
)
def test_places_are_found(
    tmp_path_factory: pytest.TempPathFactory,
    records: list[tuple[int, str, int]],
    size_bytes: int,
    second: int,
    count: int,
    streams: frozenset[bytes],
) -> None:
    """The lines since a time, and the last ones, are those that looking at every line gives."""
    path = tmp_path_factory.mktemp("log")
    directory = os.open(path, os.O_RDONLY)
    now, blocks, lines = 0, [b""], []
    for number, (step, stream, width) in enumerate(records):
        now += step
        record = format_records(stream, b"%d %s\n" % (number, b"x" * width), START_NS + now * SECOND_NS)
        lines += lines_of(record)
        blocks = [*blocks, record] if len(blocks[-1]) > size_bytes else [*blocks[:-1], blocks[-1] + record]
    for number, block in enumerate(reversed(blocks)):
        (path / ("web.log" if number == 0 else f"web.log.{number}")).write_bytes(block)
    # Small, so that the search has something to do.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logfiles, "BLOCK_BYTES", 150)
        since = AppLog("web", directory)
        since.find_files()
        since.seek_time(time_of(second))
        found = [line for chunk in since.chunks(final=True) for line in lines_of(chunk)]
        assert found == [line for line in lines if line.time >= time_of(second)]
        tail = AppLog("web", directory)
        tail.find_files()
        tail.seek_lines(count, streams)
        last = deque(
            (line for chunk in tail.chunks(final=True) for line in lines_of(chunk) if line.stream in streams), count
        )
        of_streams = [line for line in lines if line.stream in streams]
        assert [*last] == of_streams[max(0, len(of_streams) - count) :]
    since.close()
    tail.close()
    os.close(directory)


def test_the_last_line_is_whole(tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many records it came in."""
    monkeypatch.setattr(logfiles, "BLOCK_BYTES", 200)
    parts = [b"a" * 100, b"b" * 100, b"c" * 100 + b"\n"]
    for part in (b"before\n", *parts):
        with (tmp_path / "web.log").open("ab") as file:
            file.write(format_records("stdout", part, START_NS))
    log = AppLog("web", directory)
    log.find_files()
    log.seek_lines(1, BOTH)
    assert lines_of(b"".join(log.chunks(final=True)))[-1].text + b"\n" == b"".join(parts)
    log.close()


def test_a_file_that_was_renamed_torn(tmp_path: Path, directory: int) -> None:
    """Nobody finishes its last record any more, so that is shown though the log goes on."""
    record = format_records("stdout", b"text\n", START_NS)
    (tmp_path / "web.log.1").write_bytes(record[:-3])
    (tmp_path / "web.log").write_bytes(record)
    log = AppLog("web", directory)
    assert read_all(log, LineAssembler(), final=False) == b"tetext\n"
    log.close()


def test_the_last_lines_of_much_are_found_at_once(tmp_path: Path, directory: int) -> None:
    """The rest of the log is not read."""
    (tmp_path / "web.log.1").write_bytes(b"")
    os.truncate(tmp_path / "web.log.1", 1 << 40)
    (tmp_path / "web.log").write_bytes(format_records("stdout", b"line\n" * 100_000, START_NS))
    log = AppLog("web", directory)
    log.find_files()
    log.seek_lines(10, BOTH)
    [file] = log.files
    assert file.size_bytes() - file.offset < 1 << 19
    log.close()


def test_a_time_in_much_is_found_at_once(tmp_path: Path, directory: int) -> None:
    """By bisection, in few steps."""
    with (tmp_path / "web.log").open("wb") as file:
        for second in range(2000):
            file.write(format_records("stdout", b"x" * 8000 + b"\n", START_NS + second * SECOND_NS))
    log = AppLog("web", directory)
    log.find_files()
    reads = []
    pread = os.pread
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "pread", lambda *arguments: reads.append(arguments) or pread(*arguments))
        log.seek_time(time_of(1234))
    assert len(reads) < 15
    assert next(log.chunks(final=True)).startswith(time_of(1234))
    log.close()


def write_lines(path: Path, count: int, size_bytes: int, files: int) -> Callable[[], None]:
    """Return what writes numbered lines in chunks of any size."""

    def write() -> None:
        log = Log("web", os.open(path, os.O_RDONLY), size_bytes, files)
        text = b"".join(b"line %d\n" % number for number in range(count))
        at = step = 0
        while at < len(text):
            step = (step * 7 + 11) % 3001 + 1
            end = text.rfind(b"\n", at, at + step + 20) + 1
            log.write("stdout", text[at:end])
            at = end

    return write


@pytest.mark.parametrize("files", [1000, 20])
def test_following_across_rotation(tmp_path: Path, directory: int, files: int) -> None:
    """A reader that reads on while the log is written and rotated gets every byte once, if it is not far behind."""
    pid = os.fork()
    if pid == 0:
        try:
            write_lines(tmp_path, 50_000, 30_000, files)()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    log, assembler = AppLog("web", directory), LineAssembler()
    text, final = b"", False
    while not final:
        final = os.waitpid(pid, os.WNOHANG) != (0, 0)
        text += read_all(log, assembler, final=final)
    log.close()
    numbers = [int(line.removeprefix(b"line ")) for line in text.splitlines()]
    if files == 1000:
        assert not log.has_gap
        assert numbers[0] == 0
    # Some may have been deleted before the first look.
    expected = sorted(set(numbers)) if log.has_gap else [*range(numbers[0], 50_000)]
    assert numbers == expected
    assert assembler.skipped == 0


@pytest.mark.parametrize(("rotations", "has_gap"), [(30, False), (100, True)])
def test_a_reader_that_is_behind_holds_files(
    tmp_path: Path, directory: int, monkeypatch: pytest.MonkeyPatch, rotations: int, has_gap: bool
) -> None:
    """Files that are deleted before their turn are read all the same, but not any number of them is held."""
    monkeypatch.setattr(logfiles, "CHUNK_BYTES", 10_000)
    Log("web", directory).write("stdout", b"first\n" * 30_000)
    writer, log = Log("web", directory, 10_000, 2), AppLog("web", directory)
    log.find_files()
    texts = []
    for number, chunk in enumerate(log.chunks(final=False, follow=True)):
        texts += [line.text for line in lines_of(chunk)]
        if number < rotations:
            writer.write("stdout", b"line %d %s\n" % (number, b"x" * 9000))
    log.find_files()
    assert log.has_gap == has_gap
    if not has_gap:
        assert [text[:7].rstrip() for text in texts] == [b"first"] * 30_000 + [b"line %d" % n for n in range(rotations)]
    log.close()


def test_without_following_a_busy_log_has_an_end(tmp_path: Path, directory: int) -> None:
    """Lines that are written after the reading began are left out, or it would never end."""
    writer, log = Log("web", directory), AppLog("web", directory)
    writer.write("stdout", b"line\n")
    log.find_files()
    texts = []
    for chunk in log.chunks(final=False):
        texts += [line.text for line in lines_of(chunk)]
        writer.write("stdout", b"another\n")
    assert texts == [b"line"]
    log.close()


def test_files_deleted_before_they_were_read(tmp_path: Path, directory: int) -> None:
    """A reader that was away too long is told."""
    log, assembler = AppLog("web", directory), LineAssembler()
    writer = Log("web", directory, 100, 2)
    writer.write("stdout", b"one\n")
    assert read_all(log, assembler, final=False) == b"one\n"
    for number in range(5):
        writer.write("stdout", b"line %d %s\n" % (number, b"x" * 50))
    text = read_all(log, assembler, final=True)
    assert [line[:6] for line in text.splitlines()] == [b"line 3", b"line 4"]
    assert log.has_gap
    log.close()


def test_what_is_unfinished_is_read_later(tmp_path: Path, directory: int) -> None:
    """A line that is being written is not shown before it is whole, nor twice."""
    record = format_records("stdout", b"one\n", START_NS)
    path = tmp_path / "web.log"
    log, assembler = AppLog("web", directory), LineAssembler()
    assert read_all(log, assembler, final=False) == b""
    path.write_bytes(record[:-2])
    assert read_all(log, assembler, final=False) == b""
    path.write_bytes(record)
    assert read_all(log, assembler, final=False) == b"one\n"
    assert read_all(log, assembler, final=True) == b""
    log.close()


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path, directory: int) -> None:
    """So does logrotate with copytruncate."""
    path = tmp_path / "web.log"
    log, assembler = AppLog("web", directory), LineAssembler()
    path.write_bytes(format_records("stdout", b"a long line\n", START_NS))
    assert read_all(log, assembler, final=False) == b"a long line\n"
    path.write_bytes(format_records("stdout", b"short\n", START_NS))
    assert read_all(log, assembler, final=False) == b"short\n"
    log.close()


def test_a_log_that_is_only_in_rotated_files(tmp_path: Path, directory: int) -> None:
    """A sidecar was killed between two renames: nothing is out of sight."""
    (tmp_path / "web.log.1").write_bytes(format_records("stdout", b"two\n", START_NS))
    (tmp_path / "web.log.3").write_bytes(format_records("stdout", b"one\n", START_NS))
    log = AppLog("web", directory)
    assert read_all(log, LineAssembler(), final=True) == b"one\ntwo\n"
    log.close()
