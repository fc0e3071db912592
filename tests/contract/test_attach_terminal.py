"""`attach` in front of a terminal, as a person uses it."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyte
import pytest

from tests.support.attach import APP, STREAMS, TERMINAL, attach, attach_words, kill_sidecar, start_app
from tests.support.pods import MakePod, PodDirectory
from tests.support.processes import children_of
from tests.support.terminal import CTRL_C, CTRL_D, Terminal
from tests.support.waiting import wait_for

SHELL = "PS1='app> ' exec sh -i"
# Asked by busybox at each prompt.
CURSOR_QUERY = b"\x1b[6n"
DETACH = b"\x10\x11"
DETACHED = rb"attach: detached\r\n"


@pytest.fixture
def pod(make_pod: MakePod) -> PodDirectory:
    """A pod with a shell on a terminal of its own."""
    return start_app(make_pod, SHELL, TERMINAL)


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """The caller's terminal, of a size that no default has."""
    with Terminal(30, 100) as terminal:
        yield terminal


@pytest.mark.private_users
def test_a_session(pod: PodDirectory, terminal: Terminal) -> None:
    """
    The app's terminal takes its size from the caller's, which is raw, at once and at every change; the keys detach,
    the next one sees what was shown last, and the app's end is the end.
    """
    before = terminal.settings
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    assert terminal.is_raw
    terminal.type(b"stty size\r")
    terminal.expect(rb"\r\n30 100\r\n")
    terminal.resize(31, 90)
    terminal.type(b"until stty size | grep '31 90'; do sleep 0.01; done; sh -c 'echo as\"\"leep; sleep 1000'\r")
    terminal.expect(rb"\r\n31 90\r\nasleep\r\n")
    # An ordinary byte for the app's terminal.
    terminal.type(CTRL_C)
    terminal.expect(rb"\^C\r\napp> ")
    terminal.type(DETACH)
    terminal.expect(DETACHED)
    assert terminal.finish(client) == 0
    assert terminal.settings == before
    with attach(pod, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as piped:
        assert piped.stdout is not None
        assert CURSOR_QUERY in os.read(piped.stdout.fileno(), 1 << 16)
        piped.send_signal(signal.SIGINT)
    client = attach(pod, terminal=terminal)
    # What would be answered once more is left out at a terminal alone.
    shown = terminal.expect(rb".*\r\n31 90\r\n.*app> ").group()
    assert CURSOR_QUERY not in shown
    terminal.type(b"exit 7\r")
    assert terminal.finish(client) == 0
    assert terminal.settings == before
    assert pod.wait_status(APP) == 7


def test_without_a_replay(pod: PodDirectory, terminal: Terminal) -> None:
    """With --no-replay nothing is shown that was there before."""
    with Terminal() as other:
        client = attach(pod, terminal=other)
        other.expect(rb"app> ")
        other.type(b"echo $((6*7))\r")
        other.expect(rb"42\r\napp> ")
        other.type(DETACH)
        assert other.finish(client) == 0
    client = attach(pod, "--no-replay", terminal=terminal)
    terminal.read_until(lambda: terminal.is_raw)
    terminal.type(b"echo $((7*7))\r")
    terminal.expect(rb"49\r\n")
    assert b"42" not in terminal.seen
    terminal.type(DETACH)
    assert terminal.finish(client) == 0


def test_the_first_detach_key_alone(make_pod: MakePod, terminal: Terminal) -> None:
    """It reaches the app, if nothing follows or another key does."""
    pod = start_app(make_pod, "stty raw -echo; echo ready; dd bs=1 count=4 2>/dev/null | od -An -tx1", TERMINAL)
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"ready")
    terminal.type(b"\x10x\x10\x10")
    assert terminal.finish(client) == 0
    assert terminal.seen.split() == [b"10", b"78", b"10", b"10"]


def test_other_detach_keys(pod: PodDirectory, terminal: Terminal) -> None:
    """With other keys, or with none, those of the default mean nothing."""
    client = attach(pod, "--detach-keys=ctrl-x,q", terminal=terminal)
    terminal.expect(rb"app> ")
    terminal.type(b"echo " + DETACH + b"$((6*7))\r")
    terminal.expect(rb"42\r\napp> ")
    terminal.type(b"\x18q")
    terminal.expect(DETACHED)
    assert terminal.finish(client) == 0
    client = attach(pod, "--detach-keys=none", terminal=terminal)
    terminal.expect(rb"app> ")
    terminal.type(b"echo " + DETACH + b"$((7*7))\r")
    terminal.expect(rb"49\r\napp> ")
    terminal.type(b"exit\r")
    assert terminal.finish(client) == 0


@pytest.mark.parametrize("keys", [DETACH, CTRL_C])
def test_who_only_looks_on(pod: PodDirectory, terminal: Terminal, keys: bytes) -> None:
    """With --read-only the output is shown, neither keys nor the size reach the app, and Ctrl-C detaches, too."""
    with Terminal(24, 80) as other:
        client = attach(pod, terminal=other)
        other.expect(rb"app> ")
        onlooker = attach(pod, "--read-only", terminal=terminal)
        terminal.expect(rb"app> ")
        terminal.type(b"exit 3\r")
        terminal.resize(50, 132)
        terminal.type(keys)
        terminal.expect(DETACHED)
        assert terminal.finish(onlooker) == 0
        assert not terminal.is_raw
        other.type(b"stty size\r")
        other.expect(rb"\r\n24 80\r\n")
        other.type(b"exit 4\r")
        assert other.finish(client) == 0
    assert pod.wait_status(APP) == 4


def test_taking_the_input_over(pod: PodDirectory, terminal: Terminal) -> None:
    """
    Everybody sees all, one has the input: the first, then who takes it over, and then the one before, whose typing in
    between is for nobody.
    """
    first = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    with Terminal(20, 60) as other:
        second = attach(pod, terminal=other)
        other.expect(rb"another client has the input; --take-stdin takes it over\r\n")
        other.type(b"exit 3\r")
        other.type(DETACH)
        assert other.finish(second) == 0
        second = attach(pod, "--take-stdin", terminal=other)
        terminal.expect(rb"attach: another client has taken the input over\r\n")
        terminal.type(b"exit 4\r")
        other.type(b"stty size\r")
        for each in (terminal, other):
            each.expect(rb"\r\n20 60\r\n")
        other.type(DETACH)
        assert other.finish(second) == 0
    terminal.expect(rb"attach: the input is yours\r\n")
    terminal.type(b"exit 5\r")
    assert terminal.finish(first) == 0
    assert pod.wait_status(APP) == 5


@pytest.mark.private_users
def test_a_killed_sidecar(pod: PodDirectory, terminal: Terminal) -> None:
    """
    The client says so and goes on with the next one, without what was shown already, and with the input that it had,
    whichever client is the first there.
    """
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    terminal.type(b"echo $((6*7))\r")
    terminal.expect(rb"42\r\napp> ")
    with Terminal() as other:
        waiting = attach(pod, terminal=other)
        other.expect(rb"another client has the input")
        kill_sidecar(pod)
        for each in (terminal, other):
            each.expect(rb'\r\nattach: the sidecar of app "web" was killed; attaching again\r\n')
        assert terminal.is_raw
        # Typed for nobody before it is known whose the input is.
        other.expect(rb"another client has ")
        terminal.type(b"echo $((7*7))\r")
        for each in (terminal, other):
            shown = each.expect(rb".*49\r\napp> ").group()
            assert b"42" not in shown
        other.type(DETACH)
        assert other.finish(waiting) == 0
    terminal.type(DETACH)
    assert terminal.finish(client) == 0


@pytest.mark.parametrize(("rows", "columns"), [(31, 97), (0, 0)])
def test_the_size_at_first(make_pod: MakePod, rows: int, columns: int) -> None:
    """Before anybody attaches, an app has the size of the terminal that the pod is started at, if that has one."""
    with Terminal(rows, columns) as terminal:
        pod = start_app(make_pod, "stty size > /tmp/size; read x", TERMINAL, terminal)
        pod.wait_file(APP, "/tmp/size")
        size = wait_for(lambda: pod.file(APP, "/tmp/size").read_text().split(), "the size")
        assert size == [f"{rows or 24}", f"{columns or 80}"]
        attached = wait_for(lambda: pod.ask({"op": "state"})["apps"][0]["attached"], "the counters")
        assert [attached["rows"], attached["columns"]] == [rows or 24, columns or 80]


def test_a_screen_is_given_back(make_pod: MakePod) -> None:
    """After detaching from a full-screen program the screen is as before, and the cursor at its place."""
    script = r"printf '\033[?1049h\033[?25l\033[?2004h\033[2;5r\033[1;31mediting'; read x"
    pod = start_app(make_pod, script, TERMINAL)
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    with Terminal(24, 80) as terminal:
        client = attach(pod, terminal=terminal)
        stream.feed(terminal.expect(rb".*editing").group())
        assert screen.margins is not None and screen.cursor.hidden
        terminal.type(DETACH)
        assert terminal.finish(client) == 0
        stream.feed(terminal.seen)
    assert terminal.seen.endswith(b"\x1b[?1049l\x1b[?2004l\x1b[m\r\nattach: detached\r\n")
    new = pyte.Screen(80, 24)
    assert (screen.mode, screen.margins, screen.cursor.hidden) == (new.mode, new.margins, new.cursor.hidden)
    assert screen.cursor.attrs == new.cursor.attrs


def test_a_screen_is_drawn_anew(make_pod: MakePod) -> None:
    """A client that comes back with a window of the same size sees all of a full-screen program, without any replay."""
    draw = r"printf '\033[2J\033[H%s\nline\n%s\033[H' top $(stty size | cut -d' ' -f1)"
    pod = start_app(make_pod, f'trap "{draw}" WINCH; {draw}; while :; do read x; done', TERMINAL)
    with Terminal(24, 80) as terminal:
        client = attach(pod, terminal=terminal)
        terminal.expect(rb"top")
        terminal.type(DETACH)
        assert terminal.finish(client) == 0
    screen = pyte.Screen(80, 24)
    stream = pyte.ByteStream(screen)
    with Terminal(24, 80) as terminal:
        client = attach(pod, "--no-replay", terminal=terminal)
        stream.feed(terminal.expect(rb"(?s).*top\r\nline\r\n24\x1b\[H").group())
        assert [line.rstrip() for line in screen.display[:4]] == ["top", "line", "24", ""]
        assert (screen.cursor.y, screen.cursor.x) == (0, 0)
        terminal.type(DETACH)
        assert terminal.finish(client) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_signals(pod: PodDirectory, terminal: Terminal, number: signal.Signals) -> None:
    """A signal that ends the client leaves the terminal as it was."""
    before = terminal.settings
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    client.send_signal(number)
    assert terminal.finish(client) == -number
    assert terminal.settings == before


def test_interrupted(pod: PodDirectory, terminal: Terminal) -> None:
    """SIGINT detaches."""
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    client.send_signal(signal.SIGINT)
    terminal.expect(DETACHED)
    assert terminal.finish(client) == 0
    assert not terminal.is_raw


def test_stopped_and_continued(pod: PodDirectory, terminal: Terminal, tmp_path: Path) -> None:
    """While the client is stopped the terminal is the shell's, as it was; then it is raw again, with its new size."""
    words = " ".join(attach_words(pod))
    shell = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        cwd=pod.path,
        env={**os.environ, "PS1": "shell> "},
        **terminal.options,
    )
    terminal.expect(rb"shell> ")
    terminal.type(words.encode() + b"\n")
    terminal.expect(rb"\r\napp> ")
    [client] = children_of(shell.pid)
    os.kill(client, signal.SIGTSTP)
    terminal.expect(rb"Stopped.*shell> ")
    assert not terminal.is_raw
    terminal.resize(40, 120)
    terminal.type(b"fg\n")
    assert terminal.read_until(lambda: terminal.is_raw)
    terminal.type(b"stty size\r")
    terminal.expect(rb"\r\n40 120\r\n")
    terminal.type(DETACH)
    terminal.expect(DETACHED + rb"shell> ")
    terminal.type(b"exit\n")
    assert terminal.finish(shell) == 0


def test_a_closed_window(pod: PodDirectory) -> None:
    """A client whose terminal goes away ends, and the app does not."""
    terminal = Terminal()
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"app> ")
    terminal.close()
    assert client.wait(90) == -signal.SIGHUP
    assert pod.status(APP) is None


def test_single_streams(make_pod: MakePod, terminal: Terminal) -> None:
    """Without a terminal of the app's the caller's is left alone: lines are edited, Ctrl-D ends the input."""
    pod = start_app(make_pod, 'while read x; do echo "got $x"; done; echo over; read x', STREAMS)
    client = attach(pod, terminal=terminal)
    terminal.type(b"onf\x7fe\n")
    terminal.expect(rb"got one\r\n")
    assert not terminal.is_raw
    terminal.type(CTRL_D)
    terminal.expect(rb"over\r\n")
    assert terminal.finish(client) == 0


def test_ctrl_c_on_single_streams(make_pod: MakePod, terminal: Terminal) -> None:
    """There Ctrl-C detaches, and the app goes on with its input open."""
    pod = start_app(make_pod, 'while read x; do echo "got $x"; done', STREAMS)
    for word in (b"one", b"two"):
        client = attach(pod, terminal=terminal)
        terminal.type(word + b"\n")
        terminal.expect(rb"got " + word)
        terminal.type(CTRL_C)
        terminal.expect(DETACHED)
        assert terminal.finish(client) == 0
    assert pod.status(APP) is None


def test_input_that_is_piped_into_a_terminal(make_pod: MakePod) -> None:
    """It ends as somebody who types ends it, and so does a client that has nothing else."""
    pod = start_app(make_pod, "cat > /tmp/file; echo over; cat", TERMINAL)
    words = attach_words(pod, "--tty-in=true", action="custom-attach")[1:]
    result = pod.call("attach", *words, input="one\ntwo")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    file = pod.wait_file(APP, "/tmp/file")
    wait_for(lambda: file.read_text() == "one\ntwo", "the input in the app")
    assert pod.status(APP) is None


def test_a_stream_and_a_terminal(make_pod: MakePod, terminal: Terminal) -> None:
    """Lines are made by the caller's terminal if the app's input is a stream, also if its output is a terminal."""
    pod = start_app(make_pod, 'while read x; do echo "got $x"; done', {"stdin": "stream", "stdout": "tty"})
    client = attach(pod, terminal=terminal)
    terminal.type(b"onf\x7fe\n")
    terminal.expect(rb"got one\r+\n")
    assert not terminal.is_raw
    terminal.type(CTRL_D)
    assert terminal.finish(client) == 0


def test_a_terminal_and_a_stream(make_pod: MakePod, terminal: Terminal) -> None:
    """Lines of a stream beside the app's terminal begin in the first column."""
    pod = start_app(make_pod, "echo one; echo two; read x", {"stdin": "tty", "stdout": "stream"})
    client = attach(pod, terminal=terminal)
    terminal.expect(rb"one\r\ntwo\r\n")
    terminal.type(b"\r")
    assert terminal.finish(client) == 0
