"""The console of a pod: an app in front of the caller's terminal, and that terminal afterwards."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, app_section, guest, shell
from tests.support.processes import descriptors_of, is_alive, status_of
from tests.support.terminal import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, Terminal
from tests.support.usersession import use_data_directory, without_shown_warning
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
STTY, TTY = "/bin/busybox stty", "/bin/busybox tty"
INTERACTIVE = {"name": "coreos.com/rkt/stage2/stdin", "value": "interactive"}
SHELL = app_section("/bin/sh", environment=[{"name": "PS1", "value": "pod> "}])
PROMPT = rb"pod> (\x1b\[6n)?"


def app_pid(pod: PodDirectory) -> int:
    """Return the host pid of the pod's only app."""
    # The pid file is there a moment before the app is, and what helped to start it may be there a moment longer.
    found = wait_for(lambda: len(children := [*pod.children().values()]) == 1 and children, "the app's process alone")
    assert found
    return found[0]


# What the app has.


@pytest.mark.private_users
def test_an_app_has_a_terminal_of_the_pod(make_pod: MakePod) -> None:
    """All three streams and /dev/console are a pty of the pod's own devpts, of the caller's size and type."""
    script = (
        f"{STTY} size; {TTY}; stat -c %n:%t,%T /dev/console $({TTY}); echo $TERM; readlink /proc/self/fd/0; {FOREVER}"
    )
    pod = make_pod({"a": shell(script)})
    with Terminal(rows=31, columns=97) as terminal:
        terminal.run(pod, env={"TERM": "special"})
        terminal.expect(rb"^31 97\r\n/dev/pts/0\r\n/dev/console:88,0\r\n/dev/pts/0:88,0\r\nspecial\r\n/dev/pts/0\r\n")
        callers = os.fstat(terminal.slave)
        pid = app_pid(pod)
        apps = [os.stat(f"/proc/{pid}/fd/{fd}") for fd in descriptors_of(pid)]
        assert len(apps) == 3
        assert len({(file.st_dev, file.st_ino) for file in apps}) == 1
        assert apps[0].st_dev != callers.st_dev
        console = os.stat(f"/proc/{pid}/root/dev/console")
        assert (console.st_dev, console.st_ino) == (apps[0].st_dev, apps[0].st_ino)


@pytest.mark.private_users
def test_the_terminal_belongs_to_the_apps_user(make_pod: MakePod) -> None:
    """It can open it again by any name, and is in front of it."""
    script = (
        "stat -c %u:%g:%a /dev/console; for f in /dev/console /dev/tty /dev/stdout /dev/pts/0; do echo $f > $f; done"
    )
    pod = make_pod({"a": shell(script, user="1000", group="1000")})
    with Terminal() as terminal:
        process = terminal.run(pod)
        assert terminal.finish(process) == 0
        assert terminal.seen == b"1000:5:620\r\n/dev/console\r\n/dev/tty\r\n/dev/stdout\r\n/dev/pts/0\r\n"


def test_without_a_console_nothing_of_it_is_there(make_pod: MakePod) -> None:
    """No /dev/console, no pty, no TERM; a terminal of the caller changes nothing."""
    pod = make_pod({"a": shell(f"ls /dev/pts; echo ${{TERM-none}}; {TTY}; ls /dev/console")})
    with Terminal() as terminal:
        before = terminal.settings
        process = pod.start(stdin=terminal.slave)
        assert terminal.settings == before
        result = pod.finish(process)
    lines = [line.partition("]: ")[2] for line in result.stdout.splitlines()]
    assert lines == ["ptmx", "none", "not a tty"]
    assert "No such file" in result.stderr


def test_no_sidecar_and_no_prefix(make_pod: MakePod) -> None:
    """The app's output is shown as it is, at once, and goes to no log."""
    pod = make_pod({"a": shell(f"printf 'no end of line'; {FOREVER}")})
    with Terminal() as terminal:
        terminal.run(pod)
        terminal.expect(rb"^no end of line")
        pod.wait_ready()
        assert pod.children() == {"sh": app_pid(pod)}
    assert not (pod.status_root / "rkt/minit/log/a.log").exists()


@pytest.mark.rootless
def test_exit_code_and_status(make_pod: MakePod) -> None:
    """They are those of any other pod."""
    pod = make_pod({"a": shell("exit 7")})
    with Terminal() as terminal:
        assert terminal.finish(terminal.run(pod)) == 7
    assert pod.status("a") == 7


def test_one_stream_on_the_console(make_pod: MakePod) -> None:
    """With stdin alone, by annotation, output goes to the log, and its lines start in the first column."""
    pod = make_pod({"a": shell("read line; echo got $line; echo to stderr >&2", annotations=[INTERACTIVE])})
    with Terminal() as terminal:
        process = pod.start(net="host", **terminal.options)
        wait_for(lambda: terminal.is_raw, "the raw mode")
        terminal.type(b"word\r")
        assert terminal.finish(process) == 0
        shown = b"".join(sorted(terminal.seen.splitlines(keepends=True)))
        assert re.fullmatch(rb"a\[(\d+)\]: got word\r\na\[\1\]: to stderr\r\nword\r\n", shown)
    assert b"got word" in pod.log("a")


def test_a_console_that_is_only_written(make_pod: MakePod) -> None:
    """With stdout alone nothing is read from the caller, whose Ctrl-C stops the pod as ever."""
    annotation = {"name": "coreos.com/rkt/stage2/stdout", "value": "interactive"}
    pod = make_pod({"a": shell(f"echo up; {FOREVER}", annotations=[annotation])})
    with Terminal() as terminal:
        process = pod.start(net="host", **terminal.options)
        terminal.expect(rb"up\r+\n")
        assert not terminal.is_raw
        terminal.type(b"x" + CTRL_C)
        assert terminal.finish(process) == 0


def test_two_apps_share_the_console(make_pod: MakePod) -> None:
    """Both write to it, and it stays when the one in front of it has ended."""
    pod = make_pod(
        {
            "a": shell("echo from a; read line; echo a had $line"),
            "b": shell("echo from b; while [ ! -e /tmp/go ]; do sleep 0.01; done; echo b goes on"),
        }
    )
    with Terminal() as terminal:
        process = terminal.run(pod)
        wait_for(lambda: terminal.is_raw, "the raw mode")
        assert terminal.read_until(lambda: b"from a" in terminal.seen and b"from b" in terminal.seen)
        terminal.type(b"word\r")
        terminal.expect(rb"a had word")
        assert pod.wait_status("a") == 0
        pod.file("b", "/tmp/go").touch()
        terminal.expect(rb"b goes on")
        assert terminal.finish(process) == 0


# What the user types.


def foreground_of(pid: int) -> str:
    """Return the name of the process in front of the controlling terminal of another."""
    group = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[5]
    try:
        return status_of(int(group))["Name"]
    except (FileNotFoundError, ProcessLookupError):
        return ""  # it has ended meanwhile


@pytest.mark.private_users
def test_job_control_in_the_app(make_pod: MakePod) -> None:
    """Ctrl-C, Ctrl-Z and Ctrl-backslash reach the program in front, Ctrl-D ends the shell."""
    pod = make_pod({"a": SHELL})
    with Terminal() as terminal:
        process = terminal.run(pod)
        terminal.expect(PROMPT)
        pid = app_pid(pod)

        def sleep(command: bytes = b"sleep 1000") -> None:
            terminal.type(command + b"\r")
            wait_for(lambda: foreground_of(pid) == "sleep", "sleep in the foreground")

        for key, status in ((CTRL_C, b"130"), (CTRL_BACKSLASH, b"131")):
            sleep()
            terminal.type(key)
            terminal.expect(PROMPT)
            terminal.type(b"echo code $?\r")
            terminal.expect(rb"code " + status + rb"\r\n" + PROMPT)
        sleep()
        terminal.type(CTRL_Z)
        terminal.expect(rb"Stopped.*" + PROMPT)
        terminal.type(b"bg\r")
        terminal.expect(rb"sleep 1000\r\n" + PROMPT)
        sleep(b"fg")
        terminal.type(CTRL_C)
        terminal.expect(PROMPT)
        terminal.type(b"(exit 5)\r")
        terminal.expect(PROMPT)
        terminal.type(CTRL_D)
        assert terminal.finish(process) == 5


def test_the_size_follows(make_pod: MakePod) -> None:
    """A new size reaches the app's terminal, and the app is told."""
    script = f"trap '{STTY} size' WINCH; echo up; while :; do sleep 0.05; done"
    with Terminal() as terminal:
        terminal.run(make_pod({"a": shell(script)}))
        terminal.expect(rb"up")
        terminal.resize(11, 22)
        terminal.expect(rb"11 22\r\n")


def test_a_storm_of_sizes(make_pod: MakePod) -> None:
    """However fast they change, the last one stays, and nothing typed meanwhile is lost."""
    with Terminal() as terminal:
        process = terminal.run(make_pod({"a": shell(f"read first; echo $first; while read x; do {STTY} size; done")}))
        wait_for(lambda: terminal.is_raw, "the raw mode")
        for number in range(1000):
            terminal.resize(1 + number % 200, 1 + number)
            if number % 100 == 0:
                terminal.type(b"x")
        terminal.type(b"\r")
        terminal.expect(rb"\n" + b"x" * 10 + rb"\r\n")

        def is_right() -> bool:
            terminal.type(b"\r")
            return int(terminal.expect(rb"\d+ (\d+)\r\n")[1]) == 1000

        wait_for(is_right, "the last size")
        terminal.type(CTRL_D)
        assert terminal.finish(process) == 0


# Bytes.


def test_every_byte_passes_in_both_directions(make_pod: MakePod) -> None:
    """With the app's terminal raw: all 256, also the keys of the caller's terminal, more than fit into any buffer."""
    data = bytes(range(256)) * 4096
    script = f"{STTY} raw -echo; echo ready; head -c {len(data)}; {STTY} sane"
    with Terminal() as terminal:
        process = terminal.run(make_pod({"a": shell(script)}))
        terminal.expect(rb"^ready\n")
        typist = threading.Thread(target=terminal.type, args=(data,))
        typist.start()
        assert terminal.finish(process) == 0
        typist.join()
        assert terminal.seen == data


def test_a_long_paste(make_pod: MakePod) -> None:
    """A megabyte typed at once arrives whole, though the app is slower than the typist."""
    data = os.urandom(1 << 20)
    script = f"{STTY} raw -echo; echo ready; sleep 0.5; head -c {len(data)} | /bin/busybox md5sum"
    with Terminal() as terminal:
        process = terminal.run(make_pod({"a": shell(script)}))
        terminal.expect(rb"^ready\n")
        terminal.type(data)
        assert terminal.finish(process) == 0
        assert terminal.seen == hashlib.md5(data).hexdigest().encode() + b"  -\n"


@pytest.mark.parametrize("destination", ["terminal", "pipe", "file"])
def test_a_lot_of_output_with_a_slow_reader(make_pod: MakePod, tmp_path: Path, destination: str) -> None:
    """Ten megabytes arrive whole and in order, the last of them after the end of the pod."""
    pod = make_pod({"a": shell(f"{STTY} -opost; exec seq 1400000")})
    expected = hashlib.md5()
    for number in range(1, 1400001):
        expected.update(b"%d\n" % number)
    seen = hashlib.md5()

    def wait_until_blocked() -> None:
        wait_for(lambda: "seq" in pod.children(), "the exec")
        wait_for(lambda: status_of(app_pid(pod))["State"].startswith("S"), "the app to wait")

    with Terminal() as terminal:
        if destination == "file":
            with open(tmp_path / "output", "w+b") as file:
                assert terminal.finish(terminal.run(pod, stdout=file)) == 0
                file.seek(0)
                seen.update(file.read())
        elif destination == "pipe":
            process = terminal.run(pod, stdout=subprocess.PIPE)
            assert process.stdout is not None
            wait_until_blocked()
            while block := process.stdout.read(1 << 16):
                seen.update(block)
            assert terminal.finish(process) == 0
        else:
            process = terminal.run(pod, stderr=subprocess.DEVNULL)
            wait_until_blocked()
            os.set_blocking(terminal.master, True)
            size = sum(len(b"%d\n" % number) for number in range(1, 1400001))
            while size:
                block = os.read(terminal.master, min(size, 1 << 12))
                size -= len(block)
                seen.update(block)
            os.set_blocking(terminal.master, False)
            assert terminal.finish(process) == 0
            assert terminal.seen == b""
    assert seen.digest() == expected.digest()


@pytest.mark.parametrize("unnoticed", [False, True])
def test_output_that_nobody_takes_can_be_given_up(make_pod: MakePod, unnoticed: bool) -> None:
    """A signal ends the wait for a reader that does not read, after the end of the pod."""
    wait = "touch /tmp/up; until [ -e /tmp/go ]; do sleep 0.01; done"
    pod = make_pod({"a": shell(f"/bin/busybox yes | head -c 20000; {wait}")})
    read, write = os.pipe()
    with Terminal() as terminal:
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        process = terminal.run(pod, stdout=write)
        pod.wait_file("a", "/tmp/up")
        if unnoticed:
            # The launcher learns of the end and of the signal at once.
            process.send_signal(signal.SIGSTOP)
        pod.file("a", "/tmp/go").touch()
        wait_for(lambda: not is_alive(pod.pid), "the end of PID 1")
        assert process.poll() is None
        process.terminate()
        process.send_signal(signal.SIGCONT)
        assert terminal.finish(process) == 0
    os.close(read)
    os.close(write)


def test_a_reader_that_goes_away(make_pod: MakePod) -> None:
    """The app goes on, its output is dropped."""
    pod = make_pod({"a": shell(f"echo first; read line; {STTY} -echo; seq 100000; echo $line > /tmp/line; exit 3")})
    with Terminal() as terminal:
        process = terminal.run(pod, stdout=subprocess.PIPE)
        assert process.stdout is not None and process.stdout.readline() == b"first\r\n"
        process.stdout.close()
        terminal.type(b"word\r")
        assert terminal.finish(process) == 3
    assert pod.file("a", "/tmp/line").read_text() == "word\n"


@pytest.mark.parametrize(
    ("data", "output"),
    [
        (b"x\n", b"x\r\n"),
        (b"no newline", b"no newline"),
        (b"", b""),
        (b"a\nb", b"a\r\nb"),
        (b"\xc3\xa4\xff\xfe\x80\n", b"\xc3\xa4\xff\xfe\x80\r\n"),
        (b"line\n" * 40000, b"line\r\n" * 40000),
    ],
    ids=["line", "no newline", "empty", "lines", "bytes", "much"],
)
@pytest.mark.parametrize("kind", ["pipe", "file", "socket"])
def test_input_that_ends(make_pod: MakePod, tmp_path: Path, kind: str, data: bytes, output: bytes) -> None:
    """`echo x | minit run --interactive … cat` ends by itself and prints x, once."""
    pod = make_pod({"a": app_section("/bin/cat")})
    if kind == "file":
        (tmp_path / "input").write_bytes(data)
        with open(tmp_path / "input", "rb") as file:
            process = pod.start("--interactive", net="host", stdin=file)
    else:
        ours, theirs = socket.socketpair() if kind == "socket" else reversed(os.pipe())
        process = pod.start("--interactive", net="host", stdin=theirs)
        threading.Thread(target=_send, args=(ours, data)).start()
        (theirs.close if isinstance(theirs, socket.socket) else lambda: os.close(theirs))()
    out, err = process.communicate(timeout=90)
    assert (out, without_shown_warning(err), process.returncode) == (output, b"", 0)


@pytest.mark.parametrize("script", ["cat; read x || cat", "exec sh -i", "cat; stty -echo -icanon; head -c 11 >&2"])
def test_input_that_is_at_its_end_from_the_beginning(make_pod: MakePod, script: str) -> None:
    """With `</dev/null` every reader finds the end, not the first alone, and a shell that edits lines too."""
    pod = make_pod({"a": shell(script.replace("stty", STTY))})
    process = pod.start("--interactive", net="host", stdin=subprocess.DEVNULL)
    out, err = process.communicate(timeout=90)
    assert (without_shown_warning(err), process.returncode) == (b"", 0)
    assert out.count(b"\4") == script.count("head -c 11") * 11


def _send(to: socket.socket | int, data: bytes) -> None:
    if isinstance(to, socket.socket):
        with to:
            to.sendall(data)
    else:
        with open(to, "wb") as file:
            file.write(data)


def test_input_that_ends_without_lines(make_pod: MakePod) -> None:
    """An app whose terminal has no "end of file" gets none: that key would be a byte of its input."""
    script = f"{STTY} -icanon; echo ready; head -c 2 > /tmp/got; {STTY} min 0 time 5; cat >> /tmp/got"
    pod = make_pod({"a": shell(script)})
    process = pod.start("--interactive", net="host", stdin=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    assert process.stdout.readline() == b"ready\r\n"
    process.stdin.write(b"ab")
    process.stdin.close()
    assert process.wait(90) == 0
    assert pod.file("a", "/tmp/got").read_bytes() == b"ab"


@pytest.mark.host_users("vhangup(2) takes CAP_SYS_TTY_CONFIG on the host")
@pytest.mark.host_root("vhangup(2) takes CAP_SYS_TTY_CONFIG on the host")
def test_a_terminal_that_the_app_hangs_up(make_pod: MakePod) -> None:
    """Login programs do, and open it again: the relay goes on."""
    pod = make_pod({"a": guest("hangup", "/dev/console")})
    with Terminal() as terminal:
        process = terminal.run(pod, "--disable-capabilities-restriction", "--disable-seccomp")
        assert terminal.finish(process) == 0
        assert terminal.seen == b"again\r\n"


# The caller's terminal.


def test_raw_while_the_app_runs(make_pod: MakePod) -> None:
    """Not before the app can be typed to, and not after its end."""
    pod = make_pod({"a": shell("read line")})
    with Terminal() as terminal:
        before = terminal.settings
        process = terminal.run(pod)
        wait_for(lambda: terminal.is_raw, "the raw mode")
        assert pod.pid
        terminal.type(b"\r")
        assert terminal.finish(process) == 0
        assert terminal.settings == before


def _kill_app(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    os.kill(app_pid(pod), signal.SIGKILL)


def _stop(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    assert pod.stop().returncode == 0


def _force_stop(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    assert pod.stop("--force").returncode == 0


def _kill_pid_1(pod: PodDirectory, process: subprocess.Popen[bytes]) -> None:
    os.kill(pod.pid, signal.SIGKILL)


def _signal_launcher(number: int) -> Callable[[PodDirectory, subprocess.Popen[bytes]], None]:
    return lambda pod, process: process.send_signal(number)


@pytest.mark.parametrize(
    ("end", "code", "status"),
    [
        (_kill_app, 137, 137),
        (_stop, 0, 0),
        (_force_stop, 0, 137),
        (_kill_pid_1, -signal.SIGKILL, None),
        (_signal_launcher(signal.SIGTERM), 0, 0),
        (_signal_launcher(signal.SIGINT), 0, 0),
        (_signal_launcher(signal.SIGHUP), 0, 0),
        (_signal_launcher(signal.SIGKILL), -signal.SIGKILL, 0),
        (_signal_launcher(signal.SIGQUIT), -signal.SIGQUIT, 0),
        (_signal_launcher(signal.SIGSEGV), -signal.SIGSEGV, 0),
        (_signal_launcher(signal.SIGUSR1), -signal.SIGUSR1, 0),
    ],
    ids=[
        *("app killed", "stop", "stop by force", "PID 1 killed", "TERM", "INT", "HUP"),
        *("launcher killed", "QUIT", "SEGV", "USR1"),
    ],
)
def test_settings_after_every_end(
    make_pod: MakePod, end: Callable[[PodDirectory, subprocess.Popen[bytes]], None], code: int, status: int | None
) -> None:
    """The terminal is as it was, whoever ended the pod, and of which of the two processes only one is left."""
    pod = make_pod({"a": shell(f"echo up; {FOREVER}")})
    with Terminal() as terminal:
        before = terminal.settings
        process = terminal.run(pod)
        terminal.expect(rb"up")
        assert terminal.is_raw
        end(pod, process)
        assert terminal.finish(process) == code
        pod.wait_exited()
        assert terminal.settings == before
    assert pod.status("a") == status


@pytest.mark.parametrize(
    ("section", "code", "said"),
    [
        (app_section("/missing"), 203, rb'Error: Unable to open "/missing": No such file or directory'),
        (
            shell("true", workingDirectory="/missing"),
            254,
            rb"stage1: app \"a\": change directory to /missing: [^\r\n]*",
        ),
        (app_section("nowhere"), 254, rb"stage1: [^\r\n]*"),
    ],
    ids=["exec", "working directory", "look-up"],
)
def test_settings_after_a_failed_start(make_pod: MakePod, section: dict[str, object], code: int, said: bytes) -> None:
    """The terminal is as it was, and what went wrong starts and ends at the first column."""
    with Terminal() as terminal:
        before = terminal.settings
        process = terminal.run(make_pod({"a": section}))
        assert terminal.finish(process) == code
        assert terminal.settings == before
        assert re.fullmatch(said + rb"\r+\n", terminal.seen)


def test_somebody_elses_settings_are_left(make_pod: MakePod) -> None:
    """A terminal that was taken from the relay, say by the shell that killed it, is not changed back."""
    pod = make_pod({"a": shell(f"echo up; {FOREVER}")})
    with Terminal() as terminal:
        process = terminal.run(pod)
        terminal.expect(rb"up")
        subprocess.run(["stty", "sane", "-echo"], stdin=terminal.slave, check=True)
        other = terminal.settings
        process.kill()
        pod.wait_exited()
        assert terminal.settings == other


@contextmanager
def sized_console(make_pod: MakePod, script: Path) -> Iterator[tuple[Terminal, PodDirectory, list[Any]]]:
    """A pod run from a shell, whose app answers lines with the terminal's size; with the terminal's first settings."""
    pod = make_pod({"a": shell(f"echo up; while read line; do echo $line $({STTY} size); done")})
    with Terminal() as terminal:
        terminal.run_shell(pod, script)
        before = terminal.settings
        terminal.type(f"{script}\n".encode())
        terminal.expect(rb"up\r\n")
        yield terminal, pod, before


def test_suspended_and_continued(make_pod: MakePod, tmp_path: Path) -> None:
    """SIGTSTP gives the shell its terminal back; `fg` makes it raw again, with the size it has by then."""
    with sized_console(make_pod, tmp_path / "run") as (terminal, pod, before):
        launcher = launcher_of(pod)
        for round_ in range(3):
            assert terminal.is_raw
            os.kill(launcher, signal.SIGTSTP)
            terminal.expect(rb"Stopped.*ready> ")
            assert terminal.settings == before
            terminal.resize(10 + round_, 20)
            terminal.type(b"fg\n")
            terminal.expect(rb"/run\r\n")
            wait_for(lambda: terminal.is_raw, "the raw mode")
            terminal.type(b"word\r")
            terminal.expect(rb"word %d 20\r\n" % (10 + round_))
        terminal.type(CTRL_D)
        terminal.expect(rb"ready> ")
        assert terminal.settings == before


def test_stopped_for_good_and_continued(make_pod: MakePod, tmp_path: Path) -> None:
    """SIGSTOP cannot be answered, but `fg` still leads back to a raw terminal, and the end to the first settings."""
    pod = make_pod({"a": shell("echo up; read line; echo got $line")})
    with Terminal() as terminal:
        terminal.run_shell(pod, tmp_path / "run")
        before = terminal.settings
        terminal.type(f"{tmp_path}/run\n".encode())
        terminal.expect(rb"up\r\n")
        os.kill(launcher_of(pod), signal.SIGSTOP)
        terminal.expect(rb"Stopped.*ready> ")
        terminal.type(b"fg\n")
        terminal.expect(rb"/run\r\n")
        wait_for(lambda: terminal.is_raw, "the raw mode")
        terminal.type(b"word\r")
        terminal.expect(rb"got word\r\n.*ready> ")
        assert terminal.settings == before


def test_started_in_the_background(make_pod: MakePod, tmp_path: Path) -> None:
    """The launcher waits for the foreground like any program that wants the terminal; `bg` changes nothing."""
    pod = make_pod({"a": shell("read line; echo got $line")})
    with Terminal() as terminal:
        terminal.run_shell(pod, tmp_path / "run")
        before = terminal.settings
        terminal.type(f"{tmp_path}/run &\n".encode())
        launcher = launcher_of(pod)
        wait_for(lambda: status_of(launcher)["State"].startswith("T"), "the stop")
        assert terminal.settings == before
        terminal.type(b"bg; echo said\n")
        terminal.expect(rb"said\r\n")
        wait_for(lambda: status_of(launcher)["State"].startswith("T"), "the stop")
        assert terminal.settings == before
        # The shell continues only what it knows to have stopped.
        wait_for(lambda: says_stopped(terminal), "the shell to know")
        terminal.type(b"fg\n")
        wait_for(lambda: terminal.is_raw, "the raw mode")
        terminal.type(b"word\r")
        terminal.expect(rb"got word\r\n.*ready> ")
        assert terminal.settings == before


def says_stopped(terminal: Terminal) -> bool:
    """Ask the shell whether its job has stopped."""
    terminal.type(b"jobs; echo asked\n")
    return b"Stopped" in terminal.expect(rb"(\[1\].*)asked\r\n")[1]


def test_the_escape(make_pod: MakePod) -> None:
    """Ctrl-] three times within a second kills an app that takes no notice of SIGTERM."""
    script = f"trap '' TERM; {STTY} raw; echo up; head -c 5; {FOREVER}"
    pod = make_pod({"a": shell(script)}, annotations={"minit/stop-grace": "1h"})
    with Terminal() as terminal:
        process = terminal.run(pod)
        terminal.expect(rb"up")
        terminal.type(b"\x1d\x1da\x1d\x1d")
        terminal.expect(rb"\x1d\x1da\x1d\x1d")
        assert process.poll() is None
        terminal.type(b"\x1d\x1d\x1d")
        terminal.finish(process)
    assert pod.status("a") == 137


@pytest.mark.parametrize("output", ["terminal", "elsewhere"])
def test_a_terminal_that_is_closed(make_pod: MakePod, output: str) -> None:
    """The pod is stopped in order, and what it says to somebody else is still heard."""
    script = f"trap 'echo last words; exit 0' TERM; trap 'exit 9' HUP; echo up; touch /tmp/up; {FOREVER}"
    pod = make_pod({"a": shell(script if output == "elsewhere" else f"touch /tmp/up; {FOREVER}")})
    terminal = Terminal()
    options = {"stdout": subprocess.PIPE} if output == "elsewhere" else {}
    process = terminal.run(pod, **options)
    pod.wait_file("a", "/tmp/up")
    wait_for(lambda: terminal.is_raw, "the raw mode")
    terminal.close()
    out, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    if output == "elsewhere":
        assert out.startswith(b"up\r\n") and out.endswith(b"last words\r\n")
    assert pod.status("a") == 0


def test_a_shell_in_front_of_a_terminal_that_is_closed(make_pod: MakePod) -> None:
    """It is hung up as without a pod, though it ignores SIGTERM: nobody waits for the grace period."""
    pod = make_pod({"a": SHELL}, annotations={"minit/stop-grace": "1h"})
    terminal = Terminal()
    process = terminal.run(pod)
    terminal.expect(PROMPT)
    terminal.close()
    assert process.wait(90) == 0


@pytest.mark.private_users
def test_a_killed_launcher_hangs_up(make_pod: MakePod) -> None:
    """An interactive shell ends with its terminal."""
    pod = make_pod({"a": SHELL}, annotations={"minit/stop-grace": "1h"})
    with Terminal() as terminal:
        before = terminal.settings
        process = terminal.run(pod)
        terminal.expect(PROMPT)
        process.kill()
        pod.wait_exited()
        assert terminal.settings == before


def test_non_blocking_is_not_set_on_what_the_caller_has(make_pod: MakePod) -> None:
    """Neither while the relay runs nor after, be it a terminal or a pipe."""
    read, write = os.pipe()
    with Terminal() as terminal:
        process = terminal.run(make_pod({"a": shell("echo up >&2; read line")}), stdout=write)
        wait_for(lambda: terminal.is_raw, "the raw mode")
        assert os.read(read, 4) == b"up\r\n"
        assert os.get_blocking(terminal.slave) and os.get_blocking(write)
        terminal.type(b"\r")
        assert terminal.finish(process) == 0
        assert os.get_blocking(terminal.slave) and os.get_blocking(write)
    os.close(read)
    os.close(write)


def test_nothing_is_typed_into_the_callers_terminal(make_pod: MakePod) -> None:
    """An app that may do anything can put input into its own terminal, not into the caller's (TIOCSTI)."""
    pod = make_pod({"a": guest("inject", "echo typed\n")})
    with Terminal() as terminal:
        process = terminal.run(pod)
        assert terminal.finish(process) == 0
        waiting = bytearray(4)
        fcntl.ioctl(terminal.slave, termios.FIONREAD, waiting)
        assert waiting == bytes(4)


def test_two_runs_at_once(make_pod: MakePod) -> None:
    """Each has its own terminal, of the same name in its own pod."""
    with Terminal() as first, Terminal() as second:
        processes = [terminal.run(make_pod({"a": SHELL})) for terminal in (first, second)]
        for terminal, word in ((first, b"one"), (second, b"two")):
            terminal.expect(PROMPT)
            terminal.type(b"%s; v=%s\r" % (TTY.encode(), word))
            terminal.expect(rb"/dev/pts/0\r\n" + PROMPT)
        for terminal, word in ((first, b"one"), (second, b"two")):
            terminal.type(b"echo $v; exit\r")
            terminal.expect(rb"\n" + word + rb"\r\n")
        assert [terminal.finish(process) for terminal, process in zip((first, second), processes)] == [0, 0]


def test_an_idle_relay_does_not_wake_up(make_pod: MakePod) -> None:
    """Nothing runs while nobody types and nothing is written, or hardly ever when the caller's input has ended."""
    pods = [make_pod({"a": shell("cat; exec sleep 1000")}) for _ in range(2)]
    with Terminal() as terminal:
        processes = [terminal.run(pods[0]), pods[1].start("--interactive")]

        def switches() -> list[str]:
            return [status_of(process.pid)["voluntary_ctxt_switches"] for process in processes]

        for pod in pods:
            pod.wait_ready()
        wait_for(lambda: switches() == after_a_second(switches), "a second without a wake-up")


def after_a_second(look: Callable[[], list[str]]) -> list[str]:
    """Return what there is after a second."""
    time.sleep(1)
    return look()


def test_minit_run(work_directory: Path, stage1_image: Path, tmp_path: Path) -> None:
    """The whole way from the command: what it shows before leaves the terminal as it is."""
    minit = [sys.executable, "-m", "minit"]
    build = ["image", "build", f"--output={tmp_path}/box.aci", "--from-host=/usr/bin/busybox", "--from-host=/bin/sh"]
    subprocess.run([*minit, *build, "--exec=/bin/sh"], check=True, capture_output=True)
    use_data_directory(work_directory / "interactive")
    command = [*minit, f"--dir={work_directory}/interactive", "run", f"--stage1-path={stage1_image}"]
    with Terminal(rows=40, columns=90) as terminal:
        before = terminal.settings
        process = subprocess.Popen([*command, "--net=none", "--interactive", f"{tmp_path}/box.aci"], **terminal.options)
        terminal.expect(rb"run: press \^] three times within 1s to kill the pod\r\n.*# ")
        terminal.type(b"busybox stty size; busybox tty; exit 6\r")
        terminal.expect(rb"40 90\r\n/dev/pts/0\r\n")
        assert terminal.finish(process) == 6
        assert terminal.settings == before
    subprocess.run([*minit, f"--dir={work_directory}/interactive", "gc", "--grace-period=0s"], check=True)


def launcher_of(pod: PodDirectory) -> int:
    """Return the launcher of a pod that was started by a shell."""
    return int(status_of(pod.pid)["PPid"])
