"""minit.iottymux: the log of what clients attach to has all of it, and once, whatever happens to the sidecar."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minit.iottymux.logfile import LINE_BYTES, Log, finished_log
from minit.iottymux.ring import Counters, OutputLog, Ring, Scratch, make_counters, make_pipe
from tests.support.attached import read_until
from tests.support.campaign import campaign
from tests.support.forked import succeed_in_child
from tests.support.served import Served, die_in_next_log_write
from tests.support.waiting import wait_for

Serve = Callable[..., Served]
RECORD = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z (stdout|stderr) ([FP]) ([^\n]*)\n")
MODES = {"stdout": {"stdout": "log+stream"}, "tty": {"stdin": "tty", "stdout": "log+tty", "stderr": "log+tty"}}
PIECE = st.one_of(st.binary(max_size=20), st.sampled_from([b"\n", b"line\r\n", b"x" * 9000, b"x" * LINE_BYTES + b"\n"]))
CHUNK = st.lists(PIECE, max_size=8).map(b"".join)


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A function that makes the streams of an app with the modes it is given, and starts its sidecar."""
    made: list[Served] = []

    def make(limits: tuple[int, int] = (0, 1), **modes: str) -> Served:
        served = Served(tmp_path / f"app-{len(made)}", monkeypatch, **modes)
        served.limits = limits
        made.append(served)
        served.start()
        return served

    yield make
    for served in made:
        served.close()


def logged(directory: Path, stream: str = "stdout") -> bytes:
    """Return what the log, which has to consist of records, has of a stream, as the app wrote it."""
    numbered = sorted(directory.glob("web.log.*"), key=lambda path: -int(path.suffix[1:]))
    data = b"".join(path.read_bytes() for path in (*numbered, directory / "web.log") if path.exists())
    assert RECORD.sub(b"", data) == b""
    texts = [(tag, text) for name, tag, text in RECORD.findall(data) if name == stream.encode()]
    return b"".join(text + (b"\n" if tag == b"F" else b"") for tag, text in texts)


def numbered(count: int) -> bytes:
    """Return numbered lines, by which every missing or repeated byte shows."""
    return b"".join(b"line number %07d of the output\n" % number for number in range(count))


def test_pipes_are_logged_too(serve: Serve) -> None:
    """Clients get them as they are, the log by lines; one that is not in the mode is not logged."""
    served = serve(stdout="log+stream", stderr="stream")
    with served.connect("stdout") as client, served.connect("stderr") as other:
        served.write(b"one\ntwo ")
        served.write(b"error\n", "stderr")
        assert read_until(client, b"two ") == b"one\ntwo "
        assert read_until(other, b"\n") == b"error\n"
        assert logged(served.directory) == b"one\n"
        served.end()
    assert logged(served.directory) == b"one\ntwo "
    assert logged(served.directory, "stderr") == b""


def test_a_terminal_is_logged_too(serve: Serve) -> None:
    """All that it shows is output of one stream, as it was shown: with carriage returns, and what was typed."""
    served = serve(**MODES["tty"])
    with served.connect("tty") as client:
        served.write(b"name?\n", "tty")
        read_until(client, b"name?\r\n")
        client.sendall(b"me\n")
        assert os.read(served.app["tty"], 100) == b"me\n"
        served.write(b"no end", "tty")
        read_until(client, b"no end")
    served.end()
    assert logged(served.directory) == b"name?\r\nme\r\nno end"


@pytest.mark.parametrize("end", MODES)
def test_kills_at_any_moment(serve: Serve, end: str) -> None:
    """Each byte is in the log once, while files are rotated and a client is attached."""
    chance = random.Random(9)
    for _ in range(campaign(2)):
        served = serve((64 * 1024, 100), **MODES[end])
        text = numbered(30_000)
        expected = text if end == "stdout" else text.replace(b"\n", b"\r\n")
        feeder = served.feed(text, end)
        kills = 0
        while served.status()["bytes_out"] < len(expected):
            with served.connect(end) as client:
                client.recv(chance.choice((10, 10_000)))
            if not kills or (kills < 50 and chance.random() < 0.2):
                kills += 1
                served.renew()
        served.fed(feeder)
        served.end()
        assert kills
        assert logged(served.directory) == expected


@pytest.mark.parametrize("end", MODES)
def test_a_line_that_a_killed_sidecar_had_begun_to_read(serve: Serve, end: str) -> None:
    """It is logged by the next one, though the app writes no more."""
    served = serve(**MODES[end])
    served.write(b"no end", end)
    wait_for(lambda: served.status()["bytes_out"] == 6, "the ring")
    served.kill()
    served.close_app()
    assert served.attachable.unlogged_bytes() == 6
    assert not served.attachable.at_end
    served.start(renewed=True)
    served.wait_end()
    assert served.attachable.at_end
    assert logged(served.directory) == b"no end"


@pytest.mark.parametrize("torn", [True, False])
@pytest.mark.parametrize("end", MODES)
def test_what_a_last_sidecar_has_logged_is_not_lost(serve: Serve, end: str, torn: bool) -> None:
    """Without a next sidecar PID 1 finds in the log how much is there, and counts the rest alone."""
    served = serve(**MODES[end])
    served.write(b"one\n", end)
    wait_for(lambda: logged(served.directory).startswith(b"one"), "the first line")
    served.kill()
    pid = served.start(renewed=True, prepare=lambda: die_in_next_log_write(torn))
    text = b"two\nthree\nno end"
    served.write(text, end)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 9
    served.forget_sidecar()
    attachable = served.attachable
    with finished_log("web", str(served.directory), *served.limits) as log:
        attachable.find_logged(log)
    left_bytes = attachable.unread_bytes() + attachable.unlogged_bytes()
    written = b"one\n" + text
    expected = written if end == "stdout" else written.replace(b"\n", b"\r\n")
    assert left_bytes == len(expected) - len(logged(served.directory)) > 0


class _Killed(Exception):
    """The death of a sidecar."""


class _TornLog(Log):
    """A log whose sidecar dies in a write."""

    def write(self, stream: str, data: bytes, note_time: Callable[[int], object] = lambda _: None) -> None:
        path = Path(f"/proc/self/fd/{self._directory}/web.log")
        before = path.stat().st_size if path.exists() else 0
        super().write(stream, data, note_time)
        os.truncate(path, (before + path.stat().st_size) // 2)
        raise _Killed


@given(st.lists(st.tuples(CHUNK, st.sampled_from(["", "before", "torn", "between", "after"])), max_size=30))
def test_whatever_a_sidecar_is_killed_at(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[tuple[bytes, str]]
) -> None:
    """However output is cut into pieces, the log has it once, from sidecars that die before, in and after any step."""
    path = tmp_path_factory.mktemp("log")

    def check() -> None:
        counted, kept, scratch = make_counters(), make_pipe(), make_pipe()
        null, directory = os.open(os.devnull, os.O_RDWR), os.open(path, os.O_RDONLY)

        def start(writer: type[Log] = Log) -> tuple[Ring, OutputLog]:
            counters = Counters(counted)
            ring = Ring("stdout", kept, null, Scratch(scratch, null), counters)
            return ring, OutputLog("stdout", writer("web", directory), ring, counters)

        ring, log = start()
        for data, killed in chunks:
            if killed == "before":
                ring, log = start()
            if killed == "torn":
                with suppress(_Killed):
                    start(_TornLog)[1].put(data)
                ring, log = start()
            log.put(data)
            if killed == "between":
                ring, log = start()
                log.put(data)
            ring.write(data)
            if killed == "after":
                ring, log = start()
        log.put(b"", ended=True)
        assert logged(path) == b"".join(data for data, _ in chunks)

    succeed_in_child(check)
