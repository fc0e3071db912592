"""An app's output: on the pod's own streams line by line, in the log file, and nothing of it lost."""

from __future__ import annotations

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from minit.image.dump.program import obstacle
from tests.support.pods import MakePod, PodDirectory, guest, shell
from tests.support.processes import status_of
from tests.support.waiting import wait_for

PREFIX = re.compile(rb"^a\[\d+\]: ", re.MULTILINE)
LOG_LINE = re.compile(rb"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (stdout|stderr) ([FP]) (.*)$", re.DOTALL)


def run_raw(pod: PodDirectory) -> tuple[bytes, bytes]:
    """Run a pod to its end and return the bytes of its output."""
    process = pod.start()
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    return out, err


def logged(pod: PodDirectory, app: str = "a", stream: bytes = b"stdout") -> bytes:
    """Return what the log says the app wrote to a stream, put together from its parts."""
    text = b""
    for line in pod.log(app).split(b"\n")[:-1]:
        match = LOG_LINE.match(line)
        assert match is not None, line
        if match[2] == stream:
            text += match[4] + (b"\n" if match[3] == b"F" else b"")
    return text


def test_lines_are_prefixed_with_app_and_pid(make_pod: MakePod) -> None:
    """Standard output goes to standard output, errors to errors; an empty line counts."""
    pod = make_pod({"web-1": shell("echo one; echo; echo two; echo oops >&2")})
    result = pod.run()
    lines = result.stdout.splitlines()
    [pid] = {re.fullmatch(r"web-1\[(\d+)\]: .*", line)[1] for line in lines}  # type: ignore[index]
    assert lines == [f"web-1[{pid}]: one", f"web-1[{pid}]: ", f"web-1[{pid}]: two"]
    assert result.stderr == f"web-1[{pid}]: oops\n"


def test_both_streams_are_logged(make_pod: MakePod) -> None:
    """With a time, the stream's name and F for a whole line, in the order of each stream."""
    pod = make_pod({"a": shell("echo one; echo bad >&2; echo two")})
    run_raw(pod)
    assert logged(pod) == b"one\ntwo\n"
    assert logged(pod, stream=b"stderr") == b"bad\n"
    matches = [LOG_LINE.match(line) for line in pod.log("a").split(b"\n")[:-1]]
    stamps = [match[1] for match in matches if match is not None]
    assert stamps == sorted(stamps)
    assert (pod.status_root / "rkt/minit/log/a.log").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("overlay", [True, False], ids=["overlay", "flat"])
def test_a_hundred_thousand_lines_arrive_whole_and_in_order(make_pod: MakePod, overlay: bool) -> None:
    """However full the pipe is, no line is cut in two."""
    pod = make_pod({"a": shell("seq 100000")}, overlay=overlay)
    expected = b"".join(b"%d\n" % number for number in range(1, 100001))
    out, _ = run_raw(pod)
    assert PREFIX.sub(b"", out) == expected
    assert out.count(b"\n") == 100000
    assert logged(pod) == expected


def test_binary_output_is_not_changed(make_pod: MakePod, own_rootfs: Path) -> None:
    """Every byte value, NUL and invalid UTF-8 among them."""
    data = os.urandom(300_000) + bytes(range(256)) + b"\n"
    (own_rootfs / "data").write_bytes(data)
    pod = make_pod({"a": shell("cat /data")}, own_rootfs)
    out, _ = run_raw(pod)
    prefix = PREFIX.match(out)
    assert prefix is not None
    assert out == b"".join(prefix[0] + line + b"\n" for line in data.split(b"\n")[:-1])
    assert logged(pod) == data


def test_very_long_lines(make_pod: MakePod) -> None:
    """They come in parts, each prefixed; the log tags the parts so that the line can be put together again."""
    pod = make_pod({"a": shell("echo before; head -c 1000000 /dev/zero | tr '\\0' x; echo; echo after")})
    out, _ = run_raw(pod)
    lines = PREFIX.sub(b"", out).split(b"\n")
    assert lines[0] == b"before" and lines[-2:] == [b"after", b""]
    assert b"".join(lines[1:-2]) == b"x" * 1_000_000
    assert max(map(len, lines)) <= 64 * 1024
    assert logged(pod) == b"before\n" + b"x" * 1_000_000 + b"\nafter\n"


def test_a_last_line_without_a_newline(make_pod: MakePod) -> None:
    """It gets one on the console, where the next line is another's, and a P in the log."""
    pod = make_pod({"a": shell("echo whole; printf part")})
    out, _ = run_raw(pod)
    assert PREFIX.sub(b"", out) == b"whole\npart\n"
    assert logged(pod) == b"whole\npart"


def test_a_line_written_in_pieces_is_one_line(make_pod: MakePod) -> None:
    """The sidecar waits for its end."""
    pod = make_pod({"a": shell("printf one; sleep 0.05; printf two; sleep 0.05; echo three")})
    out, _ = run_raw(pod)
    assert PREFIX.sub(b"", out) == b"onetwothree\n"


def test_an_unfinished_line_of_many_small_packets_does_not_block_the_app(make_pod: MakePod) -> None:
    """A pipe has 16 slots: each packet takes one, so waiting for the newline would wait for ever."""
    pod = make_pod({"a": guest("packets", "100")})
    run_raw(pod)
    assert logged(pod) == b"ab" * 100 + b"\ncd\n"


def test_lines_of_two_apps_do_not_mix(make_pod: MakePod) -> None:
    """Each line of the pod's output is one line of one app."""
    pod = make_pod({name: shell(f"for i in $(seq 3000); do echo {name * 60}; done") for name in ("a", "b")})
    out, _ = run_raw(pod)
    lines = [re.sub(r"^([ab])\[\d+\]: ", r"\1 ", line) for line in out.decode().splitlines()]
    assert sorted(lines) == ["a " + "a" * 60] * 3000 + ["b " + "b" * 60] * 3000


def test_a_reader_that_goes_away_disturbs_nobody(make_pod: MakePod) -> None:
    """The app goes on, ends as it likes, and its log is complete; a message of ours is lost, not the exit code."""
    pod = make_pod({"a": shell("seq 50000; exit 3")})
    process = pod.start()
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    process.stderr.close()
    assert process.wait(90) == 3
    assert logged(pod) == b"".join(b"%d\n" % number for number in range(1, 50001))


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_failure_is_recorded_though_nobody_hears_of_it(make_pod: MakePod, closed: tuple[int, ...]) -> None:
    """An app that cannot be set up has its status also when the line about it cannot be written."""
    pod = make_pod({"a": shell("true", workingDirectory="/nowhere"), "b": shell("true")})
    reader, writer = os.pipe()
    os.close(reader)
    streams = {0: "stdin", 1: "stdout", 2: "stderr"}
    process = pod.start(**cast("dict[str, Any]", {streams[fd]: writer for fd in closed if fd}))
    os.close(writer)
    process.communicate(timeout=90)
    assert process.returncode == 254
    assert (pod.status("a"), pod.status("b")) == (254, None)


def test_a_slow_reader_gets_everything_though_the_app_is_long_gone(make_pod: MakePod) -> None:
    """The pod ends when the output is delivered: only a reader that stands still is given up on."""
    # As much as the pipes between app and reader hold together.
    lines = [b"%05d rest of it\n" % number for number in range(5500)]
    pod = make_pod({"a": shell("for i in $(seq 0 5499); do printf '%05d rest of it\\n' $i; done")})
    process = pod.start(bufsize=0)
    assert process.stdout is not None
    assert pod.wait_status("a") == 0
    out = b""
    slow_until = time.monotonic() + 9
    while block := os.read(process.stdout.fileno(), 1024):
        out += block
        if time.monotonic() < slow_until:
            # Slower than the time in which no progress at all would count as a standstill.
            time.sleep(0.15)
    assert process.wait(90) == 0
    assert PREFIX.sub(b"", out) == b"".join(lines)


@pytest.mark.parametrize("nonblocking", [True, False])
def test_o_nonblock_of_the_callers_stream_is_not_ours(make_pod: MakePod, nonblocking: bool) -> None:
    """It is neither set nor cleared, and with it nothing is lost."""
    reader, writer = os.pipe()
    os.set_blocking(writer, not nonblocking)
    pod = make_pod({"a": shell("seq 30000")})
    process = pod.start(stdout=writer)
    out = b""
    while out.count(b"\n") < 30000:
        flags = fcntl.fcntl(writer, fcntl.F_GETFL)
        assert bool(flags & os.O_NONBLOCK) == nonblocking
        out += os.read(reader, 1 << 16)
    assert process.wait(90) == 0
    assert bool(fcntl.fcntl(writer, fcntl.F_GETFL) & os.O_NONBLOCK) == nonblocking
    os.close(reader)
    os.close(writer)
    assert PREFIX.sub(b"", out) == b"".join(b"%d\n" % number for number in range(1, 30001))


def _counting(lines: int) -> str:
    return f"i=0; while [ $i -lt {lines} ]; do echo $i; i=$((i+1)); done; touch /tmp/up; sleep 60 & wait"


def _assert_nothing_lost(data: bytes, lines: int) -> None:
    """Every number is there, and for the first time after all smaller ones: chunks may repeat."""
    numbers = [int(line) for line in data.split()]
    first_seen = list(dict.fromkeys(numbers))
    assert first_seen == list(range(lines))


def _start_into_file(pod: PodDirectory, output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as file:
        return pod.start(stdout=file)


@pytest.mark.rootless
def test_a_killed_sidecar_loses_nothing(make_pod: MakePod, tmp_path: Path) -> None:
    """Another one takes over what the pipes hold, five times over; a chunk may be shown twice, but is logged once."""
    pod = make_pod({"a": shell(_counting(60000))})
    process = _start_into_file(pod, tmp_path / "out")
    for _ in range(5):
        sidecar = wait_for(lambda: pod.children().get("iottymux-a"), "a sidecar")
        os.kill(sidecar, signal.SIGKILL)
        wait_for(lambda old=sidecar: pod.children().get("iottymux-a", old) != old, "a new sidecar")  # type: ignore[misc]
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert process.wait(90) == 0
    assert [int(line) for line in logged(pod).split()] == list(range(60000))
    lines = (tmp_path / "out").read_bytes().splitlines()
    is_whole = [re.fullmatch(rb"a\[\d+\]: \d+", line) is not None for line in lines]
    _assert_nothing_lost(b"\n".join(line.split()[1] for line, whole in zip(lines, is_whole) if whole), 60000)
    # Whoever is killed while it writes leaves the beginning of a line, which its successor ends and writes again.
    for number in (number for number, whole in enumerate(is_whole) if not whole):
        assert any(line.startswith(lines[number]) for line in lines[number + 1 :]), lines[number]


def test_a_killed_spawner_is_replaced(make_pod: MakePod, tmp_path: Path) -> None:
    """Sidecars outlive it, and the next one is forked by another spawner."""
    pod = make_pod({"a": shell(_counting(30000))})
    process = _start_into_file(pod, tmp_path / "out")
    wait_for(lambda: "iottymux-a" in pod.children(), "a sidecar")
    children = pod.children()
    os.kill(children["minit-spawner"], signal.SIGKILL)
    os.kill(children["iottymux-a"], signal.SIGKILL)
    for name, old in children.items():
        if name != "sh":
            wait_for(lambda name=name, old=old: pod.children().get(name, old) != old, f"a new {name}")  # type: ignore[misc]
    pod.wait_file("a", "/tmp/up")
    pod.stop()
    assert process.wait(90) == 0
    _assert_nothing_lost(logged(pod), 30000)


def test_a_sidecar_killed_while_pid_1_waits_for_it_loses_nothing(make_pod: MakePod) -> None:
    """The status is written, and nothing keeps the pod but output; another sidecar writes the rest."""
    pod = make_pod({"a": shell("seq 9000")})
    process = pod.start()
    assert pod.wait_status("a") == 0
    # The reader has not begun: the sidecar waits for it, and PID 1 for the sidecar.
    sidecar = wait_for(lambda: pod.children().get("iottymux-a"), "a sidecar")
    wait_for(lambda: status_of(sidecar)["State"].startswith("S"), "the sidecar's wait")
    os.kill(sidecar, signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert list(dict.fromkeys(PREFIX.sub(b"", out).split())) == [b"%d" % number for number in range(1, 9001)]


def test_a_sidecar_killed_while_the_pod_drains_loses_nothing(make_pod: MakePod) -> None:
    """The app is gone and its pipe full; the reader has not begun."""
    pod = make_pod({"a": shell("seq 20000 & wait")}, annotations={"minit/stop-grace": "1h"})
    process = pod.start()
    sidecar = wait_for(lambda: pod.children().get("iottymux-a"), "a sidecar")
    os.kill(sidecar, signal.SIGSTOP)
    os.kill(sidecar, signal.SIGKILL)
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert list(dict.fromkeys(PREFIX.sub(b"", out).split())) == [b"%d" % number for number in range(1, 20001)]


def test_a_caller_that_does_not_read_does_not_hold_up_pid_1(make_pod: MakePod) -> None:
    """PID 1's message about an app is lost where the others have filled the pipe: the pod ends as it should."""
    late = [{"name": "minit/restart", "value": "on-failure"}, {"name": "minit/restart-limit", "value": "0"}]
    pod = make_pod(
        {"full": shell("yes >&2"), "b": shell("until [ -e /tmp/go ]; do sleep 0.1; done; exit 7", annotations=late)}
    )
    reader, writer = os.pipe()
    try:
        process = pod.start(stderr=writer, stdout=subprocess.DEVNULL)
        pod.wait_ready()
        poller = select.poll()
        poller.register(writer, select.POLLOUT)
        wait_for(lambda: not poller.poll(0), "a full pipe")
        pod.file("b", "/tmp/go").touch()
        assert pod.wait_status("b") == 7
        wait_for(lambda: pod.status("full") is not None, "the end of the other app, which PID 1 stops")
        assert pod.stop("--force").returncode == 0
    finally:
        os.close(reader)
        os.close(writer)
    process.wait()


def own_kilobytes(pid: int) -> int:
    """Return the anonymous memory that a process shares with no other: bits of proc_pid_pagemap(5)."""
    present, of_file, exclusive = 1 << 63, 1 << 61, 1 << 56
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    pages = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", 0) as pagemap:
        for line in maps:
            start, end = (int(address, 16) // page_bytes for address in line.split()[0].split("-"))
            words = os.pread(pagemap.fileno(), (end - start) * 8, start * 8) if "[v" not in line else b""
            kinds = (word & (present | of_file | exclusive) for (word,) in struct.iter_unpack("Q", words))
            pages += [*kinds].count(present | exclusive)
    return pages * page_bytes // 1024


@pytest.mark.skipif(obstacle() is not None, reason="this Python cannot be dumped")
def test_the_memory_of_a_sidecar(make_pod: MakePod) -> None:
    """A sidecar writes to few pages, since the dumped program has run as a sidecar before."""
    pod = make_pod({name: shell("echo up; sleep 99 & wait") for name in "abc"})
    pod.start()
    wait_for(lambda: all(pod.log(name) for name in "abc"), "the output of all apps")
    own = [own_kilobytes(pod.children()[f"iottymux-{name}"]) for name in "abc"]
    assert min(own) < (470 if sys.version_info >= (3, 12) else 810), own
