"""A command that is entered from a terminal: a pty of the pod in front of it, and the caller's terminal afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support.pods import MakePod, PodDirectory, shell
from tests.support.processes import children_of, descriptors_of, named, status_of
from tests.support.terminal import CTRL_BACKSLASH, CTRL_C, CTRL_D, CTRL_Z, Terminal
from tests.support.usersession import kept_variables
from tests.support.waiting import wait_for

FOREVER = "while :; do sleep 1; done"
STTY, TTY = "/bin/busybox stty", "/bin/busybox tty"
PROMPT = rb"app> (\x1b\[6n)?"


@pytest.fixture
def pod(make_pod: MakePod) -> PodDirectory:
    """A running pod with an app of root and one of another user."""
    environment = [{"name": "PS1", "value": "app> "}]
    apps = {"a": shell(FOREVER, environment=environment), "user": shell(FOREVER, user="1000", group="1000")}
    pod = make_pod(apps)
    pod.start()
    pod.wait_ready()
    return pod


@pytest.fixture
def terminal() -> Iterator[Terminal]:
    """A terminal."""
    with Terminal(rows=31, columns=97) as terminal:
        yield terminal


def enter(
    pod: PodDirectory,
    terminal: Terminal,
    *command: str,
    app: str = "a",
    flags: Sequence[str] = (),
    under: Sequence[str] = (),
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Enter in front of a terminal; `options` may redirect some streams."""
    words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", f"--appname={app}", *flags, "--", *command]
    if "env" in options:
        options["env"] = {**options["env"], **kept_variables()}
    return subprocess.Popen([*under, *words], cwd=pod.path, **{**terminal.options, **options})


def run(pod: PodDirectory, terminal: Terminal, script: str, **options: Any) -> bytes:
    """Run a script to its end and return what the terminal showed."""
    assert terminal.finish(enter(pod, terminal, "sh", "-c", script, **options)) == 0
    return terminal.seen


def running_command(enter: subprocess.Popen[bytes], name: str) -> int:
    """Return the pid of the command when it is executed."""

    def find() -> int | None:
        try:
            return next((pid for pid in children_of(enter.pid) if status_of(pid)["Name"] == name), None)
        except (FileNotFoundError, ProcessLookupError):
            return None

    return wait_for(find, name)


# What the command has.


@pytest.mark.private_users
def test_a_command_of_the_apps_user_owns_its_terminal(pod: PodDirectory, terminal: Terminal) -> None:
    """So it can open it anew."""
    script = "id -u; stat -c %u $(/bin/busybox tty); echo again > /dev/tty"
    shown = run(pod, terminal, script, app="user", flags=("--as-app",))
    assert shown.split() == [b"1000", b"1000", b"again"]


@pytest.mark.private_users
@pytest.mark.parametrize("app", ["a", "user"])
def test_a_command_has_a_terminal_of_the_pod(pod: PodDirectory, terminal: Terminal, app: str) -> None:
    """All three streams are a pty of the pod's own devpts, of the caller's size and type; it is root's."""
    script = f"{STTY} size; {TTY}; echo $TERM; readlink /proc/self/fd/1; stat -c %u:%g:%a:%t /dev/pts/0; {FOREVER}"
    process = enter(pod, terminal, "sh", "-c", script, app=app, env={"TERM": "special"})
    terminal.expect(rb"^31 97\r\n/dev/pts/0\r\nspecial\r\n\S+\r\n0:5:620:88\r\n")
    command = running_command(process, "sh")
    files = [os.stat(f"/proc/{command}/fd/{fd}") for fd in descriptors_of(command)]
    assert len(files) == 3
    assert len({(file.st_dev, file.st_ino) for file in files}) == 1
    own = os.stat(f"/proc/{pod.pid}/root/dev/pts/0")
    assert (files[0].st_dev, files[0].st_ino) == (own.st_dev, own.st_ino)
    assert files[0].st_dev != os.fstat(terminal.slave).st_dev
    terminal.type(CTRL_C)
    assert terminal.finish(process) == -signal.SIGINT


def test_the_callers_terminal_is_out_of_reach(pod: PodDirectory, terminal: Terminal) -> None:
    """By no descriptor and not by /dev/tty, also when all its streams are redirected."""
    script = "echo to-tty > /dev/tty; ls -l /proc/self/fd | wc -l"
    files = subprocess.DEVNULL, subprocess.PIPE, subprocess.PIPE
    streams: dict[str, Any] = dict(zip(("stdin", "stdout", "stderr"), files))
    process = enter(pod, terminal, "sh", "-c", script, **streams)
    output, errors = process.communicate(timeout=90)
    assert b"/dev/tty" in errors and output.strip() == b"5"  # a line for the total, one for the directory itself
    assert not terminal.read_until(lambda: terminal.seen != b"", 0.2)


def test_nothing_is_left_of_it(pod: PodDirectory, terminal: Terminal) -> None:
    """The pty goes with the command."""
    assert run(pod, terminal, "ls /dev/pts") == b"0     ptmx\r\n"
    assert os.listdir(f"/proc/{pod.pid}/root/dev/pts") == ["ptmx"]


def test_several_at_a_time(pod: PodDirectory, terminal: Terminal) -> None:
    """Each has its own."""
    first = enter(pod, terminal, "sh", "-c", f"{TTY}; read line")
    terminal.expect(rb"/dev/pts/0\r\n")
    with Terminal() as other:
        assert run(pod, other, TTY) == b"/dev/pts/1\r\n"
    terminal.type(b"\r")
    assert terminal.finish(first) == 0


# Typing.


@pytest.mark.private_users
def test_a_shell(pod: PodDirectory, terminal: Terminal) -> None:
    """It has job control: Ctrl-Z stops what runs in it, Ctrl-C ends it, and the shell goes on."""
    process = enter(pod, terminal, "sh", "-i")
    terminal.expect(PROMPT)
    wait_for(lambda: terminal.is_raw, "the raw mode")
    terminal.type(b"sleep 1000\r")
    terminal.expect(rb"sleep 1000\r\n")
    wait_for(lambda: _is_in_front(process), "sleep")
    terminal.type(CTRL_Z)
    terminal.expect(rb"Stopped")
    terminal.expect(PROMPT)
    terminal.type(b"fg\r")
    terminal.expect(rb"sleep 1000\r\n")
    wait_for(lambda: _is_in_front(process), "sleep again")
    terminal.type(CTRL_C)
    terminal.expect(PROMPT)
    terminal.type(b"exit 7\r")
    assert terminal.finish(process) == 7
    assert not terminal.is_raw


def _is_in_front(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a sleep is what the shell runs in the foreground."""
    [shell] = children_of(process.pid)
    for pid in named(children_of(shell), "sleep"):
        # proc(5): after the name come the state, the parent, the group, the session, the terminal and its group.
        with suppress(FileNotFoundError, ProcessLookupError):
            _, _, fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")
            state, _, group, _, _, foreground, *_ = fields.split()
            if group == foreground and state != "T":
                return True
    return False


@pytest.mark.parametrize(("key", "number"), [(CTRL_C, signal.SIGINT), (CTRL_BACKSLASH, signal.SIGQUIT)])
def test_keys_are_the_commands(pod: PodDirectory, terminal: Terminal, key: bytes, number: int) -> None:
    """A signal that ends it ends `enter` too, with the terminal as it was."""
    before = terminal.settings
    process = enter(pod, terminal, "sh", "-c", "echo up; exec sleep 1000")
    terminal.expect(rb"up")
    wait_for(lambda: terminal.is_raw, "the raw mode")
    running_command(process, "sleep")
    terminal.type(key)
    assert terminal.finish(process) == -number
    assert terminal.settings == before


def test_end_of_file(pod: PodDirectory, terminal: Terminal) -> None:
    """Ctrl-D."""
    process = enter(pod, terminal, "cat")
    terminal.type(b"line\r")
    terminal.expect(rb"line\r\nline\r\n")
    terminal.type(CTRL_D)
    assert terminal.finish(process) == 0


def test_the_size_follows(pod: PodDirectory, terminal: Terminal) -> None:
    """The command hears of it."""
    script = f"trap '{STTY} size' WINCH; echo up; while :; do sleep 0.05; done"
    process = enter(pod, terminal, "sh", "-c", script)
    terminal.expect(rb"up")
    wait_for(lambda: terminal.is_raw, "the raw mode")
    terminal.resize(50, 132)
    terminal.expect(rb"50 132")
    terminal.type(CTRL_C)
    terminal.finish(process)


def test_everything_is_shown(pod: PodDirectory, terminal: Terminal) -> None:
    """However much there is at the end, and though something else has the terminal still open."""
    shown = run(pod, terminal, "sleep 1000 & seq 1 20000; echo the end")
    assert shown.endswith(b"20000\r\nthe end\r\n")
    assert shown.count(b"\n") == 20001


# Some streams that are no terminal.


def test_input_from_a_pipe(pod: PodDirectory, terminal: Terminal) -> None:
    """It is passed in as it is; output is shown by a pty, and the terminal stays as it is: nobody reads its keys."""
    before = terminal.settings
    process = enter(pod, terminal, "sh", "-c", f"cat; {TTY} || {TTY} <&1; {STTY} -a <&1", stdin=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"from a pipe\n")
    process.stdin.close()
    assert terminal.finish(process) == 0
    assert terminal.seen.startswith(b"from a pipe\r\nnot a tty\r\n/dev/pts/0\r\n")
    assert b"columns 97" in terminal.seen
    assert terminal.settings == before


@pytest.mark.parametrize("errors_too", [False, True])
def test_output_to_a_file(pod: PodDirectory, terminal: Terminal, tmp_path: Path, errors_too: bool) -> None:
    """It is passed in as it is, and so may be all output: what is typed is still echoed."""
    with open(tmp_path / "output", "wb") as file:
        streams: dict[str, Any] = {"stdout": file, **({"stderr": file} if errors_too else {})}
        process = enter(pod, terminal, "sh", "-c", f"{TTY}; read line; echo $line; echo error >&2", **streams)
        wait_for(lambda: terminal.is_raw, "the raw mode")
        terminal.type(b"typed\r")
        assert terminal.finish(process) == 0
    expected = "/dev/pts/0\ntyped\n" + ("error\n" if errors_too else "")
    assert (tmp_path / "output").read_text() == expected
    assert terminal.seen == b"typed\r\n" + (b"" if errors_too else b"error\r\n")


# How it ends.


@pytest.mark.parametrize(("command", "code"), [("not-there", 127), ("/etc", 126), ("true", 0)])
def test_the_settings_come_back(pod: PodDirectory, terminal: Terminal, command: str, code: int) -> None:
    """The settings come back after any end; messages are shown, on lines that begin in the first column."""
    before = terminal.settings
    assert terminal.finish(enter(pod, terminal, command)) == code
    assert terminal.settings == before
    assert terminal.seen.replace(b"\r\n", b"").count(b"\n") == 0
    assert (b"Error: " in terminal.seen) == bool(code)


def test_nothing_could_be_entered(pod: PodDirectory, terminal: Terminal) -> None:
    """One line, and the terminal was never touched."""
    before = terminal.settings
    assert terminal.finish(enter(pod, terminal, "true", app="nobody")) == 254
    assert terminal.seen == b'enter: supervisor of this pod: no app "nobody" in this pod\r\n'
    assert terminal.settings == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_enter(pod: PodDirectory, terminal: Terminal, number: int) -> None:
    """It is the command's, and its end gives the terminal back."""
    before = terminal.settings
    process = enter(pod, terminal, "sh", "-c", "echo up; exec sleep 1000")
    terminal.expect(rb"up")
    wait_for(lambda: terminal.is_raw, "the raw mode")
    running_command(process, "sleep")
    process.send_signal(number)
    assert terminal.finish(process) == -number
    assert terminal.settings == before


def test_the_pod_stops(pod: PodDirectory, terminal: Terminal) -> None:
    """The command ends with the app, and the terminal comes back."""
    before = terminal.settings
    process = enter(pod, terminal, "sh", "-c", "echo up; exec sleep 1000")
    terminal.expect(rb"up")
    pod.stop("--force")
    assert terminal.finish(process) == -signal.SIGKILL
    assert terminal.settings == before


def test_the_window_is_closed(pod: PodDirectory, terminal: Terminal) -> None:
    """The command is hung up."""
    process = enter(pod, terminal, "sh", "-c", "echo up; exec sleep 1000")
    terminal.expect(rb"up")
    wait_for(lambda: terminal.is_raw, "the raw mode")
    running_command(process, "sleep")
    terminal.close()
    assert process.wait(90) == -signal.SIGHUP


def test_enter_is_killed(pod: PodDirectory, terminal: Terminal) -> None:
    """The command's terminal hangs up with it: nothing of it stays behind."""
    process = enter(pod, terminal, "sh", "-c", "echo up; exec sleep 1000")
    terminal.expect(rb"up")
    pidfd = os.pidfd_open(running_command(process, "sleep"))
    process.kill()
    process.wait()
    wait_for(lambda: _has_ended(pidfd), "the end of the command")
    os.close(pidfd)


def _has_ended(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


def test_suspended_by_its_caller(pod: PodDirectory, terminal: Terminal, tmp_path: Path) -> None:
    """A stop by SIGTSTP gives the shell its terminal; `fg` goes on where it was."""
    script = tmp_path / "enter"
    words = [pod.entrypoint("enter", from_tree=True), f"--pid={pod.pid}", "--appname=a", "--", "cat"]
    script.write_text("#!/bin/sh\nexec " + " ".join(words) + "\n")
    script.chmod(0o755)
    bash = subprocess.Popen(
        ["bash", "--norc", "--noprofile", "--noediting", "-i"],
        cwd=pod.path,
        env={**os.environ, "PS1": "ready> "},
        **terminal.options,
    )
    terminal.expect(rb"ready> ")
    terminal.type(f"{script}\r".encode())
    wait_for(lambda: terminal.is_raw, "the raw mode")
    [process] = children_of(bash.pid)
    os.kill(process, signal.SIGTSTP)
    terminal.expect(rb"Stopped")
    terminal.expect(rb"ready> ")
    assert not terminal.is_raw
    terminal.type(b"fg\r")
    wait_for(lambda: terminal.is_raw, "the raw mode again")
    terminal.type(b"back\r")
    terminal.expect(rb"back\r\nback\r\n")
    terminal.type(CTRL_D)
    terminal.expect(rb"ready> ")
    terminal.type(b"exit\r")
    assert terminal.finish(bash) == 0
