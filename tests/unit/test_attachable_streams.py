"""minit.iottymux: what an app's clients get and give, whatever they do and whatever happens to the sidecar."""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import resource
import select
import signal
import socket
import struct
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from minit.iottymux import mux, peer, ring
from minit.iottymux.ring import RING_BYTES
from minit.linux.messages import send_message, socket_pair
from tests.support.attached import read_all, read_until
from tests.support.campaign import campaign
from tests.support.served import Served
from tests.support.waiting import wait_for

Serve = Callable[..., Served]
MARKER = re.compile(rb"\r?\n\[minit: (\d+) bytes dropped\]\r?\n")
INTERRUPTED = b"[minit: output was interrupted]"


@pytest.fixture
def serve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    """A function that makes the streams of an app with the modes it is given, and starts its sidecar."""
    made: list[Served] = []

    def make(**modes: str) -> Served:
        served = Served(tmp_path / f"app-{len(made)}", monkeypatch, **modes)
        made.append(served)
        served.start()
        return served

    yield make
    for served in made:
        served.close()


def numbered(count: int) -> bytes:
    """Return numbered lines, by which every missing or repeated byte shows."""
    return b"".join(b"line number %07d of the output\n" % number for number in range(count))


def closed(client: socket.socket) -> bool:
    """Return whether the other side has closed a connection."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


# Output.


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_every_client_gets_all_output(serve: Serve, name: str) -> None:
    """Two clients of rkt's kind and a session each get every byte that is written while they are attached."""
    served = serve(**{name: "stream"})
    text = numbered(5_000)
    with served.connect(name) as one, served.connect(name) as two, served.session(name, policy="block") as three:
        wait_for(lambda: served.status()["clients"] == 3, "all clients")
        readers = [one, two, three.streams[name]]
        served.feed(text, name)
        got = dict.fromkeys(readers, b"")
        while any(len(data) < len(text) for data in got.values()):
            for reader in select.select(readers, [], [], 30)[0]:
                got[reader] += reader.recv(1 << 16)
        assert [*got.values()] == [text] * 3
        served.end()
        assert three.receive() == {"event": "ended"}


def test_what_came_before_the_first_client_is_replayed(serve: Serve) -> None:
    """Nothing is lost that fits into the ring, and later clients get it too."""
    served = serve(stdout="stream")
    served.write(b"before\n")
    for _ in range(2):
        with served.connect("stdout") as client:
            assert read_until(client, b"before\n") == b"before\n"
    with served.session("stdout", replay=False) as client:
        served.write(b"after\n")
        assert client.reply["positions"] == {"stdout": len(b"before\n")}
        assert read_until(client.streams["stdout"], b"after\n") == b"after\n"
    served.end()


def test_what_nobody_could_get_is_told(serve: Serve) -> None:
    """The first client learns how much had been written before what is replayed to it; the second one has no gap."""
    served = serve(stdout="stream")
    text = numbered(10_000)
    served.write(text)
    wait_for(lambda: served.status()["bytes_out"] == len(text), "the ring")
    with served.session("stdout") as session:
        got = read_until(session.streams["stdout"], text[-40:])
        marker = MARKER.match(got)
        assert marker is not None
        assert int(marker[1]) + len(got) - len(marker[0]) == len(text)
        assert text.endswith(b"\n" + got[len(marker[0]) :])
        assert len(got) > RING_BYTES * 0.9
    with served.connect("stdout") as client:
        assert text.endswith(b"\n" + read_until(client, text[-40:]))
    served.end()


def test_a_prompt_is_sent_at_once(serve: Serve) -> None:
    """Output without an end of line does not wait for one."""
    served = serve(stdout="stream")
    with served.connect("stdout") as client:
        served.write(b"name? ")
        assert read_until(client, b"? ") == b"name? "
    served.end()


@pytest.mark.parametrize("flags", [0, os.O_DIRECT])
def test_tiny_writes_are_kept(serve: Serve, flags: int) -> None:
    """The ring holds what is written byte by byte, also in packets."""
    served = serve(stdout="stream")
    fcntl.fcntl(served.app["stdout"], fcntl.F_SETFL, flags)
    for number in range(500):
        served.write(b"%d" % (number % 10))
    wait_for(lambda: served.status()["bytes_out"] == 500, "the ring")
    with served.connect("stdout") as client:
        got = read_until(client, b"9")
        served.write(b".")
        got += read_until(client, b".")
    expected = b"".join(b"%d" % (number % 10) for number in range(500)) + b"."
    assert expected.endswith(MARKER.sub(b"", got))
    assert len(got) > 100
    served.end()


def test_binary_output_is_not_touched(serve: Serve) -> None:
    """Every byte passes, and a line may be endless."""
    served = serve(stdout="stream")
    text = bytes(range(256)) * 4000
    with served.session("stdout", policy="block") as client:
        served.feed(text)
        got = b""
        while len(got) < len(text):
            got += client.streams["stdout"].recv(1 << 16)
        assert got == text
    served.end()


def test_a_stream_that_ends_early_does_not_end_the_other(serve: Serve) -> None:
    """A client of both sees the end of the one and goes on with the other."""
    served = serve(stdout="stream", stderr="stream")
    with served.session("stdout", "stderr") as client:
        served.write(b"last\n")
        served.close_app("stdout")
        assert read_all(client.streams["stdout"]) == b"last\n"
        served.write(b"still here\n", "stderr")
        assert read_until(client.streams["stderr"], b"\n") == b"still here\n"
        with served.connect("stdout") as late:
            assert read_all(late) == b"last\n"
        served.end()
        assert read_all(client.streams["stderr"]) == b""
        assert client.receive() == {"event": "ended"}
        assert client.receive() == {}


# Clients that are slow.


def test_a_slow_client_loses_the_oldest_output(serve: Serve) -> None:
    """It gets a marker with the exact number of bytes; another client gets everything, and the app goes on."""
    served = serve(stdout="stream")
    text = numbered(60_000)
    with (
        served.session("stdout", policy="block") as fast,
        served.session("stdout", policy="drop", queue_bytes=65536) as slow,
        served.session("stdout", policy="drop", queue_bytes=65536, unmarked=["stdout"]) as unmarked,
    ):
        feeder = served.feed(text)
        got = b""
        while len(got) < len(text):
            got += fast.streams["stdout"].recv(1 << 16)
        assert got == text
        served.fed(feeder)
        served.close_app()
        kept = read_all(slow.streams["stdout"])
        markers = MARKER.findall(kept)
        assert len(markers) == 1
        dropped = int(markers[0])
        assert len(MARKER.sub(b"", kept)) + dropped == len(text)
        before, after = re.split(MARKER.pattern.replace(rb"(\d+)", rb"\d+"), kept)
        assert text.startswith(before)
        assert text.endswith(after)
        marker_bytes = len(kept) + dropped - len(text)
        event = {"event": "dropped", "stream": "stdout", "bytes": dropped, "marker_bytes": marker_bytes}
        assert slow.receive() == event
        assert slow.receive() == {"event": "ended"}
        lost = len(text) - len(read_all(unmarked.streams["stdout"]))
        assert unmarked.receive() == {**event, "bytes": lost, "marker_bytes": 0}
        assert served.status()["dropped_bytes"] == dropped + lost
        assert unmarked.receive() == {"event": "ended"}
        served.wait_end()


def test_a_slow_client_can_ask_to_be_disconnected(serve: Serve) -> None:
    """It is told why."""
    served = serve(stdout="stream")
    with served.session("stdout", policy="disconnect", queue_bytes=4096) as client:
        served.write(numbered(60_000))
        assert client.receive() == {"event": "too-slow"}
        assert client.receive() == {}
    served.end()


def test_a_client_can_ask_the_app_to_wait(serve: Serve) -> None:
    """The app is held up until the client reads, or leaves."""
    served = serve(stdout="stream")
    text = numbered(60_000)
    with served.session("stdout", policy="block", queue_bytes=4096) as client:
        feeder = served.feed(text)
        wait_for(lambda: served.status()["bytes_out"] > 200_000, "full buffers")
        assert os.waitpid(feeder, os.WNOHANG) == (0, 0)
        first = client.streams["stdout"].recv(1000)
        assert text.startswith(first)
    served.fed(feeder)
    wait_for(lambda: served.status()["bytes_out"] == len(text), "all of the output")
    served.end()


def test_an_app_waits_for_whoever_reads(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that reads, or says that its reader does, loses nothing; one that takes nothing does."""
    monkeypatch.setattr(peer, "PATIENCE_SECONDS", 0.5)
    served = serve(stdout="stream")
    text = numbered(120_000)  # half of it is more than sockets and pipes hold
    with served.session("stdout", queue_bytes=4096, unmarked=["stdout"]) as client:
        feeder = served.feed(text)
        wait_for(lambda: served.status()["bytes_out"] > 200_000, "full buffers")
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            assert client.ask(op="reading") == {"ok": True}
        got = b""
        while len(got) < len(text) // 2:
            got += client.streams["stdout"].recv(1 << 16)
        assert text.startswith(got) and served.status()["dropped_bytes"] == 0
        served.fed(feeder)
        served.close_app()
        got += read_all(client.streams["stdout"])
        lost = len(text) - len(got)
        assert lost > 0 and text.startswith(got[: len(text) // 2])
        assert client.receive() == {"event": "dropped", "stream": "stdout", "bytes": lost, "marker_bytes": 0}
        assert client.receive() == {"event": "ended"}
    served.wait_end()


def test_a_program_at_a_plain_socket_gets_everything_or_is_disconnected(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing could tell it that something is missing in the middle."""
    monkeypatch.setattr(peer, "PATIENCE_SECONDS", 0.2)
    served = serve(stdout="stream")
    text = numbered(60_000)
    with served.connect("stdout") as client:
        served.write(text)
        got = read_all(client)
        assert text.startswith(got) and len(got) < len(text)
    served.end()


def test_a_slow_client_gets_the_rest_after_the_app_has_ended(serve: Serve) -> None:
    """Waiting output is sent for as long as the client takes something."""
    served = serve(stdout="stream")
    text = numbered(9_000)
    with served.session("stdout", queue_bytes=1 << 20) as client:
        served.write(text)
        served.close_app()
        got = b""
        while data := client.streams["stdout"].recv(20_000):
            got += data
        assert got == text
    served.wait_end()


def test_a_client_that_is_stuck_does_not_keep_the_sidecar(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any progress the sidecar gives up, and ends."""
    monkeypatch.setattr(mux, "PATIENCE_SECONDS", 0.2)
    served = serve(stdout="stream")
    with served.connect("stdout") as client:
        served.write(numbered(60_000))
        served.end()
        assert client.recv(10)


# Input.


def test_a_client_gives_input(serve: Serve) -> None:
    """It reaches the app as it is, and a client that leaves in the middle of a line has sent what it has sent."""
    served = serve(stdin="stream", stdout="stream")
    for text in (b"one\n", b"half a li", b"ne\n"):
        with served.connect("stdin") as client:
            client.sendall(text)
        assert os.read(served.app["stdin"], 100) == text
    assert not select.select([served.app["stdin"]], [], [], 0)[0]
    wait_for(lambda: served.status()["bytes_in"] == 16, "the count")
    served.end()


def test_half_a_close_ends_the_apps_input(serve: Serve) -> None:
    """The app sees end of file, though PID 1 had the same end; whoever attaches later is told."""
    served = serve(stdin="stream", stdout="stream")
    with served.connect("stdin") as client:
        client.sendall(b"all of it\n")
        client.shutdown(socket.SHUT_WR)
        assert closed(client)
    assert os.read(served.app["stdin"], 100) == b"all of it\n"
    served.attachable.hear()
    assert os.read(served.app["stdin"], 100) == b""
    with served.connect("stdin") as client:
        assert closed(client)
    with served.session("stdin", "stdout") as client:
        assert client.reply["stdin"] == "none"
    served.renew()
    with served.session("stdout") as client:
        served.write(b"more\n")
        read_until(client.streams["stdout"], b"more\n")
    served.end()


def test_an_app_that_closes_its_stdin(serve: Serve) -> None:
    """Clients learn that nobody reads any more."""
    served = serve(stdin="stream", stdout="stream")
    with served.connect("stdin") as raw, served.session("stdin", "stdout") as client:
        served.close_app("stdin")
        assert closed(raw)
        assert client.receive() == {"event": "stdin-ended"}
    served.end()


def test_an_app_with_nothing_but_input(serve: Serve) -> None:
    """Its sidecar ends when the app reads no more."""
    served = serve(stdin="stream")
    with served.session("stdin") as client:
        client.streams["stdin"].sendall(b"x")
        assert os.read(served.app["stdin"], 10) == b"x"
        assert not served.attachable.at_end
        served.end()
        assert served.attachable.at_end
        assert client.receive() == {"event": "stdin-ended"}
        assert client.receive() == {"event": "ended"}


def test_the_input_has_one_owner(serve: Serve) -> None:
    """The first client's input goes to the app; the next one's waits until the first has left."""
    served = serve(stdin="stream", stdout="stream")
    with served.session("stdin") as first, served.session("stdin") as second:
        assert (first.reply["stdin"], second.reply["stdin"]) == ("owner", "other")
        second.streams["stdin"].sendall(b"second\n")
        first.streams["stdin"].sendall(b"first\n")
        assert os.read(served.app["stdin"], 100) == b"first\n"
        assert not select.select([served.app["stdin"]], [], [], 0)[0]
        first.close()
        assert second.receive() == {"event": "stdin-given"}
        assert os.read(served.app["stdin"], 100) == b"second\n"
    served.end()


def test_the_input_can_be_taken_over(serve: Serve) -> None:
    """The former owner is told, and gets it back when the other one leaves."""
    served = serve(stdin="stream", stdout="stream")
    with served.session("stdin") as first:
        with served.session("stdin", take_stdin=True) as second:
            assert second.reply["stdin"] == "owner"
            assert first.receive() == {"event": "stdin-taken"}
            first.streams["stdin"].sendall(b"kept\n")
            second.streams["stdin"].sendall(b"second\n")
            assert os.read(served.app["stdin"], 100) == b"second\n"
            assert first.ask(op="take-stdin") == {"ok": True}
            assert second.receive() == {"event": "stdin-taken"}
            assert os.read(served.app["stdin"], 100) == b"kept\n"
            assert second.ask(op="take-stdin") == {"ok": True}
            assert first.receive() == {"event": "stdin-taken"}
        assert first.receive() == {"event": "stdin-given"}
    served.end()


def test_a_full_stdin_holds_up_the_client_alone(serve: Serve) -> None:
    """An app that does not read gets all of the input later, and its output is not kept waiting."""
    served = serve(stdin="stream", stdout="stream")
    text = numbered(30_000)
    with served.session("stdin") as client, served.session("stdout") as watcher:
        pid = os.fork()
        if pid == 0:
            client.streams["stdin"].sendall(text)
            os._exit(0)
        wait_for(lambda: served.status()["bytes_in"] >= 65536, "a full pipe")
        served.write(b"alive\n")
        assert read_until(watcher.streams["stdout"], b"alive\n")
        got = b""
        while len(got) < len(text):
            got += os.read(served.app["stdin"], 1 << 16)
        assert got == text
        os.waitpid(pid, 0)
    served.end()


# Terminals.


def size_of(terminal: int) -> tuple[int, int]:
    """Return rows and columns of a terminal."""
    rows, columns, _, _ = struct.unpack("HHHH", fcntl.ioctl(terminal, termios.TIOCGWINSZ, bytes(8)))
    return rows, columns


def test_every_client_of_a_terminal_sees_all(serve: Serve) -> None:
    """The output of a terminal is sent to each client, however fast it comes."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    text = numbered(5_000)
    shown = text.replace(b"\n", b"\r\n")
    with served.session("tty-out", policy="block") as one, served.session("tty-out", policy="block") as two:
        served.feed(text, "tty")
        readers = [one.streams["tty-out"], two.streams["tty-out"]]
        got = dict.fromkeys(readers, b"")
        while any(len(data) < len(shown) for data in got.values()):
            for reader in select.select(readers, [], [], 30)[0]:
                got[reader] += reader.recv(1 << 16)
        assert [*got.values()] == [shown, shown]
        served.end()
        assert one.receive() == two.receive() == {"event": "ended"}


def test_a_terminal_is_typed_into_by_one(serve: Serve) -> None:
    """Keys of others meanwhile are not kept for later."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    with served.session("tty-in", "tty-out") as first, served.connect("tty") as second:
        wait_for(lambda: served.status()["clients"] == 2, "both")
        second.sendall(b"not mine\n")
        first.streams["tty-in"].sendall(b"mine\n")
        assert os.read(served.app["tty"], 100) == b"mine\n"
        read_until(second, b"mine\r\n")
        first.close()
        wait_for(lambda: served.status()["clients"] == 1, "the second alone")
        second.sendall(b"now mine\n")
        assert os.read(served.app["tty"], 100) == b"now mine\n"
    served.end()


def test_the_last_size_counts(serve: Serve) -> None:
    """The size of the terminal is that of the client which was the last to tell one."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    assert size_of(served.app["tty"]) == (24, 80)
    with served.session("tty-in", "tty-out", size=[50, 132]) as first, served.session("tty-out", size=[20, 70]):
        assert size_of(served.app["tty"]) == (20, 70)
        assert first.ask(op="resize", size=[30, 90]) == {"ok": True}
        assert size_of(served.app["tty"]) == (30, 90)
        assert (served.status()["rows"], served.status()["columns"]) == (30, 90)
        with served.session("tty-out"):
            assert size_of(served.app["tty"]) == (30, 90)
    served.end()


@pytest.mark.parametrize(("typed", "read"), [(b"line\n", [b"line\n", b""]), (b"half", [b"half", b""])])
def test_half_a_close_is_the_key_for_end_of_file(serve: Serve, typed: bytes, read: list[bytes]) -> None:
    """A program that reads lines of its terminal sees the end; the client goes on watching."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    with served.session("tty-in", "tty-out") as client:
        client.streams["tty-in"].sendall(typed)
        client.streams["tty-in"].shutdown(socket.SHUT_WR)
        assert [os.read(served.app["tty"], 100) for _ in read] == read
        served.write(b"bye", "tty")
        read_until(client.streams["tty-out"], b"bye")
    served.end()


def test_much_is_typed_at_once(serve: Serve) -> None:
    """A program that reads raw input gets every byte of it, though slowly."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    settings = termios.tcgetattr(served.app["tty"])
    settings[0] = settings[1] = settings[3] = 0
    termios.tcsetattr(served.app["tty"], termios.TCSANOW, settings)
    text = numbered(10_000)
    with served.session("tty-in") as client:
        pid = os.fork()
        if pid == 0:
            client.streams["tty-in"].sendall(text)
            os._exit(0)
        got = b""
        while len(got) < len(text):
            got += os.read(served.app["tty"], 4096)
        assert got == text
        os.waitpid(pid, 0)
    served.end()


def test_terminal_and_pipes_side_by_side(serve: Serve) -> None:
    """An app may have its stdin and stdout on a terminal and its stderr on a pipe."""
    served = serve(stdin="tty", stdout="tty", stderr="stream")
    with served.session("tty-in", "tty-out", "stderr") as client:
        served.write(b"shown\n", "tty")
        served.write(b"told\n", "stderr")
        assert read_until(client.streams["tty-out"], b"\n") == b"shown\r\n"
        assert read_until(client.streams["stderr"], b"\n") == b"told\n"
    names = [target["name"] for target in json.loads((served.directory / "endpoints").read_text())["targets"]]
    assert names == ["stderr", "tty"]
    served.end()


# Sidecars that are killed.


def test_a_killed_sidecar_under_load_loses_nothing(serve: Serve) -> None:
    """A session that says how far it came gets the very next byte from the next sidecar, over and over."""
    served = serve(stdout="stream")
    text = numbered(300_000)
    got = b""
    kills = 0
    client = served.session("stdout", policy="block")
    feeder = served.feed(text)
    while True:
        target = min(len(text), len(got) + 200_000)
        while len(got) < target:
            got += client.streams["stdout"].recv(1 << 16)
        if len(got) == len(text):
            break
        served.kill()
        got += read_all(client.streams["stdout"])
        client.close()
        client = served.session()
        # The backlog takes clients while there is no sidecar.
        client.send_attach(["stdout"], policy="block", resume={"stdout": len(got)})
        served.start(renewed=True)
        assert client.receive() == {"ok": True, "stdin": "none", "positions": {"stdout": len(got)}}
        kills += 1
    client.close()
    assert got == text
    assert kills > 5
    served.fed(feeder)
    served.end()


def test_what_a_killed_sidecar_kept_is_replayed_with_a_marker(serve: Serve) -> None:
    """The ring outlives it, and later clients see where the interruption was."""
    served = serve(stdout="stream")
    with served.connect("stdout") as client:
        served.write(b"before\n")
        read_until(client, b"before\n")
        wait_for(lambda: served.status()["bytes_out"] == 7, "the ring")
        served.kill()
        assert closed(client)
    served.write(b"between\n")
    served.start(renewed=True)
    served.write(b"after\n")
    wait_for(lambda: served.status()["bytes_out"] == 21, "the ring")
    with served.session("stdout") as session:
        got = read_until(session.streams["stdout"], b"after\n")
        assert got == b"before\n\n" + INTERRUPTED + b"\nbetween\nafter\n"
    with served.connect("stdout") as client:
        assert read_until(client, b"after\n") == b"before\nbetween\nafter\n"
    served.end()


def test_a_terminal_survives_its_sidecar(serve: Serve) -> None:
    """Its clients see the marker when they are back, and nothing of what waited is lost."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    served.write(b"before\n", "tty")
    wait_for(lambda: served.status()["bytes_out"] == 8, "the ring")
    served.kill()
    served.write(b"between\n", "tty")
    # The backlog takes connections while there is no sidecar.
    with served.connect("tty") as client:
        served.start(renewed=True)
        got = read_until(client, b"between\r\n")
        assert got == b"before\r\n\r\n" + INTERRUPTED + b"\r\nbetween\r\n"
        client.sendall(b"typed\n")
        assert os.read(served.app["tty"], 100) == b"typed\n"
    served.end()


class Follower:
    """A client that checks every byte it gets against the text, and comes back where it was."""

    def __init__(self, served: Served, text: bytes, name: str = "stdout", **options: object) -> None:
        self.served = served
        self.text = text
        self.name = name
        self.options = options
        self.at = 0
        self.session = served.session(name, resume={name: 0}, **options)
        self._unchecked = b""
        self._note_start()

    def _note_start(self) -> None:
        assert self.session.reply["ok"]
        self.at = self.session.reply["positions"][self.name]

    def read(self, size: int) -> bool:
        """Read and check at most so much of what is there; False at the end."""
        stream = self.session.streams[self.name]
        try:
            data = stream.recv(size, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return True
        self.check(data)
        return bool(data)

    def read_to_end(self) -> None:
        """Read and check all that is left."""
        self.check(read_all(self.session.streams[self.name]))

    def check(self, data: bytes) -> None:
        data = self._unchecked + data
        # A marker, or what may be the beginning of one, is looked at when it is whole.
        parts = MARKER.split(data)
        end = parts[-1].rfind(b"\n")
        self._unchecked = parts[-1][end:] if end >= 0 and len(parts[-1]) - end < 50 else b""
        parts[-1] = parts[-1][: len(parts[-1]) - len(self._unchecked)]
        for index, part in enumerate(parts):
            if not index % 2:
                assert part == self.text[self.at : self.at + len(part)]
            self.at += int(part) if index % 2 else len(part)

    def leave(self) -> None:
        """Give up the session, with all of its output read, and ask for the next one to begin where it ended."""
        self.read_to_end()
        self.at += len(self._unchecked)
        self._unchecked = b""
        self.session.close()
        self.session = self.served.session()
        self.session.send_attach([self.name], resume={self.name: self.at}, **self.options)

    def come_back(self) -> None:
        """Take the answer to what `leave` asked for, which leaves out nothing."""
        self.session.reply = self.session.receive()
        before = self.at
        self._note_start()
        assert self.at == before


def test_nobody_is_told_anything_wrong(serve: Serve) -> None:
    """Fast, slow and stuck clients, sidecars killed at any moment: each byte is right, or counted in a marker."""
    chance = random.Random(7)
    for _ in range(campaign(2)):
        served = serve(stdout="stream")
        text = numbered(60_000)
        followers = [
            Follower(served, text, policy="block"),
            Follower(served, text, policy="drop", queue_bytes=16_384),
            Follower(served, text, policy="drop"),
        ]
        served.feed(text)
        while followers[0].at + 4096 < len(text):
            for follower in followers:
                if chance.random() < (1, 0.3, 0.05)[followers.index(follower)]:
                    assert follower.read(chance.choice((10, 1000, 100_000)))
            if chance.random() < 0.01:
                served.kill()
                for follower in followers:
                    follower.leave()
                served.start(renewed=True)
                for follower in followers:
                    follower.come_back()
        served.close_app()
        for follower in followers:
            follower.read_to_end()
            follower.check(b"\n")
        served.wait_end()


def test_kills_at_any_moment_lose_nothing_of_a_terminal(serve: Serve) -> None:
    """Each byte that the app writes to its terminal reaches a client, and once, whenever sidecars are killed."""
    chance = random.Random(8)
    for _ in range(campaign(2)):
        served = serve(stdin="tty", stdout="tty", stderr="tty")
        text = numbered(30_000)
        follower = Follower(served, text.replace(b"\n", b"\r\n"), "tty-out", policy="block")
        feeder = served.feed(text, "tty")
        while follower.at + 4096 < len(follower.text):
            assert follower.read(100_000)
            if chance.random() < 0.02:
                served.kill()
                follower.leave()
                served.start(renewed=True)
                follower.come_back()
        served.fed(feeder)
        served.close_app()
        follower.read_to_end()
        assert follower.at + len(b"\n") >= len(follower.text)
        served.wait_end()


def test_what_a_killed_sidecar_took_from_a_terminal(serve: Serve) -> None:
    """It is passed on by the next one, less what has come into the ring, though the app writes no more."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    served.write(b"before\n", "tty")
    wait_for(lambda: served.status()["bytes_out"] == 8, "the ring")
    served.kill()
    # As the dead one had it when it had moved two bytes of nine.
    os.write(served.attachable.held["intake"], b"between\r\n")
    os.pwrite(served.attachable.held["counters"], struct.pack("<Q", 6), ring.OFFSETS[ring.INTAKE_FROM])
    assert served.attachable.unread_bytes() == 7
    served.start(renewed=True)
    with served.connect("tty") as client:
        assert read_until(client, b"\r\n" + INTERRUPTED + b"\r\n", b"tween\r\n").endswith(b"tween\r\n")
    assert served.attachable.unread_bytes() == 0
    served.end()


# Sidecars that leave their clients to the next.


def test_clients_of_every_kind_notice_no_exchange(serve: Serve) -> None:
    """Fast, slow and stuck clients go on at the byte, on the same connections, whenever sidecars are exchanged."""
    chance = random.Random(9)
    served = serve(stdout="stream")
    text = numbered(60_000)
    plain = served.connect("stdout")
    followers = [
        Follower(served, text, policy="block"),
        Follower(served, text, policy="drop", queue_bytes=16_384),
        Follower(served, text, policy="drop"),
    ]
    wait_for(lambda: served.status()["clients"] == 4, "the clients")
    served.feed(text)
    got, exchanges = b"", 0
    while followers[0].at + 4096 < len(text):
        with suppress(BlockingIOError):
            got += plain.recv(1 << 20, socket.MSG_DONTWAIT)
        for follower in followers:
            if chance.random() < (1, 0.3, 0.05)[followers.index(follower)]:
                assert follower.read(chance.choice((10, 1000, 100_000)))
        if followers[0].at > 200_000 * (exchanges + 1):
            served.exchange()
            exchanges += 1
    served.close_app()
    for follower in followers:
        follower.read_to_end()
        follower.check(b"\n")
    assert got + read_all(plain) == text
    served.wait_end()


def test_input_and_its_owner_go_on_after_an_exchange(serve: Serve) -> None:
    """The app gets every byte that the owner has sent, then those of the client that waited for the input."""
    served = serve(stdin="stream", stdout="stream")
    text = numbered(20_000)
    with served.connect("stdin") as owner, served.session("stdin", "stdout") as waiting:
        assert waiting.reply["stdin"] == "other"
        waiting.streams["stdin"].sendall(b"later\n")
        sender = threading.Thread(target=owner.sendall, args=(text,))
        sender.start()
        got = b""
        while len(got) < len(text):
            served.exchange()
            got += os.read(served.app["stdin"], 100_000)
        sender.join()
        assert got == text
        owner.shutdown(socket.SHUT_RDWR)
        assert waiting.receive() == {"event": "stdin-given"}
        assert os.read(served.app["stdin"], 100) == b"later\n"
        served.exchange()
        served.write(b"answer\n")
        assert read_until(waiting.streams["stdout"], b"\n") == b"answer\n"
    with served.session("stdout") as later:
        assert read_until(later.streams["stdout"], b"\n") == b"answer\n"
    served.end()


def test_keys_that_a_terminal_did_not_take_go_on_after_an_exchange(serve: Serve) -> None:
    """The app reads each key once, in the order of typing, although the terminal was full."""
    served = serve(stdin="tty", stdout="tty", stderr="tty")
    attributes = termios.tcgetattr(served.app["tty"])
    attributes[3] &= ~(termios.ECHO | termios.ICANON)
    termios.tcsetattr(served.app["tty"], termios.TCSANOW, attributes)
    text = numbered(1_000)
    with served.connect("tty") as client:
        client.setblocking(False)
        sent = client.send(text)
        wait_for(lambda: served.status()["bytes_in"] > 4096, "a full terminal")
        got = b""
        while len(got) < sent:
            served.exchange()
            got += os.read(served.app["tty"], 4096)
        assert got == text[:sent]
        client.setblocking(True)
        served.write(b"answer\n", "tty")
        assert read_until(client, b"answer\r\n") == b"answer\r\n"
    served.end()


def test_more_clients_than_a_socket_holds_messages_of(serve: Serve) -> None:
    """All of them go on."""
    served = serve(stdout="stream")
    clients = [served.connect("stdout") for _ in range(400)]
    wait_for(lambda: served.status()["clients"] == len(clients), "the clients")
    served.exchange()
    wait_for(lambda: served.attachable.hear() and served.status()["clients"] == len(clients), "them")
    served.write(b"all\n")
    for client in clients:
        assert read_until(client, b"\n") == b"all\n"
        client.close()
    served.end()


def test_a_sidecar_killed_while_it_hands_clients_over(serve: Serve) -> None:
    """Clients that are not handed over are disconnected, and the next sidecar serves the others and new ones."""
    served = serve(stdout="stream")
    clients = [served.connect("stdout") for _ in range(400)]
    wait_for(lambda: served.status()["clients"] == len(clients), "the clients")
    leaving = served.leave()
    assert served.attachable.predecessor is not None
    select.select([served.attachable.predecessor], [], [])
    os.kill(leaving, signal.SIGKILL)
    os.waitpid(leaving, 0)
    served.start(renewed=True)
    served.write(b"all\n")
    answers = [client.recv(100) for client in clients]
    assert set(answers) == {b"all\n", b""}
    with served.session("stdout") as later:
        assert INTERRUPTED in read_until(later.streams["stdout"], b"all\n")
    for client in clients:
        client.close()
    served.end()


@pytest.mark.parametrize(
    "message",
    [
        {"peers": [{"output": "stdout"}]},
        {"session": 7, "peers": []},
        {"session": [True, True, True], "peers": [{}] * 30},
        {"left": True, "typed": None},
        {"other": 1},
    ],
)
def test_a_sidecar_before_that_talks_nonsense(serve: Serve, message: object) -> None:
    """The next sidecar serves without such clients, and no descriptor is left open."""
    served = serve(stdout="stream")
    served.kill()
    served.attachable.predecessor, theirs = socket_pair()
    served.attachable.predecessor.setblocking(False)
    ours, other = socket.socketpair()
    send_message(theirs, message, [other.fileno()])
    other.close()
    pid = served.start(renewed=True)
    assert ours.recv(1) == b""
    ours.close()
    theirs.close()
    served.write(b"text\n")
    with served.connect("stdout") as client:
        assert b"text\n" in read_until(client, b"text\n")
    assert served.sidecar == pid
    served.end()


def test_a_sidecar_before_that_says_nothing(serve: Serve) -> None:
    """The next sidecar lets clients in all the same, and counts them."""
    served = serve(stdout="stream")
    served.kill()
    served.attachable.predecessor, silent = socket_pair()
    served.attachable.predecessor.setblocking(False)
    served.start(renewed=True)
    served.write(b"text\n")
    with silent, served.connect("stdout") as client:
        assert b"text\n" in read_until(client, b"text\n")
        assert served.status()["clients"] == 1
    served.end()


# Clients that misbehave.


@pytest.mark.parametrize(
    "message",
    [
        b"garbage",
        b"{}",
        b"[]",
        b'{"op": "attach"}',
        b'{"op": "attach", "streams": ["stdin"]}',
        b'{"op": "attach", "streams": ["tty-out"]}',
        b'{"op": "attach", "streams": ["stdout", "stdout"]}',
        b'{"op": "resize", "size": [1, 2]}',
        b'{"op": "take-stdin"}',
        b"x" * 65_536,
    ],
)
def test_what_is_no_request(serve: Serve, message: bytes) -> None:
    """It is answered with an error and the end of the session, and others are served as before."""
    served = serve(stdout="stream")
    with served.session() as client:
        client.socket.send(message)
        reply = client.receive()
        assert reply["ok"] is False
        assert reply["error"]
        assert client.receive() == {}
    with served.session("stdout") as client:
        assert client.reply["ok"]
    served.end()


def test_descriptors_that_are_no_sockets(serve: Serve) -> None:
    """A file, a pipe or a datagram socket is refused."""
    served = serve(stdout="stream")
    pipe = os.pipe()
    datagrams = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for fd in (pipe[1], datagrams[0].fileno(), os.open("/dev/null", os.O_RDWR)):
        with served.session() as client:
            socket.send_fds(client.socket, [b'{"op": "attach", "streams": ["stdout"]}'], [fd])
            reply = client.receive()
            assert reply["ok"] is False
            assert "socket" in reply["error"]
    served.end()


def test_a_session_that_is_attached_twice(serve: Serve) -> None:
    """The second request is refused and the first holds."""
    served = serve(stdout="stream")
    with served.session("stdout") as client:
        stream = client.streams["stdout"]
        assert client.attach(["stdout"])["ok"] is False
        served.write(b"x\n")
        assert read_until(stream, b"x\n")
    served.end()


def test_garbage_on_an_output(serve: Serve) -> None:
    """Input to a socket of an output goes nowhere."""
    served = serve(stdin="stream", stdout="stream")
    with served.connect("stdout") as client:
        client.sendall(b"garbage" * 100)
        served.write(b"x\n")
        assert read_until(client, b"x\n") == b"x\n"
        assert not select.select([served.app["stdin"]], [], [], 0)[0]
    served.end()


def test_a_thousand_clients(serve: Serve) -> None:
    """Each of them gets the output, and all of them may go at once."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    try:
        served = serve(stdout="stream")
        clients = [served.connect("stdout") for _ in range(1000)]
        wait_for(lambda: served.status()["clients"] == 1000, "all clients")
        served.write(b"to all\n")
        assert {read_until(client, b"\n") for client in clients} == {b"to all\n"}
        for client in clients:
            client.close()
        wait_for(lambda: served.status()["clients"] == 0, "nobody")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    served.end()


def test_more_clients_than_there_can_be(serve: Serve) -> None:
    """Those beyond the limit are refused, and those before are served."""
    served = serve(stdout="stream")
    served.kill()

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))

    served.start(prepare=limit)
    clients = [served.connect("stdout") for _ in range(100)]
    wait_for(lambda: served.status()["clients"] > 10, "some clients")
    served.write(b"x\n")
    assert read_until(clients[0], b"x\n") == b"x\n"
    assert closed(clients[-1])
    for client in clients:
        client.close()
    served.end()


def test_counters(serve: Serve) -> None:
    """They are told to clients as PID 1 reads them, and go on with the next sidecar."""
    served = serve(stdin="stream", stdout="stream")
    with served.session("stdin", "stdout") as client:
        served.write(b"four")
        read_until(client.streams["stdout"], b"four")
        client.streams["stdin"].sendall(b"in")
        assert os.read(served.app["stdin"], 10) == b"in"
        expected = {"clients": 1, "rows": 0, "columns": 0, "bytes_in": 2, "bytes_out": 4, "dropped_bytes": 0}
        assert client.ask(op="status") == {"ok": True, **expected}
        assert served.status() == expected
    served.renew()
    with served.session() as client:
        assert client.ask(op="status") == {"ok": True, **expected}
    served.end()


@pytest.mark.parametrize(
    "message",
    [b"\xff\0", b"{", b"[]", b"1", b'{"input-ended"', b'{"input-ended":true}' + b" " * 70_000, b'{"a":' * 20_000],
)
def test_nonsense_from_a_sidecar(serve: Serve, message: bytes) -> None:
    """PID 1 takes it for the end of what the sidecar has to say, keeps what it holds, and no descriptor of it."""
    served = serve(stdin="stream", stdout="stream")
    served.kill()
    theirs = served.connect_sidecar()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    before = (dict(served.attachable.held), sorted(os.listdir("/proc/self/fd")))
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("2i", 0, 1))]
    theirs.sendmsg([message], rights)
    assert not served.attachable.hear()
    theirs.sendmsg([b'{"something":"else"}'], rights)
    assert served.attachable.hear()
    assert (served.attachable.held, sorted(os.listdir("/proc/self/fd"))) == before
    theirs.close()
    assert not served.attachable.hear()


def test_a_sidecar_that_never_stops_talking(serve: Serve) -> None:
    """PID 1 hears some of it at a time."""
    served = serve(stdin="stream")
    served.kill()
    theirs = served.connect_sidecar()
    theirs.setblocking(False)
    sent = 0
    with suppress(BlockingIOError):
        while True:
            theirs.send(b"{}")
            sent += 1
    assert served.attachable.hear()
    with suppress(BlockingIOError):
        while True:
            theirs.send(b"{}")
            sent -= 1
    assert sent > 0
    theirs.close()


def test_a_client_that_comes_with_the_end(serve: Serve) -> None:
    """Whoever has connected when the output ends gets what is kept, and one that never asks is refused in the end."""
    served = serve(stdout="stream")
    served.write(b"kept\n")
    wait_for(lambda: served.status()["bytes_out"] == len(b"kept\n"), "the output")
    assert served.sidecar is not None
    os.kill(served.sidecar, signal.SIGSTOP)
    with served.session() as client, served.session() as silent:
        served.close_app()
        os.kill(served.sidecar, signal.SIGCONT)
        # At its end it says nothing before it is asked.
        assert client.attach(["stdout"])["ok"]
        assert client.streams["stdout"].recv(100) == b"kept\n"
        client.wait_ended()
        served.wait_end()
        assert silent.receive() == {"ok": False, "error": "its output has ended"}
